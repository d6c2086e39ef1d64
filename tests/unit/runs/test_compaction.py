"""A run without the steps of its finished keys: the same answers, scores and totals, and a resume continues it."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.journal import Entry, OpenRequest, Reader, journal_folder, verify
from holdfast.journal.opening import open_to_write
from holdfast.records import Anomaly, Draft, draft
from holdfast.records.facts import (
    AnomaliesRechecked,
    BatchJob,
    Failure,
    RoleSpent,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
    Step,
    StepId,
    StoredRequest,
    Timing,
)
from holdfast.records.samples import Answer, Usage
from holdfast.runs.maintenance.compaction import condense
from holdfast.state import Index, Story
from tests.e2e.commands import call
from tests.journals import QUICK, UID, Ticks, hooks
from tests.mirrors import RUN, SAMPLES, Kept, finished_so_far, run_and_mirror
from tests.unit.state.stories import (
    EVALUATION,
    ended,
    entries,
    finished,
    fold_of,
    key,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
)

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
    left = [each for each in before if not (each[0] == "step" and each[1] in finished)]
    assert records(kept.journal) == [*left, ("totals", None, before[-1][2])]
    assert export(kept) == answers
    found = verify(str(kept.journal))
    assert found.ok, found.errors


def test_it_is_a_run_of_its_own(kept: Kept) -> None:
    before = Reader(str(kept.journal)).uid
    condense(str(kept.journal.parent))
    assert Reader(str(kept.journal)).uid != before


def test_it_continues_where_it_was(kept: Kept, tmp_path: Path) -> None:
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
        patch.setattr("holdfast.journal.appender.seal", die)
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


class _Session:
    """What one process writes about six samples, from `first` on: random records as a real run writes them."""

    def __init__(self, seed: int, first: int) -> None:
        self._random = random.Random(100 * seed + first)
        self._first = first
        self._records: list[Draft] = []
        self._base = 0

    def usage(self) -> Usage:
        most, least = self._random.randrange(50, 100), self._random.randrange(1, 50)
        return Usage(most, least, least, least, most)

    def step(self, o: int, scope: str) -> None:
        chance = self._random
        role = "judge" if scope.startswith("score") else chance.choice(["", "", "helper"])
        answer = Answer("a", usage=self.usage()) if chance.random() < 0.8 else None
        step = Step(
            o,
            scope,
            "q",
            kind=chance.choice(["generate", "generate", "call"]),
            answer=answer,
            failure=None if answer else Failure("server", "no"),
            seconds=chance.random(),
            timing=Timing(queue=chance.random(), first=0.01) if chance.random() < 0.5 else None,
            tries=chance.randrange(1, 4),
            batch="job" if answer and chance.random() < 0.3 else "",
            origin=chance.choice([0, 0, 7]),
        )
        asked = StoredRequest([], role=role) if step.kind == "generate" else None
        self._records.append(draft("step", msgspec.structs.replace(step, asked=asked), key(o)))

    def spent(self) -> Spent:
        one, other = self.usage().of_one(), self.usage().of_one(True)
        roles = {"judge": RoleSpent(usage=other, saved=other)}
        return Spent(2, 2, 1, one, one + other, one + other, 0.5, roles if self._random.random() < 0.5 else {})

    def sample(self, o: int) -> None:
        chance = self._random
        for attempt in (1, 2):
            for _ in range(chance.randrange(1, 4)):
                self.step(o, f"solve/{attempt}")
            if chance.random() < 0.3:
                failed = SampleFailed(o, attempt, Failure("server", "no"), attempt == 2, self.spent())
                self._records.append(draft("sample.failed", failed, key(o)))
            elif chance.random() < 0.7:
                break
            else:
                return  # killed
        else:
            return
        self._records.append(draft("sample.finished", SampleFinished(o, attempt, Answer("a"), self.spent(), 1), key(o)))
        of = self._base + len(self._records)
        for _ in range(chance.randrange(1, 3)):
            self.step(o, f"score/{EVALUATION}/1")
        if chance.random() < 0.7:
            score = ScoreGiven(o, of, EVALUATION, "right", True, spent=self.spent(), last=True)
            self._records.append(draft("score", score, key(o)))

    def write(self, run: str) -> None:
        """To the end of a run's journal."""
        os.makedirs(journal_folder(run), exist_ok=True)
        reader = Reader(journal_folder(run))
        self._base = sum(isinstance(each, Entry) for each in reader.read()) + 1  # with the header of the new segment
        requests = (StepId(self._first, "solve/1", "q"), StepId(self._first + 1, "solve/1", "q"))
        beginning = resumed() if self._first else started(18)
        self._records = [beginning, scoring(), draft("batch", BatchJob("job", "models.m", requests))]
        for o in range(self._first, self._first + 6):
            self.sample(o)
        if self._random.random() < 0.5:
            self._records.append(ended())
        clock = hooks(Ticks(1_700_000_000.0 + 10_000 * self._first))
        opened = open_to_write(QUICK, journal_folder(run), OpenRequest(reader.uid or UID), clock)
        for record in self._records:
            opened.appender.commit([record])
        opened.appender.close()


def all_totals(run: str) -> dict[str, object]:
    """What a resume and a reader know of a run, without where things are in its journal."""
    index = Index(run)
    index.close()
    fold = fold_of(run)
    assert _plain(index.story) == _plain(fold.story)
    return {
        **_plain(index.story),
        "profile": msgspec.structs.replace(index.profile, epoch=0),
        "judged": len(fold.judged),
    }


def _plain(story: Story) -> dict[str, object]:
    jobs = {token: (job.id, job.answered, job.steps) for token, job in story.jobs.items()}
    return {**msgspec.structs.asdict(story), "jobs": jobs, "epoch": 0, "solving": None, "judging": None}


@pytest.mark.parametrize("seed", range(12))
def test_totals_are_exact_through_condensing_resuming_and_condensing_again(tmp_path: Path, seed: int) -> None:
    whole, small = new_run(tmp_path / "whole"), str(tmp_path / "small")
    for first in (0, 6):
        _Session(seed, first).write(whole)
    shutil.copytree(whole, small)
    before = all_totals(whole)
    assert before["steps"]
    for _ in range(2):
        condense(small)
        assert all_totals(small) == before
    for run in (whole, small):
        _Session(seed, 12).write(run)
    assert all_totals(small) == all_totals(whole) != before
    condense(small)
    assert all_totals(small) == all_totals(whole)
    steps = [sum(entry.line.t == "step" for entry in entries(run)) for run in (whole, small)]
    assert steps[1] < steps[0]


def test_an_older_condensed_run_is_counted_from_what_its_attempts_spent(tmp_path: Path) -> None:
    """Older versions removed steps and recorded no totals."""
    one, two = Usage(3, 1).of_one(), Usage(5, 2).of_one()
    spent = Spent(live=2, replayed=1, usage=one + two, saved=one, roles={"helper": RoleSpent(usage=two)})
    judge = Spent(live=1, usage=two, roles={"judge": RoleSpent(usage=two)})
    run = new_run(
        tmp_path,
        [
            started(3),
            scoring(),
            draft("sample.finished", SampleFinished(0, 1, Answer("a"), spent, 1), key(0)),
            draft("score", ScoreGiven(0, 3, EVALUATION, "right", True, spent=judge, last=True), key(0)),
            draft(
                "step", Step(1, "solve/1", "q", asked=StoredRequest([]), answer=Answer("b", usage=one), tries=3), key(1)
            ),
            draft("sample.finished", SampleFinished(1, 1, Answer("b"), Spent(live=1, usage=one), 0), key(1)),
        ],
    )
    story = fold_of(run).story
    assert (story.steps, story.usage) == (5, one + one + two + two + one)
    bills = {role: (bill.requests, bill.usage) for role, bill in story.bills["task/model"].items()}
    assert bills == {"": (5, one + one + one), "helper": (1, two), "judge": (1, two)}
    index = Index(run)
    index.close()
    assert index.story.bills == story.bills
    condense(run)
    assert fold_of(run).story.bills == story.bills


def test_losses_and_anomalies_keep_their_meaning_under_new_numbers(tmp_path: Path) -> None:
    """Seen: the numbers of a loss were taken for those of answers in the copy, which were then unfinished."""
    steps = [draft("step", Step(0, "solve/1", "q", answer=Answer("a")), key(0))] * 6
    answers = [draft("sample.finished", SampleFinished(o, 1, Answer("a")), key(o)) for o in range(2)]
    looked = draft("anomaly", AnomaliesRechecked(0, 9, 1, {"refusal": "no"}), key(0))
    run = new_run(tmp_path, [started(2), *steps, *answers, looked, draft("anomaly", Anomaly("line", 1, 10, 20, 3, 4))])
    assert entries(run)[8].line.t == "sample.finished"
    condense(run)
    index = Index(run)
    assert index.finished == 2
    assert next((row.looked, row.anomalies) for row in index.answers()) == (1, b'{"refusal":"no"}')
    (loss,) = index.story.anomalies
    index.close()
    assert (loss.kind, loss.n_first, loss.n_last) == ("line", 0, -1)
    assert "records 3 to 4" in loss.detail


def test_verdicts_of_a_partial_evaluation_that_is_not_scored_stay(tmp_path: Path) -> None:
    """They are paid for, and the next `score` replays them."""
    part = draft("score.started", ScoringStarted("part", [], part="--limit 1"))
    asked = StoredRequest([{"role": "user", "content": "?"}], role="judge")
    verdict = draft("step", Step(0, "score/part/1", "q", asked=asked, answer=Answer("4")), key(0))
    run = new_run(tmp_path, [started(1), scoring(), step(0), finished(0), score(0, 5), part, verdict])
    condense(run)
    kept = [msgspec.json.decode(each.line.d)["scope"] for each in entries(run) if each.line.t == "step"]
    assert kept == ["score/part/1"]
    assert [*fold_of(run, "part").judged] == [0]
