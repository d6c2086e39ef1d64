"""Kernel calls that Python has no function for, through `ctypes`. Imports nothing of Holdfast: the launcher uses it."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINUX = sys.platform == "linux"
CALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "keyctl": 250},
    "aarch64": {"clone": 220, "pivot_root": 41, "keyctl": 219},
}
"""Numbers of system calls, for the machines that the sandbox supports."""
MOUNT_SETATTR = 442
AT_FDCWD = -100

SET_PARENT_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, DROP_BOUNDING = 1, 4, 22, 24
SET_SUBREAPER, SET_NO_NEW_PRIVILEGES = 36, 38
_FILTER_MODE = 2
_JOIN_SESSION_KEYRING = 1
_CAPABILITIES_VERSION_3 = 0x20080522
_CAPABILITIES = 64

libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def call(name: str, *arguments: Any) -> int:
    """Make a system call that libc has no function for. OSError if it fails."""
    return call_number(CALLS[os.uname().machine][name], name, *arguments)


def call_number(number: int, name: str, *arguments: Any) -> int:
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *passed), name)


def control(option: int, *values: Any) -> int:
    """`prctl`. OSError if it fails."""
    passed = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in values]
    passed += [ctypes.c_ulong(0)] * (4 - len(passed))
    return checked(libc.prctl(option, *passed), f"prctl {option}")


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    paths = [each if each is None else os.fsencode(each) for each in (source, target, kind)]
    checked(libc.mount(*paths, ctypes.c_ulong(flags), data and data.encode()), f"mounting {target}")


def set_mount_flags(path: str, how: int, on: int = 0, off: int = 0) -> None:
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    call_number(MOUNT_SETATTR, "mount_setattr", AT_FDCWD, os.fsencode(path), how, ctypes.byref(attributes), 32)


def has_seccomp() -> bool:
    """Whether the kernel can filter system calls: with it, the null pointer to a program fails with EFAULT."""
    try:
        control(SET_SECCOMP, _FILTER_MODE, None)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False


def install_filter(program: bytes) -> None:
    """Install a filter for this process and all its children; it cannot be removed. Needs SET_NO_NEW_PRIVILEGES."""
    control(SET_SECCOMP, _FILTER_MODE, ctypes.byref(_Program(len(program) // 8, program)))


def join_new_keyring() -> None:
    """Leave the session keyring of the runner, which may hold tokens (Kerberos, cloud tools, file system keys)."""
    try:
        call("keyctl", _JOIN_SESSION_KEYRING, None)
    except (OSError, KeyError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:  # without keyrings there are none to hide
            raise


def drop_capabilities() -> None:
    """Drop all capabilities, and the right to regain any."""
    for number in range(_CAPABILITIES):  # fails for numbers that the kernel does not know
        libc.prctl(DROP_BOUNDING, ctypes.c_ulong(number), *[ctypes.c_ulong(0)] * 3)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    checked(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "dropping capabilities")


def write(path: str, value: str) -> None:
    """Write to an existing file of the kernel. Not with `open`, which would import an encoding first."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)
