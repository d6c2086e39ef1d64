"""Scales: what each built-in scorer can give, what users declare, and combinations of different scales."""

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import ScorerError
from holdfast.records import Answer, Sample, Score, normalized
from holdfast.score import (
    SCORERS,
    Scorer,
    ScoringFailed,
    identity,
    mixed_scales,
    resolve,
    scale_hints,
    scales_of,
    score_answer,
    scorer,
    source_digest,
)
from holdfast.score.scales import describe_scale, is_on_scale
from holdfast.stats import BOOL, COUNT, LABEL, NUMBER, UNIT, Scale

OLD: dict[str, Any] = json.loads(Path("tests/fixtures/identities_0_1_0.json").read_text())["scorers"]
COSINE, RATING = Scale("range", -1.0, 1.0), Scale("range", 1.0, 5.0)
RUBRIC = {"rubric": {"criteria": "right?"}}
SAMPLE = Sample("a", "2+2?", "4", {})
PLAIN = {
    **dict.fromkeys(("exact_match", "includes", "regex", "numeric", "choice", "maths", "json_field"), BOOL),
    **dict.fromkeys(("json_schema", "code_tests", "at_least", "row_is", "acc", "acc_norm", "acc_bytes"), BOOL),
    **dict.fromkeys(("token_f1", "edit_similarity", "bleu", "chrf", "rouge", "meteor", "codebleu"), UNIT),
    **dict.fromkeys(("drop_em", "ifeval_prompt"), BOOL),
    **dict.fromkeys(("consistency", "pairwise", "mc2", "drop_f1", "ifeval_instruction"), UNIT),
    **dict.fromkeys(("bert_score", "embedding_similarity"), COSINE),
    "rubric": RATING,
    "length": COUNT,
    "length_difference": NUMBER,
    "taxonomy": LABEL,
    "grade": LABEL,
}


def grade(sample: Sample, answer: Answer) -> Any:
    return float(answer.text)


def is_short(sample: Sample, answer: Answer) -> bool:
    return len(answer.text) < 5


def scale_of(entry: Any, score: str) -> Scale | None:
    """The scale by the recorded identity, which has been through a file."""
    recorded = msgspec.json.decode(msgspec.json.encode({"task": "t", **identity(resolve(entry, "here"))}))
    return scales_of([recorded, {"task": "other", "name": score, "function": "length", "args": {}}], "t").of(score)


def graded(text: str, made: Scorer) -> dict[str, Score]:
    return asyncio.run(score_answer(made, SAMPLE, Answer(text)))


def test_every_built_in_scorer_has_a_scale() -> None:
    assert PLAIN.keys() | {"all_of", "any_of", "none_of", "weighted", "when"} == SCORERS.keys()
    for name, scale in PLAIN.items():
        assert scales_of([{**identity(SCORERS[name]), "task": "t"}], "t").of(name) == scale


@pytest.mark.parametrize("name", [name for name in PLAIN if name in OLD])
def test_scorers_that_version_0_1_0_recorded_have_scales(name: str) -> None:
    assert scales_of([{**OLD[name], "task": "t", "name": "mine"}], "t").of("mine") == PLAIN[name]


@pytest.mark.parametrize(
    ("entry", "scales"),
    [
        (RUBRIC, {"rubric": RATING, "rubric.a": None}),
        ({"rubric": {"criteria": "x", "scale": 10, "name": "r"}}, {"r": Scale("range", 1.0, 10.0), "rubric": None}),
        ({"rubric": {"criteria": "x", "pass_at": 4}}, {"rubric": BOOL}),
        ({"rubric": {"criteria": "x", "pass_at": 4, "roles": ["a", "b"]}}, {"rubric": BOOL, "rubric.a": RATING}),
        ({"rubric": {"criteria": "x", "roles": ["a"]}}, {"rubric": RATING, "rubric.a": None}),
        (
            {"rubric": {"criteria": {"tone": "x", "to.ne": "y"}, "roles": ["a", "b"], "pass_at": 2}},
            {"rubric.tone": BOOL, "rubric.to.ne": BOOL, "rubric.tone.b": RATING, "rubric.to.ne.a": RATING},
        ),
        ({"pairwise": {"roles": ["a", "b"]}}, {"pairwise": UNIT, "pairwise.b": UNIT}),
        ({"length_difference": {"relative": True}}, {"length_difference": NUMBER}),
    ],
)
def test_the_scale_of_a_judge_depends_on_its_arguments(entry: Any, scales: dict[str, Scale | None]) -> None:
    assert {score: scale_of(entry, score) for score in scales} == scales


@pytest.mark.parametrize(
    ("of", "scales"),
    [
        (["exact_match", "includes"], (BOOL, BOOL, UNIT)),
        (["exact_match", "token_f1"], (UNIT, UNIT, UNIT)),
        ([RUBRIC], (RATING, Scale("range", -4.0, 0.0), RATING)),
        (["length"], (COUNT, NUMBER, COUNT)),
        (["length", "length_difference"], (NUMBER, NUMBER, NUMBER)),
        (["exact_match", RUBRIC], (Scale("range", 0.0, 5.0), Scale("range", -4.0, 1.0), Scale("range", 0.0, 5.0))),
        ([grade, "exact_match"], (None, None, None)),
        (["taxonomy", "exact_match"], (None, None, None)),
        ([{"all_of": {"of": ["exact_match"]}}, is_short], (BOOL, BOOL, UNIT)),
        ([{"rubric": {"criteria": "x", "pass_at": 2, "roles": ["a", "b"]}}], (BOOL, BOOL, UNIT)),
    ],
)
def test_the_scale_of_a_combination_contains_those_of_its_parts(of: Any, scales: tuple[Scale | None, ...]) -> None:
    lowest, less, mean = scales
    assert scale_of({"all_of": {"of": of}}, "all_of") == lowest
    assert scale_of({"any_of": {"of": of}}, "any_of") == lowest
    assert scale_of({"none_of": {"of": of}}, "none_of") == less
    assert scale_of({"weighted": {"of": of, "weights": [1] * len(of)}}, "weighted") == mean


def test_when_has_the_scales_of_both_branches() -> None:
    test = {"row_is": {"column": "kind", "equals": "x"}}
    criteria = {"rubric": {"criteria": {"tone": "x"}}}

    def of(score: str, then: Any, otherwise: Any = None) -> Scale | None:
        return scale_of({"when": {"test": test, "then": then, "otherwise": otherwise}}, score)

    assert of("when", "numeric") == BOOL
    assert of("when", "numeric", "token_f1") == UNIT
    assert of("when", RUBRIC, "numeric") == Scale("range", 0.0, 5.0)
    assert of("when", "numeric", grade) is None
    assert of("when.tone", criteria, "numeric") == RATING
    assert of("when.tone", criteria, scorer(grade, scale=(0, 9))) == Scale("range", 0.0, 9.0)
    assert of("when.any", "numeric", scorer(grade, scale=(0, 9))) == Scale("range", 0.0, 9.0)


def test_a_declared_scale_is_found_for_all_parts_or_by_part() -> None:
    assert scale_of(scorer(grade, scale=(1, 5)), "grade") == scale_of(scorer(grade, scale=(1, 5)), "grade.x") == RATING
    parts = scorer(grade, scale={"tone": "label", "": "bool"})
    assert [scale_of(parts, name) for name in ("grade.tone", "grade", "grade.x")] == [LABEL, BOOL, None]
    assert scale_of(grade, "grade") is None
    assert scale_of("exact_match", "exact_match.x") is scale_of("exact_match", "other") is None
    dotted = [{**identity(resolve(is_short, "")), "name": name, "task": "t"} for name in ("a", "a.b")]
    dotted[1]["scale"] = "count"
    assert [scales_of(dotted, "t").of(name) for name in ("a.b.c", "a.b", "a.c")] == [COUNT, COUNT, BOOL]


def test_edited_records_have_no_scale() -> None:
    of: Any = {"name": "x", "function": "exact_match", "args": {}}
    for _ in range(200):
        of = {"name": "x", "function": "all_of", "args": {"of": [of]}}
    odd = [
        of,
        {"name": "x", "function": "rubric", "args": {"scale": "many"}},
        {"name": "x", "function": "weighted", "args": {"of": 3}},
        {"name": "x", "function": "when", "args": None},
        {"name": "x", "function": "m:f", "args": {}, "scale": [5, 1]},
        {"name": "x", "function": 3},
    ]
    assert [scales_of([each], "t").of("x") for each in odd] == [None] * len(odd)


def test_a_scale_is_declared_in_code_in_a_spec_or_by_annotation() -> None:
    assert scorer(grade, scale=[1, 5]).scale == RATING
    assert scorer(scale="count")(grade).scale == COUNT
    assert scorer(scorer(grade), scale="bool").scale == scorer(scorer(grade, scale="bool"), name="x").scale == BOOL
    assert scorer(is_short).scale == scorer(functools.partial(is_short)).scale == BOOL
    assert scorer(is_short, scale=(0, 1)).scale == UNIT
    assert resolve(scorer(grade).using(scale=(1, 5), name="g"), "here").scale == RATING
    assert resolve({f"{__name__}:grade": {"scale": [1, 5]}}, "here").scale == RATING
    assert resolve({f"{__name__}:is_short": {"scale": None}}, "here").scale is None
    assert SCORERS["exact_match"].scale is None  # in the table of built-in scales instead

    def tone(sample: Sample, answer: Answer) -> "str | None":
        return None

    assert scorer(tone).scale == LABEL


def test_a_function_with_an_argument_scale_keeps_it() -> None:
    def takes(sample: Sample, answer: Answer, scale: int = 3) -> int:
        return scale

    def takes_all(sample: Sample, answer: Answer, **args: Any) -> Any:
        return args["scale"]

    for each in (takes, takes_all):
        made = resolve(scorer(each).using(scale=7), "here")
        assert (made.args, made.scale) == ({"scale": 7}, None)
        assert next(iter(graded("", made).values())).value == 7


@pytest.mark.parametrize("wrong", ["ratio", 5, (5, 1), (1, 2, 3), (1, "x"), {}, {"a": "ratio"}, {1: "bool"}])
def test_a_wrong_declaration_is_refused(wrong: Any) -> None:
    with pytest.raises(ScorerError, match=r"^grade: scale .*: .*(lowest, highest\)|by its name)"):
        scorer(grade, scale=wrong)
    with pytest.raises(ScorerError, match=r"^here.scale: scale "):
        resolve(scorer(grade).using(scale=wrong), "here")


def test_a_built_in_scorer_takes_no_scale() -> None:
    with pytest.raises(ScorerError, match="here: exact_match has a scale of its own"):
        resolve({"exact_match": {"scale": "bool"}}, "here")


@pytest.mark.parametrize(
    ("scale", "inside", "outside"),
    [
        ((1, 5), ["1", "5", "2.5"], ["7", "0.99"]),
        ("bool", ["0", "1"], ["0.5", "2"]),
        ("count", ["0", "12"], ["-1", "1.5"]),
        ("number", ["-3", "1e9"], []),
        ("label", [], ["1"]),
        ({"x": "bool"}, ["7"], []),
        ({"": "bool"}, ["1"], ["7"]),
    ],
)
def test_a_value_outside_the_declared_scale_is_a_failure(scale: Any, inside: list[str], outside: list[str]) -> None:
    made = scorer(grade, scale=scale)
    assert [graded(each, made)["grade"].value for each in inside] == [float(each) for each in inside]
    for each in outside:
        with pytest.raises(ScoringFailed, match="which is not on its scale") as caught:
            graded(each, made)
        assert "test_scales.py" in caught.value.detail


def test_the_failure_names_value_part_and_scale() -> None:
    made = scorer(lambda sample, answer: {"tone": Score(7)}, name="g", scale={"tone": (1, 5)})
    text = (
        "scorer 'g': returned 7 for 'tone', which is not on its scale, 1 to 5; correct the value, or the declared scale"
    )
    with pytest.raises(ScoringFailed, match=text):
        graded("", made)
    nothing = scorer(lambda sample, answer: {"tone": None, "other": "x"}, name="g", scale={"tone": (1, 5)})
    assert graded("", nothing)["g.tone"].value is None


def test_texts_are_only_on_the_scale_of_labels() -> None:
    scales = (BOOL, COUNT, NUMBER, UNIT, LABEL)
    assert [is_on_scale(each, "x") for each in scales] == [False] * 4 + [True]
    assert [is_on_scale(each, True) for each in scales] == [True] * 4 + [False]
    assert [describe_scale(each) for each in (RATING, BOOL, None)] == ["1 to 5", "bool", "unknown"]


def test_a_declared_scale_is_recorded_but_does_not_change_what_the_scorer_is() -> None:
    plain, declared = identity(scorer(grade)), identity(scorer(grade, scale=(1, 5)))
    assert declared == {**plain, "scale": [1.0, 5.0]}
    assert identity(scorer(grade, scale={"x": "bool"}))["scale"] == {"x": "bool"}
    assert normalized(declared) == normalized(plain) == plain
    both = [identity(resolve({"all_of": {"of": [each]}}, "")) for each in (grade, scorer(grade, scale="bool"))]
    assert both[0] != both[1]
    assert normalized(both[0]) == normalized(both[1])
    assert not any("scale" in identity(each) for each in SCORERS.values())


def test_a_scale_does_not_change_the_digest_of_code_that_holds_the_scorer() -> None:
    def held_by(part: Scorer) -> str:
        def outer(sample: Sample, answer: Answer) -> Any:
            return part(sample, answer)

        return source_digest(outer)

    assert held_by(scorer(grade)) == held_by(scorer(grade, scale=(1, 5)))
    assert held_by(scorer(grade)) != held_by(scorer(grade, name="other"))


@pytest.mark.parametrize("name", ["all_of", "any_of", "none_of", "weighted"])
def test_different_scales_are_not_combined(name: str) -> None:
    def problem(*of: Any, **more: Any) -> str:
        weights = {"weights": [1] * len(of)} if name == "weighted" else {}
        return mixed_scales(resolve({name: {"of": list(of), **weights, **more}}, "here"))

    graded = scorer(grade, scale=(1, 5))
    text = f"{name} combines different scales (exact_match: bool, grade: 1 to 5); make a part right or wrong with "
    assert problem("exact_match", graded).startswith(text)
    assert problem("exact_match", graded).endswith("or map each scale to 0..1 with normalise: true")
    assert problem({"when": {"test": "includes", "then": {"all_of": {"of": ["exact_match", graded]}}}})
    assert problem("exact_match", "length")
    assert problem({"rubric": {"criteria": {"a": "x"}, "pass_at": 2, "roles": ["a", "b"]}})
    fine = [
        ("exact_match", "token_f1"),
        ("exact_match", is_short),
        ("exact_match", grade),
        (graded, RUBRIC),
        ("exact_match", {"at_least": {"of": graded, "value": 3}}),
    ]
    assert [problem(*each) for each in fine] == [""] * len(fine)
    assert problem("exact_match", graded, normalise=True) == ""


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("length", "normalise: length gives a count, which has no lowest and highest value"),
        (grade, r"normalise: grade declares no scale; declare it, as in @scorer\(scale=\(1, 5\)\)"),
        ("taxonomy", "normalise: taxonomy gives a label"),
    ],
)
def test_only_scales_with_two_ends_are_normalised(part: Any, problem: str) -> None:
    with pytest.raises(ScorerError, match=f"^here: {problem}"):
        resolve({"all_of": {"of": ["exact_match", part], "normalise": True}}, "here")
    with pytest.raises(ScorerError, match=f"^here: {problem}"):
        resolve({"weighted": {"of": ["exact_match", part], "weights": [1, 1], "normalise": True}}, "here")


def test_normalise_maps_each_scale_to_0_to_1() -> None:
    parts = [scorer(grade, scale=(1, 5)), scorer(grade, name="signed", scale=(-4, 4)), "exact_match"]

    def value(name: str, text: str, **more: Any) -> Any:
        made = resolve({name: {"of": parts, "normalise": True, **more}}, "here")
        return graded(text, made)[name].value

    assert value("weighted", "4", weights=[1, 1, 2]) == (0.75 + 1 + 2) / 4
    assert value("any_of", "2") == 0.75
    assert value("none_of", "2") == 0.25
    assert value("all_of", "2") is False
    assert value("all_of", "4") == 0.75
    entry = {"all_of": {"of": parts, "normalise": True}}
    assert scale_of(entry, "all_of") == UNIT
    assert scale_of({"all_of": {"of": ["exact_match", is_short], "normalise": True}}, "all_of") == BOOL
    several = scorer(lambda sample, answer: {"a": 5, "b": 1}, name="s", scale={"a": (1, 5), "b": (0, 1)})
    made = resolve({"weighted": {"of": [several], "weights": [1], "normalise": True}}, "here")
    assert graded("", made)["weighted"].value == 1


def test_a_scorer_without_a_scale_is_mentioned_once() -> None:
    entries: list[Any] = [
        *("exact_match", grade, grade, is_short, scorer(grade, name="declared", scale="number")),
        {"all_of": {"of": ["includes", grade]}},
        {"all_of": {"of": ["includes", scorer(grade, name="part")]}},
        {"at_least": {"of": scorer(grade, name="not_needed"), "value": 3}},
    ]
    advice = 'declare its scale, @scorer(scale=(1, 5)) or "bool", so that intervals stay on it'
    found = scale_hints(resolve(each, "here") for each in entries)
    assert found == [f"scorer grade: {advice}", f"scorer part: {advice}"]
