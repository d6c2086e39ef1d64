"""Settings of the whole suite."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves anything in the cache of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _modules_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that one test wrote and imported is not found by the next one that uses the same name."""
    before = set(sys.modules)
    yield
    written = tmp_path_factory.getbasetemp()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and written in Path(file).parents:
            del sys.modules[name]
