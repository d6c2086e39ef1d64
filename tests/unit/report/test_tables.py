"""What a person sees of failures: how many, of what kind, one of them in full, and how to try them again."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from holdfast.records.samples import Answer, Sample
from holdfast.report.profile import ModelProfile, Percentiles
from holdfast.report.tables import failure_lines, report_table, speed_lines
from holdfast.runs import Run
from holdfast.solve import Context
from tests.unit.engine.runs import RUN, Asked, given, go, rows

AGAIN = "holdfast resume run-1 --store elsewhere"


async def partly(sample: Sample, ctx: Context) -> Any:
    if sample.id in ("s1", "s2"):
        raise ValueError(f"no {sample.id}: {'far too long ' * 50}\nand more")
    return await ctx.generate()


def moody(sample: Sample, answer: Answer) -> float | None:
    if sample.id == "s0":
        raise ValueError("cannot say")
    return None if sample.id == "s3" else 1.0


def command(verb: str, *options: str) -> str:
    return " ".join(["holdfast", verb, RUN, *options, "--store", "elsewhere"])


def shown(store: Path, *, all_columns: bool = False) -> str:
    out = io.StringIO()
    with Run.find(str(store), RUN) as run:
        Console(file=out, width=300).print(report_table(run.report(), command, all_columns=all_columns))
    return out.getvalue()


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    go(tmp_path, given([Asked(rows=rows(6), solver=partly, scorers=[moody], fields={"sample_retries": 0})]))
    return tmp_path


def test_failures_are_shown_by_kind_with_one_example_shortened(mixed: Path) -> None:
    (line,) = [line for line in shown(mixed).splitlines() if "samples failed:" in line]
    assert line.startswith("task/mock: 2 samples failed: solver, e.g. task/mock/s1/1: ValueError: no s1: far too long")
    assert line.rstrip().endswith("…")
    assert "and more" not in shown(mixed)


def test_failed_samples_come_with_the_command_that_tries_them_again(mixed: Path) -> None:
    said = shown(mixed)
    assert (
        "2 samples failed in the solver's code; look at one: holdfast show run-1 task/mock/s1/1 --store elsewhere"
        in said
    )
    assert f"try again: {AGAIN}. If the code is wrong, fix it, then: holdfast fork run-1 --store elsewhere" in said


def test_without_failed_samples_nothing_is_to_be_tried_again(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2))]))
    assert "again" not in shown(tmp_path)


def test_failed_scorers_have_a_column_and_an_example_of_their_own(mixed: Path) -> None:
    said = shown(mixed, all_columns=True).splitlines()
    head, row = [line for line in said if line.startswith("task ")]
    for name, value in (("no score", "1"), ("scorer failed", "1"), ("failed", "2")):
        end = head.index(f"  {name}  ") + len(name) + 2
        assert row[:end].split()[-1] == value, name
    assert "task/mock: scorer moody failed on 1 answer, e.g. task/mock/s0/1: ValueError: cannot say" in "\n".join(said)


def test_a_report_begins_with_sentences_and_has_at_most_eight_columns(mixed: Path) -> None:
    said = shown(mixed).splitlines()
    head, row = [line for line in said if line.startswith("task ")]
    assert head.split("  ")[0] == "task"
    assert len([title for title in head.split("  ") if title.strip()]) == 8
    end = head.index("left out") + len("left out")
    assert row[:end].split()[-1] == "4", "1 no score, 1 scorer failed, 2 failed"
    assert said[1].startswith("task, moody: mock has ")


def test_a_column_in_which_nothing_happened_is_left_out(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), scorers=[lambda sample, answer: True])]))
    assert "scorer failed" not in shown(tmp_path, all_columns=True)
    assert "left out" not in shown(tmp_path)


def test_one_failure_is_told_in_the_singular(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), solver=partly, fields={"sample_retries": 0})]))
    with Run.find(str(tmp_path), RUN) as run:
        (line,) = failure_lines(run.cells())
    assert line.startswith("task/mock: 1 sample failed: solver")
    assert "1 sample failed in the solver's code" in shown(tmp_path)


def test_how_fast_a_judge_is_that_only_another_evaluation_asked_is_not_told(mixed: Path) -> None:
    phases: dict[str, Percentiles | None] = {"request": Percentiles(1, 0.5, 0.5, 0.5, 0.5, 0.5)}
    nobody = ModelProfile("m", False, 1, 1, 0, 0, 0, 1, 1, 1.0, 1.0, None, phases)
    with Run.find(str(mixed), RUN) as run:
        report = run.report()
    asked = {"adviser": {"": 2}, "judge": {report.evaluation: 1}, "old": {"another": 3}, "both": {"another": 1, "": 1}}
    models = [msgspec.structs.replace(nobody, name=name, evaluations=by) for name, by in asked.items()]
    lines = speed_lines(msgspec.structs.replace(report, models=tuple(models)))
    assert [line.partition(":")[0] for line in lines] == ["wall time", "adviser", "judge", "both"]
