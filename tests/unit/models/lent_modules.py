"""Small modules in the shape of packages that are too large to be installed for tests."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def lent(name: str, files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of these files can be imported, and afterwards nothing is left of it."""
    for path, text in files.items():
        file = folder / name / path
        for parent in file.parents:
            if parent == folder:
                break
            parent.mkdir(parents=True, exist_ok=True)
            (parent / "__init__.py").touch()
        file.write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]
