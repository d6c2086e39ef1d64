"""Failures of user code: exceptions become recorded failures with a kind, and exits and cancellations are contained.

Invariant: secrets are removed before a failure is cut to its length and recorded. While a run works (`contain_exits`),
SystemExit and KeyboardInterrupt in a task that user code created do not end the process.
"""

import asyncio
import contextlib
import contextvars
import os
import re
import traceback
import urllib.parse
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.in_flight import InFlightSample
from holdfast.errors import BadRecordError, HoldfastError, JournalError, SpecError, describe_error
from holdfast.journal import BlobError
from holdfast.models import POLICIES, credentials_of
from holdfast.records import Failure, is_credential_name, redact, writable
from holdfast.sandbox.confinement import SandboxError
from holdfast.solve import LimitError, StepFailedError
from holdfast.spec import Spec, variables_in

_MESSAGE_MAX = 2000
_DETAIL_MAX = 8000
_LINE_MAX = 1000
_FRAMES_MAX = 10
"""How many of the outermost and of the innermost frames of a long traceback are kept."""
_CHARACTERS_MIN = 8
"""Shorter values of variables that are only named like a credential are not secret: `KEYBOARD=us`."""
_VARIABLE = re.compile(r"\$\{(\w+)")
_WHOLE = re.compile(r"\$\{[^}]*\}")
"""A URL that comes whole from one variable is not redacted: it is needed to understand an error."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LOOPS = os.path.dirname(os.path.abspath(asyncio.__file__)) + os.sep


def failure_of(kind: str, error: BaseException, secrets: Sequence[str] = ()) -> Failure:
    """Return an exception as a redacted failure. Never raises, although `__str__` of the exception is user code too."""
    return redacted(Failure(kind, describe_error(error), user_traceback(error)), secrets)


def user_traceback(error: BaseException) -> str:
    """Return the traceback without frames of Holdfast and the event loop; empty if there are no others."""
    trace = traceback.TracebackException.from_exception(error)
    found = [_drop_our_frames(each) for each in _all_in(trace)]
    if not any(found):
        return ""
    lines = [_shorten(line) for line in trace.format()]
    return "".join(lines)


def redacted(failure: Failure, secrets: Sequence[str]) -> Failure:
    """Remove secrets, then cut to length: the other way round, half a secret would stay."""
    message, detail = redact(failure.message, secrets), redact(failure.detail, secrets)
    return msgspec.structs.replace(
        failure, message=writable(message)[:_MESSAGE_MAX], detail=writable(detail)[-_DETAIL_MAX:]
    )


def is_ours(file: str) -> bool:
    """Whether a file of code belongs to Holdfast or to the event loop."""
    return file.startswith((_OURS, _LOOPS))


def secrets_of(spec: Spec, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the values that must not be in a record: of variables that the spec uses for keys, headers and addresses,
    of variables named like a credential, and passwords of proxies.
    """
    named: set[str] = set()
    unnamed: set[str] = set()
    for model in (*spec.models, *spec.roles.values()):
        urls = [model.base_url] if isinstance(model.base_url, str) else model.base_url
        texts = [*model.headers.values(), *(url for url in urls if not _WHOLE.fullmatch(url))]
        named |= {model.api_key_env, *_VARIABLE.findall(" ".join(texts))}
        named |= {name for _, name in variables_in([model.options, model.params])}
        unnamed |= credentials_of(model, environ)
    for task in spec.tasks:
        named |= set(_VARIABLE.findall(" ".join(_server_texts(task.solver))))
    called = {name for name, value in environ.items() if is_credential_name(name) and len(value) >= _CHARACTERS_MIN}
    values = {environ.get(name, "") for name in named | called}
    return tuple(sorted({*values, *unnamed, *_proxy_passwords(environ)} - {""}))


def _proxy_passwords(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield them as written in the URL and percent-decoded."""
    for name, value in environ.items():
        if name.upper().endswith("_PROXY"):
            with contextlib.suppress(ValueError):
                password = urllib.parse.urlsplit(value).password or ""
                yield from (password, urllib.parse.unquote(password))


def _server_texts(value: Any, inside: bool = False) -> Iterator[str]:
    """Yield all texts in a solver's arguments that describe MCP servers."""
    if isinstance(value, dict):
        for name, each in value.items():
            whole = name == "url" and isinstance(each, str) and _WHOLE.fullmatch(each)
            yield from _server_texts("" if whole else each, inside or name == "mcp")
    elif isinstance(value, list):
        for each in value:
            yield from _server_texts(each, inside)
    elif inside and isinstance(value, str):
        yield value


def _all_in(trace: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception, its causes, and the members of a group."""
    yield trace
    for other in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if other is not None:
            yield from _all_in(other)


def _drop_our_frames(trace: traceback.TracebackException) -> bool:
    """Remove our frames; return whether frames of the user are left. A context with only our frames is dropped."""
    own = [frame for frame in trace.stack if not is_ours(frame.filename)]
    middle = len(own) - 2 * _FRAMES_MAX
    if middle > 0:
        gap = traceback.FrameSummary(f"… {middle} more …", 0, "…", lookup_line=False, line="")
        own[_FRAMES_MAX:-_FRAMES_MAX] = [gap]
    trace.stack = traceback.StackSummary.from_list(own)
    context = trace.__context__
    if (
        context is not None
        and not trace.__suppress_context__
        and all(is_ours(frame.filename) for frame in context.stack)
    ):
        trace.__context__ = None
    return bool(own)


def _shorten(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}…\n"


_FINAL_KINDS = {
    "limit",
    "unrepeatable",
    "too_large",
    *(kind for kind, policy in POLICIES.items() if policy.again == "never"),
}
_CODE_ERRORS = (AttributeError, ImportError, NameError, NotImplementedError, SpecError, TypeError)
"""Errors of the code itself: another attempt would fail in the same way."""
_DATA_ERRORS = (LookupError, ArithmeticError)
"""Errors of code or data. One more attempt may help, because it sends its requests again; after that it does not."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """How an attempt failed. `final`: another attempt would fail too, because the server refuses for good or the code
    is wrong.
    """

    failure: Failure
    final: bool = False
    is_repeatable: bool = False
    """Whether the same exception in two attempts in a row will come a third time: a key that is missing in the data,
    and not a server that the solver calls itself.
    """


def failure_in(error: BaseException, secrets: Sequence[str], outside: BaseException | None = None) -> FailedAttempt:
    """Classify the exception of a solver, also inside a group. JournalError is raised: it stops the run.

    `outside`: why the last HTTP request of an external agent failed. The agent gave up because of it, so it is the
    reason, and not the agent's own exception or exit code.
    """
    for known in (JournalError, SandboxError, LimitError, StepFailedError, BadRecordError, BlobError):
        found = _first(error, known)
        if isinstance(found, StepFailedError):
            return _as_failed(msgspec.structs.replace(found.failure, detail=user_traceback(found)), secrets)
        if isinstance(found, LimitError | SandboxError):
            return _as_failed(Failure(found.kind, str(found), user_traceback(found)), secrets)
        if isinstance(found, BadRecordError):
            return _as_failed(Failure(found.kind, str(found), user_traceback(found)), secrets)
        if isinstance(found, BlobError):
            return _as_failed(Failure("file", str(found), user_traceback(found)), secrets)
        if found is not None:
            raise found
    failure = failure_of("solver", error, secrets)
    if outside is not None:
        reason = failure_in(outside, secrets)
        return FailedAttempt(msgspec.structs.replace(reason.failure, detail=failure.detail), reason.final)
    is_wrong, is_repeatable = (
        any(_first(error, kind) is not None for kind in kinds) for kinds in (_CODE_ERRORS, _DATA_ERRORS)
    )
    return FailedAttempt(failure, is_wrong, is_repeatable)


def _as_failed(failure: Failure, secrets: Sequence[str]) -> FailedAttempt:
    return FailedAttempt(redacted(failure, secrets), failure.kind in _FINAL_KINDS)


def pop_stall(flight: InFlightSample) -> Failure | None:
    """Return the failure if the watchdog cancelled the sample, and reset the flag for the next attempt."""
    if not flight.stalled:
        return None
    flight.stalled = False
    return Failure("stalled", f"nothing moved while {flight.doing}; cancelled by on_stall: cancel-sample")


def undo_cancel(task: "asyncio.Task[object]") -> None:
    """Undo cancellations by user code of its own task, which is the worker's task."""
    while task.cancelling():
        task.uncancel()


def _first(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_first(each, kind) for each in error.exceptions)), None)
    return error if isinstance(error, kind) else None


inside: "contextvars.ContextVar[bool]" = contextvars.ContextVar("holdfast_inside", default=False)
"""Whether the running code belongs to a sample; tasks that it creates inherit the value."""


class TaskExitError(HoldfastError):
    """A task that user code created tried to end the process."""


class _TaskFactory:
    """Task factory that wraps coroutines of samples. All runs of a loop share it, and it calls the former factory."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.runs = 0

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]",
        **given: Any,
    ) -> "asyncio.Future[Any]":
        work = _ContainedCoroutine(coro) if inside.get() else coro
        if self.before is not None:
            return self.before(loop, work, **given)  # type: ignore[no-any-return] # the user's own factory
        return asyncio.Task(work, loop=loop, **given)


@contextlib.contextmanager
def contain_exits() -> Iterator[None]:
    """Install the task factory while a run works in this loop."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    factory = before if isinstance(before, _TaskFactory) else _TaskFactory(before)
    loop.set_task_factory(factory)
    factory.runs += 1
    try:
        yield
    finally:
        factory.runs -= 1
        if not factory.runs and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.before)


class _ContainedCoroutine(Coroutine[Any, Any, Any]):
    """Delegates to a coroutine and turns its exits into errors. Not an `async def`: cancelled before its start, that
    would leave the inner coroutine never awaited.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def send(self, value: Any, /) -> Any:
        try:
            return self._work.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_error(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._work.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise _as_error(raised) from raised

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()  # type: ignore[no-any-return] # the user's own coroutine

    def __getattr__(self, name: str) -> Any:
        """Expose cr_frame, __name__ and so on to code that inspects the task."""
        return getattr(self._work, name)


def _as_error(error: BaseException) -> TaskExitError:
    return TaskExitError(f"{describe_error(error)}, in a task that the solver or scorer had made")
