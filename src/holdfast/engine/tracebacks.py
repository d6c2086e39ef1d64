"""An exception of the user's code as a record: what it says, and the user's own lines that led to it.

Invariant: the record is bounded whatever was raised, can be written as JSON, holds none of the frames that are the same
every time (ours, the event loop's), and none of the secrets that the spec names or the environment holds.
"""

import asyncio
import contextlib
import os
import re
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.credentials import credentials_of
from holdfast.errors import told
from holdfast.records import writable
from holdfast.records.facts import Failure
from holdfast.records.redaction import is_credential_name, redact
from holdfast.spec import Spec
from holdfast.spec.variables import variables_in

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
