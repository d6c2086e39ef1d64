"""One command, run confined by a launcher of its own, seen to its end, its output bounded. Blocks: for threads.

Invariant: when `Launch.run` returns or raises, nothing of the command runs any more. The launcher does the confining;
this starts it, holds its lifeline, reads what the command says, and ends it if it is not heard of in time.
"""

import contextlib
import functools
import marshal
import os
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.files import remove_own_folder
from holdfast.sandbox import cgroups, kernel, visibility
from holdfast.sandbox.kernel import LINUX
from holdfast.sandbox.system_calls import MACHINES, build_filter
from holdfast.sandbox.visibility import PLACE, TEMPORARY, homes_of_python, inner_folders

MARKER = "HOLDFAST_SANDBOX"
"""In the environment of launchers and of what runs without namespaces: the run's uid and the folder's name."""
PLAIN = "HOLDFAST_NO_NAMESPACES"
HOST_NETWORK = "HOLDFAST_HOST_NETWORK"
FILES, ROOT, INPUT = "files", "root", "input-"
"""Inside a sandbox's folder: all that commands can change, where their root is made, and, with more behind it, what one
of them reads from standard input."""

_LAUNCHER = "import sys; sys.path.append(sys.argv[1]); from sandbox import launcher; launcher.main()"
"""As a package by itself, so that it is compiled once and nothing else of Holdfast is imported. Everything of Python's
own comes first."""
_ABOVE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GRACE_SECONDS = 10.0
"""How long a launcher may take beyond the command's time."""
_DRAIN_SECONDS = 0.5
"""How long output is waited for when the launcher has ended: only what escaped it could still write."""
_PIECE_BYTES = 1 << 16
_OPEN_FILES_MAX = 1024
_DOCKER_FAILED = 125
_SAID_MAX = 500
MIB = 1 << 20


class SandboxError(HoldfastError):
    """An attempt cannot go on with its sandbox. It is nothing that a tool or a model could mend."""

    kind = "sandbox"


class SandboxFailedError(SandboxError):
    """A sandbox could not be made or used: the machine's fault, not the command's. Another attempt may do better."""

    kind = "sandbox_failed"


class SandboxLimits(Protocol):
    """What a command may use: the `sandbox` of a task, or `Limits`."""

    @property
    def seconds(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def output_kb(self) -> int: ...
    @property
    def files_mb(self) -> int: ...
    @property
    def files_max(self) -> int: ...
    @property
    def network(self) -> bool: ...
    @property
    def image(self) -> str: ...


class Limits(msgspec.Struct, frozen=True):
    """Bounds that no spec sets."""

    seconds: float
    memory_mb: int = 1024
    processes: int = 128
    output_kb: int = 32
    files_mb: int = 64
    files_max: int = 10_000
    network: bool = False
    image: str = ""


class Output(msgspec.Struct, frozen=True):
    """What came out of a command: the bytes that are kept, the first and the last, and how many are not."""

    head: bytes
    tail: bytes = b""
    left_out: int = 0

    def text(self) -> str:
        """For people and models. Bytes that are no text are shown as such."""
        if not self.left_out:
            return (self.head + self.tail).decode("utf-8", "replace")
        note = f"\n[… {self.left_out} bytes are left out …]\n"
        return f"{self.head.decode('utf-8', 'replace')}{note}{self.tail.decode('utf-8', 'replace')}"


class Ran(msgspec.Struct, frozen=True):
    """How a command ended. `why`: empty if by itself, else the limit that ended it, or `stopped`."""

    code: int
    """As a shell says it: 128 and more is a signal."""
    out: Output
    err: Output
    why: str = ""

    @property
    def stdout(self) -> str:
        return self.out.text()

    @property
    def stderr(self) -> str:
        return self.err.text()


class Folder(msgspec.Struct, frozen=True):
    """A sandbox's private folder, and whose it is."""

    path: str
    uid: str
    """The run's."""

    @property
    def files(self) -> str:
        """All that a command can change and that is kept: it sees each folder in here under its name, and cannot put
        another thing in its place.
        """
        return os.path.join(self.path, FILES)

    @property
    def work(self) -> str:
        """What it sees as `/sandbox`, and begins in."""
        return self.files + PLACE

    @property
    def temporary(self) -> str:
        """What it sees as `/tmp`."""
        return self.files + TEMPORARY

    @property
    def marker(self) -> str:
        return f"{self.uid}/{os.path.basename(self.path)}"


class Launch:
    """One command in one folder. `run` in one thread; `stop` from any."""

    def __init__(self, folder: Folder, wanted: SandboxLimits, namespaces: bool, over_full: bool = False) -> None:
        """`over_full`: the folder holds more than `wanted` allows, and the command may remove some of it."""
        self._folder = folder
        self._wanted = wanted
        self._namespaces = namespaces and not wanted.image
        self._over_full = over_full
        self._groups: list[dict[str, Any]] = []
        self.no_group = ""
        """Why memory was counted, if a control group could be made before and not for this command."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Everything that was started is killed; `run` returns soon."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()

    def run(self, argv: Sequence[str], given: bytes = b"", output_bytes: int | None = None) -> Ran:
        """SandboxFailedError if it could not even be started."""
        wanted = self._wanted
        most = wanted.output_kb << 10 if output_bytes is None else output_bytes
        try:
            repair_folders(self._folder)
            put = self._put(given)
        except OSError as error:
            raise SandboxFailedError(f"the sandbox could not be set up: {error}") from error
        report, told = os.pipe()
        try:
            process = self._start(self._order(argv, put, told))
        finally:
            os.close(told)
        self._process = process
        if self._stopped:
            process.terminate()
        try:
            said, report_said = self._listen(process, report, most)
        finally:
            os.close(report)
            self._finish(process)
            cgroups.remove(self._groups)  # the launcher has, unless it was killed
            self._remove_mount_points()
            if put:
                os.unlink(put)
        ended = _report(report_said)
        self.no_group = ended.get("no_group", "")
        if ended.get("error"):
            raise SandboxFailedError(f"the sandbox could not be set up: {ended['error']}")
        ran = Ran(_as_shell(ended.get("code", -signal.SIGKILL)), said[0], said[1], ended.get("why", "stopped"))
        if wanted.image and ran.code == _DOCKER_FAILED and not ran.why:
            raise SandboxFailedError(f"docker could not run {wanted.image}: {ran.stderr.strip()[:_SAID_MAX]}")
        return ran

    def _start(self, wanted: dict[str, Any]) -> "subprocess.Popen[bytes]":
        order = marshal.dumps(wanted)
        environment = {"PATH": os.environ.get("PATH", _PATH), MARKER: self._folder.marker}
        if self._wanted.image:
            environment = {**os.environ, MARKER: self._folder.marker}
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, _ABOVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._folder.path,
                pass_fds=(wanted["report"],),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFailedError(f"the sandbox's launcher could not be started: {error}") from error
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: its report, or its silence, says why
            process.stdin.write(b"%08x" % len(order) + order)
            process.stdin.flush()
        return process

    def _remove_mount_points(self) -> None:
        """They are no files of the command's. The namespace has ended, so that they are plain empty folders."""
        for path in inner_folders() if self._namespaces else ():
            with contextlib.suppress(OSError):
                os.rmdir(self._folder.files + path)

    def _put(self, given: bytes) -> str:
        """What the command reads, as a file that is not among its own, nor any other command's."""
        if not given:
            return ""
        handle, path = tempfile.mkstemp(prefix=INPUT, dir=self._folder.path)
        with open(handle, "wb") as file:
            file.write(given)
        return path

    def _order(self, argv: Sequence[str], given: str, told: int) -> dict[str, Any]:
        wanted, folder = self._wanted, self._folder
        name = f"{os.path.basename(folder.path)}-{time.monotonic_ns()}"
        inside = self._namespaces or bool(wanted.image)
        environment = environment_of(*((PLACE, TEMPORARY) if inside else (folder.work, folder.temporary)))
        if wanted.image:
            argv, environment = _in_docker(folder, wanted, name, argv, environment), dict(os.environ)
        elif not self._namespaces:
            environment[MARKER] = folder.marker
        if LINUX and not wanted.image:
            group = f"{cgroups.PREFIX}{os.getpid()}-{time.monotonic_ns()}"
            self._groups = cgroups.plan(control_groups()[0], group, wanted.memory_mb * MIB, wanted.processes)
        return {
            "argv": list(argv),
            "environment": environment,
            "folders": {PLACE: folder.work, TEMPORARY: folder.temporary},
            "files": folder.files,
            "place": PLACE if self._namespaces else folder.work,
            "root": os.path.join(folder.path, ROOT),
            "system": list(visibility.SYSTEM),
            "settings": visibility.settings(wanted.network) if self._namespaces else [],
            "python": homes_of_python(),
            "inner": inner_folders(),
            "input": given,
            "namespaces": self._namespaces,
            "network": wanted.network,
            "image": bool(wanted.image),
            "filter": b"" if wanted.image else call_filter(self._namespaces),
            "groups": self._groups,
            "seconds": wanted.seconds,
            "limits": self._limits(),
            "kernel_limits": {} if wanted.image else _kernel_limits(wanted),
            "memory_files": min(wanted.memory_mb, wanted.files_mb) * MIB,
            "after": ["docker", "rm", "-f", name] if wanted.image else [],
            "report": told,
            "parent": os.getpid(),
        }

    def _limits(self) -> dict[str, int]:
        """What the launcher counts. 0 is no limit: the engine of containers counts processes and memory itself."""
        wanted = self._wanted
        return {
            "processes": 0 if wanted.image else wanted.processes,
            "memory": 0 if wanted.image else wanted.memory_mb * MIB,
            "bytes": wanted.files_mb * MIB,
            "files": wanted.files_max,
            "over_full": int(self._over_full),
        }

    def _listen(
        self, process: "subprocess.Popen[bytes]", report: int, most: int
    ) -> tuple[tuple[Output, Output], bytes]:
        """Until the launcher has reported and the output has ended."""
        assert process.stdout is not None
        assert process.stderr is not None
        out, err, told = _Ends(most), _Ends(most), _Ends(_PIECE_BYTES)
        end_at = time.monotonic() + self._wanted.seconds + _GRACE_SECONDS
        with selectors.DefaultSelector() as selector:
            for handle, kept in ((process.stdout.fileno(), out), (process.stderr.fileno(), err), (report, told)):
                selector.register(handle, selectors.EVENT_READ, kept)
            while selector.get_map():
                ready = selector.select(max(end_at - time.monotonic(), 0))
                if not ready and time.monotonic() >= end_at:
                    break
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE_BYTES)
                    key.data.add(piece)
                    if not piece:
                        selector.unregister(key.fd)
                        if key.fd == report:
                            end_at = min(end_at, time.monotonic() + _DRAIN_SECONDS)
        return (out.said(), err.said()), told.said().head

    def _finish(self, process: "subprocess.Popen[bytes]") -> None:
        """By now it has ended, or must."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class _Ends:
    """The first and the last bytes of a stream, as many as may be kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = bytearray()
        self._tail = bytearray()
        self._count = 0

    def add(self, piece: bytes) -> None:
        self._count += len(piece)
        room = self._most // 2 - len(self._head)
        self._head += piece[: max(room, 0)]
        self._tail += piece[max(room, 0) :]
        if len(self._tail) > 2 * self._most + _PIECE_BYTES:
            del self._tail[: -self._most]

    def said(self) -> Output:
        tail = bytes(self._tail[-(self._most - len(self._head)) :])
        return Output(bytes(self._head), tail, self._count - len(self._head) - len(tail))


def environment_of(home: str, temporary: str) -> dict[str, str]:
    """What a command is told of the machine: nothing that a key could be in."""
    own = os.path.dirname(sys.executable)
    return {"PATH": f"{own}:{_PATH}", "HOME": home, "LANG": "C.UTF-8", "TMPDIR": temporary}


@functools.cache
def control_groups() -> tuple[dict[str, str], str]:
    """Where control groups for commands can be made; or nothing, and why."""
    return cgroups.find() if LINUX else ({}, "this system has none")


@functools.cache
def call_filter(namespaces: bool) -> bytes:
    """The filter for system calls; empty where there can be none. Without namespaces a command sees processes that are
    not its own, and may not trace any.
    """
    machine = os.uname().machine
    if not LINUX or machine not in MACHINES or not kernel.has_seccomp():
        return b""
    return build_filter(machine, ptrace=namespaces)


@functools.cache
def why_no_namespaces() -> str:
    """Why commands cannot have namespaces of their own here; empty if they can. Found by trying."""
    if not LINUX:
        return "this system has none"
    if os.uname().machine not in MACHINES:
        return f"the sandbox supports {' and '.join(sorted(MACHINES))}, and this machine is {os.uname().machine}"
    if os.environ.get(PLAIN):
        return f"{PLAIN} is set"
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as path:
        folder = Folder(path, "probe")
        make_folders(folder)
        try:
            ran = Launch(folder, Limits(seconds=_GRACE_SECONDS), namespaces=True).run([sys.executable, "-c", ""])
        except SandboxFailedError as error:
            return str(error)
    if ran.code == 0:
        return ""
    return f"{sys.executable} cannot be started in one: {ran.stderr.strip()[-_SAID_MAX:]}"


def why_no_docker() -> str:
    """Why images cannot be used here; empty if they can."""
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=_GRACE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the command docker cannot be used ({error})"
    return "" if asked.returncode == 0 else f"no engine answers the command docker ({asked.stderr.strip()})"


def make_folders(folder: Folder) -> None:
    """What a command needs to be there. Nobody else may look in."""
    os.makedirs(folder.path, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(folder.path, ROOT), exist_ok=True)
    repair_folders(folder)


def repair_folders(folder: Folder) -> None:
    """Whatever the last command did to the folders that it works in, the next one finds and may use them."""
    for path in (folder.files, folder.work, folder.temporary):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            os.chmod(path, 0o755)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{path} is no folder")
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(path, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)


def remove_folder(path: str) -> None:
    """Also what the command has forbidden itself to change."""
    remove_own_folder(path)


def _kernel_limits(wanted: SandboxLimits) -> dict[str, int]:
    """For each process. CPU time is for the case that the launcher was killed, which else ends commands in time."""
    return {
        "CORE": 1,  # less than any core: with 0 a kernel that pipes cores to a program would still start it
        "CPU": int(wanted.seconds * (os.cpu_count() or 1)) + 1,
        "DATA": wanted.memory_mb * MIB,
        "FSIZE": wanted.files_mb * MIB,
        "NOFILE": _OPEN_FILES_MAX,
        "NPROC": wanted.processes + 2,
    }


def _in_docker(
    folder: Folder, wanted: SandboxLimits, name: str, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """The command line that runs the same in a container, which is gone afterwards."""
    limits = {**_kernel_limits(wanted), "NPROC": 0, "DATA": 0}
    told = {**environment, "PATH": _PATH}
    return [
        *("docker", "run", "--rm", "--interactive", "--name", name),
        *("--label", f"holdfast.run={folder.uid}", "--label", f"holdfast.folder={os.path.basename(folder.path)}"),
        *("--network", "bridge" if wanted.network else "none", "--hostname", "sandbox", "--read-only"),
        *("--memory", f"{wanted.memory_mb}m", "--memory-swap", f"{wanted.memory_mb}m"),
        *("--pids-limit", str(wanted.processes), "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--workdir", PLACE),
        *("--volume", f"{folder.work}:{PLACE}", "--volume", f"{folder.temporary}:{TEMPORARY}"),
        *(part for key, value in limits.items() if value for part in _ulimit(key, value)),
        *(part for key, value in told.items() for part in ("--env", f"{key}={value}")),
        wanted.image,
        *argv,
    ]


def _ulimit(name: str, value: int) -> tuple[str, str]:
    return "--ulimit", f"{name.lower()}={value}"


def _report(said: bytes) -> dict[str, Any]:
    """Empty if the launcher was killed before it could say anything."""
    return dict(marshal.loads(said)) if said else {}


def _as_shell(code: int) -> int:
    return code if code >= 0 else 128 - code
