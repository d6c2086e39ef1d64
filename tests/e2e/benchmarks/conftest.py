"""One fake Hub for all tests of benchmarks."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.testing import FakeHub
from tests.e2e.benchmarks.cases import serve_all
from tests.hubs import fake_hub


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    with fake_hub(tmp_path_factory.mktemp("hf")) as made:
        serve_all(made)
        yield made


@pytest.fixture(autouse=True)
def _detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of langdetect: only texts that begin with `deutsch` are German."""
    fake = SimpleNamespace(
        detect=lambda text: "de" if text.startswith("deutsch") else "en",
        LangDetectException=ValueError,
        DetectorFactory=SimpleNamespace(),
    )
    monkeypatch.setitem(sys.modules, "langdetect", fake)
    monkeypatch.setattr("holdfast.score.scorers.instructions.version_of", lambda package: "1.0.9")
