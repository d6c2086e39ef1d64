"""Scorers of plain text: `exact_match`, `includes`, `regex`, `consistency`, `length`, `length_difference`.

A target may be a list; then any entry counts. A sample without a target has no score.

Scorers of answers that contain JSON: `json_field`, `json_schema`.

The JSON of an answer is the whole text, its last fenced block, or the first complete object or list in it. With a path,
it is the first of these that has a value at the path.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import requires, scorer, shorten, slow_if
from holdfast.score.extractors import find_json
from holdfast.score.worker_process import check_pattern, is_match, last_group, may_take_long, run_in_worker_async


@scorer
def exact_match(sample: Sample, answer: Answer, ignore_case: bool = False, strip: bool = True) -> bool | None:
    """The answer equals the target, or one of several targets."""
    return _is_one_of(answer.text, references(sample.target), ignore_case, strip)


@scorer
def includes(sample: Sample, answer: Answer, ignore_case: bool = True) -> bool | None:
    """The answer contains the target, or one of several targets, without surrounding spaces. No score for an empty
    target, because every text contains it.
    """
    targets = [reference for reference in references(sample.target) if reference.strip()]
    if not targets:
        return None
    text = _normalise(answer.text, ignore_case, strip=False)
    return any(_normalise(reference, ignore_case, strip=True) in text for reference in targets)


@slow_if(may_take_long)
@scorer(check=lambda pattern, group=None, **_: check_pattern(pattern, group))
def regex(
    sample: Sample, answer: Answer, pattern: str, group: int | str | None = None, ignore_case: bool = False
) -> bool | None:
    """The pattern matches in the answer. With `group`, that group of the last match equals the target."""
    if group is None:
        return is_match(answer.text, pattern, ignore_case)
    targets = references(sample.target)
    held = last_group(answer.text, pattern, group, ignore_case)
    return _is_one_of(held, targets, ignore_case, strip=True) if held is not None else (False if targets else None)


def references(target: Any) -> list[str]:
    """Return the texts of a target; empty if it is None. TypeError for an object, which has no obvious text."""
    if target is None:
        return []
    if isinstance(target, str):
        return [target]
    if isinstance(target, bool):
        return ["true", "True"] if target else ["false", "False"]
    if isinstance(target, int | float):
        return [str(target)]
    if isinstance(target, list | tuple):
        return [text for entry in target for text in references(entry)]
    raise TypeError(f"the target is a {type(target).__name__}; expected text, a number or a list of them")


def _is_one_of(text: str, targets: Sequence[str], ignore_case: bool, strip: bool) -> bool | None:
    if not targets:
        return None
    given = _normalise(text, ignore_case, strip)
    return any(given == _normalise(reference, ignore_case, strip) for reference in targets)


def _normalise(text: str, ignore_case: bool, strip: bool) -> str:
    """Normalise a text for comparison. NFC makes composed and decomposed accents equal."""
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    text = text.strip() if strip else text
    return text.casefold() if ignore_case else text


@scorer(group=True)
def consistency(sample: Sample, answers: Sequence[Answer], ignore_case: bool = True) -> Score:
    """The share of pairs of repeats with equal answers: 1 if all are equal, 0 if all differ. No score for a single
    answer. Use `extract` to compare a part of the answers.
    """
    if len(answers) < 2:
        return Score(None, "there is one answer; consistency needs several repeats")
    texts = [answer.text.strip() for answer in answers]
    counts = Counter(text.casefold() if ignore_case else text for text in texts)
    same = sum(count * (count - 1) for count in counts.values())
    ((most, count),) = counts.most_common(1)
    return Score(same / (len(texts) * (len(texts) - 1)), f"{count} of {len(texts)} say {shorten(most)!r}")


Unit = Literal["characters", "words", "lines"]


@scorer
def length(sample: Sample, answer: Answer, unit: Literal["characters", "words", "lines", "tokens"] = "words") -> Score:
    """The number of words, characters, lines or tokens in the answer. Tokens are counted by the server."""
    if unit == "tokens":
        tokens = answer.usage.output_tokens
        return Score(tokens or None, "" if tokens else "the server did not count tokens")
    return Score(_measure(answer.text, unit))


@scorer
def length_difference(sample: Sample, answer: Answer, unit: Unit = "words", relative: bool = False) -> Score:
    """How much longer the answer is than the target; negative if it is shorter. Of several targets, the nearest counts.
    `relative`: divided by the target's length; no score if that is 0.
    """
    targets = [_measure(each, unit) for each in references(sample.target)]
    if not targets:
        return Score(None, "the sample has no target")
    found = _measure(answer.text, unit)
    nearest = min(targets, key=lambda each: abs(found - each))
    if relative:
        return Score((found - nearest) / nearest if nearest else None, f"{found} {unit}, the target has {nearest}")
    return Score(found - nearest, f"{found} {unit}, the target has {nearest}")


def _measure(text: str, unit: str) -> int:
    if unit == "characters":
        return len(text)
    return len(text.split() if unit == "words" else text.splitlines())


_SECONDS_MAX = 5.0
_SHOWN_PATH = 10


@scorer
def json_field(sample: Sample, answer: Answer, path: str = "") -> Score:
    """The value at `path` (`a.b.0`; default: all) of the answer's JSON equals the target, or one of several targets.
    1 equals 1.0, but text never equals a number.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    there, value = find_json(answer.text, path)
    if not there:
        return Score(False, f"no JSON with {path!r} in it" if path else "no JSON in the answer")
    several = sample.target if isinstance(sample.target, list | tuple) else ()
    same = any(_are_equal(value, each) for each in (sample.target, *several))
    return Score(same, f"found {shorten(repr(value))}")


def _check_schema(schema: dict[str, Any]) -> str:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        at = "/".join(map(str, list(error.absolute_path)[:_SHOWN_PATH]))
        return f"the schema is not valid{f' at {at}' if at else ''}: {shorten(error.message)}"
    outside = [each for each in _values_of_key(schema, "$ref") if not each.startswith("#")]
    if outside and not any(_values_of_key(schema, "$id")):
        return f"the schema refers to {outside[0]!r}, which is not inside it; nothing is fetched, so put it under $defs"
    return ""


@requires("schema", "jsonschema")
@scorer(check=_check_schema)
async def json_schema(sample: Sample, answer: Answer, schema: dict[str, Any]) -> Score:
    """The answer's JSON is valid for a JSON Schema. References in the schema must point into the schema itself."""
    problem: str = await run_in_worker_async(_SECONDS_MAX, f"{__name__}:violation", answer.text, schema)
    return Score(not problem, problem)


def violation(text: str, schema: dict[str, Any]) -> str:
    """Return how the JSON in a text violates a schema; empty if it does not. Runs in the worker process, because a
    schema may contain slow patterns.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry

    there, value = find_json(text, "")
    if not there:
        return "no JSON in the answer"
    registry: Registry[Any] = Registry()  # an empty registry fetches nothing
    error = next(validator_for(schema)(schema, registry=registry).iter_errors(value), None)
    if error is None:
        return ""
    at = "/".join(map(str, list(error.absolute_path)[:_SHOWN_PATH]))
    return f"{at}: {error.message[:500]}" if at else error.message[:500]


def _values_of_key(schema: Any, name: str) -> Iterator[str]:
    """Yield every text under a key, at any depth."""
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(value, dict | list):
            yield from _values_of_key(value, name)
        elif key == name and isinstance(value, str):
            yield value


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: true differs from 1, but 1.0 equals 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(one == other)
