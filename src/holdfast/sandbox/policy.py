"""What a confined command may see of the machine, and the system calls that it may not make.

It sees programs, chosen settings, and this Python. Only this is bound into its root, so what is forgotten here is
missing, not leaked.

The filter of system calls (seccomp, classic BPF) is a deny list, not an allow list: commands are arbitrary programs,
and the namespaces hide the machine, not this filter. It removes calls that have led out of sandboxes before, or that
reach parts of the kernel where such holes are found, and that models' programs do not need. Calls newer than this table
fail with ENOSYS, as on an older kernel, so that programs fall back.
"""

import errno
import functools
import glob
import os
import struct
import sys

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`; of the first argument its lower half (both are little-endian)."""
_X32 = 0x40000000
"""The x32 convention of x86_64 has other numbers for the same calls, and would go around the list."""
_HIGHEST = 462
"""`mseal` of Linux 6.10. From 424 on numbers are the same on all machines."""

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's number of a machine, and its column in the tables below."""

# New namespaces: with them a command has all capabilities in a namespace of its own, and reaches the kernel's mount,
# network and control group code. `clone` is looked at below; `clone3` passes its flags where no filter can see them,
# and libc uses `clone` if there is none (ENOSYS).
_NAMESPACES = {"unshare": (272, 97), "setns": (308, 268)}
# Changing what is visible, and control groups, through which a command could kill its runner.
_MOUNTS = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
# Opens files by number instead of name: past every mount.
_HANDLES = {"open_by_handle_at": (304, 265), "fanotify_init": (300, 262)}
# Keys are not in any namespace.
_KEYS = {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)}
# Programs and modules in the kernel; its log; its memory as seen by performance counters.
_KERNEL = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
}
# The memory and descriptors of other processes. Debuggers need only `ptrace`, which is allowed where the command sees
# no processes but its own.
_OTHERS = {
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
}
_PTRACE = {"ptrace": (101, 117)}
# Large and young parts of the kernel that programs do without: `io_uring` also makes calls that no filter sees,
# `userfaultfd` stops the kernel at a chosen moment, and `memfd_secret` is memory that is not counted.
_ABSENT = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
}
# Ports of the machine, which only x86 has.
_PORTS = {"iopl": 172, "ioperm": 173}

_CLONE, _SOCKET, _SOCKETPAIR, _PERSONALITY = (56, 220), (41, 198), (53, 199), (135, 92)
_NEW_NAMESPACE = 0x7E020000
"""All CLONE_NEW… flags that `clone` knows."""
_FAMILIES = (1, 2, 10, 16)
"""Sockets: unix, IPv4, IPv6, and netlink, by which libc lists interfaces. Others, such as AF_VSOCK, which reaches the
host of a virtual machine, do not belong to a network namespace."""
_PERSONALITIES = (0, 0x40000, 0xFFFFFFFF)
"""The usual one, addresses that are not random (debuggers), and the question which it is."""

MACHINES = frozenset(_MACHINES)


def build_filter(machine: str, ptrace: bool) -> bytes:
    """Return the program. `ptrace`: whether commands may trace processes; only if they see none but their own."""
    kernel_name, column = _MACHINES[machine]
    refused = {**_NAMESPACES, **_MOUNTS, **_HANDLES, **_KEYS, **_KERNEL, **_OTHERS, **({} if ptrace else _PTRACE)}
    numbers = [each[column] for each in refused.values()] + ([] if column else list(_PORTS.values()))
    program = [
        _step(_LOAD, _MACHINE),
        _step(_EQUAL, kernel_name, 1, 0),  # otherwise it uses the 32-bit convention
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)]
    program += [_step(_ABOVE, _HIGHEST, 0, 1), _refuse(errno.ENOSYS)]
    for number in sorted(numbers):
        program += [_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    for each in _ABSENT.values():
        program += [_step(_EQUAL, each[column], 0, 1), _refuse(errno.ENOSYS)]
    for call in (_SOCKET, _SOCKETPAIR):
        program += _only(call[column], _FAMILIES, errno.EAFNOSUPPORT)
    program += _only(_PERSONALITY[column], _PERSONALITIES, errno.EPERM)
    program += [
        _step(_EQUAL, _CLONE[column], 0, 3),
        _step(_LOAD, _ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACE, 0, 1),
        _refuse(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _only(number: int, values: tuple[int, ...], otherwise: int) -> list[bytes]:
    """Allow a call only if its first argument is one of these values."""
    rest = len(values)
    return [
        _step(_EQUAL, number, 0, rest + 3),
        _step(_LOAD, _ARGUMENT),
        *(_step(_EQUAL, value, rest - index, 0) for index, value in enumerate(values)),
        _refuse(otherwise),
        _step(_RETURN, _ALLOW),
    ]


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """`struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


PLACE = "/sandbox"
"""Path of the private folder as commands see it."""
TEMPORARY = "/tmp"
"""Path of its temporary folder as commands see it."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Programs and libraries. Not /opt, /srv, /var, /run, /home and /root, where people and services keep their own."""
_LOADER = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_LOCALE = ("localtime", "timezone", "locale.alias", "locale.conf")
_LOOKUPS = ("nsswitch.conf", "host.conf", "protocols", "services", "shells", "os-release", "mime.types", "magic")
_TERMINAL = ("terminfo", "inputrc", "bash.bashrc", "fonts")
_JAVA = ("java-*",)
_CERTIFICATES = (
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "pki/ca-trust/source"),
)
"""Only public certificates: private keys are in folders beside them."""
SETTINGS = (*_LOADER, *_LOCALE, *_LOOKUPS, *_TERMINAL, *_JAVA, *_CERTIFICATES)
_NETWORK = ("hosts", "resolv.conf", "gai.conf")


@functools.cache
def settings(network: bool) -> list[str]:
    """Return the files of /etc that programs read."""
    names = (*SETTINGS, *(_NETWORK if network else ()))
    return [path for name in names for path in sorted(glob.glob(f"/etc/{name}"))]


@functools.cache
def homes_of_python() -> list[str]:
    """Return the paths that this Python needs: its virtual environment, the interpreter's folder, and each link to it
    by itself, because the folder of a link may be a home folder with secrets.
    """
    found = [sys.prefix, sys.base_prefix]
    path = sys.executable
    while os.path.islink(path):
        found.append(path)
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    found += [os.path.dirname(os.path.dirname(each)) for each in (path, os.path.realpath(path))]
    found = [os.path.abspath(each) for each in found]
    return sorted({each for each in found if each.count(os.sep) > 1 and not each.startswith("/usr/")}, key=len)


@functools.cache
def inner_folders() -> list[str]:
    """Return the folders directly below `/tmp` or `/sandbox` that hold a part of this Python. A command has its own
    folders under these two names, so these parts must be bound into them.
    """
    inside = [each for each in homes_of_python() if each.startswith((f"{TEMPORARY}/", f"{PLACE}/"))]
    return sorted({found for each in inside if os.path.isdir(found := os.sep.join(each.split(os.sep)[:3]))})
