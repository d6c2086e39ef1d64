"""The openai provider against a real server on the loopback: every kind of failure, counted where it arrives."""

import asyncio
import contextlib
import traceback
from typing import Any

import msgspec
import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Request, Retries, describe_models, make_provider
from holdfast.records.samples import Answer, Message, Usage
from holdfast.testing import Behaviour, Fault, ModelServer, Stats
from tests.unit.models.unpaced import Sleep, ask
from tests.unit.testing.patience import until

SUM = Request([{"role": "user", "content": "12 + 30"}])
KEY = "sk-secret-1234567890"


async def no_sleep(seconds: float) -> None:
    """Retries without waiting."""


def ask_server(
    behaviour: Behaviour, retries: Retries | None = None, sleep: Sleep = no_sleep, **settings: Any
) -> tuple[Answer, int, Stats]:
    async def run() -> tuple[Answer, int, Stats]:
        async with ModelServer(behaviour) as server:
            where = {"provider": "openai", "model": "m", "base_url": server.base_url}
            provider = make_provider(Connection(**{**where, **settings}))
            try:
                answer, tries = await ask(provider, SUM, retries or Retries(0), sleep)
                return answer, tries, server.stats()
            finally:
                await provider.close()

    return asyncio.run(run())


def fail_at(kind: str, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        ask_server(Behaviour(faults=[Fault(kind)]), **settings)
    return raised.value


def test_a_right_answer() -> None:
    answer, tries, stats = ask_server(Behaviour())
    assert answer == Answer("42", {"role": "assistant", "content": "42"}, [], "stop", Usage(3, 1))
    assert (tries, stats.requests, stats.answered) == (1, 1, 1)


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        ("400", "bad_request", 400),
        ("401", "auth", 401),
        ("403", "auth", 403),
        ("404", "unknown_model", 404),
        ("408", "timeout", 408),
        ("429", "rate_limit", 429),
        ("429-retry-after", "rate_limit", 429),
        ("500", "server", 500),
        ("502", "server", 502),
        ("503", "overload", 503),
        ("529", "overload", 529),
        ("context-too-long", "context_too_long", 400),
        ("content-filter", "content_filter", 400),
        ("filtered", "content_filter", None),
        ("reset", "connection", None),
        ("cut", "connection", None),
        ("malformed", "malformed", None),
        ("empty", "malformed", None),
        ("no-choices", "malformed", None),
        ("html", "malformed", None),
    ],
)
def test_every_failure_has_its_kind_and_says_where(fault: str, kind: str, status: int | None) -> None:
    error = fail_at(fault)
    assert (error.kind, error.status) == (kind, status)
    assert "(m at http://127.0.0.1:" in error.message


def test_an_unknown_model_is_answered_with_the_list_of_the_server() -> None:
    assert fail_at("404").message.endswith("base_url; the server lists test-model")
    error = fail_at("404", model="test-modle")
    assert error.message.endswith("base_url; did you mean 'test-model'? The server lists test-model")
    assert fail_at("404", model="test-model").message.endswith("check the model's name and base_url")


def test_a_long_list_of_models_is_shortened() -> None:
    names = [f"m{number}" for number in range(20)]
    assert describe_models("other", names) == "the server lists m0, m1, m2, m3, m4, m5, m6, m7 and 12 more"
    assert describe_models("other", []) == "the server lists no model"


def test_a_server_that_hangs_is_a_timeout() -> None:
    error = fail_at("hang", timeout_seconds=0.05)
    assert error.kind == "timeout"
    assert "0.05 s" in error.message


def test_a_server_on_this_machine_is_reached_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.invalid:1080")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "")
    assert ask_server(Behaviour())[0].text == "42"


def test_a_server_that_is_not_there_is_a_connection_failure() -> None:
    async def run() -> None:
        async with ModelServer() as server:
            gone = server.base_url
        provider = make_provider(Connection("openai", "m", base_url=gone))
        try:
            await provider.generate(SUM)
        finally:
            await provider.close()

    with pytest.raises(ModelError) as raised:
        asyncio.run(run())
    assert raised.value.kind == "connection"


@pytest.mark.parametrize("shape", ["null-tool-calls", "no-usage", "empty-answer"])
def test_other_shapes_of_a_right_answer_are_taken(shape: str) -> None:
    answer, _, _ = ask_server(Behaviour(faults=[Fault(shape)]))
    assert answer.text == ("" if shape == "empty-answer" else "42")
    assert answer.tool_calls == []
    assert answer.finish_reason == "stop"
    assert "tool_calls" not in answer.message
    assert (answer.usage == Usage()) == (shape == "no-usage")


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset", "cut"])
def test_retries_are_as_many_as_the_server_counts(fault: str) -> None:
    answer, tries, stats = ask_server(Behaviour(faults=[Fault(fault, first=2)]), Retries(5), no_sleep)
    assert (answer.text, tries, stats.requests, stats.repeats) == ("42", 3, 3, 2)
    assert stats.faults == {fault: 2}


def test_a_hang_is_retried() -> None:
    behaviour = Behaviour(faults=[Fault("hang", first=1)])
    answer, tries, stats = ask_server(behaviour, Retries(9), no_sleep, timeout_seconds=1.0)
    assert answer.text == "42"
    assert stats.faults == {"hang": 1}
    assert tries >= stats.requests >= 2  # on a busy machine a try may time out before the server has seen it


def test_a_failure_that_will_not_pass_is_sent_once() -> None:
    async def run() -> Stats:
        async with ModelServer(Behaviour(faults=[Fault("400")])) as server:
            provider = make_provider(Connection("openai", "m", base_url=server.base_url))
            with pytest.raises(ModelError):
                await ask(provider, SUM, Retries(5), no_sleep)
            await provider.close()
            return server.stats()

    assert asyncio.run(run()).requests == 1


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7.0), ("0", 0.5), ("Fri, 01 Jan 2199 00:00:00 GMT", 3600.0), ("junk", 0.5)]
)
def test_retry_after_is_honoured(header: str, expected: float) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    behaviour = Behaviour(faults=[Fault("429-retry-after", first=1, retry_after=header)])
    ask_server(behaviour, Retries(1, lambda: 1.0), sleep)
    assert waits == [expected]


def test_the_key_is_in_no_text_even_if_the_server_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    error = fail_at("401", api_key_env="MY_KEY")
    assert "incorrect API key provided: [redacted]" in error.message
    assert "MY_KEY" in error.message
    everything = "".join(traceback.format_exception(error)) + repr(error) + repr(error.args) + repr(error.__cause__)
    assert KEY not in everything


def test_credentials_in_headers_are_in_no_text() -> None:
    error = fail_at("401", headers={"authorization": f"Bearer {KEY}"})
    assert "[redacted]" in error.message
    assert KEY not in str(error)


def test_credentials_in_the_url_are_in_no_text() -> None:
    url = "http://user:passw0rd@127.0.0.1:1/v1?api_key=hush-hush"
    provider = make_provider(Connection("openai", "m", base_url=url))

    async def run() -> None:
        try:
            await provider.generate(SUM)
        finally:
            await provider.close()

    with pytest.raises(ModelError) as raised:
        asyncio.run(run())
    assert "http://127.0.0.1:1/v1/chat/completions" in str(raised.value)
    assert "passw0rd" not in str(raised.value)
    assert "hush" not in str(raised.value)


def ask_raw(response: bytes, request: Request = SUM, path: str = "/v1", **settings: Any) -> tuple[Answer, bytes]:
    """Ask a server that writes exactly these bytes; also what it was sent."""
    sent = b""
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(asyncio.IncompleteReadError):  # a client may connect and send nothing
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            sent = head + await reader.readexactly(length)
            writer.write(response)
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def run() -> Answer:
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}{path}"
            provider = make_provider(Connection("openai", "m", base_url=url, **settings))
            try:
                return await provider.generate(request)
            finally:
                await provider.close()
                await ended.wait()

    return asyncio.run(run()), sent


def http(body: bytes, head: str = "Content-Type: application/json", status: str = "200 OK") -> bytes:
    headers = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n" + (f"{head}\r\n" if head else "") + "\r\n"
    return headers.encode() + body


GOOD = b'{"choices":[{"message":{"content":"yes"}}]}'


def test_what_is_sent_is_the_request_the_model_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    request = Request(SUM.messages, {"temperature": 0.5}, [{"type": "function"}])
    _, sent = ask_raw(http(GOOD), request, api_key_env="MY_KEY", headers={"x-mine": "1"})
    head, _, body = sent.partition(b"\r\n\r\n")
    assert msgspec.json.decode(body) == {
        "model": "m",
        "messages": SUM.messages,
        "temperature": 0.5,
        "tools": [{"type": "function"}],
    }
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1")
    assert f"Authorization: Bearer {KEY}".encode() in head
    assert b"x-mine: 1" in head


@pytest.mark.parametrize("variable", ["", "NOT_SET_ANYWHERE"])
def test_without_a_key_there_is_no_header(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    _, sent = ask_raw(http(GOOD), api_key_env=variable)
    assert b"authorization" not in sent.lower()
    assert b'"tools"' not in sent


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/", b"/v1/chat/completions "), ("", b"/chat/completions "), ("/d?v=1", b"/d/chat/completions?v=1 ")],
)
def test_a_base_url_may_end_in_a_slash_or_have_a_query(path: str, asked: bytes) -> None:
    _, sent = ask_raw(http(GOOD), path=path)
    assert sent.startswith(b"POST " + asked)


@pytest.mark.parametrize(
    "head", ["", "Content-Type: application/json; charset=utf-8", "Content-Type: application/x+json"]
)
def test_any_json_content_type_or_none_is_taken(head: str) -> None:
    assert ask_raw(http(GOOD, head))[0].text == "yes"


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (http(GOOD, "Content-Type: text/plain"), "malformed", "text/plain"),
        (http(b"data: {}", "Content-Type: text/event-stream"), "malformed", "text/event-stream"),
        (http(b"", "Location: http://elsewhere/", "307 Temporary Redirect"), "bad_request", "http://elsewhere/"),
        (http(b"x" * 5000, "Content-Type: text/plain", "500 Oh"), "server", r"x{900} ?"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "malformed", "not HTTP"),
        (b"", "connection", "disconnected"),
    ],
)
def test_strange_responses_have_a_kind(response: bytes, kind: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as raised:
        ask_raw(response)
    assert raised.value.kind == kind
    assert len(raised.value.message) < 1500


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}])
def test_a_request_that_is_no_json_is_not_sent(value: Any) -> None:
    provider = make_provider(Connection("openai", "m", base_url="http://127.0.0.1:1"))
    with pytest.raises(ModelError, match="nothing was sent") as raised:
        asyncio.run(provider.generate(Request([{"role": "user", "content": value}])))
    assert raised.value.kind == "bad_request"


@pytest.mark.parametrize("headers", [{"x-mine": "hush\r\nb"}, {"x mine": "hush"}, {"": "hush"}])
def test_a_header_that_cannot_be_sent_is_refused_at_once(headers: dict[str, str]) -> None:
    with pytest.raises(BadConnectionError, match="header") as raised:
        make_provider(Connection("openai", "m", headers=headers))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_url": "127.0.0.1:8000/v1"}, "base_url"),
        ({"base_url": "ftp://host/v1"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://host:port"}, "base_url"),
        ({"max_connections": 0}, "max_connections"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"api_key_env": "BAD_KEY"}, "BAD_KEY"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_at_once(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_KEY", "secret\nsecret")
    with pytest.raises(BadConnectionError, match=said) as raised:
        make_provider(Connection("openai", "m", **settings))
    assert "secret" not in str(raised.value)


def test_a_cancelled_request_frees_its_connection() -> None:
    async def run() -> str:
        async with ModelServer(Behaviour(faults=[Fault("hang", first=1)])) as server:
            provider = make_provider(Connection("openai", "m", base_url=server.base_url))
            task = asyncio.create_task(provider.generate(SUM))
            await until(lambda: server.stats().in_flight == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer = await provider.generate(SUM)
            await provider.close()
            return answer.text

    assert asyncio.run(run()) == "42"


def test_closing_twice_or_unused_is_harmless_and_a_closed_provider_opens_again() -> None:
    async def run() -> str:
        async with ModelServer() as server:
            provider = make_provider(Connection("openai", "m", base_url=server.base_url))
            await provider.close()
            await provider.generate(SUM)
            await provider.close()
            await provider.close()
            answer = await provider.generate(SUM)
            await provider.close()
            return answer.text

    assert asyncio.run(run()) == "42"


def test_a_large_conversation_goes_through_both_ways() -> None:
    async def run() -> int:
        async with ModelServer() as server:
            provider = make_provider(Connection("openai", "m", base_url=server.base_url))
            answer = await provider.generate(Request([{"role": "user", "content": "x" * 3_000_000}]))
            await provider.close()
            return len(answer.text)

    assert asyncio.run(run()) == 3_000_000


def test_tool_calls_come_through() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}

    def reply(messages: list[Message]) -> Message:
        return {"content": None, "tool_calls": [call]}

    answer, _, _ = ask_server(Behaviour(reply=reply))
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", [call], "tool_calls")
