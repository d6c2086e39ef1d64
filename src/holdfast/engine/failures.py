"""What became of a sample's code: exceptions as failures with a kind, and cancellations that are not the engine's."""

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

from holdfast.engine.in_flight import Flight
from holdfast.errors import BadRecordError, HoldfastError, JournalError, SpecError, told
from holdfast.journal.blobs import BlobError
from holdfast.models.credentials import credentials_of
from holdfast.models.failures import POLICIES
from holdfast.records import writable
from holdfast.records.facts import Failure
from holdfast.records.redaction import is_credential_name, redact
from holdfast.sandbox.confinement import SandboxError
from holdfast.solve import LimitError, StepFailedError
from holdfast.spec import Spec
from holdfast.spec.source.variables import variables_in

_MESSAGE_MAX = 2000
_DETAIL_MAX = 8000
_LINE_MAX = 1000
_FRAMES_MAX = 10
"""So many of the outermost and so many of the innermost frames: the way in, and where it broke."""
_CHARACTERS_MIN = 8
"""Of a secret that nothing but its name gives away: `KEYBOARD=us` is none."""
_VARIABLE = re.compile(r"\$\{(\w+)")
_WHOLE = re.compile(r"\$\{[^}]*\}")
"""An address that is all in a variable: it is needed to understand an error."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LOOPS = os.path.dirname(os.path.abspath(asyncio.__file__)) + os.sep


def failure_of(kind: str, error: BaseException, secrets: Sequence[str] = ()) -> Failure:
    """An exception as a record. Never raises: the exception's own `__str__` is the user's code too."""
    return redacted(Failure(kind, told(error), own_lines(error)), secrets)


def own_lines(error: BaseException) -> str:
    """The traceback without the frames that are ours or the event loop's. Empty if nothing else is in it."""
    trace = traceback.TracebackException.from_exception(error)
    found = [_keep_own(each) for each in _every(trace)]
    if not any(found):
        return ""
    lines = [_shortened(line) for line in trace.format()]
    return "".join(lines)


def redacted(failure: Failure, secrets: Sequence[str]) -> Failure:
    """Cut to its bounds after the secrets are out of it: half a secret would not be found."""
    message, detail = redact(failure.message, secrets), redact(failure.detail, secrets)
    return msgspec.structs.replace(
        failure, message=writable(message)[:_MESSAGE_MAX], detail=writable(detail)[-_DETAIL_MAX:]
    )


def is_ours(file: str) -> bool:
    """Whether a file of code belongs to Holdfast or to the event loop."""
    return file.startswith((_OURS, _LOOPS))


def secrets_of(spec: Spec, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What must not be in a record: values of the variables that the spec takes keys, headers and addresses from, and
    of those that are called like a credential, and passwords of proxies.
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
    """As they stand in the URL, and as they are meant."""
    for name, value in environ.items():
        if name.upper().endswith("_PROXY"):
            with contextlib.suppress(ValueError):
                password = urllib.parse.urlsplit(value).password or ""
                yield from (password, urllib.parse.unquote(password))


def _server_texts(value: Any, inside: bool = False) -> Iterator[str]:
    """All that a solver's arguments say of MCP servers."""
    if isinstance(value, dict):
        for name, each in value.items():
            whole = name == "url" and isinstance(each, str) and _WHOLE.fullmatch(each)
            yield from _server_texts("" if whole else each, inside or name == "mcp")
    elif isinstance(value, list):
        for each in value:
            yield from _server_texts(each, inside)
    elif inside and isinstance(value, str):
        yield value


def _every(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, those that it came from, and those of a group."""
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            yield from _every(other)


def _keep_own(told: traceback.TracebackException) -> bool:
    """Whether a frame of the user's is left. An exception without one, that ours was handling, is not told at all."""
    own = [frame for frame in told.stack if not is_ours(frame.filename)]
    middle = len(own) - 2 * _FRAMES_MAX
    if middle > 0:
        gap = traceback.FrameSummary(f"… {middle} more …", 0, "…", lookup_line=False, line="")
        own[_FRAMES_MAX:-_FRAMES_MAX] = [gap]
    told.stack = traceback.StackSummary.from_list(own)
    context = told.__context__
    if (
        context is not None
        and not told.__suppress_context__
        and all(is_ours(frame.filename) for frame in context.stack)
    ):
        told.__context__ = None
    return bool(own)


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}…\n"


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


inside: "contextvars.ContextVar[bool]" = contextvars.ContextVar("holdfast_inside", default=False)
"""Whether the code that runs belongs to a sample; tasks inherit it."""


class TaskExitError(HoldfastError):
    """A task that user code had made wanted to end the process."""


class _Containing:
    """A task factory; one for all the runs of a loop, in front of the factory that the loop had before."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.runs = 0

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]",
        **given: Any,
    ) -> "asyncio.Future[Any]":
        work = _Contained(coro) if inside.get() else coro
        if self.before is not None:
            return self.before(loop, work, **given)  # type: ignore[no-any-return] # the user's own factory
        return asyncio.Task(work, loop=loop, **given)


@contextlib.contextmanager
def containing() -> Iterator[None]:
    """While a run works in this loop."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    factory = before if isinstance(before, _Containing) else _Containing(before)
    loop.set_task_factory(factory)
    factory.runs += 1
    try:
        yield
    finally:
        factory.runs -= 1
        if not factory.runs and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.before)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine as it is, but for its exits. Not a second coroutine around it: one that is cancelled before it has
    begun would leave the inner one behind, never awaited.
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
        """Where it waits, and what it is called, for whoever looks at the task."""
        return getattr(self._work, name)


def _as_error(error: BaseException) -> TaskExitError:
    return TaskExitError(f"{told(error)}, in a task that the solver or scorer had made")
