"""Extractors, alone, in a row, and before a scorer."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ScorerError
from holdfast.score import ScoringFailed, resolve, score_answer, scorer
from holdfast.score.definition import apply_extractors
from holdfast.score.extractors import EXTRACTORS
from tests.unit.score.answers import answer, sample, score, value

NEEDED = {"regex": {"pattern": r"(\d)x?"}, "after": {"marker": "#"}, "tag": {"name": "a"}}
FENCED = "Try\n```python\na = 1\n```\nor\n```\nb = 2\n```\nand\n```Python\nc = 3\n"


def taken(entry: Any, text: str) -> str | None:
    return apply_extractors(text, resolve({"exact_match": {"extract": entry}}, "here").extract)


@pytest.mark.parametrize(
    ("entry", "text", "wanted"),
    [
        ({"regex": {"pattern": r"\d+"}}, "1 then 22", "22"),
        ({"regex": {"pattern": r"\d+", "first": True}}, "1 then 22", "1"),
        ({"regex": {"pattern": r"is (\w+)"}}, "it is four", "four"),
        ({"regex": {"pattern": r"(?P<a>\w)(?P<b>\w)", "group": "b"}}, "xy", "y"),
        ({"regex": {"pattern": "YES", "ignore_case": True}}, "yes", "yes"),
        ({"regex": {"pattern": "z"}}, "yes", None),
        ("first_line", "\n\n a \nb", "a"),
        ("last_line", "a\n b \n\n", "b"),
        ("last_line", " \n", None),
        ({"after": {"marker": "####"}}, "#### 1 #### 2 ", "2"),
        ({"after": {"marker": "is", "first": True}}, "it is what is", "what is"),
        ({"after": {"marker": "####"}}, "4", None),
        ({"tag": {"name": "answer"}}, "<answer>1</answer> <answer> 2 </answer>", "2"),
        ({"tag": {"name": "answer"}}, "</answer><answer>1", None),
        ({"tag": {"name": "answer"}}, "<answer>cut off", None),
        ("without_thinking", "<think>5</think> 4", "4"),
        ("without_thinking", "<think>5", None),
        ("without_thinking", "4", "4"),
        ("boxed", r"\boxed{1} so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed {3}", "3"),
        ("boxed", r"\boxed{1", None),
        ("boxed", "{1}", None),
        ("code", FENCED, "c = 3"),
        ({"code": {"language": "python"}}, FENCED, "c = 3"),
        ({"code": {"language": "rust"}}, FENCED, None),
        ("code", "a = 1", None),
        ("code", "- So:\n  ```python\n  if a:\n      b = 1\n\n  c = 2\n  ```\n", "if a:\n    b = 1\n\nc = 2"),
        ("json", 'so: {"a": [1, "x"]} and', '{"a": [1, "x"]}'),
        ({"json": {"path": "a.1"}}, '{"a": [1, "x"]}', "x"),
        ({"json": {"path": "a.-1"}}, '{"a": [1, true]}', "true"),
        ({"json": {"path": "a.5"}}, '{"a": [1]}', None),
        ({"json": {"path": "a.b"}}, '```json\n{"a": {"b": null}}\n```', "null"),
        ("json", "{ no", None),
        ("number", "5 or 1,234.5", "1,234.5"),
        ("number", "none", None),
        ("letter", "The answer is (B).", "B"),
        ({"letter": {"letters": "AB"}}, "C", None),
        ("normalized", " The  CAT, a dog! ", "cat dog"),
        (["without_thinking", {"after": {"marker": "is"}}, "number"], "<think>is 5</think> it is 4.", "4"),
        ([{"after": {"marker": "#"}}, "normalized"], "nothing", None),
    ],
)
def test_what_an_extractor_takes_out_of_a_text(entry: Any, text: str, wanted: str | None) -> None:
    assert taken(entry, text) == wanted


@pytest.mark.parametrize("name", sorted(EXTRACTORS))
@given(text=st.text())
def test_no_text_makes_an_extractor_raise(name: str, text: str) -> None:
    found = taken({name: NEEDED.get(name, {})}, text)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("text", ["[" * 200_000, "{" * 200_000, "`" * 200_000, "\\boxed{" * 50_000, "<a>" * 100_000])
@pytest.mark.parametrize("name", sorted(EXTRACTORS))
def test_a_long_text_that_never_closes_is_read_once(name: str, text: str) -> None:
    found = taken({name: NEEDED.get(name, {})}, text)
    assert found is None or len(found) <= len(text)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none(), min_size=1))
def test_json_is_found_whole_in_whatever_stands_around_it(data: dict[str, Any]) -> None:
    found = taken("json", f"Here you are: {json.dumps(data)} - fine?")
    assert found is not None
    assert json.loads(found) == data


def test_a_scorer_compares_what_was_extracted_and_says_what_that_was() -> None:
    said = score({"exact_match": {"extract": {"after": {"marker": "####"}}}}, "4", "2+2 #### 4")
    assert (said.value, said.reason) == (True, "extracted '4'")


def test_what_is_not_there_is_the_empty_text_never_a_failure() -> None:
    assert value({"exact_match": {"extract": "number"}}, "4", "four") is False
    assert value({"token_f1": {"extract": "number"}}, "4", "four") == 0.0
    assert value({"length": {"extract": "number"}}, None, "four") == 0


def test_a_target_is_extracted_too_each_of_several_by_itself() -> None:
    entry = {"exact_match": {"extract": "normalized", "extract_target": "normalized"}}
    assert value(entry, ["An apple", "The Pear!"], "pear.") is True
    assert value(entry, "The Pear!", "plum") is False
    assert value(entry, None, "plum") is None


def test_a_target_without_what_is_extracted_is_a_failure_of_the_data() -> None:
    with pytest.raises(ScoringFailed, match="the target '4' does not contain what extract_target looks for"):
        score({"exact_match": {"extract_target": {"after": {"marker": "####"}}}}, "4", "4")


def test_extractors_may_be_functions_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("my_extractors.py").write_text("def nth(text, n: int = 0):\n    return text.split()[n]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert taken({"my_extractors:nth": {"n": 1}}, "a b") == "b"
        with pytest.raises(ScorerError, match="argument 'n' is 'x': Expected `int`"):
            taken({"my_extractors:nth": {"n": "x"}}, "a b")
        with pytest.raises(ScorerError, match=r"has no 'nht'; did you mean 'nth'\?"):
            taken("my_extractors:nht", "a b")
    finally:
        sys.modules.pop("my_extractors", None)
    assert taken(str.upper, "a") == "A"


def test_an_extractor_that_returns_no_text_is_a_failure_of_the_scorer() -> None:
    made = resolve({"exact_match": {"extract": len}}, "here")
    with pytest.raises(ScoringFailed, match="the extractor len returned a int"):
        asyncio.run(score_answer(made, sample("1"), answer("1")))


def test_your_own_scorer_takes_extractors_as_built_in_ones_do() -> None:
    @scorer
    def same(sample: Any, answer: Any, twice: bool = False) -> bool:
        return bool(answer.text == sample.target * (1 + twice))

    assert value(same.using(extract="number", twice=True), "4", "so 44.") is True
    assert value(same.using(extract="number"), "4", "so 44.") is False


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("nubmer", "here.extract: unknown extractor 'nubmer'; did you mean 'number'?"),
        ({"regex": {"patern": "x"}}, "here.extract: regex has no argument 'patern'; did you mean 'pattern'?"),
        ({"regex": {"pattern": "("}}, "is not valid"),
        ({"regex": {"pattern": "x", "group": 1}}, "has no group 1"),
        ("regex", "regex needs the argument 'pattern'"),
        ({"after": {"marker": ""}}, "the marker is empty"),
        ({"letter": {"letters": "abc"}}, "letters must be capital letters"),
        ({"number": {}, "letter": {}}, "expected one name with its arguments, found 2: number, letter"),
        (4, "expected an extractor, found a int"),
    ],
)
def test_a_wrong_extractor_is_refused_with_its_place(entry: Any, problem: str) -> None:
    with pytest.raises(ScorerError) as caught:
        taken(entry, "")
    assert problem in str(caught.value)
