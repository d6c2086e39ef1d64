"""Runs one command so that it cannot outlive its call: a program of its own, started with `python -I -S`.

It imports nothing of Holdfast but its neighbours, so that it starts in milliseconds. The order arrives on standard
input (eight hex digits of length, then that many bytes of `marshal`), which stays open as the lifeline: when the
process that holds the other end dies, everything that we started is killed. Invariant: when the report is written,
nothing of the command runs any more.

With namespaces the command has a user, process, mount, network, ipc and host name space of its own: it sees the
system's programs read-only, its own folder, and nothing else. Without them it has a process group, limits, and this
process as the parent of its orphans. In both cases it has a filter for system calls, a keyring of its own, and a
control group where one can be made.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import time

from . import cgroups, kernel
from .filesystem import INNER_ID, make_root
from .kernel import LINUX
from .usage import UsageWatch, descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn

    Order = dict[str, Any]
else:
    import _signal as signal  # `signal` itself and `typing` take as long to import as Python to start

POLL_SECONDS = 0.1
NEW_MOUNTS, NEW_HOST, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
HANDLES = 64
"""Upper bound on the descriptors that a launcher has open."""
USER_NAMESPACES_MAX = "/proc/sys/user/max_user_namespaces"
SHARED_PAGES_MAX = "/proc/sys/kernel/shmall"


def main() -> None:
    """Carry out the order, then report how it ended on the descriptor that the order names."""
    order: Order = marshal.loads(read_exactly(int(read_exactly(8), 16)))
    os.set_inheritable(order["report"], False)
    wake = listen()
    if LINUX:
        kernel.control(kernel.SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        kernel.control(kernel.SET_SUBREAPER, 1)
    if os.getppid() != order["parent"]:
        return  # it died before PR_SET_PDEATHSIG took effect
    no_group = make_groups(order)
    try:
        use = UsageWatch(
            order["limits"], order["files"], [each["events"] for each in order["groups"] if each["events"]]
        )
        child = start(order)
    except OSError as error:
        report: dict[str, Any] = {"error": str(error)}
    else:
        why, status = watch(child, use, order["seconds"], wake)
        end(child)
        if why and order["after"]:
            run_quietly(order["after"])
        report = {"why": why, "code": status, "no_group": no_group}
    cgroups.remove(order["groups"])
    send(order, report)


def make_groups(order: Order) -> str:
    """Create the control groups; return why that failed, if it did. Then memory is counted instead: a long run should
    not end because of it.
    """
    try:
        cgroups.make(order["groups"])
    except OSError as error:
        cgroups.remove(order["groups"])
        order["groups"] = []
        return str(error)
    return ""


def listen() -> int:
    """Return a descriptor that receives a byte for every SIGCHLD and SIGTERM."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for each in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    return wake


def start(order: Order) -> int:
    """Start the command; return the process to wait for. OSError says what could not be done."""
    error_read, error_write = os.pipe()
    go_read, go_write = os.pipe()
    child = clone(order["network"]) if order["namespaces"] else os.fork()
    if child == 0:
        os.close(go_write)
        os.close(error_read)
        begin(order, go_read, error_write)
    os.close(error_write)
    os.close(go_read)
    try:
        if order["namespaces"]:
            map_ids(child)
        cgroups.enter(order["groups"], child)  # before it does anything, so that all its memory is counted
        os.write(go_write, b"g")
    except OSError:
        kill(child)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(go_write)
    failure = read_all(error_read)
    os.close(error_read)
    if failure:
        os.waitpid(child, 0)
        raise OSError(failure.decode("utf-8", "replace"))
    return child


def clone(network: bool) -> int:
    flags = NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_IPC | NEW_HOST | (0 if network else NEW_NET)
    return kernel.call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def map_ids(child: int) -> None:
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{INNER_ID} {os.getuid()} 1"),
        ("gid_map", f"{INNER_ID} {os.getgid()} 1"),
    ):
        kernel.write(f"/proc/{child}/{name}", line)


def watch(child: int, use: UsageWatch, seconds: float, wake: int) -> tuple[str, int]:
    """Wait until the command ends or must be killed; return why (empty if it ended by itself) and its status."""
    end_at = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "memory" if use.is_out_of_memory() else "", os.waitstatus_to_exitcode(status)
        left = end_at - time.monotonic()
        if left <= 0:
            return "time", -signal.SIGKILL
        ready, _, _ = select.select([0, wake], [], [], min(left, POLL_SECONDS))
        if 0 in ready or (wake in ready and signal.SIGTERM in os.read(wake, 100)):
            return "stopped", -signal.SIGKILL
        over = use.excess() if LINUX else ""
        if over:
            return over, -signal.SIGKILL


def end(child: int) -> None:
    """Kill everything that is left. The end of a namespace's first process kills all others in it."""
    while True:
        if LINUX:
            for pid in descendants():
                kill(pid)
        else:
            kill(-child)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.001)


def begin(order: Order, go: int, errors: int) -> NoReturn:
    """Run in the child: with namespaces, build the file system and stay as the namespace's first process."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    try:
        os.close(order["report"])
        if LINUX:
            kernel.control(kernel.SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if not os.read(go, 1):
            os._exit(1)
        order["given"] = os.open(order["input"] or os.devnull, os.O_RDONLY)
        if LINUX and not order["image"]:
            kernel.join_new_keyring()
        if not order["namespaces"]:
            os.setpgid(0, 0)
            execute(order)
        forbid_user_namespaces(bool(order["filter"]))
        bound_shared_memory(order["limits"]["memory"])
        make_root(order)
        command = os.fork()
        if command == 0:
            execute(order)
        wait_as_init(command)
    except BaseException as error:  # noqa: BLE001 - the parent must get every error, and nothing may return from here
        os.write(errors, str(error).encode()[:2000])
    os._exit(1)


def forbid_user_namespaces(filtered: bool) -> None:
    """Forbid nested user namespaces: in one a command has all capabilities and could mount control groups. The filter
    forbids it too; without either there is no sandbox.
    """
    try:
        kernel.write(USER_NAMESPACES_MAX, "0")
    except OSError as error:
        if not filtered:
            raise OSError(f"nested user namespaces cannot be forbidden: {error}") from error


def bound_shared_memory(most: int) -> None:
    """Limit System V shared memory, which belongs to no process. On older kernels only root may set this."""
    try:
        kernel.write(SHARED_PAGES_MAX, str(most // resource.getpagesize()))
    except OSError:
        return


def wait_as_init(command: int) -> NoReturn:
    """Wait for the command as the namespace's first process, which adopts orphans and whose end kills all others. The
    command runs as the same user, so keep nothing that it could take: no descriptors, capabilities or readable memory.
    """
    os.closerange(0, HANDLES)
    kernel.drop_capabilities()
    kernel.control(kernel.SET_DUMPABLE, 0)
    while True:
        ended, status = os.wait()
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def execute(order: Order) -> NoReturn:
    """Apply limits and filters, then become the command."""
    os.dup2(order["given"], 0)
    os.chdir(order["place"])
    os.umask(0o022)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and commands do not expect that
        signal.signal(each, signal.SIG_DFL)
    for name, value in order["kernel_limits"].items():
        limit(name, value, order["namespaces"])
    if LINUX:
        kernel.control(kernel.SET_NO_NEW_PRIVILEGES, 1)
        if order["namespaces"]:
            kernel.drop_capabilities()
        if order["filter"]:
            kernel.install_filter(order["filter"])  # last: the calls before it need what it forbids
    try:
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except OSError as error:  # as a shell says it
        os.write(2, f"{order['argv'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def limit(name: str, value: int, alone: bool) -> None:
    """Set a resource limit. The kernel counts processes by user, so NPROC works only in a user namespace of its own."""
    if name == "NPROC" and not alone:
        return
    kind = getattr(resource, f"RLIMIT_{name}")
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run_quietly(argv: list[str]) -> None:
    child = os.fork()
    if child == 0:
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(nowhere, each)
            os.execvp(argv[0], argv)
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def send(order: Order, report: dict[str, Any]) -> None:
    try:
        os.write(order["report"], marshal.dumps(report))
    except BrokenPipeError:
        return  # nobody is left to read it


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)  # the process that started us ended before it had sent the order
        data += piece
    return data


def read_all(handle: int) -> bytes:
    data = b""
    while piece := os.read(handle, 4096):
        data += piece
    return data
