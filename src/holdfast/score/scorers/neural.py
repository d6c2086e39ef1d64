"""Similarity by a local neural model: `bert_score`, `embedding_similarity`.

The model is a folder, or a name in the machine's model cache: nothing is downloaded while scoring. It is loaded once
per process and runs in a thread. `greedy_match` and `cosine` are the pure parts.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Literal

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import requires, scorer
from holdfast.score.scorers.similarity import CHARACTERS_MAX
from holdfast.score.scorers.text import references

Vectors = Any
"""A numpy array; numpy is imported where it is used."""
_model_lock = threading.Lock()
"""One thread at a time: a model is loaded once, and fast tokenizers are not thread-safe. A model uses all cores anyway.
"""


def _check_model(model: str, **_: Any) -> str:
    """Check that the model exists, without loading it, before anything is paid for."""
    # The Hugging Face cache by its layout on disk: importing its library would take seconds.
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    snapshots = os.path.join(cache, f"models--{model.replace('/', '--')}", "snapshots")
    if os.path.isdir(model) or os.path.isdir(snapshots):
        return ""
    advice = f"give the path of its folder, or download it first: hf download {model}"
    return f"the model {model!r} is neither a folder nor in this machine's model cache; {advice}"


@requires("neural", "transformers", "torch")
@scorer(check=_check_model)
async def bert_score(
    sample: Sample, answer: Answer, model: str, layer: int = -1, measure: Literal["f1", "precision", "recall"] = "f1"
) -> Score:
    """BERTScore: each token is matched with the most similar token of the other text, by the cosine of their vectors in
    `layer` of the model. Without rescaling and without rarity weights. Texts are cut at the model's maximum length.
    """

    def similarity(text: str, target: str) -> float:
        embed = _token_embedder(model, layer)
        matched = greedy_match(embed(text), embed(target))
        return dict(zip(("precision", "recall", "f1"), matched, strict=True))[measure]

    return await asyncio.to_thread(_best, sample, answer, similarity)


@requires("neural", "sentence-transformers")
@scorer(check=_check_model)
async def embedding_similarity(sample: Sample, answer: Answer, model: str) -> Score:
    """The cosine similarity of the two texts' embeddings, by a sentence-transformers model. Texts are cut at its
    maximum length.
    """

    def similarity(text: str, target: str) -> float:
        one, other = _sentence_embedder(model)([text, target])
        return cosine(one, other)

    return await asyncio.to_thread(_best, sample, answer, similarity)


def greedy_match(found: tuple[Vectors, Vectors], target: tuple[Vectors, Vectors]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of two texts, each given as token vectors (in rows) and token weights."""
    import numpy

    (one, one_weights), (other, other_weights) = found, target
    similarity = _unit(one) @ _unit(other).T
    precision = float(numpy.average(similarity.max(axis=1), weights=one_weights))
    recall = float(numpy.average(similarity.max(axis=0), weights=other_weights))
    both = precision + recall
    return _bounded(precision), _bounded(recall), _bounded(2 * precision * recall / both if both > 0 else 0.0)


def cosine(one: Vectors, other: Vectors) -> float:
    """Return the cosine similarity of two vectors; 0 if one has length 0."""
    import numpy

    lengths = float(numpy.linalg.norm(one) * numpy.linalg.norm(other))
    return _bounded(float(numpy.dot(one, other)) / lengths) if lengths > 0 else 0.0


def _best(sample: Sample, answer: Answer, similarity: Callable[[str, str], float]) -> Score:
    targets = references(sample.target)
    if not targets:
        return Score(None, "the sample has no target")
    if max(map(len, (answer.text, *targets))) > CHARACTERS_MAX:
        return Score(None, f"a text of more than {CHARACTERS_MAX} characters is not compared: extract a part")
    values: list[float] = []
    for each in targets:
        if not answer.text.strip() or not each.strip():
            values.append(float(answer.text.strip() == each.strip()))
            continue
        with _model_lock:
            values.append(similarity(answer.text, each))
    return Score(max(values))


@functools.lru_cache(maxsize=2)
def _token_embedder(model: str, layer: int) -> Callable[[str], tuple[Vectors, Vectors]]:
    """Return a function that turns a text into token vectors and weights. Special tokens have weight 0."""
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
def _sentence_embedder(model: str) -> Callable[[list[str]], Vectors]:
    import sentence_transformers

    loaded = sentence_transformers.SentenceTransformer(model, local_files_only=True)
    return lambda texts: loaded.encode(texts, convert_to_numpy=True, show_progress_bar=False)


def _unit(rows: Vectors) -> Vectors:
    import numpy

    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    return rows / numpy.where(lengths > 0, lengths, 1.0)


def _bounded(value: float) -> float:
    return min(max(value, -1.0), 1.0)
