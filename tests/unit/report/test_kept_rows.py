"""A second report of an unchanged run reads no rows, also where the totals of pages are not enough."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.records import draft
from holdfast.records.facts import Cell, RunExtended, RunStarted, SampleFinished, ScoreGiven, Spent, StoredFile
from holdfast.records.samples import Answer, Sample
from holdfast.report import report_cells
from holdfast.runs import Run, find_run
from holdfast.state import Index
from tests.unit.engine.runs import Asked, given, go, model
from tests.unit.runs.advice import Told
from tests.unit.state.stories import EVALUATION, new_run, scoring, write

SAMPLES = 6
REPEATS = 3
CONS = {"repeats": REPEATS, "reduce": ["mean", {"cons_at_k": {"k": 3, "answer": "tone"}}]}
PANEL = {"name": "rubric", "args": {"roles": ["a", "b"]}, "task": "t"}
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "cons@k": (CONS, [{"name": "right"}]),
    "panel": ({"repeats": REPEATS}, [PANEL]),
    "own scorer": ({"repeats": REPEATS}, [{"name": "right", "function": "mine:right"}]),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The parts of pages that were read."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    found: list[str] = []
    load = Index._load  # noqa: SLF001 - counted here

    def counted(self: Index, page: int, name: str, *args: Any, **more: Any) -> Any:
        found.append(name)
        return load(self, page, name, *args, **more)

    monkeypatch.setattr(Index, "_load", counted)
    return found


def made(o: int, of: int, value: bool) -> Iterator[Any]:
    tone = "warm" if o % 2 else "cold"
    scores = {"right": value, "tone": tone, "rubric": 1, "rubric.a": 1, "rubric.b": int(value)}
    for name, score in scores.items():
        given_score = ScoreGiven(o, of, EVALUATION, name, score, last=name == "rubric.b")
        yield draft("score", given_score, f"t/m/s{o // REPEATS}/{o % REPEATS + 1}")


def started(fields: dict[str, Any], count: int) -> Any:
    spec = {"tasks": [{"name": "t", **fields}], "models": [{"name": "m"}]}
    cells = (Cell("t", "m", 0, count, 0, 0),)
    return draft("run.started", RunStarted("run", spec, StoredFile(count, ""), StoredFile(SAMPLES, ""), cells))


def answered(ordinals: range, first: int) -> Iterator[Any]:
    """`first`: the number of the first of these records."""
    for o in ordinals:
        key, of = f"t/m/s{o // REPEATS}/{o % REPEATS + 1}", first + 6 * (o - ordinals.start)
        yield draft("sample.finished", SampleFinished(o, 1, Answer("yes"), Spent(), 5), key)
        yield from made(o, of, value=o % 4 > 0)


def report(run: str) -> list[Any]:
    index = Index(run)
    try:
        found: list[Any] = msgspec.to_builtins(list(report_cells(index)))
    finally:
        index.close()
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_second_report_reads_no_rows_and_is_the_same(tmp_path: Path, reads: list[str], name: str) -> None:
    fields, scorers = CASES[name]
    count = SAMPLES * REPEATS
    run = new_run(tmp_path, [started(fields, count), scoring(scorers=scorers), *answered(range(count), 4)])
    first = report(run)
    assert first[0]["finished"] == count
    assert reads
    examples = len(first[0]["odd"]) + len(first[0]["examples"])
    reads.clear()
    assert report(run) == first
    assert len(reads) <= examples, "only pages of examples are read"

    write(run, [draft("score", ScoreGiven(0, 4, EVALUATION, "right", True, "no", author="ann"), "t/m/s0/1")])
    reads.clear()
    after = report(run)
    assert reads
    right = [
        [each["summary"]["mean"] for each in cell["scorers"] if each["scorer"] == "right"] for cell in first + after
    ]
    assert right[0] < right[1]


def test_an_extension_by_other_samples_needs_only_the_totals_of_pages(tmp_path: Path, reads: list[str]) -> None:
    count = SAMPLES * REPEATS
    begun = [started({"repeats": REPEATS}, count), scoring(scorers=[{"name": "right"}]), *answered(range(count), 4)]
    run = new_run(tmp_path, begun)
    spec = {"tasks": [{"name": "t", "repeats": REPEATS}], "models": [{"name": "m"}]}
    cells = (Cell("t", "m", count, count, 0, 0, 2),)
    extended = RunExtended((), spec, StoredFile(count, ""), StoredFile(SAMPLES, ""), cells)
    behind = 3 + 6 * count
    write(run, [draft("run.extended", extended), *answered(range(count, 2 * count), behind + 3)])
    (cell,) = report(run)
    assert (cell["finished"], cell["planned"], reads) == (2 * count, 2 * count, [])
    (right,) = [each["summary"] for each in cell["scorers"] if each["scorer"] == "right"]
    assert (right["n"], right["samples"]) == (2 * count, 2 * SAMPLES)
    expected = [o % 4 > 0 for o in range(2 * count)]
    assert right["mean"] == pytest.approx(sum(expected) / len(expected))


def right_half(sample: Sample, answer: Answer) -> bool:
    return int(sample.id) % 2 == 0


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
@pytest.mark.parametrize("changes", [False, True])
def test_groups_are_read_again_only_if_the_rows_have_changed(tmp_path: Path, reads: list[str], changes: bool) -> None:
    rows = [{"id": str(i), "input": str(i), "passage": f"p{i // 3}"} for i in range(12)]
    go(
        tmp_path,
        given([Asked(rows=rows, scorers=[right_half], fields={"dataset": {"group": "passage"}})], [model("m", Told())]),
    )
    place = find_run(str(tmp_path), "run-1")
    with Run(place) as run:
        first = run.report()
    assert first.cells[0].scorers[0].summary.groups == 4
    reads.clear()
    if changes:
        (Path(place.folder) / "data.jsonl.zst").unlink()
    with Run(place) as run:
        again = run.report()
    assert reads == []  # without its groups, every sample of the page is its own group
    assert again.cells[0].scorers[0].summary.groups == (None if changes else 4)
    assert bool(again.cells[0].groups_unknown) is changes
