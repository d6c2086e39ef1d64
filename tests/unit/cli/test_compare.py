"""`compare`, `leaderboard` and `gate` on runs that lack something: nothing is passed over in silence."""

import asyncio
import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import compare, gate, leaderboard
from holdfast.cli.commands.compare import CompareOptions, compare_runs, gate_run
from holdfast.cli.commands.leaderboard import LeaderboardOptions, print_boards
from holdfast.cli.commands.report import ReportOptions, print_report
from holdfast.errors import ScorerError, SpecError, UsageError
from holdfast.models import ModelError, Request
from holdfast.records.samples import Answer, Sample
from holdfast.report import comparison_sentences, name_parameters
from holdfast.report.tables import score_sentences
from holdfast.runs import GateOptions, Run, find_run, open_run
from holdfast.runs.compare.comparability import incomparable_reasons, without_data
from holdfast.runs.execution.answer_selection import AnswerSelection
from holdfast.runs.scoring import ScoreRequest, given_to_score, score
from holdfast.score import scorer
from tests.unit.engine.runs import Asked, cut_after, echo, given, go, model, rows


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


async def other_word(request: Request) -> str:
    return "something else"


async def broken(request: Request) -> str:
    raise ModelError("bad_request", "no")


def other(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "target": "another"} for row in data]


def made(store: Path, run: str, *tasks: Asked, reply: Any = echo, **fields: Any) -> None:
    go(store, given(tasks, [model("m", reply)], **fields), run_id=run)


def quiz(name: str = "quiz", data: list[dict[str, Any]] | None = None, **fields: Any) -> Asked:
    own = {"sample_retries": 0, **fields}
    return Asked(name, data or rows(3), scorers=[right], fields=own)


def reasons(store: Path, first: str, second: str) -> list[str]:
    with Run.find(str(store), first) as one, Run.find(str(store), second) as two:
        return incomparable_reasons(one, two)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_runs_of_several_models_are_compared_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, reply in (("one", echo), ("two", other_word)):
        go(tmp_path, given([quiz()], [model("m", reply), model("n", echo)]), run_id=run)
    compare_runs(["one", "two"], CompareOptions(), str(tmp_path), False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("quiz/m, right: no difference can be seen between one and two (")
    assert lines[3].split()[:5] == ["task", "model", "first", "second", "scorer"]
    assert [line.split()[:5] for line in lines[4:6]] == [["quiz", each, "one", "two", "right"] for each in ("m", "n")]
    assert "quiz/n right, one and two: compared on 3 keys of 3 samples" in lines
    assert "quiz/m right, one -> two: 3 of 3 changed" in lines


def test_a_model_that_all_rows_share_is_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("one", "two"):
        made(tmp_path, run, quiz())
    compare_runs(["one", "two"], CompareOptions(), str(tmp_path), False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["quiz/m, right: one and two have equal scores on 3 paired samples", ""]
    assert lines[2].split()[:4] == ["task", "first", "second", "scorer"]
    assert "quiz right, one and two: compared on 3 keys of 3 samples" in lines


def test_the_rows_of_a_task_are_not_taken_for_those_of_another_with_the_same_ids(tmp_path: Path) -> None:
    made(tmp_path, "both", quiz("a"), quiz("b", other(rows(3))))
    made(tmp_path, "alone", quiz("a"))
    made(tmp_path, "changed", quiz("a", other(rows(3))), quiz("b", other(rows(3))))
    assert reasons(tmp_path, "both", "alone") == []
    (found,) = reasons(tmp_path, "both", "changed")
    assert "not comparable on 3 samples: rows with the same id differ" in found


def test_rows_whose_columns_stand_in_another_order_are_the_same(tmp_path: Path) -> None:
    made(tmp_path, "one", quiz())
    made(tmp_path, "two", quiz(data=[dict(reversed(row.items())) for row in rows(3)]))
    assert reasons(tmp_path, "one", "two") == []


def test_of_a_run_that_does_not_hold_its_data_nobody_says_that_it_is_other_data(tmp_path: Path) -> None:
    made(tmp_path, "one", quiz())
    made(tmp_path, "two", quiz(), record_data=False)
    assert reasons(tmp_path, "one", "two") == []
    with Run.find(str(tmp_path), "one") as one, Run.find(str(tmp_path), "two") as two:
        (doubt,) = without_data([one, two])
    assert doubt.startswith("two does not hold its data")


def test_a_run_without_an_answer_does_not_pass_whatever_becomes_of_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "whole", quiz(repeats=2, reduce="pass@2"))
    made(tmp_path, "none", quiz(repeats=2, reduce="pass@2"), reply=broken)
    options = GateOptions(baseline="whole", margin=0.1, if_unsure="pass")
    assert gate_run("none", options, str(tmp_path), as_json=True) == 7
    (verdict,) = told(capsys)["verdicts"]
    assert (verdict["outcome"], verdict["scorer"], verdict["missing"]) == ("missing", "right pass@2", {"no_value": 3})


def test_a_run_whose_scorer_broke_on_every_answer_is_no_pass_where_repeats_are_reduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {"repeats": 2, "reduce": "pass@2"}
    made(tmp_path, "whole", quiz(**fields))

    def right(sample: Sample, answer: Answer) -> bool:
        raise ValueError("no")

    made(tmp_path, "none", Asked("quiz", rows(3), scorers=[right], fields=fields))
    for options in (GateOptions(baseline="whole", margin=0.1), GateOptions(at_least=0.0, if_unsure="pass")):
        assert gate_run("none", options, str(tmp_path), as_json=True) == 7
        assert {each["outcome"] for each in told(capsys)["verdicts"]} == {"missing"}


def test_a_baseline_without_an_answer_is_reported_as_such(tmp_path: Path) -> None:
    made(tmp_path, "whole", quiz())
    made(tmp_path, "none", quiz(), reply=broken)
    with pytest.raises(UsageError, match=r"the baseline none has 3 keys of quiz without a score, .* resume"):
        gate_run("whole", GateOptions(baseline="none", margin=0.1, missing_max=9), str(tmp_path), as_json=False)


def test_without_a_common_key_nothing_is_judged(tmp_path: Path) -> None:
    made(tmp_path, "one", quiz())
    made(tmp_path, "two", quiz(data=rows(6)[3:]))
    with pytest.raises(UsageError, match="two quiz/m and the baseline have no key in common"):
        gate_run("two", GateOptions(baseline="one", margin=0.1, if_unsure="pass"), str(tmp_path), as_json=False)


def test_where_every_key_may_be_missing_none_is_no_pass_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "none", quiz(), reply=broken)
    options = GateOptions(at_least=0.5, if_unsure="pass", missing_max=3)
    assert gate_run("none", options, str(tmp_path), as_json=False) == 7
    assert "not passed: 3 keys without a score (3 failed)" in capsys.readouterr().out


def test_a_task_that_is_not_scored_yet_does_not_pass_beside_one_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "run", quiz("a"), quiz("b"), Asked("bare", rows(3)), concurrency={"samples": 1})
    cut_after(tmp_path, lambda kind, data: kind != "score" or data["o"] < 3, "run")
    assert gate_run("run", GateOptions(at_least=0.1, missing_max=9), str(tmp_path), as_json=True) == 7
    found = {each["task"]: each["outcome"] for each in told(capsys)["verdicts"]}
    assert (found["b"], set(found)) == ("missing", {"a", "b"})


@pytest.mark.parametrize(
    "options", [GateOptions(baseline="x", margin=float("nan")), GateOptions(at_least=float("inf"))]
)
def test_what_is_no_finite_number_is_no_bound(options: GateOptions) -> None:
    with pytest.raises(UsageError, match="a finite number"):
        options.bar()


def test_a_margin_never_lowers_the_number_that_a_mean_must_reach() -> None:
    with pytest.raises(UsageError, match="--margin is for --baseline"):
        GateOptions(at_least=0.8, margin=0.05).bar()


def test_where_nothing_varies_no_confidence_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def third(sample: Sample, answer: Answer) -> float:
        return 0.3

    made(tmp_path, "run", Asked("quiz", rows(3), scorers=[third]))
    assert gate_run("run", GateOptions(at_least=0.3), str(tmp_path), as_json=False) == 7
    assert "too little varies for an interval, and the scale of the scorer has no known ends" in capsys.readouterr().out


def test_a_fixed_score_speaks_of_the_mean_and_not_of_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(sample: Sample, answer: Answer) -> float:
        return float(sample.id in ("s0", "s1"))

    made(tmp_path, "run", Asked("quiz", rows(4), scorers=[half]))
    assert gate_run("run", GateOptions(at_least=0.6), str(tmp_path), as_json=False) == 7
    found = capsys.readouterr().out
    assert ("samples would decide with power 0.8, if the mean stays 0.5;" in found, "difference" in found) == (
        True,
        False,
    )


def test_scores_that_are_all_higher_by_the_same_amount_are_no_certainty_for_few_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    level = [0.25]

    @scorer(scale=(0, 1))
    def constant(sample: Sample, answer: Answer) -> float:
        return level[0]

    made(tmp_path, "low", Asked("quiz", rows(3), scorers=[constant]))
    level[0] = 0.75
    made(tmp_path, "high", Asked("quiz", rows(3), scorers=[constant]))
    assert gate_run("high", GateOptions(baseline="low", margin=0.0), str(tmp_path), as_json=False) == 7
    assert "not enough data on 3 samples" in capsys.readouterr().out
    assert gate_run("high", GateOptions(baseline="low", margin=0.6), str(tmp_path), as_json=False) == 0
    assert "passed: the difference to the baseline is at least -0.6" in capsys.readouterr().out


def test_a_baseline_with_too_few_scores_for_its_reducer_needs_repeats_and_no_resume(tmp_path: Path) -> None:
    def silent(sample: Sample, answer: Answer) -> float | None:
        return None if sample.id == "s0" else 1.0

    task = Asked("quiz", rows(3), scorers=[silent], fields={"repeats": 2, "reduce": "pass@2"})
    for run in ("one", "two"):
        made(tmp_path, run, task)
    with pytest.raises(
        UsageError, match="the baseline one has 1 key of quiz without a score by silent pass@2"
    ) as found:
        gate_run("two", GateOptions(baseline="one", margin=0.1), str(tmp_path), as_json=False)
    advice = str(found.value)
    assert f"add repeats: holdfast extend one --set tasks.quiz.repeats=4 --store {tmp_path}" in advice
    assert f"choose another reducer: holdfast resume one --set tasks.quiz.reduce=mean --store {tmp_path}" in advice
    assert "continue it" not in advice


def test_a_comparison_tells_what_only_one_run_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "one", quiz("a"), quiz("b"), Asked("c", rows(1), scorers=[right]))
    made(tmp_path, "two", quiz("a"), quiz("d"), Asked("c", rows(1), scorers=[echoed]))
    compare_runs(["one", "two"], CompareOptions(), str(tmp_path), as_json=True)
    found = told(capsys)
    assert [each["first"]["task"] for each in found["comparisons"]] == ["a"]
    assert [each.partition(": ")[2] or each for each in found["warnings"]] == [
        "only one has b with m; not compared",
        "only two has d with m; not compared",
        "one and two have no scorer in common for c with m; not compared",
    ]


def echoed(sample: Sample, answer: Answer) -> float:
    return float(len(answer.text))


@pytest.mark.parametrize(("first", "second"), [("whole", "none"), ("none", "whole")])
def test_a_side_that_failed_throughout_is_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    made(tmp_path, "whole", quiz())
    made(tmp_path, "none", quiz(), reply=broken)
    compare_runs([first, second], CompareOptions(), str(tmp_path), as_json=True)
    (found,) = told(capsys)["comparisons"]
    lacking = {first: found["missing_first"], second: found["missing_second"]}
    assert (found["scorer"], found["common"], found["p"], lacking) == (
        "right",
        0,
        None,
        {"whole": {}, "none": {"failed": 3}},
    )


def test_a_model_without_a_score_is_reported_beside_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "whole", quiz())
    made(tmp_path, "none", quiz(), reply=broken)
    print_boards(["whole", "none"], LeaderboardOptions(format="json"), str(tmp_path))
    found = told(capsys)
    assert [each["run"] for each in found["boards"][0]["ranked"]] == ["whole"]
    assert "quiz right: m of none has no score, so it has no rank" in found["warnings"]


def test_a_leaderboard_in_csv_has_nothing_that_a_spreadsheet_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "run", quiz("=1+1"))
    print_boards(["run"], LeaderboardOptions(format="csv"), str(tmp_path))
    assert capsys.readouterr().out.splitlines()[1].startswith("'=1+1,right,1,m,run,1.0,")


def test_runs_of_the_same_id_in_two_experiments_are_distinguished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for experiment, task in (("old", "a"), ("new", "b")):
        made(tmp_path, "nightly", quiz(task), quiz(), experiment=experiment)
    names = [str(tmp_path / each / "nightly") for each in ("old", "new")]
    print_boards(names, LeaderboardOptions(format="json"), str(tmp_path))
    boards = {each["task"]: [one["run"] for one in each["ranked"]] for each in told(capsys)["boards"]}
    assert boards == {"a": ["old/nightly"], "quiz": ["old/nightly", "new/nightly"], "b": ["new/nightly"]}
    compare_runs(names, CompareOptions(), str(tmp_path), as_json=True)
    (found,) = told(capsys)["comparisons"]
    assert (found["first"]["run"], found["second"]["run"]) == ("old/nightly", "new/nightly")


def test_no_test_case_passes_because_the_bound_is_no_number() -> None:
    with pytest.raises(UsageError, match="--at-least nan: must be a finite number"):
        print_report(["run"], None, ReportOptions(format="junit", at_least=float("nan")))


def score_again(store: Path, run: str, limit: int | None = None) -> str:
    """Score a run with another scorer of the same name, or a part of it; return the id of the evaluation."""

    def right(sample: Sample, answer: Answer) -> bool:
        return bool(answer.text)

    request = ScoreRequest([right], selection=AnswerSelection(limit=limit))
    place, asked = find_run(str(store), run), given([quiz()], [model("m", echo)])
    return asyncio.run(score(given_to_score(asked, place, request), place, request)).evaluation


def test_every_output_names_the_evaluation_that_it_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path)
    for run in ("one", "two"):
        go(tmp_path, given([quiz()], [model("m", echo)]), run_id=run)
    with Run.find(store, "one") as opened:
        first = opened.evaluation_id()
    second, part = score_again(tmp_path, "one"), score_again(tmp_path, "two", limit=1)
    assert second == part
    sentence = f"one: scores of the evaluation {second} (right #2), one of 2; for another, add --evaluation"
    for result in (
        gate("one", at_least=0.5, store=store),
        compare("one", "two", store=store),
        leaderboard("one", "two", store=store),
    ):
        assert result.evaluations["one"] == second
        assert result.evaluations.get("two", first) == first, "a partial evaluation is never the current one"
        assert f"warning: {sentence.replace('--', '')}" in str(result), "a program has no options"
        assert sentence.replace("--", "") in result._repr_html_()
    gate_run("one", GateOptions(at_least=0.5), store, as_json=False)
    assert sentence in capsys.readouterr().err
    gate_run("one", GateOptions(at_least=0.5, evaluation=first), store, as_json=True)
    found = told(capsys)
    assert (found["evaluations"], found["warnings"]) == ({"one": first}, [])
    for format in ("table", "markdown", "junit", "latex", "html"):
        print_report(["one"], store, ReportOptions(format))
        text = capsys.readouterr().out.replace("\\", "")
        assert f"scores of the evaluation {second} (right #2), one of 2" in text, format


def test_a_verdict_has_the_sentence_that_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "one", quiz())
    result = gate("one", at_least=0.99, store=str(tmp_path))
    reason = "quiz/m right: not enough data on 3 samples: "
    assert result.verdicts[0].reason.startswith(reason)
    printed = result.verdicts[0].reason.replace("--if-unsure pass", "if_unsure='pass'")
    assert printed in str(result)
    assert escape(printed) in result._repr_html_()
    gate_run("one", GateOptions(at_least=0.99), str(tmp_path), as_json=False)
    assert capsys.readouterr().out.startswith(reason)


def test_a_program_gets_the_rows_that_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, reply in (("one", echo), ("two", other_word)):
        go(tmp_path, given([quiz()], [model("m", reply), model("n", echo)]), run_id=run)
    store = str(tmp_path)
    gate_run("one", GateOptions(at_least=0.5), store, as_json=False, all_columns=True)
    print_boards(["one", "two"], LeaderboardOptions(), store)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    tables = [gate("one", at_least=0.5, store=store).table(all_columns=True)]
    for each in [*tables, *leaderboard("one", "two", store=store).tables()]:
        table = str(each).splitlines()
        assert len(table) > 2
        assert [line for line in table if line not in printed] == []


def test_python_says_sentences_first_and_shows_at_most_eight_columns(tmp_path: Path) -> None:
    for run, reply in (("one", echo), ("two", other_word)):
        go(tmp_path, given([quiz()], [model("m", reply), model("n", echo)]), run_id=run)
    store = str(tmp_path)
    compared, judged = compare("one", "two", store=store), gate("one", at_least=0.5, store=store)
    with open_run("one", store=store) as opened:
        report = opened.report()
    for result, sentence in (
        (compared, comparison_sentences(compared.comparisons)[0]),
        (judged, judged.verdicts[0].reason.partition("; ")[0]),
        (report, next(iter(score_sentences(report)))),
    ):
        text, page = str(result), result._repr_html_()
        (head,) = [line for line in text.splitlines() if line.startswith("task  ")]
        assert 0 <= text.find(sentence) < text.find(head)
        assert 0 <= page.find(escape(sentence)) < page.find("<table>")
        assert len(re.split(" {2,}", head)) <= 8, head
        assert page.count("<th>") <= 8
    every = compared.table(all_columns=True)
    assert len(every.columns) > 10
    assert {"was", "is", "wins"} <= set(re.split(" {2,}", str(every).splitlines()[0]))
    assert every._repr_html_().count("<th>") > 8


def test_an_evaluation_is_found_by_every_label_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path)
    made(tmp_path, "one", quiz())
    with open_run("one", store=store) as opened:
        first = opened.evaluation_id()
    second = score_again(tmp_path, "one")
    with open_run("one", store=store) as opened:
        labels = {each: opened.evaluation_id(each) for each in ("right #1", "right #2", "right", first, second[:6])}
        with pytest.raises(UsageError) as refused:
            opened.report("rihgt")
    assert labels == {"right #1": first, "right #2": second, "right": second, first: first, second[:6]: second}
    assert f"there are: {first} (right #1), {second} (right #2)" in str(refused.value)
    print_report(["one"], store, ReportOptions(evaluation="right #1"))
    assert f"scores of the evaluation {first} (right #1)" in capsys.readouterr().out


def test_a_misspelt_scorer_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    for run in ("one", "two"):
        made(tmp_path, run, quiz())
    store = str(tmp_path)
    for work in (
        lambda: compare("one", "two", scorer="rihgt", store=store),
        lambda: leaderboard("one", "two", scorer="rihgt", store=store),
    ):
        with pytest.raises(UsageError, match=r"^scorer rihgt: .*did you mean 'right'"):
            work()


def test_a_number_that_no_score_can_reach_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "one", quiz())
    sentence = "at_least=60: scores of right are 0 to 1; for 60 % write 0.6"
    with pytest.raises(UsageError, match=re.escape(sentence)):
        gate("one", at_least=60, store=str(tmp_path))


def test_a_misspelt_scorer_is_an_error_of_the_spec_that_names_the_parameter(tmp_path: Path) -> None:
    made(tmp_path, "one", quiz())
    with open_run("one", store=str(tmp_path)) as opened, pytest.raises(ScorerError) as refused:
        opened.score("exact_mach")
    assert isinstance(refused.value, SpecError)
    assert str(refused.value).startswith("scorers: ")
    assert "'exact_match'" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not passed (to accept: --if-unsure pass)", "not passed (to accept: if_unsure='pass')"),
        ("give either --baseline RUN or --at-least 0.8", "give either baseline RUN or at_least=0.8"),
        ("for another, add --evaluation: a1 (right #1)", "for another, add evaluation: a1 (right #1)"),
        ("passed because of --identical-passes: equal", "passed because of identical_passes=True: equal"),
        (
            "name some: holdfast score r --scorers FILE; or --scorers f",
            "name some: holdfast score r --scorers FILE; or scorers f",
        ),
        ("choose with --sample or --limit", "choose with samples or limit"),
        ("x--task, --set tasks.t.repeats=2", "x--task, --set tasks.t.repeats=2"),
    ],
)
def test_options_become_parameters_in_messages(text: str, expected: str) -> None:
    assert name_parameters(text) == expected
