"""Requests that are gathered into jobs: what is in which job, and who gets its answers."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import aiohttp
import msgspec
import pytest

from holdfast.errors import StoppedError
from holdfast.models import Connection, JobStatus, ModelError, Request, open_batches
from holdfast.models.batch.jobs import BatchSetup, parse_outcome
from holdfast.models.batch.openai import OpenAIBatches
from holdfast.models.batch.queue import Batches, UnansweredError
from holdfast.models.provider import AskFailedError
from holdfast.records.facts import BatchJob, StepId
from holdfast.spec import Batch
from holdfast.testing import BatchBehaviour, BatchStats, Behaviour, ModelServer
from tests.unit.solve.stage import MemoryJournal
from tests.unit.testing.patience import until


class Stage(NamedTuple):
    """The batches of one model, with what they recorded and reported."""

    batches: Batches
    journal: MemoryJournal
    told: list[str]

    async def ask(self, number: int, padding: str = "") -> tuple[str, str]:
        request = Request([{"role": "user", "content": f"{padding}{number} + {number}"}])
        answer, _, job = await self.batches.ask(StepId(number, "solve/1", "q"), request, alone)
        return answer.text, job

    def records(self) -> list[BatchJob]:
        return [msgspec.json.decode(record.d, type=BatchJob) for _, record in self.journal.records]


async def alone() -> NoReturn:
    raise AssertionError("it was asked alone")


def on_stage(
    folder: Path,
    work: Callable[[Stage], Awaitable[None]],
    settings: dict[str, Any],
    may_send: Callable[[], bool] | None = None,
    **jobs: Any,
) -> None:
    async def run() -> None:
        async with ModelServer(Behaviour(batch=BatchBehaviour(**jobs))) as server:
            journal, told = MemoryJournal(), list[str]()
            quick = {"quiet_seconds": 0.05, "poll_seconds": 0.01, "settle_seconds": 0.05}
            desk = BatchSetup(
                line="models.m",
                api=open_batches(Connection("openai", "m", base_url=server.base_url)),
                batch=msgspec.convert({**quick, **settings}, Batch),
                journal=journal,
                folder=str(folder),
                retries=1,
                tell=lambda event, message: told.append(f"{event}: {message}"),
                retried=told.append,
                stop=lambda why: told.append(f"stop: {why}"),
                refuse=lambda error: told.append(f"refuse: {error}"),
                may_send=may_send,
            )
            stage = Stage(Batches(desk), journal, told)
            try:
                await work(stage)
            finally:
                await stage.batches.close()

    asyncio.run(run())
    assert list(folder.iterdir()) == [], "files were left behind"


def test_a_job_is_announced_then_named_then_ended(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        answers = await asyncio.gather(*(stage.ask(i) for i in range(3)))
        assert [text for text, _ in answers] == ["0", "2", "4"]
        announced, sent, ended = stage.records()
        assert [each.o for each in announced.requests] == [0, 1, 2]
        assert {job for _, job in answers} == {announced.token} == {sent.token} == {ended.token}
        assert (announced.id, sent.id, ended.status, ended.answered) == ("", "batch_1", "completed", 3)

    on_stage(tmp_path, work, {})


def test_a_full_job_does_not_wait_for_a_quiet_moment(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await asyncio.gather(*(stage.ask(i) for i in range(6)))
        assert [len(each.requests) for each in stage.records() if each.requests] == [2, 2, 2]

    on_stage(tmp_path, work, {"requests": 2, "quiet_seconds": 1000.0})


def test_a_job_whose_results_are_no_longer_kept_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers keep them for about a month: a run that comes back later must not be stuck."""
    look = OpenAIBatches.look

    async def look_late(api: OpenAIBatches, job: str) -> JobStatus:
        standing = await look(api, job)
        return msgspec.structs.replace(standing, results=("file-gone",)) if job == "batch_1" else standing

    async def work(stage: Stage) -> None:
        assert (await stage.ask(3))[0] == "6"
        assert [each.status for each in stage.records() if each.status] == ["gone", "completed"]
        assert any("results" in each for each in stage.told), stage.told

    monkeypatch.setattr(OpenAIBatches, "look", look_late)
    on_stage(tmp_path, work, {})


@pytest.mark.parametrize(
    ("status", "code", "is_for_good"),
    [(400, "content_filter", True), (429, "insufficient_quota", False), (401, "", False), (503, "", False)],
)
def test_a_line_that_the_request_is_not_to_blame_for_is_asked_alone(status: int, code: str, is_for_good: bool) -> None:
    body = {"status_code": status, "body": {"error": {"message": "no", "code": code}}}
    line = msgspec.json.encode({"custom_id": "a", "response": body})
    found = parse_outcome(line, open_batches(Connection("openai", "m")))
    assert isinstance(found, ModelError) == is_for_good


def test_a_job_is_cut_before_it_is_too_large(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await asyncio.gather(*(stage.ask(i, "x" * 400_000) for i in range(5)))
        assert sorted(len(each.requests) for each in stage.records() if each.requests) == [1, 2, 2]

    on_stage(tmp_path, work, {"megabytes": 1})


def test_a_request_that_is_given_up_before_it_is_sent_is_in_no_job(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        given_up = asyncio.ensure_future(stage.ask(1))
        asked = asyncio.ensure_future(stage.ask(2))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await asked)[0] == "4"
        assert [each.o for each in stage.records()[0].requests] == [2]

    on_stage(tmp_path, work, {})


def test_while_a_run_ends_no_job_is_made(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        asked = asyncio.ensure_future(stage.ask(1))
        await asyncio.sleep(0)
        stage.batches.drain()
        await asyncio.wait([asked], timeout=0.15)
        assert not asked.done()
        assert stage.journal.records == []
        asked.cancel()

    on_stage(tmp_path, work, {})


def test_what_waits_is_counted_until_it_has_ended(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        asked = asyncio.gather(*(stage.ask(i) for i in range(3)))
        await until(lambda: stage.batches.waiting().requests == 3)
        assert stage.batches.waiting().jobs == 1
        await asked
        assert stage.batches.waiting().jobs == 0

    on_stage(tmp_path, work, {}, polls=3)


def test_of_two_results_for_one_request_the_first_counts(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        answers = await asyncio.gather(*(stage.ask(i) for i in range(4)))
        assert [text for text, _ in answers] == ["0", "2", "4", "6"]
        assert any(
            "batch.strange_lines" in each and "2 result line(s) are invalid, duplicate" in each for each in stage.told
        )

    on_stage(tmp_path, work, {}, doubled_every=2)


def test_a_journal_that_has_stopped_stops_those_who_wait_for_a_job(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        stage.journal.stopped = True
        for each in await asyncio.gather(*(stage.ask(i) for i in range(3)), return_exceptions=True):
            assert isinstance(each, StoppedError)

    on_stage(tmp_path, work, {})


def test_results_that_cannot_be_kept_stop_the_run_and_are_not_asked_for_in_another_way(tmp_path: Path) -> None:
    """The disk is full, or the folder gone: what is in the job is paid for."""

    async def work(stage: Stage) -> None:
        asked = asyncio.ensure_future(stage.ask(1))
        await until(lambda: stage.batches.waiting().jobs == 1 and len(stage.records()) == 2)
        await asyncio.to_thread(tmp_path.rmdir)
        await until(lambda: any(each.startswith("stop: job batch_1 of models.m cannot be") for each in stage.told))
        assert not asked.done()
        asked.cancel()
        await asyncio.to_thread(tmp_path.mkdir)

    on_stage(tmp_path, work, {"poll_seconds": 0.1}, polls=3)


@pytest.mark.parametrize(("status", "kind"), [(400, "bad_request"), (402, "billing")])
def test_a_job_that_the_server_will_not_make_is_the_fault_of_none_of_its_requests(
    tmp_path: Path, status: int, kind: str
) -> None:
    async def work(stage: Stage) -> None:
        for each in await asyncio.gather(*(stage.ask(i) for i in range(3)), return_exceptions=True):
            assert isinstance(each, UnansweredError)
            assert each.failure.kind == kind
        assert sum(each.startswith(f"refuse: {kind}: the server rejects the job") for each in stage.told) == 1
        assert [each.status for each in stage.records()][-1] == "refused"

    on_stage(tmp_path, work, {}, refusals=[status])


@pytest.mark.parametrize(("refused_every", "unanswered"), [(1, True), (2, False)])
def test_a_refused_request_is_its_own_fault_if_its_job_has_answers(
    tmp_path: Path, refused_every: int, unanswered: bool
) -> None:
    async def work(stage: Stage) -> None:
        came = await asyncio.gather(*(stage.ask(i) for i in range(4)), return_exceptions=True)
        failed = [each for each in came if isinstance(each, AskFailedError)]
        assert len(failed) == 4 / refused_every
        assert {isinstance(each, UnansweredError) for each in failed} == {unanswered}

    on_stage(tmp_path, work, {}, refused_every=refused_every)


def test_pauses_between_submissions_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    plain = asyncio.sleep

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        await plain(0)

    async def work(stage: Stage) -> None:
        monkeypatch.setattr("holdfast.models.batch.jobs.asyncio.sleep", sleep)
        assert (await stage.ask(2))[0] == "4"
        monkeypatch.undo()

    on_stage(tmp_path, work, {"poll_seconds": 4.0}, refusals=[429] * 5)
    assert [each for each in paused if each >= 0.5] == [0.5, 1.0, 2.0, 4.0, 4.0]


# Another process may own the run.


def test_a_job_is_not_announced_while_another_process_may_own_the_run(tmp_path: Path) -> None:
    polls, is_owner = [0], [False]

    def may_send() -> bool:
        polls[0] += 1
        return is_owner[0]

    async def work(stage: Stage) -> None:
        asked = asyncio.ensure_future(stage.ask(1))
        await until(lambda: polls[0] >= 3)
        assert stage.journal.records == []
        assert not stage.batches.sending, "a run that ends does not wait for it"
        is_owner[0] = True
        assert (await asked)[0] == "2"

    on_stage(tmp_path, work, {}, may_send)


def test_an_announced_job_is_not_submitted_while_another_process_may_own_the_run(tmp_path: Path) -> None:
    stages: list[Stage] = []
    polls, is_owner = [0], [False]

    def may_send() -> bool:
        is_announced = bool(stages[0].records())
        polls[0] += is_announced
        return is_owner[0] or not is_announced

    async def work(stage: Stage) -> None:
        stages.append(stage)
        asked = asyncio.ensure_future(stage.ask(1))
        await until(lambda: polls[0] >= 3)
        assert [each.id for each in stage.records()] == [""]
        assert not stage.batches.sending
        is_owner[0] = True
        assert (await asked)[0] == "2"

    on_stage(tmp_path, work, {}, may_send)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "mock"])
def test_no_request_that_costs_is_sent_before_it_may_be(provider: str) -> None:
    class NotNowError(Exception):
        pass

    async def ready() -> None:
        raise NotNowError

    async def work() -> None:
        async with ModelServer() as server:
            api = open_batches(Connection(provider, "m", base_url=server.base_url))
            line = api.line("token-0", api.body(Request([{"role": "user", "content": "1 + 1"}])))
            with pytest.raises(NotNowError):
                await api.submit("token", io.BytesIO(line), ready)
            await api.close()
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{server.base_url.removesuffix('/v1')}/batch-stats") as response,
            ):
                assert msgspec.json.decode(await response.read(), type=BatchStats).jobs == []

    asyncio.run(work())
