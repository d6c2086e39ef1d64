"""Doing something as another user than root, in a forked process: the interpreter's own files may be root's alone."""

import os
import traceback
from collections.abc import Callable

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_nobody(work: Callable[[], object]) -> None:
    """Call `work` as a user without privileges. What it raises fails the test, with its traceback."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        except BaseException:  # noqa: BLE001 - this process must end here, whatever happened
            said = traceback.format_exc()
        os.write(writing, said.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        said = told.read()
    os.waitpid(child, 0)
    assert not said, said
