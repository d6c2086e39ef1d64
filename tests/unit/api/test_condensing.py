"""A run without the steps of its finished keys: the same answers and scores, and what is half done goes on."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.condensing import condense
from holdfast.journal import Entry, Reader, verify
from holdfast.records import draft
from holdfast.records.facts import BatchJob, StepId
from tests.e2e.commands import call
from tests.mirrors import RUN, SAMPLES, Kept, finished_so_far, run_and_mirror
from tests.unit.state.stories import entries, fold_of, new_run, started

FINISHED = 10


@pytest.fixture(params=["killed", "complete"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return run_and_mirror(tmp_path, keep=finished_so_far(FINISHED) if request.param == "killed" else None)


def records(journal: Path) -> list[tuple[str, str | None, str]]:
    found = Reader(str(journal)).read()
    return [(e.line.t, e.line.k, e.line.at) for e in found if isinstance(e, Entry) and e.line.t != "segment"]


def export(kept: Kept) -> list[dict[str, Any]]:
    out = call("export", RUN, "--store", kept.store, cwd=kept.store).out
    return [{**msgspec.json.decode(line), "seconds": None} for line in out.splitlines()]


def test_answers_scores_and_times_stay_and_the_steps_of_finished_keys_go(kept: Kept) -> None:
    before, answers = records(kept.journal), export(kept)
    finished = {key for kind, key, _ in before if kind == "sample.finished"}
    condense(str(kept.journal.parent))
    assert records(kept.journal) == [each for each in before if not (each[0] == "step" and each[1] in finished)]
    assert export(kept) == answers
    found = verify(str(kept.journal))
    assert found.ok, found.errors


def test_it_is_a_run_of_its_own(kept: Kept) -> None:
    before = Reader(str(kept.journal)).uid
    condense(str(kept.journal.parent))
    assert Reader(str(kept.journal)).uid != before


def test_it_goes_on_where_it_was(kept: Kept, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(kept.store, whole)
    condense(str(kept.journal.parent))
    ends = []
    for store in (kept.store, whole):
        done = call("resume", RUN, "--store", store, cwd=tmp_path)
        assert done.code == 0, done.err
        shown = call("show", RUN, "--store", store, "--json", cwd=tmp_path).json()
        assert shown["finished"] == SAMPLES
        ends.append((shown["scores"], shown["steps"]["replayed"], export(Kept(store, kept.mirror))))
    assert ends[0] == ends[1], "the steps of what was half done are replayed, not asked again"


def test_dying_while_it_is_made_leaves_the_run_as_it_was(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    before = records(kept.journal)

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.api.condensing.seal", die)
        with pytest.raises(KeyboardInterrupt):
            condense(str(kept.journal.parent))
    assert records(kept.journal) == before
    condense(str(kept.journal.parent))
    assert "journal.condensed" not in os.listdir(kept.journal.parent)


def test_jobs_that_are_not_through_stay_and_the_others_go(tmp_path: Path) -> None:
    requests = (StepId(0, "solve/1", "q"), StepId(1, "solve/1", "q"))
    through = [BatchJob("a", "models.m", requests), BatchJob("a", id="1"), BatchJob("a", id="1", status="failed")]
    waiting = [BatchJob("b", "models.m", requests), BatchJob("b", id="2")]
    run = new_run(tmp_path, [started(2), *(draft("batch", each) for each in (*through, *waiting))])
    before = fold_of(run).story.jobs
    condense(run)
    after = fold_of(run).story.jobs
    assert [(job.token, job.id, job.requests) for job in after.values()] == [("b", "2", 2)]
    assert list(before) == list(after)
    assert sum(entry.line.t == "batch" for entry in entries(run)) == len(waiting)
