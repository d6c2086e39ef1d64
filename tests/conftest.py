"""Settings of the whole suite."""

import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.runs.store import provenance
from holdfast.sandbox.confinement import PLAIN, why_no_namespaces
from tests.clouds import AZURITE, Azure, Google, find_azurite
from tests.stores import S3, Bucket

# No deadlines and no limits on how long data may take to be made: both measure the machine. A failure prints what
# replays it.
settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("holdfast")


SLOWEST = (
    "e2e/test_full_disk.py::test_it_waits_and_two_signals_end_it_and_it_continues_when_there_is_space",
    "property/test_resumed_runs.py::test_a_run_killed_anywhere_ends_as_if_it_had_been_run_at_one_go",
    "security/test_forged_records.py::test_no_command_is_fooled_by_forged_records",
    "e2e/test_guide.py::test_everything_on_a_page_does_what_the_page_says[tutorial.md]",
    "e2e/test_chaos.py::test_a_run_through_storms_and_kills_comes_to_what_was_foretold",
    "e2e/view/test_browser_live.py::test_a_live_page_changes_by_itself_and_nothing_jumps[400]",
    "e2e/view/test_browser_bundle.py::test_hostile_texts_execute_and_load_nothing[6]",
    "e2e/test_mirror.py::test_a_writer_that_was_stopped_finds_itself_replaced_and_stops[s3]",
)
"""Tests that take more than ten seconds, the slowest first."""


def pytest_configure() -> None:
    """A suite that a shell starts in the background ignores SIGINT, and so would the commands that it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after tests have been deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the slowest tests first: the last one would run alone, while the other workers have nothing to do.

    pytest-xdist (`--dist worksteal`) gives each worker a part of consecutive tests: the slowest ones are dealt to the
    beginnings of these parts.
    """
    workers: int = getattr(config, "workerinput", {}).get("workercount", 0)
    if not workers or len(items) < workers * len(SLOWEST):  # a small selection keeps its order
        return
    ranks = {f"tests/{name}": rank for rank, name in enumerate(SLOWEST)}
    slow = sorted((item for item in items if item.nodeid in ranks), key=lambda item: ranks[item.nodeid])
    others = iter([item for item in items if item.nodeid not in ranks])
    left, ordered = len(items), list[pytest.Item]()
    for worker in range(workers):
        count = left // (workers - worker)
        left -= count
        first = slow[worker::workers]
        ordered += [*first, *itertools.islice(others, count - len(first))]
    items[:] = ordered


def pytest_collection_finish() -> None:
    """Keep the collected tests, half a million objects, out of garbage collections: 3 percent of the CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves anything in the cache of the user who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs that tests make are not put on the list of runs that this user trusts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_proxies() -> Iterator[None]:
    """No test depends on the proxies of the user who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True, scope="session")
def _sandboxes_anywhere() -> Iterator[None]:
    """Where there are no namespaces, sandboxes are tested without them: no test names a file outside of its sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        if why_no_namespaces():
            patch.setenv(PLAIN, "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def _commit_read_once() -> Iterator[None]:
    """A run records the commit of the current folder, with three calls of git. For runs that are started in this
    process, in the folder of the tests, git is called once.
    """
    here, describe = os.getcwd(), provenance.describe_commit
    known = functools.cache(describe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "describe_commit", lambda: (known if os.getcwd() == here else describe)())
        yield


@pytest.fixture(autouse=True)
def _modules_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that one test, or a fixture of it, wrote and imported is not found by the next one that uses the same
    name; nor is its folder.
    """
    paths = list(sys.path)
    yield
    sys.path[:] = paths
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.close()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    command = find_azurite()
    if command is None:
        pytest.skip(f"there is no Azurite: npm install azurite, and name its azurite-blob with {AZURITE}")
    server = Azure(command, tmp_path_factory.mktemp("azurite"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def google() -> Iterator[Google]:
    server = Google()
    yield server
    server.close()


@pytest.fixture(params=["s3", "folder"])
def kind_of_store(request: pytest.FixtureRequest) -> str:
    """Tests of what only a store's own protocol decides ask for EVERY_KIND."""
    found: str = request.param
    return found


@pytest.fixture
def bucket(
    request: pytest.FixtureRequest, kind_of_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """An empty place in each kind of store, reachable from this process and, with its environment, from others."""
    if kind_of_store == "folder":
        return Bucket((tmp_path / "mirror").as_uri(), {})
    found: Bucket = request.getfixturevalue(kind_of_store).bucket()
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found
