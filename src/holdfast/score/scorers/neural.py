"""Likeness by a model that runs here: `bert_score`, `embedding_similarity`.

The model is a folder, or a name whose files the machine's cache of models has: nothing is fetched while scoring. It is
loaded once for a process, and works in a thread. The pure part, how two matrices of vectors match, is `greedy_match`.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Literal

from holdfast.records.samples import Answer, Sample, Score
from holdfast.score.definition import needing, scorer
from holdfast.score.scorers.similarity import CHARACTERS_MAX
from holdfast.score.scorers.text import references

Vectors = Any
"""A numpy array; numpy is imported where it is used."""
_one_at_a_time = threading.Lock()
"""So that a model is loaded once, and because fast tokenizers do not bear two threads. It uses all cores by itself."""


def _problem_of_model(model: str, **_: Any) -> str:
    """Found before anything is paid for, without loading it."""
    if os.path.isdir(model) or _is_cached(model):
        return ""
    advice = f"give the path of a model's folder, or fetch it first: hf download {model}"
    return f"the model {model!r} is neither a folder nor in this machine's cache of models; {advice}"


@needing("neural", "transformers", "torch")
@scorer(check=_problem_of_model)
async def bert_score(
    sample: Sample, answer: Answer, model: str, layer: int = -1, measure: Literal["f1", "precision", "recall"] = "f1"
) -> Score:
    """BERTScore: each token is matched with the most alike of the other text, by the cosine of what `layer` of the
    model makes of them. Not rescaled, no weights by rarity. Texts are cut at the model's length.
    """

    def alike(text: str, wanted: str) -> float:
        embed = _tokens_by(model, layer)
        matched = greedy_match(embed(text), embed(wanted))
        return dict(zip(("precision", "recall", "f1"), matched, strict=True))[measure]

    return await asyncio.to_thread(_best, sample, answer, alike)


@needing("neural", "sentence-transformers")
@scorer(check=_problem_of_model)
async def embedding_similarity(sample: Sample, answer: Answer, model: str) -> Score:
    """The cosine of the two texts' vectors, by a model of sentence-transformers, which cuts them at its length."""

    def alike(text: str, wanted: str) -> float:
        one, other = _sentences_by(model)([text, wanted])
        return cosine(one, other)

    return await asyncio.to_thread(_best, sample, answer, alike)


def greedy_match(found: tuple[Vectors, Vectors], wanted: tuple[Vectors, Vectors]) -> tuple[float, float, float]:
    """Precision, recall and F1 of two texts, each given as the vectors of its tokens, in rows, and their weights."""
    import numpy

    (one, one_weights), (other, other_weights) = found, wanted
    alike = _unit(one) @ _unit(other).T
    precision = float(numpy.average(alike.max(axis=1), weights=one_weights))
    recall = float(numpy.average(alike.max(axis=0), weights=other_weights))
    both = precision + recall
    return _bounded(precision), _bounded(recall), _bounded(2 * precision * recall / both if both > 0 else 0.0)


def cosine(one: Vectors, other: Vectors) -> float:
    """0 if one of them has no length."""
    import numpy

    lengths = float(numpy.linalg.norm(one) * numpy.linalg.norm(other))
    return _bounded(float(numpy.dot(one, other)) / lengths) if lengths > 0 else 0.0


def _best(sample: Sample, answer: Answer, alike: Callable[[str, str], float]) -> Score:
    wanted = references(sample.target)
    if not wanted:
        return Score(None, "the sample has no target")
    if max(map(len, (answer.text, *wanted))) > CHARACTERS_MAX:
        return Score(None, f"a text of more than {CHARACTERS_MAX} characters is not compared: extract a part")
    return Score(max(_of_two(answer.text, each, alike) for each in wanted))


def _of_two(text: str, wanted: str, alike: Callable[[str, str], float]) -> float:
    if not text.strip() or not wanted.strip():
        return float(text.strip() == wanted.strip())
    with _one_at_a_time:
        return alike(text, wanted)


@functools.lru_cache(maxsize=2)
def _tokens_by(model: str, layer: int) -> Callable[[str], tuple[Vectors, Vectors]]:
    """What makes a text the vectors of its tokens and their weights: 0 for the marks that a tokenizer adds."""
    import numpy
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    network = transformers.AutoModel.from_pretrained(model, local_files_only=True)
    network.eval()

    def embed(text: str) -> tuple[Vectors, Vectors]:
        given = tokenizer(text, return_tensors="pt", truncation=True, return_special_tokens_mask=True)
        marks = numpy.asarray(given.pop("special_tokens_mask")[0])
        with torch.no_grad():
            layers = network(**given, output_hidden_states=True).hidden_states
        weights = (1 - marks) if not marks.all() else numpy.ones_like(marks)
        return numpy.asarray(layers[layer][0], dtype=float), weights

    return embed


@functools.lru_cache(maxsize=2)
def _sentences_by(model: str) -> Callable[[list[str]], Vectors]:
    import sentence_transformers

    loaded = sentence_transformers.SentenceTransformer(model, local_files_only=True)
    return lambda texts: loaded.encode(texts, convert_to_numpy=True, show_progress_bar=False)


def _is_cached(model: str) -> bool:
    """By the layout that the cache of models has, without importing what made it."""
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.isdir(os.path.join(cache, f"models--{model.replace('/', '--')}", "snapshots"))


def _unit(rows: Vectors) -> Vectors:
    import numpy

    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    return rows / numpy.where(lengths > 0, lengths, 1.0)


def _bounded(value: float) -> float:
    return min(max(value, -1.0), 1.0)
