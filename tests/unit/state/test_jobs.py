"""Which jobs of batch APIs are not through, as the fold of a writer and the index of readers have it."""

from pathlib import Path

import msgspec
import pytest

from holdfast.records import Draft, draft
from holdfast.records.facts import BatchJob, Step, StepId
from holdfast.records.samples import Answer
from holdfast.state import Fold, Index, OpenJob
from tests.unit.state.stories import fold_of, key, new_run, started

REQUESTS = tuple(StepId(o, "solve/1", "q") for o in range(3))


def announced(token: str = "a") -> Draft:
    return draft("batch", BatchJob(token, "models.m", REQUESTS))


def sent(token: str = "a") -> Draft:
    return draft("batch", BatchJob(token, id=f"batch_{token}"))


def ended(answered: int, token: str = "a") -> Draft:
    return draft("batch", BatchJob(token, id=f"batch_{token}", status="completed", answered=answered))


def answered(o: int, token: str = "a") -> Draft:
    return draft("step", Step(o, "solve/1", "q", answer=Answer("x"), batch=token), key(o))


def open_jobs(folder: Path, *records: Draft) -> dict[str, OpenJob]:
    """As the fold and the index have them, which must agree."""
    run = new_run(folder, [started(3), *records])
    fold: Fold = fold_of(run)
    index = Index(run)
    assert msgspec.to_builtins(index.story.jobs) == msgspec.to_builtins(fold.story.jobs)
    index.close()
    return fold.story.jobs


def test_an_announced_job_is_open_and_nobody_knows_whether_the_server_has_it(tmp_path: Path) -> None:
    (job,) = open_jobs(tmp_path, announced()).values()
    assert (job.line, job.requests, job.id, job.answered) == ("models.m", 3, "", -1)


def test_a_job_with_an_id_waits_until_it_has_ended(tmp_path: Path) -> None:
    (job,) = open_jobs(tmp_path, announced(), sent()).values()
    assert (job.id, job.answered) == ("batch_a", -1)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_job_is_through_only_when_each_of_its_answers_is_a_step(tmp_path: Path, steps: int) -> None:
    jobs = open_jobs(tmp_path, announced(), sent(), ended(2), *map(answered, range(steps)))
    assert list(jobs) == ([] if steps == 2 else ["a"])


def test_a_job_that_was_never_sent_is_through(tmp_path: Path) -> None:
    assert open_jobs(tmp_path, announced(), draft("batch", BatchJob("a", status="never sent"))) == {}


def test_steps_of_one_job_do_not_close_another(tmp_path: Path) -> None:
    jobs = open_jobs(
        tmp_path, announced(), announced("b"), sent(), sent("b"), ended(2), ended(2, "b"), answered(0), answered(1)
    )
    assert list(jobs) == ["b"]


def test_a_job_whose_announcement_is_gone_is_passed_over(tmp_path: Path) -> None:
    assert open_jobs(tmp_path, sent(), ended(1), answered(0)) == {}
