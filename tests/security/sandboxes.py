"""Attacks from inside the sandbox: programs that run in it, as root and as another user, with and without its guards.

A guard is removed in the launcher's own process, by what is done there before its `main`: the product has no switch.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from holdfast.sandbox import confinement, policy
from holdfast.sandbox.confinement import CommandResult, Folder, Launch, make_folders, remove_folder, why_no_namespaces
from holdfast.spec import Sandbox

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
confined = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
ROOT = os.geteuid() == 0
USERS = ["root", "nobody"] if ROOT else ["self"]
users = pytest.mark.parametrize("user", USERS)

WITHOUT_FILTER = "kernel.install_filter = lambda program: None"
WITH_NESTING = "launcher.forbid_user_namespaces = lambda filtered: None"
SAME_KEYRING = "kernel.join_new_keyring = lambda: None"
PRIVATE_MEMORY_ONLY = (
    "usage.UsageWatch._counted_memory = lambda self, pids, deleted: "
    "1024 * sum(usage.field_kb(f'/proc/{pid}/status', 'RssAnon:') for pid in pids)"
)
UNCOUNTED_FILES = "usage.FolderUsage.is_exceeded = lambda self, deleted: False"
WITH_CAPABILITIES = "kernel.drop_capabilities = lambda: None"

LIBC = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture
def box() -> Iterator[Folder]:
    """Below /tmp itself: a test's own folder can be entered by its user alone."""
    path = tempfile.mkdtemp(prefix="holdfast-attacked-", dir="/tmp")
    folder = Folder(path, "uid")
    make_folders(folder)
    yield folder
    remove_folder(path)
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def without(*guards: str) -> Iterator[None]:
    """Launchers that lack these guards."""
    start = "import sys; sys.path.append(sys.argv[1]); from sandbox import kernel, launcher, usage\n"
    with pytest.MonkeyPatch.context() as patch:
        if guards:
            patch.setattr(confinement, "_LAUNCHER", start + "\n".join((*guards, "launcher.main()")))
        yield


@contextmanager
def without_groups() -> Iterator[None]:
    """As on a machine that lets nobody make a control group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confinement, "control_groups", lambda: ({}, "none for this test"))
        yield


def attack(box: Folder, program: str, user: str = "self", namespaces: bool = True, **wanted: Any) -> CommandResult:
    """Run a Python program in the sandbox, as it is started by this user."""

    def run() -> CommandResult:
        limits = Sandbox(**{"seconds": 50.0, **wanted})
        return Launch(box, limits, namespaces).run([sys.executable, "-c", program])

    if user == "nobody":
        for path, _, _ in os.walk(box.path):
            os.chown(path, NOBODY, NOBODY)
        return in_child(lambda: as_nobody(run))
    return in_child(run)


def in_child(run: Callable[[], CommandResult]) -> CommandResult:
    """In a process of its own, whose user, keyring and folder are its alone."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            said = msgspec.msgpack.encode(run())
        except BaseException as error:  # noqa: BLE001 - the test must hear of it, and nothing may return into pytest
            said = msgspec.msgpack.encode(repr(error))
        finally:
            with open(write, "wb") as pipe:
                pipe.write(said)
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert said, f"the runner ended without a word: {os.waitstatus_to_exitcode(status)}"
    found = msgspec.msgpack.decode(said)
    if isinstance(found, str):
        pytest.skip(found.removeprefix("skip: ")) if found.startswith("skip: ") else pytest.fail(found)
    return msgspec.convert(found, CommandResult)


def as_nobody(run: Callable[[], CommandResult]) -> Any:
    """With a Python that everybody may use: that of the tests may lie in the home of root."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir("/")
    if not os.access(sys.executable, os.X_OK):
        if not os.access(SYSTEM_PYTHON, os.X_OK):
            return "skip: no Python that another user may use"
        sys.executable, sys.prefix, sys.base_prefix = SYSTEM_PYTHON, "/usr", "/usr"
    for each in (policy.homes_of_python, policy.inner_folders, why_no_namespaces):
        each.cache_clear()
    if hasattr(confinement.control_groups, "cache_clear"):
        confinement.control_groups.cache_clear()
    if why := why_no_namespaces():
        return f"skip: not as another user: {why}"
    return run()


SIGSYS = 128 + signal.SIGSYS
