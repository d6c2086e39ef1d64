"""What became of a sample's code: exceptions as failures with a kind, and cancellations that are not the engine's."""

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.engine.flights import Flight
from holdfast.engine.tracebacks import failure_of, own_lines, redacted
from holdfast.errors import BadRecordError, JournalError, SpecError
from holdfast.models.failures import POLICIES
from holdfast.plan import BlobError
from holdfast.records.facts import Failure
from holdfast.solve import LimitError, SandboxError, StepFailedError

_FINAL_KINDS = {
    "limit",
    "unrepeatable",
    "too_large",
    *(kind for kind, policy in POLICIES.items() if policy.again == "never"),
}
_WRONG_CODE = (AttributeError, ImportError, NameError, NotImplementedError, SpecError, TypeError)
"""Errors that the next attempt would meet again, whatever the model says."""


class Failed(msgspec.Struct, frozen=True):
    """How an attempt failed, and whether another would be money for nothing: the server has refused for good, or the
    solver's code is wrong.
    """

    failure: Failure
    final: bool = False


def failure_in(error: BaseException, secrets: Sequence[str], outside: BaseException | None = None) -> Failed:
    """What a solver's exception means, also inside a group. A journal that has stopped stops the run.

    `outside`: why the last request of an agent that asks over HTTP had no answer. Its own exception, or its exit code,
    does not say; but it gave up then, so that is the reason.
    """
    for known in (JournalError, SandboxError, LimitError, StepFailedError, BadRecordError, BlobError):
        found = _first(error, known)
        if isinstance(found, StepFailedError):
            return _known(msgspec.structs.replace(found.failure, detail=own_lines(found)), secrets)
        if isinstance(found, LimitError | SandboxError):
            return _known(Failure(found.kind, str(found), own_lines(found)), secrets)
        if isinstance(found, BadRecordError):
            return _known(Failure(found.kind, str(found), own_lines(found)), secrets)
        if isinstance(found, BlobError):
            return _known(Failure("file", str(found), own_lines(found)), secrets)
        if found is not None:
            raise found
    failure = failure_of("solver", error, secrets)
    if outside is not None:
        reason = failure_in(outside, secrets)
        return Failed(msgspec.structs.replace(reason.failure, detail=failure.detail), reason.final)
    return Failed(failure, any(_first(error, kind) is not None for kind in _WRONG_CODE))


def _known(failure: Failure, secrets: Sequence[str]) -> Failed:
    return Failed(redacted(failure, secrets), failure.kind in _FINAL_KINDS)


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
