"""Runs work of unpredictable duration (patterns, algebra, schemas) in a child process that can be killed.

A backtracking pattern holds the interpreter lock, so no thread and no event loop could stop it. The child is started on
first use and serves one call after another. Invariants: a call returns or raises soon after its time limit; the child
ends when this process ends, also after kill -9; its memory is limited.

Regular expressions of users are checked when a spec is read, and stopped when they take too long. Simple patterns on
short texts run in this process, all others in the child.
"""

import asyncio
import atexit
import contextlib
import functools
import importlib
import marshal
import math
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from typing import Any

from holdfast.records import is_credential_name

MEMORY_BYTES_MAX = 2 << 30
_LOADING_SECONDS = 120.0
_GRACE_SECONDS = 5
_PIECE_BYTES = 1 << 16
_HEAD_BYTES = 8
_PROGRAM = "from holdfast.score.worker_process import serve; serve()"


def run_in_worker(seconds: float, function: str, *args: Any) -> Any:
    """Call a function, given as `module:name`, with plain data in the child. TimeoutError if it takes longer than
    `seconds`; ValueError with its message if it raises.
    """
    return _sync_worker.call(function, args, seconds)


async def run_in_worker_async(seconds: float, function: str, *args: Any) -> Any:
    """Do the same without blocking the event loop. Uses a second child, so that sync callers never wait for it."""
    return await asyncio.to_thread(_async_worker.call, function, args, seconds)


class _Worker:
    """One child process and the lock that makes callers take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._loaded: set[str] = set()

    def call(self, function: str, args: tuple[Any, ...], seconds: float) -> Any:
        """Run a function in the child; see `run_in_worker`."""
        with self._lock:
            process = self._ready()
            try:
                if function not in self._loaded:  # an import does not count against the time limit
                    _result(_exchange(process, (function, None, _LOADING_SECONDS), _LOADING_SECONDS))
                    self._loaded.add(function)
                response = _exchange(process, (function, args, seconds), seconds)
            except TimeoutError:
                self.end()
                raise TimeoutError(f"it took longer than {seconds:g} s and was stopped") from None
            except (EOFError, BrokenPipeError):
                self.end()
                raise ValueError("the worker process died, most likely because it ran out of memory") from None
            except BaseException:  # also KeyboardInterrupt
                self.end()  # a late response must not be taken for that of the next call
                raise
        return _result(response)

    def end(self) -> None:
        """Kill the child, if this process started it."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():  # the child of a parent that forked us is not ours to kill
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _ready(self) -> "subprocess.Popen[bytes]":
        """Return the child, starting it if needed. A forked copy of this process starts its own."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.end()
            atexit.unregister(self.end)
            # The child works on model output and needs no credentials.
            environ = {name: value for name, value in os.environ.items() if not is_credential_name(name)}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # so that Ctrl-C does not reach it
            )
            self._owner = os.getpid()
            self._loaded = set()
            atexit.register(self.end)
        return self._process


_sync_worker, _async_worker = _Worker(), _Worker()


def _exchange(process: "subprocess.Popen[bytes]", call: Any, seconds: float) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    request = marshal.dumps(call)
    process.stdin.write(len(request).to_bytes(_HEAD_BYTES) + request)
    process.stdin.flush()
    deadline = time.monotonic() + seconds
    out = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        size = int.from_bytes(_read(out, _HEAD_BYTES, selector, deadline))
        return marshal.loads(_read(out, size, selector, deadline))


def _read(out: int, size: int, selector: selectors.BaseSelector, deadline: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not selector.select(max(deadline - time.monotonic(), 0)):
            raise TimeoutError
        piece = os.read(out, min(size - len(found), _PIECE_BYTES))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _result(response: tuple[bool, Any]) -> Any:
    is_ok, value = response
    if not is_ok:
        raise ValueError(value)
    return value


def serve() -> None:
    """Main loop of the child: serve calls until the pipe is closed."""
    import resource

    for limit, most in ((resource.RLIMIT_DATA, MEMORY_BYTES_MAX), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already in force
            resource.setrlimit(limit, (most, most))
    requests, responses = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library that prints must not write into the protocol
    while head := requests.read(_HEAD_BYTES):
        function, args, seconds = marshal.loads(requests.read(int.from_bytes(head)))
        _die_after(seconds + _GRACE_SECONDS)
        try:
            # Without arguments the call only imports the function.
            response = marshal.dumps((True, _find(function) and None if args is None else _find(function)(*args)))
        except (Exception, RecursionError) as error:  # noqa: BLE001 - any error is sent back to the caller
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
            response = marshal.dumps((False, f"{kind}{error}"))
        _die_after(0)
        responses.write(len(response).to_bytes(_HEAD_BYTES) + response)
        responses.flush()


@functools.cache
def _find(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _die_after(seconds: float) -> None:
    """Let the kernel end this process if the parent was killed during a call and cannot end it. 0 cancels."""
    import signal

    signal.alarm(math.ceil(seconds))


SECONDS_MAX = 2.0
_SHORT = 2000
_OPTIONAL_MAX = 3


def is_match(text: str, pattern: str, ignore_case: bool = False) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return _match("search", text, pattern, ignore_case) is True


def last_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """Return a group of the last match; None if the pattern does not match."""
    held: str | None = _match("last", text, pattern, ignore_case, group)
    return held


def first_group(text: str, pattern: str, group: int | str, ignore_case: bool = False) -> str | None:
    """Return a group of the first match; None if the pattern does not match."""
    held: str | None = _match("first", text, pattern, ignore_case, group)
    return held


def check_pattern(pattern: str, group: int | str | None) -> str:
    """Return what is wrong with a pattern or its group; empty if nothing."""
    try:
        compiled = compiled_pattern(pattern)
    except re.error as error:
        return f"the pattern {pattern!r} is not valid: {error}"
    if group not in [None, *range(compiled.groups + 1), *compiled.groupindex]:
        return f"the pattern {pattern!r} has no group {group!r}; put ( ) around the part to compare"
    return ""


@functools.lru_cache(maxsize=256)
def compiled_pattern(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a pattern, cached."""
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def may_take_long(text: str, /, pattern: str, **_: Any) -> bool:
    """Whether the pattern is matched in the worker process, and may block for seconds."""
    return len(text) > _SHORT or not _is_quick(pattern)


def _match(what: str, text: str, pattern: str, ignore_case: bool, group: int | str = 0) -> Any:
    if not may_take_long(text, pattern):
        return match_pattern(what, text, pattern, ignore_case, group)
    return run_in_worker(SECONDS_MAX, f"{__name__}:match_pattern", what, text, pattern, ignore_case, group)


def match_pattern(what: str, text: str, pattern: str, ignore_case: bool, group: int | str) -> Any:
    """Match a pattern; runs in this process or in the worker."""
    compiled = compiled_pattern(pattern, ignore_case)
    if what == "search":
        return compiled.search(text) is not None
    last = None
    for match in compiled.finditer(text):
        last = match
        if what == "first":
            break
    return last[group] if last else None


@functools.lru_cache(maxsize=256)
def _is_quick(pattern: str) -> bool:
    """Whether at most one unbounded repetition, of a single character, occurs: at worst quadratic in a short text."""
    if compiled_pattern(pattern).flags & re.VERBOSE:  # spaces and comments hide what is repeated
        return False
    endless = sum(map(pattern.count, "*+{"))
    repeated_group = re.search(r"\)[*+{?]", pattern)
    return endless <= 1 and pattern.count("?") <= _OPTIONAL_MAX and repeated_group is None
