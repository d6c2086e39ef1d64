"""What became of a sample's code: exceptions as failures with a kind, and cancellations that are not the engine's."""

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.engine.flights import Flight
from holdfast.engine.tracebacks import failure_of, own_lines, redacted
from holdfast.errors import BadRecordError, JournalError
from holdfast.plan import BlobError
from holdfast.records.facts import Failure
from holdfast.solve import LimitError, SandboxError, StepFailedError

_FINAL_KINDS = {"auth", "bad_request", "unknown_model", "context_too_long", "content_filter", "limit", "unrepeatable"}
_WRONG_CODE = (
    "AttributeError:",
    "ImportError:",
    "ModuleNotFoundError:",
    "NameError:",
    "NotImplementedError",
    "TypeError:",
)


def failure_in(error: BaseException, secrets: Sequence[str]) -> Failure:
    """What a solver's exception means, also inside a group. A journal that has stopped stops the run."""
    for known in (JournalError, SandboxError, LimitError, StepFailedError, BadRecordError, BlobError):
        found = _first(error, known)
        if isinstance(found, StepFailedError):
            return redacted(msgspec.structs.replace(found.failure, detail=own_lines(found)), secrets)
        if isinstance(found, LimitError | SandboxError):
            return redacted(Failure(found.kind, str(found), own_lines(found)), secrets)
        if isinstance(found, BadRecordError):
            return redacted(Failure("record", str(found), own_lines(found)), secrets)
        if isinstance(found, BlobError):
            return redacted(Failure("file", str(found), own_lines(found)), secrets)
        if found is not None:
            raise found
    return failure_of("solver", error, secrets)


def is_final(failure: Failure) -> bool:
    """Whether another attempt would be money for nothing: the server has refused for good, or the solver's code is
    wrong whatever the model says.
    """
    if failure.kind == "solver":
        return failure.message.startswith(_WRONG_CODE)
    return failure.kind in _FINAL_KINDS


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
