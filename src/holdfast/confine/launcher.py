"""Runs one command so that it cannot outlive its call: a program of its own, started with `python -I -S`.

It imports nothing of Holdfast, so that it starts in milliseconds. Standard input brings the order (eight hex digits of
length, then that many bytes of `marshal`) and stays open as the lifeline: whoever started us holds the other end, and
when that process ends, however it ends, everything that we started is killed. Invariant: when the report is written,
nothing of the command runs any more.

With namespaces the command has a user, process, mount, network, ipc and host name space of its own: it sees the
system's programs read-only, its own folder, and nothing else. Without them it has a process group, limits, and us, to
whom all its orphans fall.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn

    Order = dict[str, Any]
else:
    import _signal as signal  # what is around it, and `typing`, would take as long to import as Python to start

LINUX = sys.platform == "linux"
POLL_SECONDS = 0.1
INNER_ID = 1000
"""Who the command is in its namespace: not 0, so that it has no powers even there."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu")
_NAMES = """
alternatives bash.bashrc bash_completion ca-certificates crypto-policies fonts group host.conf hosts inputrc
java-17-openjdk java-21-openjdk ld.so.cache ld.so.conf ld.so.conf.d localtime locale.alias locale.conf login.defs
magic mime.types nsswitch.conf os-release passwd pki profile profile.d protocols resolv.conf services shells ssl
terminfo timezone
"""
SETTINGS = _NAMES.split()
"""What programs look up in /etc. Nothing else of it is shown: it may hold secrets."""
DEVICES = ("null", "zero", "full", "random", "urandom")

CALLS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}
MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
READ_ONLY, NO_SETUID = 1, 2
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
NEW_MOUNTS, NEW_HOST, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
PDEATHSIG, NO_NEW_PRIVILEGES, SUBREAPER = 1, 38, 36

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Do as ordered, then say how it ended, on the descriptor that the order names."""
    order: Order = marshal.loads(read_exactly(int(read_exactly(8), 16)))
    os.set_inheritable(order["report"], False)
    wake = listen()
    if LINUX:
        libc.prctl(PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != order["parent"]:
        return  # it ended before we could say that we want to know
    try:
        child = start(order)
    except OSError as error:
        tell(order, {"error": str(error)})
        return
    why, status = watch(child, order, wake)
    end(child)
    if why and order["after"]:
        run_quietly(order["after"])
    tell(order, {"why": why, "code": status})


def listen() -> int:
    """A descriptor that gets a byte for every signal that we care about."""
    wake, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    for each in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    return wake


def start(order: Order) -> int:
    """The process to wait for. OSError, with what could not be done, if there is none."""
    error_read, error_write = os.pipe()
    go_read, go_write = os.pipe()
    child = clone(order["network"]) if order["namespaces"] else os.fork()
    if child == 0:
        os.close(go_write)
        os.close(error_read)
        begin(order, go_read, error_write)
    os.close(error_write)
    os.close(go_read)
    if order["namespaces"]:
        map_ids(child)
    os.write(go_write, b"g")
    os.close(go_write)
    said = read_all(error_read)
    os.close(error_read)
    if said:
        os.waitpid(child, 0)
        raise OSError(said.decode("utf-8", "replace"))
    return child


def clone(network: bool) -> int:
    flags = NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_IPC | NEW_HOST | (0 if network else NEW_NET)
    return system_call(CALLS[os.uname().machine]["clone"], flags | signal.SIGCHLD, 0, 0, 0, 0)


def map_ids(child: int) -> None:
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{INNER_ID} {os.getuid()} 1"),
        ("gid_map", f"{INNER_ID} {os.getgid()} 1"),
    ):
        with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
            file.write(line)


def watch(child: int, order: Order, wake: int) -> tuple[str, int]:
    """Until the command ends, or must: why (nothing, if it ended by itself), and how."""
    end_at = time.monotonic() + order["seconds"]
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "", os.waitstatus_to_exitcode(status)
        left = end_at - time.monotonic()
        if left <= 0:
            return "time", -signal.SIGKILL
        ready, _, _ = select.select([0, wake], [], [], min(left, POLL_SECONDS))
        if 0 in ready or (wake in ready and signal.SIGTERM in os.read(wake, 100)):
            return "stopped", -signal.SIGKILL
        over = too_much(order["limits"]) if LINUX and order["limits"] else ""
        if over:
            return over, -signal.SIGKILL


def too_much(limits: dict[str, int]) -> str:
    """All processes together: limits of the kernel's own are for each of them, and none of root's are counted."""
    found = descendants()
    if len(found) > limits["processes"] + 1:
        return "processes"
    pages = 0
    for pid in found:
        numbers = first_line(f"/proc/{pid}/statm").split()
        pages += int(numbers[1]) - int(numbers[2]) if len(numbers) > 2 else 0
    return "memory" if pages * resource.getpagesize() > limits["memory"] else ""


def end(child: int) -> None:
    """Kill everything that is left. The first process of a namespace takes all others with it."""
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


def descendants() -> list[int]:
    """Of this process, to which all orphans among them fall."""
    found: list[int] = []
    above = [os.getpid()]
    while above:
        pid = above.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        children = [
            int(each) for thread in threads for each in first_line(f"/proc/{pid}/task/{thread}/children").split()
        ]
        found += children
        above += children
    return found


def begin(order: Order, go: int, errors: int) -> NoReturn:
    """The child: with namespaces it makes its world, then stays as the first process there."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    try:
        if LINUX:
            libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if not os.read(go, 1):
            os._exit(1)
        order["given"] = os.open(order["input"] or os.devnull, os.O_RDONLY)
        if not order["namespaces"]:
            os.setpgid(0, 0)
            execute(order)
        make_world(order)
        command = os.fork()
        if command == 0:
            execute(order)
        os.close(errors)
        wait_as_first(command)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it, and nothing may return
        os.write(errors, str(error).encode()[:2000])
    os._exit(1)


def wait_as_first(command: int) -> NoReturn:
    """Orphans fall to us. When we end, all others in the namespace are killed."""
    for each in (0, 1, 2):
        os.close(each)
    while True:
        ended, status = os.wait()
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def execute(order: Order) -> NoReturn:
    """Become the command."""
    os.dup2(order["given"], 0)
    os.chdir(order["place"])
    os.umask(0o022)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and commands do not expect that
        signal.signal(each, signal.SIG_DFL)
    if LINUX:
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for name, value in order["kernel_limits"].items():
        limit(name, value, order["namespaces"])
    try:
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except OSError as error:  # as a shell says it
        os.write(2, f"{order['argv'][0]}: {error.strerror}\n".encode())
    os._exit(127)


def limit(name: str, value: int, alone: bool) -> None:
    """Processes are counted by user: a limit of them means something only where the user is alone."""
    if name == "NPROC" and not alone:
        return
    kind = getattr(resource, f"RLIMIT_{name}")
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))


def make_world(order: Order) -> None:
    """Build a root in memory, bind into it what the command may see, and detach the old root. Everything becomes
    read-only at the end, except the command's own folders.
    """
    root = order["root"]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    for path in SYSTEM:
        show(root, path)
    for path in order["shown"]:
        if not is_below(path, order["inner"]) and not os.path.lexists(root + path):
            show(root, path)
    os.makedirs(f"{root}/etc", exist_ok=True)
    for name in SETTINGS:
        show(root, f"/etc/{name}", links=False)
    make_devices(root, order["memory_files"])
    os.mkdir(f"{root}/proc")
    mount_proc(f"{root}/proc")
    bind_folders(order)
    os.chdir(root)
    system_call(CALLS[os.uname().machine]["pivot_root"], b".", b".")
    checked(libc.umount2(b".", MNT_DETACH), "leaving the old root")
    os.chdir("/")
    set_flags("/", AT_RECURSIVE, on=READ_ONLY | NO_SETUID)
    for path in (*order["folders"], "/dev/shm"):
        set_flags(path, 0, off=READ_ONLY)
    libc.sethostname(b"sandbox", 7)
    if not order["network"]:
        raise_loopback()


def bind_folders(order: Order) -> None:
    """The command's own folders, and into them the parts of Python that lie below their names."""
    root, inner = order["root"], order["inner"]
    for path, folder in order["folders"].items():
        if os.path.islink(folder):
            raise OSError(f"{folder} is a link")  # no command could make it one, and nothing may be shown through it
        bind(folder, root + path)
    for path in inner:
        make_inner(root, path)
    for path in order["shown"]:
        if path in inner or (is_below(path, inner) and not os.path.lexists(root + path)):
            show(root, path, links=path not in inner)


def is_below(path: str, folders: list[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def make_inner(root: str, path: str) -> None:
    """Cover a folder inside one of the command's own folders, so that a part of Python can be bound into it. It is in
    memory: the command cannot change it, and nothing below it is left in the command's files.
    """
    target = root + path
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target) or os.listdir(target)):
        raise OSError(f"{path} is needed for Python, but an earlier command has put something there")
    os.makedirs(target, exist_ok=True)
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def mount_proc(path: str) -> None:
    """Where the machine hides parts of /proc a new one is not allowed. Most programs do without."""
    try:
        mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        return


def show(root: str, path: str, links: bool = True) -> None:
    """The same path, read-only in the end. A link stays one, if what it leads to is shown too."""
    if links and os.path.islink(path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.readlink(path), root + path)
    elif os.path.exists(path):
        bind(os.path.realpath(path), root + path)


def bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)


def make_devices(root: str, memory_files: int) -> None:
    os.makedirs(f"{root}/dev/shm")
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={memory_files}")


def raise_loopback() -> None:
    """So that a program can talk to itself: a `struct ifreq` with the name and the flags UP and RUNNING."""
    handle = libc.socket(2, 2, 0)
    request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + (0x41).to_bytes(2, sys.byteorder), 40)
    libc.ioctl(handle, 0x8914, request)
    os.close(handle)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    told = [each if each is None else os.fsencode(each) for each in (source, target, kind)]
    checked(libc.mount(*told, ctypes.c_ulong(flags), data and data.encode()), f"mounting {target}")


def set_flags(path: str, how: int, on: int = 0, off: int = 0) -> None:
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    system_call(MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), how, ctypes.byref(attributes), 32)


def system_call(number: int, *arguments: Any) -> int:
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *passed), f"system call {number}")


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


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


def tell(order: Order, report: dict[str, Any]) -> None:
    try:
        os.write(order["report"], marshal.dumps(report))
    except BrokenPipeError:
        return  # nobody is left to hear it


def first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline()
    except OSError:
        return ""


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)  # whoever started us ended before it had said what to do
        data += piece
    return data


def read_all(handle: int) -> bytes:
    data = b""
    while piece := os.read(handle, 4096):
        data += piece
    return data
