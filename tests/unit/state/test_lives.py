"""The lives of a run: which process did what, also if the index was made in between."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Reader, journal_folder
from holdfast.records import Cell, Draft, StoredFile, draft
from holdfast.records.facts import Change, RunResumed, RunStarted
from holdfast.report.lineage import LifeReport, lineage_report, lineage_sentences
from holdfast.report.story import KeyRecords, collect
from holdfast.state import Index
from tests.unit.state.stories import (
    ended,
    failed,
    finished,
    key,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
    write,
)

HERE, THERE = {"host": "here", "pid": 1}, {"host": "there", "pid": 1}


def on(host: dict[str, Any], *changes: Change) -> Draft:
    return draft("run.resumed", RunResumed(changes, host=host, version="0.2"))


def start_on(host: dict[str, Any], count: int = 4) -> Draft:
    files, cells = (StoredFile(count, "p"), StoredFile(count, "d")), (Cell("task", "model", 0, count, 0, 0),)
    return draft("run.started", RunStarted("run", {"seed": 1}, *files, cells, host=host))


def lives(run: str, live: bool = False, last: int | None = None) -> tuple[LifeReport, ...]:
    index = Index(run, kept=False, last=last)
    try:
        return lineage_report(index, ("run", "tests"), ("interrupted", "no word"), live=live).lives
    finally:
        index.close()


def test_each_process_has_the_samples_that_it_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(4), step(0), finished(0), step(1)])
    write(run, [resumed(), step(1), finished(1), step(2), finished(2), ended("interrupted", "by a signal")])
    write(run, [resumed(), step(3), failed(3), ended()])
    first, second, third = lives(run)
    assert [(each.began, each.ended, each.reason) for each in (first, second, third)] == [
        ("started", "killed", "it recorded no end"),
        ("resumed", "interrupted", "by a signal"),
        ("resumed", "completed", ""),
    ]
    assert [(each.finished, each.finished_in_all, each.kept_finished) for each in (first, second, third)] == [
        (1, 1, 0),
        (2, 3, 1),
        (0, 3, 3),
    ]
    assert [each.steps for each in (first, second, third)] == [2, 2, 1]
    assert [each.failed_in_all for each in (first, second, third)] == [0, 0, 1]
    assert [each.replayed_steps for each in (first, second, third)] == [2, 4, 1], "as the records of the samples say"
    assert [each.usage.requests for each in (first, second, third)] == [0, 0, 0], "these steps ask no model"


def test_records_are_of_the_process_that_wrote_them(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(4), finished(0)])
    write(run, [resumed(), finished(1), ended()])
    write(run, [resumed(), ended()])
    first, second, third = lives(run)
    assert first.first_n == 2, "record 1 is the head of the segment"
    assert (first.last_n, second.first_n) == (3, 5), "record 4 is the head of the next process's segment"
    assert second.first_n <= second.last_n < third.first_n <= third.last_n


def test_an_index_that_continues_says_the_same(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(4), step(0), finished(0)])
    Index(run).close()
    write(run, [resumed(), finished(1)])
    Index(run).close()
    write(run, [resumed(), finished(2), ended()])
    kept = Index(run)
    whole = Index(run, kept=False)
    assert kept.lives == whole.lives
    assert len(kept.lives) == 3
    kept.close()
    whole.close()


@pytest.mark.parametrize(("live", "how"), [(True, "running"), (False, "killed")])
def test_the_last_process_is_running_or_was_killed(tmp_path: Path, live: bool, how: str) -> None:
    run = new_run(tmp_path, [started(4), finished(0)])
    assert [each.ended for each in lives(run, live)] == [how]


def test_another_host_has_taken_over(tmp_path: Path) -> None:
    run = new_run(tmp_path, [start_on(HERE), finished(0)])
    write(run, [on(THERE), finished(1), ended()])
    first, second = lives(run)
    assert (first.ended, first.host, second.host) == ("taken over", "here", "there")


def test_the_same_process_was_not_killed(tmp_path: Path) -> None:
    """A fork is made first and then resumed, by one process."""
    run = new_run(tmp_path, [start_on(HERE), finished(0)])
    write(run, [on(HERE), finished(1), ended()])
    assert [each.ended for each in lives(run)] == ["continued", "completed"]


def test_a_change_that_is_only_about_speed_is_known_as_such(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(4), finished(0)])
    write(run, [on(HERE, Change("concurrency.samples", 4, 8, "throughput"))])
    write(run, [on(HERE, Change("tasks.t.scorers", [], ["x"], "evaluation"))])
    assert [each.is_throughput_only for each in lives(run)] == [True, True, False]


def test_limits_that_were_changed_while_it_ran_are_no_life(tmp_path: Path) -> None:
    tuned = draft("run.resumed", RunResumed(live=True))
    run = new_run(tmp_path, [started(4), finished(0), tuned, finished(1), ended()])
    assert [(each.began, each.ended, each.finished) for each in lives(run)] == [("started", "completed", 2)]
    index = Index(run, kept=False)
    report = lineage_report(index, ("run", "tests"), ("completed", ""), live=False)
    assert len(report.tuned) == 1
    index.close()


def test_scoring_later_is_a_process_of_its_own_and_was_not_killed(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), scoring(), finished(0), score(0, 4), ended()])
    write(run, [scoring("another"), score(0, 4, evaluation="another")])
    write(run, [resumed(), ended()])
    assert [(each.began, each.ended) for each in lives(run)] == [
        ("started", "completed"),
        ("scored", ""),
        ("resumed", "completed"),
    ]


def test_records_and_sentences_number_processes_alike_those_included_that_only_scored(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), scoring(), step(0)])
    write(run, [resumed(), finished(0), ended()])
    write(run, [scoring("another"), score(0, 4, evaluation="another")])
    write(run, [resumed(), ended()])
    index = Index(run, kept=False)
    report = lineage_report(index, ("run", "tests"), ("completed", ""), live=False)
    found = collect(Reader(journal_folder(run)).read(), key(0), KeyRecords(lives=index.lives))
    index.close()
    began = {
        process: report.lives[process - 1].began for _, _, process, _ in (*found.steps, *found.ends, *found.scores)
    }
    assert began == {1: "started", 2: "resumed", 3: "scored"}
    assert (found.process, len(found.lives), found.count) == (4, 4, 3)
    assert next(lineage_sentences(report)) == "4 processes, 2 resumes, 1 only scored, 1 killed; the run is completed"


def test_a_run_as_it_was_has_only_the_lives_up_to_then(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(4), finished(0)])
    write(run, [resumed(), finished(1), ended()])
    first = lives(run)[0]
    assert [each.finished for each in lives(run, last=first.last_n)] == [1]


def test_a_run_that_has_not_begun_has_no_life(tmp_path: Path) -> None:
    run = new_run(tmp_path, [finished(0)])
    index = Index(run, kept=False)
    report = lineage_report(index, ("run", "tests"), ("interrupted", ""), live=False)
    assert report.lives == ()
    assert list(lineage_sentences(report)) == ["the journal does not say which processes worked on this run"]
    index.close()
