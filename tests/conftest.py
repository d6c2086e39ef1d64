"""Settings of the whole suite."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NOT_YET = (
    "test_cancel_and_tune",
    "test_load",
    "test_never_stuck",
    "test_no_flock",
    "test_signals",
    "test_status",
    "test_stopping",
    "test_isolation",
    "test_watching",
    "test_terms",
)
"""Files with tests that do not all pass yet (issue 5 is open); they run with the long ones. May only shrink."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in NOT_YET and "unit/state" not in str(item.path):
            item.add_marker(pytest.mark.long)


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
