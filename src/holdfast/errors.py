"""Every error that Holdfast raises on purpose.

HoldfastError
├── BadNameError        a run or experiment name that cannot safely become a folder
├── SpecError           a spec that cannot be run as it is written; nothing was created
├── UsageError          a command or call that cannot be carried out as it was given
├── DriftError          a resume that would mix two experiments; nothing was changed
├── StoreError          an object store could not do what was asked of it, or nobody knows whether it did
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

Rooms add errors of their own below these: `records` (NotJsonError), `models` (ModelError, BadConnectionError),
`datasets` (DataError, BadFileError), `plan` (BlobError), `score` (ScorerError, ScoringFailed), `solve`
(StepFailedError, AskFailedError, LimitError, ToolArgumentsError, ServerError), `testing` (ServerStartError).

Invariant: a message says what happened, to which file or field, and what the user does next. Damage is not an error
here: a damaged journal still opens, reads and goes on; what was lost is reported as data (`holdfast.journal.Damage`).
"""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence

STORAGE_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ENODEV,
        errno.ENXIO,
        errno.EFBIG,
    }
)
"""What the operating system says when storage fails. Anything else about a path (no permission, no such folder, not a
folder) is a wrong path: the user chooses another one, and waiting does not help.
"""


class HoldfastError(Exception):
    """The one base, so that a caller can tell our refusals from bugs."""


def told(error: BaseException) -> str:
    """An exception in one line: its type, and what it says. Never raises: its `__str__` may be anybody's code."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - anybody's code may raise anything
        return f"{name} (its text cannot be made)"
    return f"{name}: {said}" if said else name


def reason_of(error: BaseException) -> str:
    """The same for people: the type is left out where the text is written for users."""
    return str(error) if isinstance(error, HoldfastError | OSError) and str(error) else told(error)


class BadNameError(HoldfastError):
    """A name is refused before anything is created on disk."""


class SpecError(HoldfastError):
    """A spec is refused, with the file, the place in it and what to do; nothing has been created."""


class UsageError(HoldfastError):
    """What was asked for does not exist or makes no sense; nothing was changed."""


class DriftError(HoldfastError):
    """A resume of `run_id` is refused. `changes` holds each difference with both values and its class, `reasons` why a
    model cannot be corrected any more, `commands` what can be done instead, by verb.
    """

    def __init__(
        self, message: str, changes: Sequence[object] = (), run_id: str = "", reasons: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.changes = tuple(changes)
        self.run_id = run_id
        self.reasons = tuple(reasons)
        self.commands: Mapping[str, str] = {verb: f"holdfast {verb} {run_id}" for verb in ("extend", "fork")}


class StoreError(HoldfastError):
    """A mirror's store failed. It may have done what it was asked all the same."""


class DiskError(HoldfastError):
    """Local storage failed: full, read-only, an I/O error, or the run's folder is gone. What was acknowledged before is
    kept, and the run can be resumed once there is storage again. Exit code 8.
    """


def error_of_path(error: OSError, message: str) -> "DiskError | UsageError":
    """What to raise for a path that cannot be written: DiskError if storage failed, else UsageError."""
    return DiskError(message) if error.errno in STORAGE_ERRORS else UsageError(message)


@contextlib.contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Turn an operating system error that means failed storage into DiskError; `where` is named if the error names no
    file.
    """
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
    """The kind of the failure that a sample or a score gets."""


class RecordTooLargeError(BadRecordError):
    """A record that is longer than a line of a journal may be. The size of a text is the cause, not anybody's code."""

    kind = "too_large"


class JournalError(HoldfastError):
    """Something about one run's journal."""


class StoppedError(JournalError):
    """The writer thread has ended. What was acknowledged is durable, what was not may or may not be."""


class FencedError(StoppedError):
    """A newer epoch owns the run; what this writer still holds must not be written."""


class WriteFailedError(StoppedError, DiskError):
    """The writer has stopped because its storage failed: an I/O error, no space, or files that were deleted or moved
    while they were being written.
    """


class HeldError(JournalError):
    """Another live process holds the run's lock."""


class DamagedError(JournalError):
    """A run's originals are missing or differ from what was written, so a number made from them could be wrong. The
    message says what is damaged, what is left, and the command that helps. Exit code 5.
    """


class DamageWarning(UserWarning):
    """A run is damaged, and what is still readable was used. The message says what is damaged and what helps.

    From Python it arrives through `warnings`; the command line prints it and ends with exit code 5.
    """


class StaleCursorError(JournalError):
    """What a reader has read was voided behind it (a poisoned segment, a takeover, a restored copy)."""


class FormatError(JournalError):
    """Stored data that this version cannot interpret is never skipped in silence."""


class DataError(HoldfastError):
    """Names the file (or task), the line if there is one, what is wrong there, and what to do."""

    def __init__(self, where: str, problem: str, line: int = 0, unit: str = "line") -> None:
        super().__init__(where, problem, line, unit)  # all of them, so that it can be pickled
        self.where = where
        self.problem = problem
        self.line = line
        self.unit = unit

    def __str__(self) -> str:
        place = f"{self.where}, {self.unit} {self.line}" if self.line else self.where
        return f"{place}: {self.problem}"
