"""Every error that Holdfast raises on purpose.

HoldfastError
├── BadNameError        a run or experiment name that cannot safely become a folder
├── SpecError           a spec that cannot be run as it is written; nothing was created
│   └── ScorerError       an unknown scorer or argument, or a function that is not a scorer
├── UsageError          a command or call that cannot be carried out as it was given
│   └── UnreachableError  its mirror cannot be reached now
├── DriftError          a resume that would mix two experiments; nothing was changed
├── DataError           wrong data in a file or task
├── StoreError          a request to an object store failed, or its result is unknown
├── DiskError           the disk or folder under a run failed (full, I/O error, removed); the run can be resumed
├── BadRecordError      one record that cannot be saved (not serialisable, unknown type); nothing was written
│   └── RecordTooLargeError  one that is longer than a line of a journal may be
└── JournalError        about one run's journal
    ├── StoppedError      the writer has stopped; everything acknowledged is kept
    │   ├── FencedError     a newer epoch has taken the run over
    │   └── WriteFailedError  the writer has stopped because storage failed; it is a DiskError as well
    ├── HeldError         another live process is writing this run
    ├── DamagedError      stored originals (journal, plan, data) are missing or not what was written
    ├── StaleCursorError  a reader's cursor no longer matches the journal: read again from the start
    └── FormatError       the journal holds what this version does not know (a newer format, an unknown record type)

Packages add errors of their own below HoldfastError: `records` (NotJsonError), `journal` (BlobError), `datasets`
(BadFileError), `models` (ModelError, BadConnectionError, BadResponseError, AskFailedError), `solve` (StepFailedError,
LimitError, ToolArgumentsError, ServerError), `score` (ScoringFailed), `engine` (NotRecordedError,
TaskExitError), `bridge` (BadBodyError, AttemptOverError), `sandbox` (SandboxError), `testing` (ServerStartError,
BadRequestError).

Invariant: a message states what happened, in which file or field, and what the user can do next. Damage is not an error
here: a damaged journal can still be opened, read and continued. Losses are data (`holdfast.journal.Damage`).
"""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence

STORAGE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EFBIG}
)
"""Error numbers that mean failed storage. Other errors about a path (no permission, no such folder) mean a wrong path:
the user has to choose another one, and waiting does not help.
"""


class HoldfastError(Exception):
    """The base of all errors that Holdfast raises on purpose, so that callers can distinguish them from bugs."""


def describe_error(error: BaseException) -> str:
    """An exception in one line: its type and its message. Never raises, although `__str__` may be user code."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - user code may raise anything
        return f"{name} (its text cannot be made)"  # tools return this to models, so its wording is fixed
    return f"{name}: {message}" if message else name


def reason_of(error: BaseException) -> str:
    """An exception in one line, for users. The type is left out if the message was written for users."""
    return str(error) if isinstance(error, HoldfastError | OSError) and str(error) else describe_error(error)


class BadNameError(HoldfastError):
    """A name is refused before anything is created on disk."""


class SpecError(HoldfastError):
    """A spec is refused, with the file, the place in it and what to do; nothing has been created."""


class ScorerError(SpecError):
    """A scorer cannot be used. Has the place in the spec or the code, the problem, and the nearest valid name."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)  # both arguments, so that the error can be pickled
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class UsageError(HoldfastError):
    """A command or call that makes no sense, or names something that does not exist; nothing was changed."""


class UnreachableError(UsageError):
    """A run cannot be claimed or restored, because the object store of its mirror cannot be reached."""


class DriftError(HoldfastError):
    """A resume of `run_id` is refused. `changes` holds each difference with both values and its class, `reasons` why a
    model can no longer be corrected, `commands` the commands to use instead, by verb.
    """

    def __init__(
        self, message: str, changes: Sequence[object] = (), run_id: str = "", reasons: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.changes = tuple(changes)
        self.run_id = run_id
        self.reasons = tuple(reasons)
        self.commands: Mapping[str, str] = {
            "resume": f"holdfast resume {run_id}",
            "extend": f"holdfast extend {run_id}",
            "fork": f"holdfast fork {run_id} --id {run_id}-2",
        }


class StoreError(HoldfastError):
    """A request to a mirror's store failed. It may have taken effect nevertheless."""


class DiskError(HoldfastError):
    """Local storage failed: full, read-only, an I/O error, or the run's folder is gone. What was acknowledged before is
    kept, and the run can be resumed once there is storage again. Exit code 8.
    """


def error_of_path(error: OSError, message: str) -> "DiskError | UsageError":
    """The error to raise for a path that cannot be written: DiskError if storage failed, else UsageError."""
    return DiskError(message) if error.errno in STORAGE_ERRORS else UsageError(message)


@contextlib.contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Turn an OSError that means failed storage into DiskError, which names `where` if the error names no file."""
    try:
        yield
    except OSError as error:
        if error.errno not in STORAGE_ERRORS:
            raise
        raise DiskError(
            f"{error.filename or where}: {error.strerror}; everything recorded before is kept: repair the storage or "
            "free some space, then run the same command again"
        ) from error


class BadRecordError(HoldfastError):
    """A record is refused before it is queued; other records are not affected."""

    kind = "record"
    """The `kind` of the failure that is recorded for the sample or score."""


class RecordTooLargeError(BadRecordError):
    """A record that is longer than a line of a journal may be. The cause is a long text, not a bug in user code."""

    kind = "too_large"


class JournalError(HoldfastError):
    """Something about one run's journal."""


class StoppedError(JournalError):
    """The writer thread has ended. Acknowledged records are durable; others may or may not be."""


class FencedError(StoppedError):
    """A newer epoch owns the run, so this writer must not write any more."""


class WriteFailedError(StoppedError, DiskError):
    """The writer has stopped because its storage failed: an I/O error, no space, or files that were deleted or moved
    while they were being written.
    """


class HeldError(JournalError):
    """Another live process holds the run's lock."""


class DamagedError(JournalError):
    """A run's original files are missing or differ from what was written, so results computed from them could be wrong.
    The message states what is damaged, what is left, and the command that helps. Exit code 5.
    """


class DamageWarning(UserWarning):
    """A run is damaged, and its readable part was used. The message states what is damaged and what helps.

    In Python it is issued through `warnings`; the command line prints it and ends with exit code 5.
    """


class StaleCursorError(JournalError):
    """Records that a reader has already read became void (a failed sync, a takeover, a restored copy)."""


class FormatError(JournalError):
    """Stored data that this version does not know. It is never skipped silently."""


class DataError(HoldfastError):
    """Wrong data. The message names the file or task, the line if there is one, the problem, and what to do."""

    def __init__(self, where: str, problem: str, line: int = 0, unit: str = "line") -> None:
        super().__init__(where, problem, line, unit)  # pickling calls the class with these arguments again
        self.where = where
        self.problem = problem
        self.line = line
        self.unit = unit

    def __str__(self) -> str:
        place = f"{self.where}, {self.unit} {self.line}" if self.line else self.where
        return f"{place}: {self.problem}"


class Problems:
    """The independent errors of a spec, so that one check reports all of them. With `stop`, the first is raised."""

    def __init__(self, *, stop: bool = False) -> None:
        self.found: dict[str, None] = {}
        """The messages, in order. A dict, because several parts may have the same mistake."""
        self._stop = stop

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Note an error of the block, and continue after the block. Errors of journals are raised."""
        try:
            yield
        except HoldfastError as error:
            if self._stop or isinstance(error, JournalError):
                raise
            self.found[str(error)] = None

    def refuse(self) -> None:
        """SpecError with one line for each problem, if there are any."""
        if self.found:
            raise SpecError("\n".join(self.found))
