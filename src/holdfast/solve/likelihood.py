"""Multiple choice by likelihood: the solver `choice_likelihood`, for base models behind completion servers.

Each choice is one durable step; the steps of a sample run at once. The answer is the label of the choice with the
greatest sum of log-probabilities. Its message holds, in `likelihood`, what the scorers `acc`, `acc_norm`, `acc_bytes`
and `mc2` need of every choice. So another normalisation needs no new request.
"""

import string
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.records import Answer, Message, Sample
from holdfast.solve.context import Context, together
from holdfast.solve.definition import ScoredContinuation

_TEXT_FIELDS = ("text", "choices")
"""Where a mapping has its texts: ARC and CommonsenseQA; TruthfulQA."""
_BETWEEN = "\n\n"
"""Between the examples of a few-shot prompt."""


class ChoiceSource(msgspec.Struct, frozen=True):
    """Where the choices come from: arguments of the solver."""

    choices: str | list[str] = "choices"
    """A column, or several with one choice each."""
    texts: list[str] | None = None
    """The choices themselves, if they are equal for all samples."""
    labels: list[str] | None = None
    """How targets name the choices, if the column does not say; default A, B, C, …"""


_DEFAULT_SOURCE = ChoiceSource()


async def choice_likelihood(
    sample: Sample,
    ctx: Context,
    source: ChoiceSource = _DEFAULT_SOURCE,
    context_per_choice: str = "",
    delimiter: str = " ",
) -> Answer:
    """Choose the likeliest continuation of the prompt, without a chat template. `choices`: a column with a list or with
    `text` and `label`, or a list of columns; or `texts`, equal for all samples. With `context_per_choice`, each choice
    replaces that mark in the prompt, and the text after the mark is scored.
    """
    made = scored_continuations(sample, ctx.messages, source, context_per_choice, delimiter)
    scored = await together(ctx.likelihood(each.context, each.continuation) for each in made)
    best = max(range(len(made)), key=lambda index: scored[index].logprob)
    # A space is the delimiter if there is no other one. Otherwise it belongs to the choice, as in lm-eval.
    own = [each.text if delimiter else each.text.removeprefix(" ") for each in made]
    details = [
        {
            "text": each.text,
            "label": each.label,
            "logprob": score.logprob,
            "tokens": score.tokens,
            "characters": len(text),
            "bytes": len(text.encode()),
        }
        for each, text, score in zip(made, own, scored, strict=True)
    ]
    label = made[best].label
    message: Message = {"role": "assistant", "content": label, "likelihood": {"best": best, "choices": details}}
    return Answer(label, message, finish_reason="stop")


def scored_continuations(
    sample: Sample,
    messages: Sequence[Message],
    source: ChoiceSource = _DEFAULT_SOURCE,
    context_per_choice: str = "",
    delimiter: str = " ",
) -> list[ScoredContinuation]:
    """The requests of `choice_likelihood`, one for each choice. Its arguments, with the messages of the prompt."""
    found, names = (source.texts, []) if source.texts else _read_choices(sample, source.choices)
    named = _labels(source.labels or names, len(found))
    context = _context(messages, delimiter)
    return [
        ScoredContinuation(text, label, *_request(context, text, context_per_choice, delimiter))
        for text, label in zip(found, named, strict=True)
    ]


def fit_choice_likelihood(given: dict[str, Any], place: str) -> dict[str, Any]:
    source = given.get("source", _DEFAULT_SOURCE)
    if source.texts and source.choices != _DEFAULT_SOURCE.choices:
        raise SpecError(f"{place}: give `choices` (columns of the data) or `texts` (equal for all samples), not both")
    for name, entries in (("choices", source.choices), ("texts", source.texts)):
        if isinstance(entries, list) and entries and (len(entries) < 2 or not all(map(str.strip, entries))):
            raise SpecError(f"{place}.{name}: there must be at least two, and none may be empty")
    if source.labels and source.texts and len(source.labels) != len(source.texts):
        raise SpecError(f"{place}.labels: there must be one for each of the {len(source.texts)} texts")
    return given


def _read_choices(sample: Sample, columns: str | list[str]) -> tuple[list[str], list[Any]]:
    """The texts of the choices, and their labels if the row has some."""
    row = sample.row
    missing = [name for name in ([columns] if isinstance(columns, str) else columns) if name not in row]
    if missing:
        raise ValueError(f"the row has no column {missing[0]!r} for the choices; it has {', '.join(row)}")
    labels: list[Any] = []
    if isinstance(columns, list):
        # A row with fewer choices has nulls in the last columns.
        found = [row[name] for name in columns if row[name] is not None]
    else:
        value = row[columns]
        labels = list(value.get("label") or ()) if isinstance(value, dict) else []
        if isinstance(value, dict):
            value = next((value[name] for name in _TEXT_FIELDS if name in value), None)
        found = list(value) if isinstance(value, list | tuple) else []
    if len(found) < 2 or not all(isinstance(each, str) and each.strip() for each in found):
        raise ValueError(f"the choices must be at least two texts, and none may be empty; they are {found!r}")
    return found, labels


def _labels(given: Sequence[Any], count: int) -> list[str]:
    labels = [str(each) for each in given] or [*string.ascii_uppercase, *map(str, range(26, count))][:count]
    if len(labels) != count or len(set(labels)) < count:
        raise ValueError(f"{count} choices need {count} different labels; they are {labels!r}")
    return labels


def _context(messages: Sequence[Message], delimiter: str) -> str:
    """The messages as one text. Earlier questions and answers are few-shot examples."""
    text = ""
    for message in messages:
        content = message.get("content")
        if not isinstance(content, str):
            raise TypeError("choice_likelihood takes a prompt of text only, without files or parts")
        is_answer, is_system = message.get("role") == "assistant", message.get("role") == "system"
        text += f"{delimiter if is_answer else ''}{content}{_BETWEEN if is_answer or is_system else ''}"
    return text


def _request(context: str, choice: str, mark: str, delimiter: str) -> tuple[str, str]:
    """The context and the continuation of a choice. White space at the end of the context becomes part of the
    continuation, because tokens of words begin with their space.
    """
    continuation = delimiter + choice
    if mark:
        before, found, continuation = context.partition(mark)
        if not found or not continuation or mark in continuation:
            raise ValueError(
                f"the prompt must contain {mark!r}, the mark of context_per_choice, once with text after it"
            )
        context = before + choice
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation
