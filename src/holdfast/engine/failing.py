"""What became of a sample's code: exceptions as failures with a kind, and cancellations that are not the engine's."""

import asyncio
import traceback

from holdfast.engine.flights import Flight
from holdfast.errors import BadRecordError, JournalError
from holdfast.plan import BlobError
from holdfast.records.facts import Failure
from holdfast.solve import LimitError, StepFailedError

_TRACEBACK_LINES = 12


def failure_in(error: BaseException) -> Failure:
    """What a solver's exception means, also inside a group. A journal that has stopped stops the run."""
    for known in (JournalError, LimitError, StepFailedError, BadRecordError, BlobError):
        found = _first(error, known)
        if isinstance(found, StepFailedError):
            return found.failure
        if isinstance(found, LimitError):
            return Failure(found.kind, str(found))
        if isinstance(found, BadRecordError):
            return Failure("record", str(found))
        if isinstance(found, BlobError):
            return Failure("file", str(found))
        if found is not None:
            raise found
    return failure_of("solver", error)


def failure_of(kind: str, error: BaseException) -> Failure:
    """An exception as a record: what it says, and the last lines of where it came from."""
    try:
        lines = traceback.format_exception(error)
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the exception's own __str__ is the user's code too
        lines, said = traceback.format_tb(error.__traceback__), f"{type(error).__name__} (its text cannot be made)"
    return Failure(kind, _writable(said)[:2000], _writable("".join(lines[-_TRACEBACK_LINES:]))[-8000:])


def stalled(flight: Flight) -> Failure | None:
    """If the watch has cancelled it: once, then its next attempt begins anew."""
    if not flight.stalled:
        return None
    flight.stalled = False
    return Failure("stalled", f"nothing moved while {flight.doing}; cancelled by on_stall: cancel-sample")


def undo_cancel(task: "asyncio.Task[object]") -> None:
    """User code that cancelled the task that it runs in must not take the worker with it."""
    while task.cancelling():
        task.uncancel()


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_first(each, kind) for each in error.exceptions)), None)
    return error if isinstance(error, kind) else None


def _writable(text: str) -> str:
    """Half a character cannot be written as JSON."""
    return text.encode("utf-8", "replace").decode()
