"""One fake Hub for all tests of benchmarks: `huggingface_hub` reads its address once in a process."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.testing import FakeHub
from tests.e2e.benchmarks.cases import serve_all


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    with FakeHub() as made, pytest.MonkeyPatch.context() as patch:
        serve_all(made)
        for name, value in made.environment(tmp_path_factory.mktemp("hf")).items():
            patch.setenv(name, value)
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
