"""Ways out of the sandbox that were open once: nested namespaces, system calls, keys, files and local services."""

import os
import platform
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sandbox import confinement, policy
from holdfast.sandbox.confinement import CommandResult, Folder, Launch, SandboxFailedError
from holdfast.sandbox.kernel import CALLS
from holdfast.sandbox.policy import build_filter
from holdfast.spec import Sandbox
from tests.security.sandboxes import (
    LIBC,
    ROOT,
    SAME_KEYRING,
    SIGSYS,
    WITH_CAPABILITIES,
    WITH_NESTING,
    WITHOUT_FILTER,
    attack,
    box,
    confined,
    in_child,
    users,
    without,
)

__all__ = ["box"]
pytestmark = confined
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="a call of another machine")

NEST = (
    LIBC
    + """
if libc.unshare(0x10000000 | 0x20000 | 0x02000000):  # user, mount and control group namespace
    sys.exit(f"refused: {os.strerror(ctypes.get_errno())}")
if libc.mount(b"cgroup2", b"/tmp", b"cgroup2", 0, None):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
print("mounted")
if os.path.exists("/tmp/cgroup.kill"):  # not in the uppermost group
    sys.stdout.flush()
    open("/tmp/cgroup.kill", "w").write("1")
"""
)


@users
@pytest.mark.parametrize(
    ("guards", "reason"),
    [
        ((), "Operation not permitted"),
        ((WITH_NESTING,), "Operation not permitted"),
        ((WITHOUT_FILTER,), "No space left on device"),  # what the kernel says at the limit of namespaces
    ],
    ids=["both guards", "only the filter", "only the limit"],
)
def test_a_command_cannot_make_a_user_namespace_and_each_guard_suffices(
    box: Folder, user: str, guards: tuple[str, ...], reason: str
) -> None:
    with without(*guards):
        ran = attack(box, NEST, user)
    assert (ran.code, ran.stdout, ran.stderr) == (1, "", f"refused: {reason}\n")


@users
def test_control_without_both_guards_a_command_mounts_control_groups(box: Folder, user: str) -> None:
    with without(WITH_NESTING, WITHOUT_FILTER):
        ran = attack(box, NEST, user)
    assert "mounted" in ran.stdout, ran.stderr


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A group of version 2 for a runner that is to be attacked."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    if not ROOT or not mounted:
        pytest.skip("needs root and control groups of version 2")
    path = Path(mounted[0], f"holdfast-test-{os.getpid()}")
    path.mkdir()
    yield path
    for _ in range(1000):
        try:
            path.rmdir()
        except OSError:
            os.sched_yield()
        else:
            break


def run_in_group(box: Folder, group: Path) -> int:
    """How a runner in this group ended, whose command attacked it."""
    child = os.fork()
    if child == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            Launch(box, Sandbox(seconds=20), True).run([sys.executable, "-c", NEST])
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_command_cannot_kill_its_runner_through_control_groups(box: Folder, control_group: Path) -> None:
    assert run_in_group(box, control_group) == 0


def test_control_without_the_guards_the_runner_dies(box: Folder, control_group: Path) -> None:
    with without(WITH_NESTING, WITHOUT_FILTER):
        assert run_in_group(box, control_group) == -signal.SIGKILL


def test_without_seccomp_and_without_a_limit_there_is_no_sandbox(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "call_filter", lambda namespaces: b"")
    assert attack(box, NEST).stderr == "refused: No space left on device\n"  # the limit alone
    with (
        without("launcher.USER_NAMESPACES_MAX = '/proc/there/is/none'"),
        pytest.raises(SandboxFailedError, match="nested user namespaces cannot be forbidden"),
    ):
        Launch(box, Sandbox(), True).run(["true"])


CALL = LIBC + "ctypes.set_errno(0)\nprint(libc.syscall({call}), os.strerror(ctypes.get_errno()))\n"
REFUSED = {
    "setns": ("ctypes.c_long(308), 0, 0", "Operation not permitted", "Invalid argument"),
    "clone into a namespace": (
        "ctypes.c_long(56), ctypes.c_ulong(0x10000011), 0, 0, 0, 0",
        "Operation not permitted",
        "",
    ),
    "clone3": ("ctypes.c_long(435), None, ctypes.c_long(0)", "Function not implemented", "Invalid argument"),
    "io_uring_setup": ("ctypes.c_long(425), 1, None", "Function not implemented", "Bad address"),
    "userfaultfd": ("ctypes.c_long(323), 1", "Function not implemented", ""),
    "keyctl": ("ctypes.c_long(250), 0, -3, 0", "Operation not permitted", ""),
    "bpf": ("ctypes.c_long(321), 99, None, 0", "Operation not permitted", ""),
    "personality": ("ctypes.c_long(135), 0x0400000", "Operation not permitted", "Success"),
    "process_vm_readv": ("ctypes.c_long(310), 1, None, 0, None, 0, 0", "Operation not permitted", ""),
    "open_by_handle_at": ("ctypes.c_long(304), -1, None, 0", "Operation not permitted", ""),
    "a call of tomorrow": ("ctypes.c_long(10000)", "Function not implemented", ""),
    "x32": ("ctypes.c_long(0x40000000 + 39)", "Function not implemented", ""),
    "vsock": ("ctypes.c_long(41), 40, 1, 0", "Address family not supported by protocol", ""),
    "packet": ("ctypes.c_long(41), 17, 3, 0", "Address family not supported by protocol", "Operation not permitted"),
}


@x86
@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_and_was_not_without_the_filter(box: Folder, name: str) -> None:
    call, refusal, otherwise = REFUSED[name]
    assert attack(box, CALL.format(call=call)).stdout == f"-1 {refusal}\n"
    if otherwise:  # else it depends on the kernel
        with without(WITHOUT_FILTER):
            assert attack(box, CALL.format(call=call)).stdout.strip().endswith(otherwise)


def test_sockets_that_belong_to_no_network_namespace_reach_nothing(box: Folder) -> None:
    """AF_VSOCK leads to the host of a virtual machine."""
    program = "import socket; socket.socket(40, socket.SOCK_STREAM); print('made')"
    ran = attack(box, program)
    assert (ran.stdout, "Address family not supported" in ran.stderr) == ("", True)
    try:
        socket.socket(40, socket.SOCK_STREAM).close()
    except OSError:
        return  # nothing to control: this kernel has none
    with without(WITHOUT_FILTER):
        assert attack(box, program).stdout == "made\n"


@x86
def test_a_call_of_the_32_bit_convention_ends_the_program(box: Folder) -> None:
    program = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))  # getpid by interrupt 0x80\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())\n"
    )
    assert attack(box, program).code == SIGSYS
    with without(WITHOUT_FILTER):
        assert attack(box, program).code != SIGSYS


def test_a_command_may_trace_its_own_processes_but_not_without_namespaces(box: Folder) -> None:
    program = LIBC + "print(libc.ptrace(0, 0, None, None))\n"
    assert attack(box, program).stdout == "0\n"
    assert attack(box, program, namespaces=False).stdout == "-1\n"


def test_programs_that_need_threads_processes_and_sockets_work_with_the_filter(box: Folder) -> None:
    program = (
        "import asyncio, multiprocessing, subprocess, threading, socket, tempfile\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip())\n"
        "with multiprocessing.Pool(2) as pool: print(sum(pool.map(abs, range(5))))\n"
        "async def f():\n"
        "    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)\n"
        "    await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "    print('served')\n"
        "asyncio.run(f())\n"
        "import getpass; print(getpass.getuser(), socket.gethostbyname('localhost'))\n"
    )
    ran = attack(box, program)
    assert (ran.stdout.split(), ran.stderr) == (["thread", "child", "10", "served", "sandbox", "127.0.0.1"], "")


def test_the_numbers_of_the_calls_are_those_of_the_kernels_headers() -> None:
    headers = {
        "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
        "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    }
    if not all(path.exists() for path, _ in headers.values()):
        pytest.skip("the kernel's headers are not installed")
    from holdfast.sandbox import policy

    tables = [value for name, value in vars(policy).items() if re.fullmatch("_[A-Z]+", name)]
    listed = {name: numbers for table in tables if isinstance(table, dict) for name, numbers in table.items()}
    checked = 0
    for column, (machine, (path, pattern)) in enumerate(headers.items()):
        known = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
        for name, numbers in listed.items():
            if isinstance(numbers, tuple) and isinstance(numbers[0], int) and name not in headers and name in known:
                assert numbers[column] == known[name], f"{machine}: {name}"
                checked += 1
        for name, number in CALLS[machine].items():
            assert number == known[name]
        assert len(build_filter(machine, ptrace=True)) % 8 == 0
    assert checked > 80


READ_KEY = (
    LIBC
    + """
call = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
key = libc.syscall(ctypes.c_long(call), 10, -3, b"user", b"holdfast-token", 0)
text = ctypes.create_string_buffer(100)
libc.syscall(ctypes.c_long(call), 11, key, text, ctypes.c_long(100))
print(text.value.decode())
"""
)


def read_key_of_runner(box: Folder) -> CommandResult:
    """A runner that has a secret in its session keyring, and a command that looks for it."""

    def run() -> CommandResult:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        call = CALLS[os.uname().machine]["keyctl"]
        assert libc.syscall(ctypes.c_long(call), 1, None) > 0, "no keyrings"
        add = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
        assert libc.syscall(ctypes.c_long(add), b"user", b"holdfast-token", b"secret", ctypes.c_long(6), -3) > 0
        return Launch(box, Sandbox(seconds=20), True).run([sys.executable, "-c", READ_KEY])

    return in_child(run)


@pytest.mark.parametrize("guards", [(), (WITHOUT_FILTER,), (SAME_KEYRING,)], ids=["both", "keyring", "filter"])
def test_a_command_cannot_read_the_runners_session_keyring(box: Folder, guards: tuple[str, ...]) -> None:
    with without(*guards):
        assert read_key_of_runner(box).stdout == "\n"


def test_control_in_the_same_keyring_and_without_the_filter_it_can(box: Folder) -> None:
    with without(SAME_KEYRING, WITHOUT_FILTER):
        assert read_key_of_runner(box).stdout == "secret\n"


HIDDEN = ("/etc/ssl/private", "/etc/shadow", "/etc/pki/tls/private", "/opt", "/srv", "/run", "/var", "/home", "/mnt")
LIST = f"import os; print([path for path in {HIDDEN!r} if os.path.exists(path)])"


@users
def test_a_command_sees_programs_and_public_settings_only(box: Folder, user: str) -> None:
    ran = attack(box, LIST, user)
    mine = [path for path in HIDDEN if any(each.startswith(f"{path}/") for each in policy.homes_of_python())]
    assert ran.stdout.strip() == repr(mine if user != "nobody" else []), ran.stderr
    accounts = attack(box, "print(open('/etc/passwd').read())", user).stdout
    assert [line.split(":")[0] for line in accounts.split()] == ["root", "sandbox", "nobody"]


def test_control_what_is_listed_is_seen(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SYSTEM", (*policy.SYSTEM, "/var"))
    assert "'/var'" in attack(box, LIST).stdout


def test_certificates_locales_and_shells_are_there(box: Folder) -> None:
    program = (
        "import locale, os, ssl, subprocess, time\n"
        "print(ssl.create_default_context().cert_store_stats()['x509_ca'] > 0 or os.listdir('/etc/ssl/certs') != [])\n"
        "print(subprocess.run(['bash', '-lc', 'id -un'], capture_output=True, text=True).stdout)\n"
    )
    ran = attack(box, program)
    if Path("/etc/ssl/certs").exists():
        assert ran.stdout.startswith("True\n"), ran.stderr
    assert ran.stdout.split()[-1] == "sandbox"


STATE = """
import os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
print([status[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")])
print(sorted(int(each) for each in os.listdir("/proc/self/fd"))[:4], resource.getrlimit(resource.RLIMIT_CORE)[1] < 4096)
print(sorted(int(each) for each in os.listdir("/proc") if each.isdigit()))
print(sorted(os.environ))
for look in (lambda: open("/proc/1/mem"), lambda: open("/proc/1/environ"), lambda: os.listdir("/proc/1/fd")):
    try:
        print(look() or "closed")
    except PermissionError:
        print("closed")
"""
NONE = "0" * 16


@users
def test_a_command_has_no_powers_no_open_files_and_no_other_processes(box: Folder, user: str) -> None:
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        ran = attack(box, STATE, user)
    finally:
        os.close(secret)
    lines = ran.stdout.splitlines()
    assert lines[0] == repr(["1", "2", *[NONE] * 5]), ran.stderr
    assert lines[1].startswith("[0, 1, 2, 3] True")  # the fourth is that of the listing
    assert lines[2] == "[1, 2]"
    assert lines[3] == "['HOME', 'LANG', 'PATH', 'TMPDIR']"
    assert lines[4:] == ["closed"] * 3


def test_control_with_its_capabilities_left_a_command_shows_them(box: Folder) -> None:
    with without(WITH_CAPABILITIES):
        assert NONE not in attack(box, STATE).stdout.splitlines()[0].split(", ")[5]


def test_a_crash_leaves_no_core(box: Folder) -> None:
    ran = attack(box, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert ran.code == 128 + signal.SIGSEGV
    assert os.listdir(box.work) == []


def test_a_command_cannot_reach_services_of_the_machine(box: Folder) -> None:
    name = f"\0holdfast-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as server:
        abstract.bind(name)
        abstract.listen()
        program = (
            "import socket\n"
            f"for family, address in ((2, ('127.0.0.1', {server.getsockname()[1]})), (1, {name!r})):\n"
            "    try: socket.socket(family).connect(address); print('reached')\n"
            "    except OSError as error: print(error.strerror)\n"
        )
        assert attack(box, program).stdout == "Connection refused\nConnection refused\n"
        assert attack(box, program, network=True).stdout == "reached\nreached\n"  # the control: why it is refused


@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_a_debugger_works(box: Folder) -> None:
    done = Launch(box, Sandbox(seconds=50), True).run(["gdb", "-batch", "-ex", "run", "--args", "true"])
    assert "exited normally" in done.stdout, done.stderr
