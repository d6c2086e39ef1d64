"""The bridge over real HTTP: addresses that live as long as their attempt, clients that go away and come back."""

import asyncio
import contextvars
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.bridge.server import AttemptEndpoint, Bridge
from holdfast.errors import HoldfastError
from holdfast.models import ModelError, Request
from holdfast.records.facts import Failure
from holdfast.records.samples import Answer, Sample
from holdfast.solve import Context, LimitError, Solver, StepFailedError
from holdfast.solve.resources import BridgeBackend, BridgeRequest, BridgeResponse
from tests.unit.engine.runs import Asked, cut_after, given, go, lines, model, records, rows

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class FakeHost:
    """Answers requests when the test says so, and counts them."""

    def __init__(self) -> None:
        self.wishes: list[BridgeRequest] = []
        self.go = asyncio.Event()
        self.arrived = asyncio.Event()
        self.error: BaseException | None = None

    async def ask(self, wish: BridgeRequest) -> BridgeResponse:
        self.wishes.append(wish)
        number = len(self.wishes)
        self.arrived.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return BridgeResponse(f"id{number}", Answer(f"answer {number} {SEEN.get()}"))


@asynccontextmanager
async def opened(host: FakeHost) -> AsyncIterator[tuple[AttemptEndpoint, aiohttp.ClientSession]]:
    bridge = Bridge()
    async with aiohttp.ClientSession() as session:
        try:
            yield bridge.open(BridgeBackend("m", ("judge",), host.ask)), session
        finally:
            await bridge.close()


def body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": content}], **fields}


async def post(
    session: aiohttp.ClientSession, door: AttemptEndpoint, sent: Any, path: str = "chat/completions", **headers: str
) -> tuple[int, Any, Any]:
    async with session.post(f"{door.url}/{path}", json=sent, headers=headers) as response:
        return response.status, await response.json(), response.headers


def text(said: Any) -> str:
    return str(said["choices"][0]["message"]["content"])


def within(coroutine: "Awaitable[None]") -> None:
    async def limited() -> None:
        await asyncio.wait_for(coroutine, 30)

    asyncio.run(limited())


def test_a_model_with_the_name_of_a_role_is_that_roles_and_every_other_is_the_evaluated_one() -> None:
    async def ask() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            assert (await post(session, door, body(model="judge", temperature=1)))[0] == 200
            assert (await post(session, door, body(model="gpt-x")))[1]["model"] == "gpt-x"
            async with session.get(f"{door.url}/models") as response:
                assert [each["id"] for each in (await response.json())["data"]] == ["m", "judge"]
        assert [(wish.role, wish.params) for wish in host.wishes] == [("judge", {"temperature": 1}), ("", {})]

    within(ask())


def test_an_address_is_nobodys_once_its_attempt_has_ended() -> None:
    async def ask() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            door.close()
            status, said, headers = await post(session, door, body())
            assert (status, headers["x-should-retry"]) == (410, "false")
            assert "the attempt that this address belonged to has ended" in said["error"]["message"]
        assert host.wishes == []

    within(ask())


def test_paths_that_there_are_not_are_answered_with_those_that_there_are() -> None:
    async def ask() -> None:
        async with opened(FakeHost()) as (door, session):
            status, said, _ = await post(session, door, {}, "embeddings")
            assert status == 404
            assert "POST v1/embeddings: no such path" in said["error"]["message"]
            assert "chat/completions" in said["error"]["message"]
            status, said, headers = await post(session, door, {"messages": 7})
            assert (status, headers["x-should-retry"]) == (400, "false")

    within(ask())


async def leave(session: aiohttp.ClientSession, door: AttemptEndpoint, host: FakeHost) -> None:
    """Ask, and go away before there is an answer; the server has noticed."""
    asking = asyncio.ensure_future(post(session, door, body()))
    await host.arrived.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await noticed(door)


async def noticed(door: AttemptEndpoint) -> None:
    while any(step.waiting for step in door.steps()):  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("answered_meanwhile", [False, True])
def test_a_client_that_left_and_repeats_its_request_gets_the_step_that_is_under_way(answered_meanwhile: bool) -> None:
    async def ask() -> None:
        host = FakeHost()
        async with opened(host) as (door, session):
            await leave(session, door, host)
            if answered_meanwhile:
                host.go.set()
                await asyncio.gather(*(step.task for step in door.steps()))
            again = asyncio.ensure_future(post(session, door, body()))
            await asyncio.sleep(0)
            host.go.set()
            assert text((await again)[1]) == "answer 1 nothing"
            assert (
                text((await post(session, door, body()))[1]) == "answer 2 nothing"
            )  # on purpose: that one was answered
        assert len(host.wishes) == 2

    within(ask())


def test_a_retry_that_says_so_gets_the_step_also_if_its_answer_was_sent() -> None:
    async def ask() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            for count in ("0", "1", "2"):
                assert (
                    text((await post(session, door, body(), **{"x-stainless-retry-count": count}))[1])[:8] == "answer 1"
                )
            other = await post(session, door, body("other"), **{"x-stainless-retry-count": "1"})
            assert text(other[1])[:8] == "answer 2"

    within(ask())


def test_a_request_continues_from_an_answer_that_it_names() -> None:
    async def ask() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            _, first, _ = await post(
                session, door, {"model": "m", "input": "one", "instructions": "Be brief."}, "responses"
            )
            going_on = {"model": "m", "input": "two", "previous_response_id": first["id"]}
            assert (await post(session, door, going_on, "responses"))[0] == 200
            status, said, _ = await post(session, door, {**going_on, "previous_response_id": "resp_x"}, "responses")
            assert (status, said["error"]["code"]) == (400, "invalid_request")
        asked = [[message["content"] for message in wish.messages] for wish in host.wishes]
        assert asked == [["Be brief.", "one"], ["one", "answer 1 nothing", "two"]]

    within(ask())


def test_the_same_asked_at_once_are_two_steps() -> None:
    async def ask() -> None:
        host = FakeHost()
        async with opened(host) as (door, session):
            both = [asyncio.ensure_future(post(session, door, body())) for _ in range(2)]
            while len(host.wishes) < 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            host.go.set()
            assert {text(said)[:8] for _, said, _ in await asyncio.gather(*both)} == {"answer 1", "answer 2"}

    within(ask())


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (StepFailedError(Failure("overload", "too busy")), 503, "overload: too busy"),
        (LimitError("no steps left"), 403, "no steps left"),
        (SystemExit("bye"), 500, "SystemExit: bye"),
        (asyncio.CancelledError(), 410, "has ended"),
    ],
)
def test_a_request_without_an_answer_ends_with_a_status_and_is_not_worth_a_retry(
    error: BaseException, status: int, said: str
) -> None:
    async def ask() -> None:
        host = FakeHost()
        host.error = error
        host.go.set()
        async with opened(host) as (door, session):
            found, told, headers = await post(session, door, body())
            assert (found, headers["x-should-retry"]) == (status, "false")
            assert said in told["error"]["message"]
            if status != 410:
                assert door.failed is error
            host.error = None
            await post(session, door, body("other"))
            assert door.failed is None

    within(ask())


def test_a_provider_sees_the_context_of_its_sample_and_not_that_of_the_first_one() -> None:
    async def ask() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            SEEN.set("mine")
            other = door  # opened before
            assert text((await post(session, other, body()))[1]) == "answer 1 nothing"

    async def ask_inside() -> None:
        SEEN.set("mine")
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            assert text((await post(session, door, body()))[1]) == "answer 1 mine"

    within(ask())
    within(ask_inside())


def test_an_address_is_not_opened_in_a_thread() -> None:
    async def ask() -> None:
        bridge = Bridge()
        with pytest.raises(HoldfastError, match="read it in the solver"):
            await asyncio.to_thread(bridge.open, BridgeBackend("m", (), FakeHost().ask))
        await bridge.close()

    within(ask())


# Whole runs.


async def answers(request: Request) -> str:
    return f"{request.messages[-1]['content']} {json.dumps(request.params)}"


async def asking(ctx: Context, sent: dict[str, Any]) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{ctx.openai_base_url}/chat/completions", json=sent) as response,
    ):
        return response.status, await response.json()


def solved(
    solve: Callable[[Sample, Context], Awaitable[str]], tmp_path: Path, reply: Any = answers, **fields: Any
) -> Any:
    wanted = given(
        [Asked(rows=rows(1), solver=solve)], [model("m", reply, params={"temperature": 0.5, "top_p": 1})], **fields
    )
    go(tmp_path, wanted)
    (line,) = lines(tmp_path)
    return line


def test_what_the_agent_says_wins_over_the_spec_and_what_it_does_not_say_comes_from_there(tmp_path: Path) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        return text((await asking(ctx, body(temperature=0, stop=None)))[1])

    assert json.loads(solved(solve, tmp_path).output.removeprefix("hi ")) == {"temperature": 0, "top_p": 1}


def test_agents_that_keep_all_threads_busy_do_not_keep_the_files_of_their_own_requests_from_being_read(
    tmp_path: Path,
) -> None:
    async def reply(request: Request) -> str:
        return str(request.messages[-1]["content"][-1]["image_url"]["url"][:20])

    def agent(url: str, messages: list[Any]) -> str:
        path = f"/{url.split('/', 3)[3]}/chat/completions"
        with closing(http.client.HTTPConnection(url.split("/")[2], timeout=20)) as client:
            client.request("POST", path, json.dumps({"model": "m", "messages": messages}))
            return text(json.loads(client.getresponse().read()))

    async def solve(sample: Sample, ctx: Context) -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.to_thread(agent, ctx.openai_base_url, ctx.messages)

    picture = "data:image/png;base64,iVBORw0KGgo="
    task = Asked(
        rows=[{"id": "s0", "input": "what is it?", "picture": picture}],
        solver=solve,
        fields={"dataset": {"files": ["picture"]}},
    )
    go(tmp_path, given([task], [model("m", reply)]))
    assert [line.output for line in lines(tmp_path)] == [picture[:20]]


def test_a_part_of_an_attempt_has_an_address_of_its_own_and_what_comes_through_it_counts_as_its_own(
    tmp_path: Path,
) -> None:
    async def solve(sample: Sample, ctx: Context) -> str:
        first, second = ctx.with_messages([]), ctx.with_messages([])
        await asking(first, body("one"))
        await asking(second, body("two"))
        await asking(second, body("two again"))
        kept = first.openai_base_url == first.openai_base_url != second.openai_base_url
        return f"{kept} {first.used.steps} {second.used.steps} {ctx.used.steps}"

    assert solved(solve, tmp_path).output == "True 1 2 3"


def test_a_part_that_met_its_failure_is_no_reason_for_what_comes_later(tmp_path: Path) -> None:
    async def reply(request: Request) -> str:
        raise ModelError("content_filter", "no")

    async def meets(sample: Sample, ctx: Context) -> str:
        status, _ = await asking(ctx, body("one"))
        return str(status)

    async def solve(sample: Sample, ctx: Context) -> str:
        await Solver("meets", meets, {}, {}).solve_part(sample, ctx, [])
        raise ValueError("a bug of its own")

    line = solved(solve, tmp_path, reply)
    assert line.error is not None
    assert line.error.kind == "solver"


def test_an_agent_that_makes_an_answer_of_its_failed_request_has_none(tmp_path: Path) -> None:
    async def reply(request: Request) -> str:
        raise ModelError("server", "no")

    async def solve(sample: Sample, ctx: Context) -> str:
        status, said = await asking(ctx, body("one"))
        return f"Sorry, {status}: {said}"

    line = solved(solve, tmp_path, reply)
    assert (line.status, line.output) == ("failed", None)
    assert line.error is not None
    assert line.error.kind == "server"


def test_an_agent_that_sends_back_what_names_an_answer_repeats_its_request(tmp_path: Path) -> None:
    asked: list[str] = []

    async def reply(request: Request) -> str:
        asked.append(str(request.messages[-1]["content"]))
        return "yes"

    async def solve(sample: Sample, ctx: Context) -> str:
        _, first = await asking(ctx, body("first"))
        _, second = await asking(ctx, body(f"{first['id']} {first['created']}"))
        return f"{second['id']} {second['created']}"

    before = solved(solve, tmp_path, reply).output
    cut_after(tmp_path, lambda kind, _: kind != "sample.finished")
    assert solved(solve, tmp_path, reply).output == before
    assert len(asked) == 2


def test_a_client_that_is_left_behind_learns_that_its_attempt_has_ended(tmp_path: Path) -> None:
    left: list[asyncio.Task[Any]] = []
    came = asyncio.Event()

    async def hang(request: Request) -> str:
        came.set()
        await asyncio.sleep(3600)
        return "never"

    async def solve(sample: Sample, ctx: Context) -> str:
        left.append(asyncio.ensure_future(asking(ctx, body())))
        await came.wait()
        return "through"

    async def later(sample: Sample, ctx: Context) -> str:
        status, said = await left[0]
        return f"{status} {said['error']['code']}"

    wanted = given(
        [Asked("a", rows(1), solve), Asked("b", rows(1), later)], [model("m", hang)], concurrency={"samples": 1}
    )
    go(tmp_path, wanted)
    assert [line.output for line in lines(tmp_path)] == ["through", "410 attempt_ended"]
    assert [kind for kind, _ in records(tmp_path) if kind == "step"] == []


def test_an_agents_own_error_after_an_answer_is_the_solvers(tmp_path: Path) -> None:
    """Only where its last request had none, that is the reason."""
    count = 0

    async def reply(request: Request) -> str:
        nonlocal count
        count += 1
        if count == 1:
            raise ModelError("overload", "too busy")
        return "fine"

    async def solve(sample: Sample, ctx: Context) -> str:
        assert (await asking(ctx, body("first")))[0] == 503
        assert (await asking(ctx, body("second")))[0] == 200
        raise ValueError("my own fault")

    line = solved(solve, tmp_path, reply, defaults={"sample_retries": 0})
    assert (line.error.kind, line.error.message) == ("solver", "ValueError: my own fault")
