"""Settings of the whole suite."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.sandbox.confinement import PLAIN, why_no_namespaces
from tests.clouds import AZURITE, Azure, Google, find_azurite
from tests.stores import S3, Bucket

# No deadlines and no limits on how long data may take to be made: both measure the machine. A failure prints what
# replays it.
settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("holdfast")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves anything in the cache of whoever runs it."""
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
    """No test depends on the proxies of whoever runs it."""
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


@pytest.fixture(autouse=True)
def _modules_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that one test, or what it stands on, wrote and imported is not found by the next one that uses the same
    name.
    """
    yield
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
