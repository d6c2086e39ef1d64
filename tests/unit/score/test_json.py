"""json_field and json_schema."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ScorerError
from holdfast.score import ScoringFailed, resolve
from tests.unit.score.answers import score, value

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("path", "target", "text", "wanted"),
    [
        ("a", 4, '{"a": 4.0}', True),
        ("a", "4", '{"a": 4}', False),
        ("a", True, '{"a": 1}', False),
        ("a", [1, 2], '{"a": [1, 2]}', True),
        ("a", [1, 2], '{"a": 2}', True),
        ("a.b.0", "x", '{"a": {"b": ["x"]}}', True),
        ("a.b.0", "x", "```json\n{}\n```", False),
        ("a", 2, 'As [1] says, {"a": 2}', True),
        ("a", 2, 'From {"b": {"a": 2}} follows {"a": 3}', False),
        ("", {"a": {"b": 1}}, 'so {"a": {"b": 1}}', True),
        ("a", {"b": 1}, '{"a": {"b": 1, "c": 2}}', False),
        ("a", 4, "no data", False),
        ("a", None, '{"a": 4}', None),
    ],
)
def test_json_field(path: str, target: Any, text: str, wanted: bool | None) -> None:
    assert value({"json_field": {"path": path}}, target, text) is wanted


@given(DATA.filter(lambda data: data is not None))
def test_any_json_is_found_to_be_itself(data: Any) -> None:
    assert value("json_field", data, json.dumps(data)) is True


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"a": 1, "b": "x"}', '{"a": "1"}', '{"b": "x"}', '{"a": 1, "b": "z"}', "[]", "4"]
)
def test_json_schema_says_what_the_package_says(text: str) -> None:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
        problem = ""
    except jsonschema.ValidationError as error:
        problem = error.message
    said = score({"json_schema": {"schema": SCHEMA}}, None, f"Here: {text}" if text[0] == "{" else text)
    assert said.value is (not problem)
    assert problem in said.reason


def test_an_answer_without_json_is_wrong_not_a_failure() -> None:
    assert score({"json_schema": {"schema": SCHEMA}}, None, "none").reason == "no JSON in the answer"


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_any_text_can_be_held_against_a_schema(text: str) -> None:
    assert value({"json_schema": {"schema": SCHEMA}}, None, text) in (True, False)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "objec"}, "the schema is not valid at type: 'objec'"),
        ({"$ref": "http://127.0.0.1:9/x"}, "the schema refers to 'http://127.0.0.1:9/x', which is not inside it"),
        ("schema.json", "argument 'schema' is 'schema.json': Expected `object`"),
    ],
)
def test_a_wrong_schema_is_refused_before_anything_is_asked(schema: Any, problem: str) -> None:
    with pytest.raises(ScorerError) as caught:
        resolve({"json_schema": {"schema": schema}}, "here")
    assert problem in str(caught.value)


def test_a_schema_whose_pattern_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.scorers.json._SECONDS_MAX", 0.2)
    with pytest.raises(ScoringFailed, match=r"it took longer than 0\.2 s and was stopped"):
        score({"json_schema": {"schema": {"pattern": "(a+)+$"}}}, None, f'"{"a" * 60}b"')
