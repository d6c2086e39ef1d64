"""Builds the file system that a command sees: a root in memory into which only allowed paths are bound. Runs in the
launcher's child, inside its new namespaces. Imports nothing of Holdfast.

Invariant: paths that the order does not name are not there. Everything is read-only except the command's own folders.
"""

from __future__ import annotations

import ctypes
import os
import sys

from . import kernel
from .kernel import libc, mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

INNER_ID = 1000
"""The user of the command in its namespace: not 0, so that it has no capabilities even there."""
DEVICES = ("null", "zero", "full", "random", "urandom")
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_RECURSIVE = 0x8000
READ_ONLY, NO_SETUID = 1, 2

PASSWD = f"""\
root:x:0:0:root:/root:/bin/sh
sandbox:x:{INNER_ID}:{INNER_ID}:sandbox:/sandbox:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
"""
GROUP = f"root:x:0:\nsandbox:x:{INNER_ID}:\nnogroup:x:65534:\n"
HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


def make_root(order: Order) -> None:
    """Build the root, and detach the old one."""
    root = order["root"]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    for path in order["system"]:
        show(root, path)
    for path in order["python"]:
        if not is_below(path, order["inner"]) and not os.path.lexists(root + path):
            show(root, path)
    make_settings(root, order)
    make_devices(root, order["memory_files"])
    os.mkdir(f"{root}/proc")
    mount_proc(f"{root}/proc")
    bind_folders(order)
    os.chdir(root)
    kernel.call("pivot_root", b".", b".")
    kernel.checked(libc.umount2(b".", MNT_DETACH), "leaving the old root")
    os.chdir("/")
    kernel.set_mount_flags("/", AT_RECURSIVE, on=READ_ONLY | NO_SETUID)
    for path in (*order["folders"], "/dev/shm"):
        kernel.set_mount_flags(path, 0, off=READ_ONLY)
    libc.sethostname(b"sandbox", 7)
    if not order["network"]:
        raise_loopback()


def make_settings(root: str, order: Order) -> None:
    """Build /etc: chosen files of the machine, and our own accounts, because the machine's list its users."""
    os.makedirs(f"{root}/etc", exist_ok=True)
    written = {"passwd": PASSWD, "group": GROUP}
    if not order["network"]:
        written["hosts"] = HOSTS
    for name, text in written.items():
        with open(f"{root}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    for path in order["settings"]:
        show(root, path, links=False)


def bind_folders(order: Order) -> None:
    """Bind the command's own folders, and into them the parts of Python below the same paths."""
    root, inner = order["root"], order["inner"]
    for path, folder in order["folders"].items():
        if os.path.islink(folder):
            raise OSError(f"{folder} is a link")  # never by a command; refuse to show what it leads to
        bind(folder, root + path)
    for path in inner:
        cover(root, path)
    for path in order["python"]:
        if path in inner or (is_below(path, inner) and not os.path.lexists(root + path)):
            show(root, path, links=path not in inner)


def is_below(path: str, folders: list[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def cover(root: str, path: str) -> None:
    """Cover a folder inside one of the command's own folders, so that a part of Python can be bound into it. It is in
    memory: the command cannot change it, and nothing below it is left in the command's files.
    """
    target = root + path
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target) or os.listdir(target)):
        raise OSError(f"{path} is needed for Python, but an earlier command has put something there")
    os.makedirs(target, exist_ok=True)
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def mount_proc(path: str) -> None:
    """Mount /proc of the new process namespace. The kernel refuses that where the machine hides parts of /proc
    (containers). Then the command has none; most programs do without.
    """
    try:
        mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        return


def show(root: str, path: str, links: bool = True) -> None:
    """Bind a path to the same path in the root. Links are copied as links, unless `links` is False."""
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
    """Bring up `lo`, so that a program can connect to itself: a `struct ifreq` with the flags UP and RUNNING."""
    handle = libc.socket(2, 2, 0)
    request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + (0x41).to_bytes(2, sys.byteorder), 40)
    libc.ioctl(handle, 0x8914, request)
    os.close(handle)
