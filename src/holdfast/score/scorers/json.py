"""Scorers of answers that are data: `json_field`, `json_schema`.

The JSON of an answer is the whole text, or its last fenced block, or the first object or list in it that is whole; for
a path, the first of these that has something there.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.records.samples import Answer, Sample, Score
from holdfast.score.definition import needing, scorer, shortened
from holdfast.score.extractors import has_json
from holdfast.score.worker_process import apart

_SECONDS_MAX = 5.0
_SHOWN_PATH = 10


@scorer
def json_field(sample: Sample, answer: Answer, path: str = "") -> Score:
    """What the answer's JSON holds at `path` (`a.b.0`; not said: all of it) is the target, or one of several. Numbers
    are the same if their values are; texts and numbers differ.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    there, value = has_json(answer.text, path)
    if not there:
        return Score(False, f"no JSON with {path!r} in it" if path else "no JSON in the answer")
    several = sample.target if isinstance(sample.target, list | tuple) else ()
    same = any(_same(value, each) for each in (sample.target, *several))
    return Score(same, f"found {shortened(repr(value))}")


def _problem_of_schema(schema: dict[str, Any]) -> str:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        at = "/".join(map(str, list(error.absolute_path)[:_SHOWN_PATH]))
        return f"the schema is not valid{f' at {at}' if at else ''}: {shortened(error.message)}"
    outside = [each for each in _named(schema, "$ref") if not each.startswith("#")]
    if outside and not any(_named(schema, "$id")):
        return f"the schema refers to {outside[0]!r}, which is not inside it; nothing is fetched: put it under $defs"
    return ""


@needing("schema", "jsonschema")
@scorer(check=_problem_of_schema)
async def json_schema(sample: Sample, answer: Answer, schema: dict[str, Any]) -> Score:
    """The answer's JSON is what a JSON Schema asks for. What the schema refers to must be inside it."""
    problem: str = await apart(_SECONDS_MAX, f"{__name__}:violation", answer.text, schema)
    return Score(not problem, problem)


def violation(text: str, schema: dict[str, Any]) -> str:
    """What is wrong with the JSON in a text; empty if nothing. In the process that can be ended: a schema may hold
    patterns.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry

    there, value = has_json(text, "")
    if not there:
        return "no JSON in the answer"
    registry: Registry[Any] = Registry()  # one of our own fetches nothing
    error = next(validator_for(schema)(schema, registry=registry).iter_errors(value), None)
    if error is None:
        return ""
    at = "/".join(map(str, list(error.absolute_path)[:_SHOWN_PATH]))
    return f"{at}: {error.message[:500]}" if at else error.message[:500]


def _named(schema: Any, name: str) -> Iterator[str]:
    """Every text that stands under a name, anywhere."""
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(value, dict | list):
            yield from _named(value, name)
        elif key == name and isinstance(value, str):
            yield value


def _same(one: Any, other: Any) -> bool:
    """As JSON: true is not 1, 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
