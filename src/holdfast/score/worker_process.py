"""Work whose time nobody can know beforehand (patterns, algebra, schemas), done by a process that can be ended.

A pattern that backtracks holds Python itself, so no thread and no event loop could stop it. A child process does such
work, one piece after the other, and is made when it is first needed. Invariants: `within` returns
or raises soon after its seconds are over; the child ends with us, however we end, and has a bound on its memory.
"""

import asyncio
import atexit
import contextlib
import functools
import importlib
import marshal
import math
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from holdfast.records.redaction import is_credential_name

MEMORY_BYTES_MAX = 2 << 30
_LOADING_SECONDS = 120.0
_GRACE_SECONDS = 5
_PIECE_BYTES = 1 << 16
_HEAD_BYTES = 8
_PROGRAM = "from holdfast.score.worker_process import serve; serve()"


def within(seconds: float, function: str, *args: Any) -> Any:
    """What a function, `module:name`, makes of arguments that are plain data. TimeoutError if it takes longer;
    ValueError with its words if it raises.
    """
    return _at_once.ask(function, args, seconds)


async def apart(seconds: float, function: str, *args: Any) -> Any:
    """The same, while the event loop goes on; by a child of its own, so that `within` never waits for it."""
    return await asyncio.to_thread(_meanwhile.ask, function, args, seconds)


class _Worker:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._loaded: set[str] = set()

    def ask(self, function: str, args: tuple[Any, ...], seconds: float) -> Any:
        with self._turn:
            process = self._ready()
            try:
                if function not in self._loaded:  # what an import takes is nobody's time
                    _result(_exchange(process, (function, None, _LOADING_SECONDS), _LOADING_SECONDS))
                    self._loaded.add(function)
                said = _exchange(process, (function, args, seconds), seconds)
            except TimeoutError:
                self.end()
                raise TimeoutError(f"it took longer than {seconds:g} s and was ended") from None
            except (EOFError, BrokenPipeError):
                self.end()
                raise ValueError("the process that computed it died, most likely for want of memory") from None
            except BaseException:
                self.end()  # an answer that was not waited for must not be taken for that of the next question
                raise
        return _result(said)

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _ready(self) -> "subprocess.Popen[bytes]":
        """The child of this process: one that was forked makes its own."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.end()
            atexit.unregister(self.end)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**_without_credentials(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a Ctrl-C is ours to answer
            )
            self._owner = os.getpid()
            self._loaded = set()
            atexit.register(self.end)
        return self._process


def _without_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """It works on texts of models, and needs no key for that."""
    return {name: value for name, value in environ.items() if not is_credential_name(name)}


_at_once, _meanwhile = _Worker(), _Worker()


def _exchange(process: "subprocess.Popen[bytes]", question: Any, seconds: float) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    said = marshal.dumps(question)
    process.stdin.write(len(said).to_bytes(_HEAD_BYTES) + said)
    process.stdin.flush()
    until = time.monotonic() + seconds
    out = process.stdout.fileno()
    with selectors.DefaultSelector() as waiting:
        waiting.register(out, selectors.EVENT_READ)
        size = int.from_bytes(_read(out, _HEAD_BYTES, waiting, until))
        return marshal.loads(_read(out, size, waiting, until))


def _read(out: int, size: int, waiting: selectors.BaseSelector, until: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not waiting.select(max(until - time.monotonic(), 0)):
            raise TimeoutError
        piece = os.read(out, min(size - len(found), _PIECE_BYTES))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _result(said: tuple[bool, Any]) -> Any:
    fine, value = said
    if not fine:
        raise ValueError(value)
    return value


def serve() -> None:
    """The child: answers until nobody asks any more."""
    _confine()
    asked, answered = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library that prints must not answer for us
    while head := asked.read(_HEAD_BYTES):
        function, args, seconds = marshal.loads(asked.read(int.from_bytes(head)))
        _die_after(seconds + _GRACE_SECONDS)
        try:
            said = marshal.dumps((True, _find(function) and None if args is None else _find(function)(*args)))
        except (Exception, RecursionError) as error:  # noqa: BLE001 - whatever it is, it is told to whoever asked
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
            said = marshal.dumps((False, f"{kind}{error}"))
        _die_after(0)
        answered.write(len(said).to_bytes(_HEAD_BYTES) + said)
        answered.flush()


@functools.cache
def _find(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _confine() -> None:
    import resource

    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        most = MEMORY_BYTES_MAX if kind == resource.RLIMIT_DATA else 0
        with contextlib.suppress(ValueError, OSError):  # a smaller one is in force
            resource.setrlimit(kind, (most, most))


def _die_after(seconds: float) -> None:
    """Should whoever asks be killed while we compute, nothing else would end us. 0: no more."""
    import signal

    signal.alarm(math.ceil(seconds))
