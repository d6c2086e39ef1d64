"""Samples that share a group (`dataset.group`): every interval and test clusters by it, and all of them agree."""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import DamageWarning, SpecError
from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.report import ExportLine
from holdfast.report import cell_totals as reporting
from holdfast.report.compare.comparison import Comparison, compare_sides
from holdfast.report.compare.gate import GateRule, RequiredScore, judge_against, judge_level, shortcomings
from holdfast.report.compare.leaderboard import leaderboards
from holdfast.report.compare.sides import SideAnswers, sides_of
from holdfast.report.formats.latex import latex
from holdfast.report.formats.markdown import markdown
from holdfast.runs import Run, find_run
from holdfast.stats import Summary, cohens_dz, paired_difference, permutation_test, summarise
from tests.e2e.commands import call
from tests.oracle import check_reports
from tests.unit.engine.runs import Asked, given, go, model

PASSAGES = ["a", "a", "a", "b", "b", "b", "c", "c", "c", None, " ", "d"]
"""Of twelve questions; two have none, and the last is alone with its own."""
GROUPS = ["a", "a", "a", "b", "b", "b", "c", "c", "c", "9", "10", "d"]
SCORES = {
    "first": [0.9, 0.8, 0.85, 0.1, 0.2, 0.1, 0.6, 0.5, 0.7, 0.4, 0.3, 0.5],
    "second": [0.7, 0.7, 0.6, 0.3, 0.4, 0.2, 0.6, 0.4, 0.5, 0.5, 0.1, 0.6],
}
GROUPED = {"dataset": {"group": "passage"}, "reduce": ["mean", "max"]}


def rows() -> list[dict[str, Any]]:
    """The ids of samples without a passage are names of passages of others, which they do not join."""
    ids = [*(f"s{number}" for number in range(9)), "a", "b", "s11"]
    return [{"id": name, "input": name, "passage": each} for name, each in zip(ids, PASSAGES, strict=True)]


async def echo(request: Request) -> str:
    return str(request.messages[-1]["content"])


async def other_echo(request: Request) -> str:
    return str(request.messages[-1]["content"]) + "!"


def score(sample: Sample, answer: Answer) -> float:
    number = [each["id"] for each in rows()].index(sample.id)
    return SCORES["second" if answer.text.endswith("!") else "first"][number]


def asked(fields: Mapping[str, Any], **more: Any) -> Any:
    task = Asked(rows=rows(), scorers=[score], fields=dict(fields))
    return given([task], [model("first", echo), model("second", other_echo)], **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twice each question, to two models."""
    made = tmp_path_factory.mktemp("groups")
    go(made, asked({**GROUPED, "repeats": 2}))
    return made


def lines_of(store: Path) -> list[ExportLine]:
    with Run(find_run(str(store), "run-1")) as run:
        return list(run.lines())


def sides(store: Path) -> tuple[SideAnswers, SideAnswers]:
    with Run(find_run(str(store), "run-1")) as run:
        rules = {task: (how, lambda name: None) for task, how in run.reductions().items()}
        first, second = sides_of("run-1", run.lines(), rules).values()
    return first, second


def expected(name: str, repeats: int = 2) -> Summary:
    """What the statistics say of the same numbers by themselves, one for each sample, with six groups."""
    return counted(summarise(SCORES[name], GROUPS), repeats)


def counted(summary: Summary, repeats: int) -> Summary:
    samples = 12 if repeats > 1 else None
    return msgspec.structs.replace(summary, n=12 * repeats, samples=samples, groups=6)


def test_an_interval_is_as_wide_as_the_formula_of_clusters_says(store: Path) -> None:
    values, count = SCORES["first"], 6
    mean = math.fsum(values) / 12
    sums = [
        math.fsum(value - mean for value, mine in zip(values, GROUPS, strict=True) if mine == each)
        for each in dict.fromkeys(GROUPS)
    ]
    error = math.sqrt(math.fsum(each**2 for each in sums) * count / (count - 1)) / 12
    with Run(find_run(str(store), "run-1")) as run:
        (scorer,) = run.report().cells[0].scorers
    assert scorer.summary.standard_error == pytest.approx(error, rel=1e-12)
    alone = summarise(values)
    assert alone.standard_error is not None
    assert error > 1.5 * alone.standard_error
    assert (scorer.summary.n, scorer.summary.groups) == (24, 6)


def test_report_show_leaderboard_gate_and_standards_have_the_same_numbers(store: Path) -> None:
    place = find_run(str(store), "run-1")
    with Run(place) as run:
        report, summary = run.report(), run.summary()
    reported = {cell.model: cell.scorers[0].summary for cell in report.cells}
    assert reported == {name: expected(name) for name in SCORES}
    shown = {
        each["model"]: Summary(**{name: each[name] for name in Summary.__struct_fields__}) for each in summary.scores
    }
    assert shown == reported
    first, second = sides(store)
    board, *_ = leaderboards(
        [{("task", "first"): first, ("task", "second"): second}],
        [dict.fromkeys([("task", "first"), ("task", "second")], report.cost)],
    )
    assert {each.model: each.summary for each in board.ranked} == reported
    judged = judge_level(first, first.measures()["score"], GateRule(at_least=0.4))
    assert (judged.interval, judged.samples, judged.common) == (reported["first"], 12, 24)
    (told, *_) = shortcomings({("task", "first"): first}, RequiredScore(0.9))
    low, high = reported["first"].low, reported["first"].high
    assert f"{low:.4f} .. {high:.4f}, n 12 x 2 (6 groups)" in told


def test_reduced_numbers_are_in_the_groups_of_their_samples(store: Path) -> None:
    with Run(find_run(str(store), "run-1")) as run:
        (reduced,) = run.report().cells[0].scorers[0].reduced
    assert reduced.summary == expected("first", repeats=1)
    assert sides(store)[0].measures()["score max"].summary() == reduced.summary


def test_a_comparison_pairs_keys_and_clusters_by_group(store: Path) -> None:
    plain, _ = comparisons(store)
    steps = [after - before for before, after in zip(SCORES["first"], SCORES["second"], strict=True)]
    assert plain.difference == counted(paired_difference(steps, GROUPS), 2)
    assert (plain.common, plain.samples, plain.p) == (24, 12, permutation_test(steps, GROUPS).p)
    assert plain.effect == pytest.approx(cohens_dz(steps), rel=1e-12), "an effect is from sample to sample"
    first, second = sides(store)
    judged = judge_against(second, second.measures()["score"], first.measures()["score"], GateRule(margin=0.1))
    assert (judged.interval, judged.samples) == (plain.difference, 12)
    assert judged.outcome == "unsure"
    assert judged.samples_needed is not None
    assert judged.samples_needed > 12


def comparisons(store: Path) -> list[Comparison]:
    return list(compare_sides(*sides(store)))


@pytest.mark.parametrize("grouped", ["first", "second", "both"])
def test_it_is_enough_that_one_side_knows_the_groups(store: Path, grouped: str) -> None:
    lines = [
        each if grouped in (each.model, "both") else msgspec.structs.replace(each, group="") for each in lines_of(store)
    ]
    first, second = sides_of("run-1", lines).values()
    there, back = next(compare_sides(first, second)), next(compare_sides(second, first))
    assert there.difference is not None
    assert there.difference.groups == 6
    assert there.p == back.p == comparisons(store)[0].p


def test_every_number_is_the_same_when_it_is_computed_again(store: Path) -> None:
    assert check_reports(find_run(str(store), "run-1")).differences == []


def test_a_report_that_forgets_groups_is_found(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))  # the right totals may be kept in the usual one
    monkeypatch.setattr(reporting, "member_of", lambda sample, group: sample)
    found = check_reports(find_run(str(store), "run-1")).differences
    for what in ("score: standard error", "score: upper end", "score: groups", "score: max: standard error"):
        assert any(f"task/first: {what}: " in each for each in found), found


def test_people_are_told_how_many_groups_there_are(store: Path) -> None:
    place = find_run(str(store), "run-1")
    with Run(place) as run:
        report = run.report()
    for text in (str(report), report._repr_html_(), markdown(report), latex([report])):
        assert "12 x 2 (6 groups)" in text.replace(r" $\times$ ", " x ")
        assert "12 (6 groups)" in text
    assert "(n 24 in 6 groups)" in call("show", "run-1", "--store", store, cwd=store).out
    assert "24 keys of 12 samples in 6 groups" in call("compare", "run-1", "--store", store, cwd=store).out
    ranked = call("leaderboard", "run-1", "--store", store, "--format", "csv", cwd=store).out
    assert {each["groups"] for each in csv.DictReader(io.StringIO(ranked))} == {"6"}
    gated = call("gate", "run-1", "--at-least", "0.5", "--store", store, cwd=store).out
    assert "on 12 samples in 6 groups" in gated
    exported = [json.loads(line) for line in call("export", "run-1", "--store", store, cwd=store).out.splitlines()]
    assert [each["group"] for each in exported[:24:2]] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3 + ["", "", "d"]


def test_groups_may_be_named_by_numbers_or_be_long_texts(tmp_path: Path) -> None:
    passages = ["x" * 5_000, "x" * 5_000, "x" * 4_999 + "y", 1, "1", ["p", 2], ["p", 2], True]
    every = [{"id": f"s{number}", "input": f"s{number}", "passage": each} for number, each in enumerate(passages)]
    every.append({"id": "without", "input": "s1"})
    go(tmp_path, given([Asked(rows=every, scorers=["exact_match"], fields={"dataset": {"group": "passage"}})]))
    one, two, three, *rest = [each.group for each in lines_of(tmp_path)]
    assert one == two != three
    assert len(one) < 100
    assert rest == ["1", "1", '["p",2]', '["p",2]', "true", ""]
    assert check_reports(find_run(str(tmp_path), "run-1")).differences == []


def test_a_finished_run_can_be_told_its_groups_without_asking_or_scoring_again(tmp_path: Path) -> None:
    go(tmp_path, asked({"reduce": ["mean", "max"]}))
    place = find_run(str(tmp_path), "run-1")
    with Run(place) as run:
        before, evaluations = run.report(), run.report().evaluations
    assert before.cells[0].scorers[0].summary == summarise(SCORES["first"])
    go(tmp_path, asked(GROUPED))
    with Run(place) as run:
        after = run.report()
    assert after.cells[0].scorers[0].summary == expected("first", repeats=1)
    assert (after.steps, after.evaluations) == (before.steps, evaluations)
    assert check_reports(place).differences == []


def test_more_repeats_stay_in_the_groups_of_their_samples(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    spec = {
        "models": [{"name": "m", "provider": "mock"}],
        "tasks": [
            {
                "name": "t",
                "dataset": {"path": "data.jsonl", "group": "passage"},
                "prompt": "{input}",
                "scorers": ["length"],
            }
        ],
    }
    (tmp_path / "eval.yaml").write_text(json.dumps(spec))
    assert call("run", "eval.yaml", "--id", "run-1", cwd=tmp_path).code == 0
    assert call("extend", "run-1", "--set", "tasks.t.repeats=2", cwd=tmp_path).code == 0
    found = {(each.sample_id, each.repeat): each.group for each in lines_of(tmp_path / "runs")}
    assert len(found) == 24
    assert all(found[sample, 1] == found[sample, 2] for sample, _ in found)
    assert sum(bool(group) for group in found.values()) == 20
    assert check_reports(find_run(str(tmp_path / "runs"), "run-1")).differences == []


def test_a_column_that_no_row_has_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    wrong = {"dataset": {"group": "pasage"}}
    told = r"tasks\[0\]\.dataset\.group: no row of 'task' has a column 'pasage'; did you mean 'passage'\?"
    with pytest.raises(SpecError, match=told):
        go(tmp_path, asked(wrong))
    assert not list(tmp_path.iterdir())
    go(tmp_path, asked({}))
    with pytest.raises(SpecError, match=told):
        go(tmp_path, asked(wrong))


def test_a_run_without_its_rows_says_that_groups_are_not_known(tmp_path: Path) -> None:
    go(tmp_path, asked(GROUPED, record_data=False))
    place = find_run(str(tmp_path), "run-1")
    with Run(place) as run:
        report = run.report()
    assert report.cells[0].scorers[0].summary == summarise(SCORES["first"])
    sentence = "which samples share a passage is not known (record_data is off): each counts as a group of its own"
    for text in (str(report), markdown(report), call("show", "run-1", "--store", tmp_path, cwd=tmp_path).out):
        assert f"task/first: {sentence}" in text.replace("\\", "")
    for command in (["compare"], ["leaderboard"], ["gate", "--at-least", "0.1"]):
        done = call(command[0], "run-1", *command[1:], "--store", tmp_path, cwd=tmp_path)
        assert done.err.count(sentence) == 1, done.said
    assert check_reports(place).differences == []


def test_results_can_be_read_though_the_rows_are_gone_and_say_so(tmp_path: Path) -> None:
    go(tmp_path, asked(GROUPED))
    place = find_run(str(tmp_path), "run-1")
    Path(place.folder, "data.jsonl.zst").unlink()
    with Run(place) as run:
        with pytest.warns(DamageWarning, match=r"data\.jsonl\.zst is missing"):
            report = run.report()
        unknown = run.unknown_groups()
        lines = list(run.lines())
    assert report.cells[0].scorers[0].summary == summarise(SCORES["first"])
    assert {each.group for each in lines} == {""}
    assert unknown == {"task": report.cells[0].groups_unknown}
    assert "the rows cannot be read: see `holdfast verify`" in str(report)
