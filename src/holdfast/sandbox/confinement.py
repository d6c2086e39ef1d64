"""Runs one command, confined by a launcher process, with bounded output. Blocks: for threads.

Invariant: when `Launch.run` returns or raises, nothing of the command runs any more. The launcher does the confining.
This module starts it, holds its lifeline, reads the output, and kills it if it does not report in time. If this process
is killed, the lifeline closes and the launcher kills the command.
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
from holdfast.sandbox import cgroups, kernel, policy
from holdfast.sandbox.kernel import LINUX
from holdfast.sandbox.policy import MACHINES, PLACE, TEMPORARY, build_filter, homes_of_python, inner_folders

MARKER = "HOLDFAST_SANDBOX"
"""Variable in the environment of launchers and of commands without namespaces: the run's uid and the folder's name."""
PLAIN = "HOLDFAST_NO_NAMESPACES"
HOST_NETWORK = "HOLDFAST_HOST_NETWORK"
FILES, ROOT, INPUT = "files", "root", "input-"
"""Inside a sandbox's folder: everything that commands can change, where their root is mounted, and the prefix of files
with standard input."""

_LAUNCHER = "import sys; sys.path.append(sys.argv[1]); from sandbox import launcher; launcher.main()"
"""Imports `sandbox` as a top-level package: it is compiled once, and nothing else of Holdfast is imported. Appended to
the path, so that Python's own modules come first."""
_ABOVE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GRACE_SECONDS = 10.0
"""How long a launcher may take beyond the command's time."""
_DRAIN_SECONDS = 0.5
"""How long to wait for output after the launcher has ended: only an escaped process could still write."""
_PIECE_BYTES = 1 << 16
_OPEN_FILES_MAX = 1024
_DOCKER_FAILED = 125
_STDERR_MAX = 500
MIB = 1 << 20


class SandboxError(HoldfastError):
    """An attempt cannot continue with its sandbox, and neither a tool nor a model can repair that."""

    kind = "sandbox"


class SandboxFailedError(SandboxError):
    """A sandbox could not be created or used, because of the machine. Another attempt may succeed."""

    kind = "sandbox_failed"


class SandboxLimits(Protocol):
    """What a command may use: the `sandbox` of a task, or a `Limits`."""

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


class CommandLimits(msgspec.Struct, frozen=True):
    """Limits for commands that have no `sandbox` in a spec."""

    seconds: float
    memory_mb: int = 1024
    processes: int = 128
    output_kb: int = 32
    files_mb: int = 64
    files_max: int = 10_000
    network: bool = False
    image: str = ""


class Output(msgspec.Struct, frozen=True):
    """The output of a command: its first and last bytes, and how many between them were left out."""

    head: bytes
    tail: bytes = b""
    left_out: int = 0

    def text(self) -> str:
        """Return it as text, with a note where bytes were left out. Invalid UTF-8 is replaced."""
        if not self.left_out:
            return (self.head + self.tail).decode("utf-8", "replace")
        note = f"\n[… {self.left_out} bytes are left out …]\n"
        return f"{self.head.decode('utf-8', 'replace')}{note}{self.tail.decode('utf-8', 'replace')}"


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended. `why`: the limit that ended it, or `stopped`; empty if it ended by itself."""

    code: int
    """As in a shell: 128 + number for a signal."""
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
    """A sandbox's private folder, and the run that it belongs to."""

    path: str
    uid: str
    """The run's."""

    @property
    def files(self) -> str:
        """Everything that a command can change and that is stored. Each folder in here is mounted under its name, so
        the command cannot replace it.
        """
        return os.path.join(self.path, FILES)

    @property
    def work(self) -> str:
        """What a command sees as `/sandbox`, its working directory."""
        return self.files + PLACE

    @property
    def temporary(self) -> str:
        """What a command sees as `/tmp`."""
        return self.files + TEMPORARY

    @property
    def marker(self) -> str:
        return f"{self.uid}/{os.path.basename(self.path)}"


class Launch:
    """One command in one folder. Call `run` in one thread; `stop` from any thread."""

    def __init__(self, folder: Folder, spec: SandboxLimits, namespaces: bool, over_full: bool = False) -> None:
        """`over_full`: the folder holds more than `spec` allows, and the command may remove some of it."""
        self._folder = folder
        self._spec = spec
        self._namespaces = namespaces and not spec.image
        self._over_full = over_full
        self._groups: list[dict[str, Any]] = []
        self.no_group = ""
        """Why this command had no control group, if others could have one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Kill the command and everything that it started; `run` then returns soon."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()

    def run(self, argv: Sequence[str], given: bytes = b"", output_bytes: int | None = None) -> CommandResult:
        """Run a command to its end. SandboxFailedError if it could not be started."""
        spec = self._spec
        most = spec.output_kb << 10 if output_bytes is None else output_bytes
        try:
            repair_folders(self._folder)
            input_path = ""
            if given:  # standard input, in a file outside the folders that commands can see
                handle, input_path = tempfile.mkstemp(prefix=INPUT, dir=self._folder.path)
                with open(handle, "wb") as file:
                    file.write(given)
        except OSError as error:
            raise SandboxFailedError(f"the sandbox could not be set up: {error}") from error
        report, report_write = os.pipe()
        try:
            process = self._start(self._order(argv, input_path, report_write))
        finally:
            os.close(report_write)
        self._process = process
        if self._stopped:
            process.terminate()
        try:
            output, report_bytes = self._listen(process, report, most)
        finally:
            os.close(report)
            self._finish(process)
            cgroups.remove(self._groups)  # the launcher has done it, unless it was killed
            # Remove mount points from the command's folders: the namespace has ended, so they are empty folders now.
            for path in inner_folders() if self._namespaces else ():
                with contextlib.suppress(OSError):
                    os.rmdir(self._folder.files + path)
            if input_path:
                os.unlink(input_path)
        ended = dict(marshal.loads(report_bytes)) if report_bytes else {}  # empty: killed before it could write one
        self.no_group = ended.get("no_group", "")
        if ended.get("error"):
            raise SandboxFailedError(f"the sandbox could not be set up: {ended['error']}")
        code = ended.get("code", -signal.SIGKILL)
        code = code if code >= 0 else 128 - code  # as a shell reports a signal
        ran = CommandResult(code, output[0], output[1], ended.get("why", "stopped"))
        if spec.image and ran.code == _DOCKER_FAILED and not ran.why:
            raise SandboxFailedError(f"docker could not run {spec.image}: {ran.stderr.strip()[:_STDERR_MAX]}")
        return ran

    def _start(self, order: dict[str, Any]) -> "subprocess.Popen[bytes]":
        data = marshal.dumps(order)
        environment = {"PATH": os.environ.get("PATH", _PATH), MARKER: self._folder.marker}
        if self._spec.image:
            environment = {**os.environ, MARKER: self._folder.marker}
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, _ABOVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._folder.path,
                pass_fds=(order["report"],),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFailedError(f"the sandbox's launcher could not be started: {error}") from error
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended early: `run` sees that from its report
            process.stdin.write(b"%08x" % len(data) + data)
            process.stdin.flush()
        return process

    def _order(self, argv: Sequence[str], given: str, report: int) -> dict[str, Any]:
        spec, folder = self._spec, self._folder
        name = f"{os.path.basename(folder.path)}-{time.monotonic_ns()}"
        inside = self._namespaces or bool(spec.image)
        environment = environment_of(*((PLACE, TEMPORARY) if inside else (folder.work, folder.temporary)))
        if spec.image:
            argv, environment = _in_docker(folder, spec, name, argv, environment), dict(os.environ)
        elif not self._namespaces:
            environment[MARKER] = folder.marker
        if LINUX and not spec.image:
            group = f"{cgroups.PREFIX}{os.getpid()}-{time.monotonic_ns()}"
            self._groups = cgroups.plan(control_groups()[0], group, spec.memory_mb * MIB, spec.processes)
        return {
            "argv": list(argv),
            "environment": environment,
            "folders": {PLACE: folder.work, TEMPORARY: folder.temporary},
            "files": folder.files,
            "place": PLACE if self._namespaces else folder.work,
            "root": os.path.join(folder.path, ROOT),
            "system": list(policy.SYSTEM),
            "settings": policy.settings(spec.network) if self._namespaces else [],
            "python": homes_of_python(),
            "inner": inner_folders(),
            "input": given,
            "namespaces": self._namespaces,
            "network": spec.network,
            "image": bool(spec.image),
            "filter": b"" if spec.image else call_filter(self._namespaces),
            "groups": self._groups,
            "seconds": spec.seconds,
            "limits": {  # checked by the launcher; 0 is none: docker limits processes and memory itself
                "processes": 0 if spec.image else spec.processes,
                "memory": 0 if spec.image else spec.memory_mb * MIB,
                "bytes": spec.files_mb * MIB,
                "files": spec.files_max,
                "over_full": int(self._over_full),
            },
            "kernel_limits": {} if spec.image else _kernel_limits(spec),
            "memory_files": min(spec.memory_mb, spec.files_mb) * MIB,
            "after": ["docker", "rm", "-f", name] if spec.image else [],
            "report": report,
            "parent": os.getpid(),
        }

    def _listen(
        self, process: "subprocess.Popen[bytes]", report: int, most: int
    ) -> tuple[tuple[Output, Output], bytes]:
        """Read until the launcher has reported and the output has ended, or the time is over."""
        assert process.stdout is not None
        assert process.stderr is not None
        out, err, reported = _Ends(most), _Ends(most), _Ends(_PIECE_BYTES)
        end_at = time.monotonic() + self._spec.seconds + _GRACE_SECONDS
        with selectors.DefaultSelector() as selector:
            for handle, kept in ((process.stdout.fileno(), out), (process.stderr.fileno(), err), (report, reported)):
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
        return (out.output(), err.output()), reported.output().head

    def _finish(self, process: "subprocess.Popen[bytes]") -> None:
        """Close the lifeline and wait for the launcher; kill it if it does not end."""
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
    """Keeps the first and the last bytes of a stream, within a limit."""

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

    def output(self) -> Output:
        tail = bytes(self._tail[-(self._most - len(self._head)) :])
        return Output(bytes(self._head), tail, self._count - len(self._head) - len(tail))


def environment_of(home: str, temporary: str) -> dict[str, str]:
    """Return the environment of a command. Nothing of ours is passed on: it could hold keys."""
    own = os.path.dirname(sys.executable)
    return {"PATH": f"{own}:{_PATH}", "HOME": home, "LANG": "C.UTF-8", "TMPDIR": temporary}


@functools.cache
def control_groups() -> tuple[dict[str, str], str]:
    """Return where control groups can be created; or nothing, and why."""
    return cgroups.find() if LINUX else ({}, "this system has none")


@functools.cache
def call_filter(namespaces: bool) -> bytes:
    """Return the filter for system calls; empty where there can be none. Without namespaces a command sees foreign
    processes, so it may not trace any.
    """
    machine = os.uname().machine
    if not LINUX or machine not in MACHINES or not kernel.has_seccomp():
        return b""
    return build_filter(machine, ptrace=namespaces)


@functools.cache
def why_no_namespaces() -> str:
    """Return why commands cannot have their own namespaces here; empty if they can. Tries it with a real command."""
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
            ran = Launch(folder, CommandLimits(seconds=_GRACE_SECONDS), namespaces=True).run([sys.executable, "-c", ""])
        except SandboxFailedError as error:
            return str(error)
    if ran.code == 0:
        return ""
    return f"{sys.executable} cannot be started in one: {ran.stderr.strip()[-_STDERR_MAX:]}"


def why_no_docker() -> str:
    """Return why images cannot be used here; empty if they can."""
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=_GRACE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the command docker cannot be used ({error})"
    return "" if done.returncode == 0 else f"no engine answers the command docker ({done.stderr.strip()})"


def make_folders(folder: Folder) -> None:
    """Create the folders that a command needs, private to this user."""
    os.makedirs(folder.path, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(folder.path, ROOT), exist_ok=True)
    repair_folders(folder)


def repair_folders(folder: Folder) -> None:
    """Recreate folders that the last command removed, and restore our permissions on them."""
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
    """Remove a folder, also if the command made parts of it read-only."""
    remove_own_folder(path)


def _kernel_limits(spec: SandboxLimits) -> dict[str, int]:
    """Return the kernel's limits for each process. CPU time is a fallback in case the launcher is killed."""
    return {
        "CORE": 1,  # less than any core: with 0 a kernel that pipes cores to a program would still start it
        "CPU": int(spec.seconds * (os.cpu_count() or 1)) + 1,
        "DATA": spec.memory_mb * MIB,
        "FSIZE": spec.files_mb * MIB,
        "NOFILE": _OPEN_FILES_MAX,
        "NPROC": spec.processes + 2,
    }


def _in_docker(
    folder: Folder, spec: SandboxLimits, name: str, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return the command line that runs the same in a container and removes it afterwards."""
    limits = {**_kernel_limits(spec), "NPROC": 0, "DATA": 0}
    passed = {**environment, "PATH": _PATH}
    return [
        *("docker", "run", "--rm", "--interactive", "--name", name),
        *("--label", f"holdfast.run={folder.uid}", "--label", f"holdfast.folder={os.path.basename(folder.path)}"),
        *("--network", "bridge" if spec.network else "none", "--hostname", "sandbox", "--read-only"),
        *("--memory", f"{spec.memory_mb}m", "--memory-swap", f"{spec.memory_mb}m"),
        *("--pids-limit", str(spec.processes), "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--workdir", PLACE),
        *("--volume", f"{folder.work}:{PLACE}", "--volume", f"{folder.temporary}:{TEMPORARY}"),
        *(part for key, value in limits.items() if value for part in ("--ulimit", f"{key.lower()}={value}")),
        *(part for key, value in passed.items() for part in ("--env", f"{key}={value}")),
        spec.image,
        *argv,
    ]
