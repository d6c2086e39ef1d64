"""Scorers of answers that contain JSON: `json_field`, `json_schema`.

The JSON of an answer is the whole text, its last fenced block, or the first complete object or list in it. With a path,
it is the first of these that has a value at the path.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import requires, scorer, shorten
from holdfast.score.extractors import find_json
from holdfast.score.worker_process import run_in_worker_async

_SECONDS_MAX = 5.0
_SHOWN_PATH = 10
_NO_JSON = "no JSON in the answer"


@scorer
def json_field(sample: Sample, answer: Answer, path: str = "") -> Score:
    """The value at `path` (`a.b.0`; default: all) of the answer's JSON equals the target, or one of several targets.
    1 equals 1.0, but text never equals a number.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    there, value = find_json(answer.text, path)
    if not there:
        return Score(False, f"no JSON with {path!r} in it" if path else _NO_JSON, unreadable=True)
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
    return Score(not problem, problem, unreadable=problem == _NO_JSON)


def violation(text: str, schema: dict[str, Any]) -> str:
    """Return how the JSON in a text violates a schema; empty if it does not. Runs in the worker process, because a
    schema may contain slow patterns.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry

    there, value = find_json(text, "")
    if not there:
        return _NO_JSON
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
