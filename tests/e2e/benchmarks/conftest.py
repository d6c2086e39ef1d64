"""One fake Hub for all tests of benchmarks, a benchmark of our own, and a model."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.plan import all_benchmarks
from holdfast.plan.benchmarks import Benchmark, science
from holdfast.testing import Behaviour, FakeHub, ModelServer
from tests.e2e.benchmarks.cases import encode, serve_all
from tests.e2e.benchmarks.offered import MINE, ROWS, SHOTS, Offer
from tests.hubs import fake_hub
from tests.servers import serve_model


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


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> Iterator[Offer]:
    """A function that adds benchmarks, or replaces those of the same name."""
    hub.add("o/mine", {"test.jsonl": encode("x", ROWS), "train.jsonl": encode("x", SHOTS)})
    known = list(science.BENCHMARKS)

    def add(*benchmarks: Benchmark) -> None:
        monkeypatch.setattr(science, "BENCHMARKS", [*known, *benchmarks])
        all_benchmarks.cache_clear()

    add(MINE)
    yield add
    monkeypatch.undo()
    all_benchmarks.cache_clear()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve_model(Behaviour(reply=lambda messages: "8", kept=100)) as started:
        yield started
