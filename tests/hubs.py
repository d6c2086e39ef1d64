"""A fake Hub for tests that run commands in their own process."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import FakeHub

_LIBRARY = "huggingface_hub"


@contextlib.contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """A Hub that this process uses, with its cache in `folder`. The library reads the address of the Hub when it is
    imported, so it is imported again, and once more after the test.
    """
    with FakeHub() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment(folder).items():
            patch.setenv(name, value)
        _forget()
        try:
            yield made
        finally:
            _forget()


def _forget() -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == _LIBRARY]:
        del sys.modules[name]
