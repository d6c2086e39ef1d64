"""Starts the command, or the test server, as a fork of a process that has imported it: 20 ms instead of half a second,
thousands of times.

A fork is a process of its own: it has its own pid, environment, folder and pipes, can be killed at any moment, and ends
like an interpreter does. What it does not show is how an interpreter starts: tests of that start a real one, and so do
commands with an environment that the interpreter reads when it starts.

The zygote is one process for each process that runs tests. It has no threads, and ends with the socket to its parent.
"""

import array
import atexit
import contextlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC", "TZ", "COVERAGE")
_REQUEST_BYTES_MAX = 1 << 20
_SPEC = {
    "experiment": "x",
    "models": [
        {"name": "m", "provider": "mock"},
        {"name": "n", "provider": "openai", "base_url": "http://127.0.0.1:9"},
    ],
    "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "scorers": ["includes"]}],
}
_COMMANDS = (
    ["run", "spec.json", "--id", "r", "--model", "m"],
    ["show", "r"],
    ["export", "r"],
    ["compare", "r"],
    ["ls"],
)
_WARM_UP = f"""
import contextlib, io, json, os, sys, tempfile
with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    os.environ["HOLDFAST_CACHE"] = os.path.join(folder, "cache")
    with open("rows.jsonl", "w") as file:
        file.write(json.dumps(dict(id=1, q="1 + 1", target="2")))
    with open("spec.json", "w") as file:
        file.write(json.dumps({_SPEC!r}))
    from holdfast.cli.main import main
    import holdfast.models.http.connection, holdfast.testing.server
    for command in {_COMMANDS!r}:
        sys.argv = ["holdfast", *command]
        told = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            main()
print("\\n".join(sys.modules))
"""
"""Prints the modules that the usual commands import."""


def _is_readable(connection: socket.socket, timeout: float | None) -> bool:
    """By poll: a process that runs thousands of tests may have more open files than select can name."""
    found = select.poll()
    found.register(connection, select.POLLIN)
    return bool(found.poll(None if timeout is None else timeout * 1000))


class Forked:
    """A started command, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, connection: socket.socket, pid: int, out: int) -> None:
        self._connection = connection
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] = open(out, encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        self.stderr: IO[str] | None = None
        self._texts: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                each.close()
        self.wait()

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("holdfast", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        def read(name: str, stream: IO[str]) -> None:
            with stream:
                self._texts[name] = stream.read()

        assert self.stderr is not None
        streams = {"out": self.stdout, "err": self.stderr}
        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in streams.items() if not each[1].closed
        ]
        for each in readers:
            each.start()
        for each in readers:
            each.join(timeout)
            if each.is_alive():
                raise subprocess.TimeoutExpired("holdfast", timeout or 0.0)
        self.wait(timeout)
        return self._texts["out"], self._texts["err"]

    def _status(self, timeout: float | None) -> int | None:
        """The exit code as soon as the zygote has sent it."""
        if self.returncode is None and _is_readable(self._connection, timeout):
            status = self._connection.recv(16)
            self._connection.close()
            self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
        return self.returncode


class Zygote:
    """The client's side: starts the zygote with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Forked | None:
        """None if the command needs an interpreter of its own."""
        if any(
            env.get(name) != os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_READ_AT_START)
        ):
            return None
        nothing = os.open(os.devnull, os.O_RDONLY)
        err, their_err = os.pipe()
        try:
            request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
            forked = self._fork(request, nothing, their_err)
        finally:
            os.close(nothing)
            os.close(their_err)
        forked.stderr = open(err, encoding="utf-8")  # noqa: SIM115
        return forked

    def start_server(self, arguments: Sequence[str]) -> Forked:
        """`python -m holdfast.testing`, with a standard input that this process holds open."""
        theirs, given = os.pipe()
        module = {"module": "holdfast.testing", "arguments": list(arguments)}
        try:
            forked = self._fork({**module, "cwd": os.getcwd(), "env": dict(os.environ)}, theirs, 2)
        finally:
            os.close(theirs)
        forked.stdin = open(given, "w", encoding="utf-8")  # noqa: SIM115
        return forked

    def _fork(self, request: Mapping[str, Any], stdin: int, stderr: int) -> Forked:
        # Packets: the pid and the exit status must not run together.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, their_out = os.pipe()
        content = json.dumps(request).encode()
        assert len(content) < _REQUEST_BYTES_MAX
        handles = [theirs.fileno(), stdin, their_out, stderr]
        try:
            socket.send_fds(self._open(), [len(content).to_bytes(8, "big")], handles)
            self._open().sendall(content)
            while not _is_readable(ours, 1.0):
                assert self._process is not None
                assert self._process.poll() is None, "the zygote has ended"
            pid = int(ours.recv(16))
        finally:
            theirs.close()
            os.close(their_out)
        return Forked(ours, pid, out)

    def _open(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._socket = None  # a test has ended it
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", "tests.zygote", str(theirs.fileno())]
                folder = Path(__file__).parent.parent
                self._process = subprocess.Popen(command, cwd=folder, pass_fds=[theirs.fileno()])
            atexit.register(self.close)
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(30)
            self._socket = None


def serve(requests: socket.socket) -> None:
    """The zygote: forks for each request, and sends the exit status of each child."""
    listed = subprocess.run([sys.executable, "-c", _WARM_UP], stdout=subprocess.PIPE, check=True, text=True).stdout
    for name in listed.split():
        if name.split(".")[0] not in ("__main__", "tests"):
            with contextlib.suppress(ImportError, AttributeError):
                __import__(name)
    from tests.parsers import build_parser_once

    build_parser_once()
    children: dict[int, socket.socket] = {}
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that runs the tests
    signal.set_wakeup_fd(woken)
    while True:
        ready, _, _ = select.select([requests.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(children)
        if requests.fileno() in ready:
            size, handles, _, _ = socket.recv_fds(requests, 8, 4)
            if not size:
                return
            request = _receive(requests, int.from_bytes(size, "big"))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for handle in (wake, woken, requests.fileno(), *(each.fileno() for each in children.values())):
                    os.close(handle)
                _become(json.loads(request), handles)
            connection = socket.socket(fileno=handles[0])
            children[pid] = connection
            for handle in handles[1:]:
                os.close(handle)
            connection.sendall(b"%d" % pid)


def _receive(requests: socket.socket, size: int) -> bytes:
    request = b""
    while len(request) < size:
        request += requests.recv(size - len(request))
    return request


def _report_ended(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(b"%d" % status)


def _become(request: dict[str, Any], handles: "Sequence[int] | array.array[int]") -> None:
    """In the child: run the module as `python -m` does, and end as an interpreter does."""
    connection, given, out, err = handles
    os.close(connection)
    for target, handle in enumerate((given, out, err)):
        os.dup2(handle, target)
        os.close(handle)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    import random

    random.seed()  # a fork would repeat the random numbers of its siblings
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    out_stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "surrogateescape")
    error_stream = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "backslashreplace", line_buffering=True
    )
    for name, stream in (("stdout", out_stream), ("stderr", error_stream)):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    module = request.get("module", "holdfast")
    sys.argv = [module, *request["arguments"]]
    sys.path[0] = request["cwd"]
    code = 1
    try:
        for name in (f"{module}.__main__", "__main__"):
            sys.modules.pop(name, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        code = -signal.SIGINT
        sys.excepthook(*sys.exc_info())
    except BaseException:  # noqa: BLE001 - shown, as an interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            # As at the end of an interpreter: wait for threads, call exit functions.
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
            atexit._run_exitfuncs()  # noqa: SLF001
        for each in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                each.flush()
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
