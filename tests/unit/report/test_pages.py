"""A report is the same whatever the size of pages is, and whether the index was built at once or in steps."""

import math
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.records import Draft, Failure, draft
from holdfast.records.facts import Cell, RunStarted, SampleFailed, SampleFinished, ScoreGiven, Spent, StoredFile
from holdfast.records.samples import Answer, Usage
from holdfast.report import report_cells
from holdfast.state import Index, index_pages
from tests.caches import index_file
from tests.unit.state.stories import EVALUATION, new_run, scoring, write

SAMPLES = 30
LONG_TEXT = "the same long answer, word by word, in every repeat of the sample, as no model would give it twice " * 2


def begun(repeats: int) -> Draft:
    count = SAMPLES * repeats
    cells = tuple(Cell("t", f"m{i}", i * count, count, 0, 0) for i in range(2))
    task = {"name": "t", "repeats": repeats, "reduce": ["mean", "median", "mode", {"pass_at_k": {"k": repeats}}]}
    spec = {"tasks": [task], "models": [{"name": f"m{i}", "params": {"temperature": 1}} for i in range(2)]}
    return draft("run.started", RunStarted("run", spec, StoredFile(2 * count, ""), StoredFile(SAMPLES, ""), cells))


def random_records(repeats: int, chance: random.Random) -> list[Draft]:
    """Without those that begin the run. Numbers of records follow from their order: three come before."""
    keys = [
        (o, f"t/m{o // (SAMPLES * repeats)}/s{o % (SAMPLES * repeats) // repeats}/{o % repeats + 1}")
        for o in range(2 * SAMPLES * repeats)
    ]
    chance.shuffle(keys)
    found: list[Draft] = []
    for o, key in keys[: len(keys) * 9 // 10]:
        spent = Spent(usage=Usage(chance.randrange(99), 7, requests=1), seconds=chance.lognormvariate(0, 1))
        if chance.random() < 0.1:
            kind = chance.choice(["timeout", "solver"])
            found.append(draft("sample.failed", SampleFailed(o, 1, Failure(kind, "why"), True, spent), key))
            continue
        text = LONG_TEXT if chance.random() < 0.5 else chance.choice(["yes", "no", ""])
        looked = {"looked": 1, "anomalies": {"loop": "again"} if chance.random() < 0.1 else {}}
        found.append(draft("sample.finished", SampleFinished(o, 1, Answer(text), spent, 4, **looked), key))  # type: ignore[arg-type]
        found += (draft("score", each, key) for each in random_scores(o, len(found) + 3, chance))
    return found


def random_scores(o: int, of: int, chance: random.Random) -> list[ScoreGiven]:
    broken = Failure("scorer", "it broke")
    return [
        ScoreGiven(o, of, EVALUATION, "right", chance.random() < 0.7),
        ScoreGiven(o, of, EVALUATION, "grade", 1e6 + chance.random()),
        ScoreGiven(o, of, EVALUATION, "tone", chance.choice(["warm", "cold", None])),
        ScoreGiven(o, of, EVALUATION, "frail", None, failure=broken if chance.random() < 0.2 else None, last=True),
        *([ScoreGiven(o, of, EVALUATION, "right", False, "no", author="ann")] if chance.random() < 0.1 else []),
    ]


def report(run: str) -> list[Any]:
    index = Index(run)
    try:
        found: list[Any] = msgspec.to_builtins(list(report_cells(index)))
    finally:
        index.close()
    return found


def is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_close(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_close, one, other))
    return bool(one == other)


@pytest.mark.long
@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_small_pages_and_small_steps_give_the_same_report(
    tmp_path: Path, repeats: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    chance = random.Random(seed)
    records = random_records(repeats, chance)
    run = new_run(tmp_path, [begun(repeats), scoring(), *records])
    whole = report(run)
    assert {each["scorer"] for cell in whole for each in cell["scorers"]} == {"right", "grade", "tone", "frail"}
    assert all(len(each["reduced"]) > 1 for cell in whole for each in cell["scorers"] if each["scorer"] == "grade")
    monkeypatch.setattr(index_pages, "PAGE_KEYS", 4)
    monkeypatch.setattr(index_pages, "_PENDING_MAX", 10)
    index_file(run).unlink()
    assert is_close(report(run), whole)

    (tmp_path / "steps").mkdir()
    steps = new_run(tmp_path / "steps", [begun(repeats), scoring()])
    for at in range(0, len(records), 20):
        write(steps, records[at : at + 20])
        report(steps)
    in_steps = report(steps)
    assert [cell["finished"] for cell in in_steps] == [cell["finished"] for cell in whole]
    index_file(steps).unlink()
    shutil.rmtree(tmp_path / "cache" / "results")
    assert is_close(report(steps), in_steps)
