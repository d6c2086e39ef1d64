"""Batch APIs against real servers on the loopback, in both styles: a job from its submission to its results."""

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from holdfast.models import BadConnectionError, BatchApi, Connection, JobMark, ModelError, Request, open_batches
from holdfast.testing import BatchBehaviour, Behaviour, ModelServer

STYLES = ["openai", "anthropic"]
each_style = pytest.mark.parametrize("style", STYLES)
TOKEN = "hf0123456789"
T = TypeVar("T")


def with_api(
    style: str, batch: BatchBehaviour, work: Callable[[BatchApi], Awaitable[T]], base_url: str = "", **more: object
) -> T:
    async def run() -> T:
        async with ModelServer(Behaviour(batch=batch)) as server:
            settings = {"provider": style, "model": "m", "base_url": base_url or server.base_url, **more}
            api = open_batches(msgspec.convert(settings, Connection))
            try:
                return await work(api)
            finally:
                await api.close()

    return asyncio.run(run())


async def at_once() -> None: ...


def lines_of(api: BatchApi, count: int, token: str = TOKEN) -> io.BytesIO:
    requests = [Request([{"role": "user", "content": f"{i} + {i}"}]) for i in range(count)]
    return io.BytesIO(b"".join(api.line(f"{token}-{i}", api.body(each)) for i, each in enumerate(requests)))


async def outcomes(api: BatchApi, job: str) -> dict[str, str]:
    """By the name of each request: its answer, or the kind of its failure."""
    while (standing := await api.look(job)).state == "waiting":
        pass
    found = {}
    async for line in api.results(standing):
        result = api.parse(line)
        if result is not None:
            kind = "not done" if result.error is None else result.error.kind
            found[result.name] = kind if result.answer is None else result.answer.text
    return found


@pytest.mark.parametrize(("style", "options"), [("openai", {}), ("openai", {"api": "responses"}), ("anthropic", {})])
def test_a_job_is_submitted_waited_for_and_read(style: str, options: dict[str, str]) -> None:
    async def work(api: BatchApi) -> tuple[str, dict[str, str]]:
        job = await api.submit(TOKEN, lines_of(api, 5), at_once)
        return (await api.look(job)).state, await outcomes(api, job)

    state, found = with_api(style, BatchBehaviour(polls=3), work, options=options)
    assert state == "waiting"
    assert found == {f"{TOKEN}-{i}": str(2 * i) for i in range(5)}


@each_style
def test_a_job_of_many_megabytes_is_submitted_whole(style: str) -> None:
    async def work(api: BatchApi) -> dict[str, str]:
        body = api.body(Request([{"role": "user", "content": "é\n" * 150_000 + "3 + 4"}]))
        lines = io.BytesIO(b"".join(api.line(f"{TOKEN}-{i}", body) for i in range(4)))
        return await outcomes(api, await api.submit(TOKEN, lines, at_once))

    assert set(with_api(style, BatchBehaviour(), work).values()) == {"7"}


@each_style
def test_what_is_wrong_with_a_line_is_reported_for_that_line(style: str) -> None:
    batch = BatchBehaviour(missing_every=5, overloaded_every=3, refused_every=2)

    async def work(api: BatchApi) -> dict[str, str]:
        return await outcomes(api, await api.submit(TOKEN, lines_of(api, 5), at_once))

    told = ["0", "content_filter", "overload", "content_filter"]
    assert with_api(style, batch, work) == {f"{TOKEN}-{i}": each for i, each in enumerate(told)}


@each_style
@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_a_job_that_ended_too_early_says_so_and_what_was_not_done(style: str, status: str) -> None:
    async def work(api: BatchApi) -> tuple[bool, dict[str, str]]:
        job = await api.submit(TOKEN, lines_of(api, 2), at_once)
        found = await outcomes(api, job)
        return (await api.look(job)).whole, found

    whole, found = with_api(style, BatchBehaviour(ends=(status,)), work)
    assert not whole
    assert found == {f"{TOKEN}-0": "0", f"{TOKEN}-1": "not done"}


@each_style
def test_a_job_is_found_by_its_token_among_others_of_its_size(style: str) -> None:
    async def work(api: BatchApi) -> tuple[str, str, str]:
        job = await api.submit(TOKEN, lines_of(api, 3), at_once)
        await api.submit("hf-other", lines_of(api, 3, "hf-other"), at_once)
        mark = JobMark(TOKEN, 3, time.time())
        return job, (await api.find(mark)).id, (await api.find(JobMark("hf-nobody", 3, time.time()))).id

    job, found, missing = with_api(style, BatchBehaviour(), work)
    assert found == job
    assert missing == ""


def test_a_job_that_could_be_ours_and_has_not_ended_leaves_it_undecided() -> None:
    async def work(api: BatchApi) -> list[tuple[str, bool]]:
        await api.submit("hf-other", lines_of(api, 3, "hf-other"), at_once)
        found = [await api.find(JobMark(TOKEN, 3, time.time())) for _ in range(3)]
        return [(each.id, each.undecided) for each in found]

    assert with_api("anthropic", BatchBehaviour(polls=3), work) == [("", True), ("", True), ("", False)]


@each_style
def test_a_job_that_is_not_there_is_gone(style: str) -> None:
    assert with_api(style, BatchBehaviour(), lambda api: api.look("batch_9")).state == "gone"


@each_style
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "auth"), (402, "billing"), (429, "rate_limit"), (503, "overload"), (400, "bad_request")],
)
def test_a_refused_submission_has_a_kind_and_no_secret(style: str, status: int, kind: str) -> None:
    secret = {"Authorization": "Bearer sk-hidden-1234"}
    with pytest.raises(ModelError) as raised:
        with_api(
            style,
            BatchBehaviour(refusals=(status,)),
            lambda api: api.submit(TOKEN, lines_of(api, 1), at_once),
            headers=secret,
        )
    assert raised.value.kind == kind
    assert "sk-hidden" not in str(raised.value)


@each_style
def test_a_server_that_is_not_there_is_a_lost_connection(style: str) -> None:
    with pytest.raises(ModelError) as raised:
        with_api(style, BatchBehaviour(), lambda api: api.look("x"), base_url="http://127.0.0.1:1/v1")
    assert raised.value.kind == "connection"


@each_style
@pytest.mark.parametrize("line", [b"", b"[]", b'{"custom_id": "a', b'{"custom_id": 3}', b'{"response": {}}', b"\xff"])
def test_what_is_no_result_is_none(style: str, line: bytes) -> None:
    async def work(api: BatchApi) -> object:
        return api.parse(line)

    assert with_api(style, BatchBehaviour(), work) is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"provider": "google"}, "has no batch API; remove `batch`, or use anthropic or openai"),
        ({"provider": "openai", "base_url": ["http://a/v1", "http://b/v1"]}, "a job belongs to one server"),
    ],
    ids=str,
)
def test_a_connection_without_a_batch_api_is_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(BadConnectionError, match=told):
        open_batches(msgspec.convert({"model": "m", **settings}, Connection))


def test_messages_that_are_none_are_a_bad_request() -> None:
    async def work(api: BatchApi) -> None:
        api.body(Request(["not a message"]))  # type: ignore[list-item] # what anybody's code may hand over

    with pytest.raises(ModelError, match="nothing was sent") as raised:
        with_api("anthropic", BatchBehaviour(), work)
    assert raised.value.kind == "bad_request"


@each_style
def test_credentials_in_the_url_do_not_fight_with_a_key(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some-key-1234")

    async def run() -> str:
        async with ModelServer() as server:
            url = server.base_url.replace("://", "://user:passw0rd@")
            api = open_batches(Connection(style, "m", base_url=url, api_key_env="SOME_KEY"))
            return (await api.look("batch_9")).state

    assert asyncio.run(run()) == "gone"


def test_options_that_are_none_are_refused_for_jobs_too() -> None:
    with pytest.raises(BadConnectionError, match="api: chat or responses"):
        open_batches(Connection("openai", "m", options={"api": "completions"}))
