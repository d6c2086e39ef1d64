"""What several files of end-to-end tests share."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing import process
from tests.e2e.commands import ZYGOTE
from tests.e2e.sharded_runs import run_calmly


@pytest.fixture(autouse=True, scope="module")
def _quick_servers() -> Iterator[None]:
    """Test servers are forks: hundreds of tests start one, and an interpreter needs a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_start", ZYGOTE.start_server)
        yield


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The export of the run of `sharded_runs`, made by one process that nobody killed."""
    return run_calmly(tmp_path_factory.mktemp("calm"))
