"""bert_score and embedding_similarity.

Their packages are too large to be had here: small ones of the same interface, which this makes and installs in a
folder, are loaded by the real code. Weights are what a word hashes to.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ScorerError
from holdfast.score import identity, resolve, score_answer
from holdfast.score.scorers import neural
from holdfast.score.scorers.neural import cosine, greedy_match
from tests.unit.score.answers import answer, sample, score, value

TORCH = """
import contextlib
no_grad = contextlib.nullcontext
"""
TRANSFORMERS = """
import os
import time
import zlib
import numpy

def vector(word):
    return numpy.random.default_rng(zlib.crc32(word.encode())).normal(size=16)

class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, model, local_files_only=False):
        assert local_files_only and os.path.isdir(model), model
        return cls()

    def __call__(self, text, return_tensors, truncation, return_special_tokens_mask):
        words = ["[CLS]", *text.lower().split()[:50], "[SEP]"]
        return {"words": [words], "special_tokens_mask": [[1] + [0] * (len(words) - 2) + [1]]}

class AutoModel(AutoTokenizer):
    loaded = 0

    def __init__(self):
        AutoModel.loaded += 1
        time.sleep(0.02)

    def eval(self):
        pass

    def __call__(self, words, output_hidden_states):
        rows = numpy.stack([vector(word) for word in words[0]])
        class Output:
            hidden_states = [numpy.zeros_like(rows)[None], rows[None]]
        return Output
"""
SENTENCES = """
from transformers import vector

class SentenceTransformer:
    def __init__(self, model, local_files_only):
        assert local_files_only

    def encode(self, texts, convert_to_numpy, show_progress_bar):
        return [sum(map(vector, text.lower().split())) for text in texts]
"""
PACKAGES = {"torch": TORCH, "transformers": TRANSFORMERS, "sentence_transformers": SENTENCES}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder of a model, with the packages that can load it."""
    for name, source in PACKAGES.items():
        tmp_path.joinpath(f"{name}.py").write_text(source)
        told = tmp_path / f"{name}-1.2.3.dist-info"
        told.mkdir()
        told.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    tmp_path.joinpath("model").mkdir()
    yield str(tmp_path / "model")
    for name in PACKAGES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["bert_score", "embedding_similarity"])
def test_a_text_is_most_like_itself(name: str, model: str) -> None:
    entry = {name: {"model": model}}
    assert value(entry, "the cat sat", "the cat sat") == pytest.approx(1)
    assert value(entry, "the cat sat", "a dog ran") < 0.9
    assert value(entry, ["a dog ran", "the cat sat"], "the cat sat") == pytest.approx(1)
    assert value(entry, None, "x") is None
    assert (value(entry, "", ""), value(entry, "x", " "), value(entry, "x", "y" * 100_001)) == (1, 0, None)


def test_answers_that_are_scored_at_once_load_the_model_once(model: str) -> None:
    made = resolve({"bert_score": {"model": model}}, "here")

    async def scored() -> None:
        await asyncio.gather(*(score_answer(made, sample("the cat"), answer(f"cat {each}")) for each in range(4)))

    asyncio.run(scored())
    assert sys.modules["transformers"].AutoModel.loaded == 1


def test_bert_score_has_three_measures_and_a_layer(model: str) -> None:
    found = {
        each: value({"bert_score": {"model": model, "measure": each}}, "the cat sat", "cat")
        for each in ("precision", "recall", "f1")
    }
    assert found["precision"] == pytest.approx(1)
    assert found["recall"] < 1
    assert found["f1"] == pytest.approx(2 * found["recall"] / (1 + found["recall"]))
    assert value({"bert_score": {"model": model, "layer": 0}}, "cat", "cat") == 0  # all its vectors are 0


def test_the_versions_of_the_packages_are_part_of_what_the_scorer_is(model: str) -> None:
    told = identity(resolve({"bert_score": {"model": model}}, "here"))
    assert told["packages"] == {"transformers": "1.2.3", "torch": "1.2.3"}


def test_a_model_that_is_not_here_is_refused_before_anything_is_asked(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with pytest.raises(ScorerError, match="'some/model' is neither a folder nor in this machine's model cache"):
        resolve({"bert_score": {"model": "some/model"}}, "here")
    tmp_path.joinpath("hub/models--some--model/snapshots").mkdir(parents=True)
    assert resolve({"embedding_similarity": {"model": "some/model"}}, "here").args == {"model": "some/model"}


def test_without_its_packages_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.resolution.version_of", lambda package: "")
    with pytest.raises(ScorerError) as caught:
        resolve({"bert_score": {"model": "m"}}, "tasks[0].scorers[1]")
    told = "tasks[0].scorers[1]: bert_score needs the packages transformers, torch: pip install 'holdfast[neural]'"
    assert str(caught.value) == told


ROWS = st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(ROWS, ROWS)
def test_greedy_matching_is_the_papers_formula(one: list[list[float]], other: list[list[float]]) -> None:
    """Zhang et al.: each token of one text with the most alike of the other, averaged both ways."""
    precision = sum(max(cosine(x, y) for y in other) for x in one) / len(one)
    recall = sum(max(cosine(x, y) for x in one) for y in other) / len(other)
    weights = [numpy.ones(len(each)) for each in (one, other)]
    found = greedy_match((numpy.array(one), weights[0]), (numpy.array(other), weights[1]))
    assert found[:2] == pytest.approx((precision, recall), abs=1e-6)
    back = greedy_match((numpy.array(other), weights[1]), (numpy.array(one), weights[0]))
    assert back == pytest.approx((found[1], found[0], found[2]), abs=1e-9)
    assert all(-1 <= each <= 1 for each in found)


def test_marks_that_a_tokenizer_adds_have_no_weight() -> None:
    rows = numpy.eye(3)
    assert greedy_match((rows, numpy.array([0, 1, 0])), (rows[1:2], numpy.array([1]))) == (1.0, 1.0, 1.0)


def test_the_reason_for_no_score_is_told(model: str) -> None:
    assert "more than 100000 characters" in score({"bert_score": {"model": model}}, "x", "y" * 100_001).reason
    assert neural.cosine(numpy.zeros(2), numpy.ones(2)) == 0.0
