"""The wire against a server that writes exactly what a test says, on real sockets."""

import asyncio
import gc
import gzip
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from yarl import URL

from holdfast.models.http import connection
from holdfast.models.http.connection import BadResponseError, ConnectionPool, Response
from tests.unit.models.byte_server import OK, Server, serving

PATIENCE_SECONDS = 300.0
"""Only a failing test waits so long."""


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def _loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs on both event loops, if uvloop is installed."""
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(pytest.importorskip("uvloop").EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)


def use(server: Server, story: Callable[[ConnectionPool], Awaitable[None]], seconds: float = PATIENCE_SECONDS) -> None:
    async def run() -> None:
        async with serving(server) as url:
            made = ConnectionPool(URL(url), {}, seconds)
            try:
                await story(made)
            finally:
                await made.close()

    asyncio.run(run())


def ask(response: bytes, *, closes: bool = False) -> Response:
    """One request, answered with these bytes."""
    got: list[Response] = []

    async def story(made: ConnectionPool) -> None:
        got.append(await made.send(b"{}"))

    use(Server(response, closes=closes), story)
    return got[0]


def test_a_connection_is_used_again() -> None:
    server = Server(OK, OK, OK)

    async def story(made: ConnectionPool) -> None:
        for number in range(3):
            assert (await made.send(b"body %d" % number)).body == b"ok"

    use(server, story)
    assert server.connections == 1
    assert server.bodies == [b"body 0", b"body 1", b"body 2"]


def test_requests_at_once_have_connections_of_their_own() -> None:
    server = Server(*[OK] * 10)

    async def story(made: ConnectionPool) -> None:
        answers = await asyncio.gather(*(made.send(b"{}") for _ in range(5)))
        assert [answer.body for answer in answers] == [b"ok"] * 5
        await asyncio.gather(*(made.send(b"{}") for _ in range(5)))

    use(server, story)
    assert server.connections == 5


@pytest.mark.parametrize(
    ("response", "closes", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nTrail: x\r\n\r\n",
            False,
            b"abcde",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", True, b"until the end"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, False, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False, b""),
    ],
    ids=["chunked", "HTTP/1.0", "without a length", "words in between", "no content", "empty"],
)
def test_a_response_ends_where_http_says(response: bytes, closes: bool, body: bytes) -> None:
    assert ask(response, closes=closes).body == body


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"hello" * 100, mtime=0)),
        ("x-gzip", gzip.compress(b"hello" * 100, mtime=0)),
        ("deflate", zlib.compress(b"hello" * 100)),
        ("deflate", zlib.compress(b"hello" * 100, wbits=-15)),
        ("identity", b"hello" * 100),
    ],
)
def test_compression_that_was_not_asked_for_is_undone(encoding: str, packed: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(packed)}\r\n\r\n"
    assert ask(head.encode() + packed).body == b"hello" * 100


def packed(encoding: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (packed("br", b"x"), "'br'"),
        (packed("gzip", gzip.compress(b"hello", mtime=0)[:-9]), "truncated"),
        (packed("gzip", b"not packed"), "decompressed"),
        (packed("gzip", gzip.compress(bytes(connection.BODY_BYTES_MAX + 1), mtime=0)), "too large"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "MiB"),
    ],
)
def test_what_is_no_response_is_reported(response: bytes, said: str) -> None:
    with pytest.raises(BadResponseError, match=said):
        ask(response)


def test_a_body_that_is_too_large_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 1_000_000)
    with pytest.raises(BadResponseError, match="MiB"):
        ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + bytes(2_000_000))


@pytest.mark.parametrize(
    "response", [b"", b"HTTP/1.1 200 OK\r\nConte", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"]
)
def test_a_response_that_is_cut_off_is_a_lost_connection(response: bytes) -> None:
    with pytest.raises(ConnectionError, match="disconnected"):
        ask(response, closes=True)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"and more",
        OK + OK,
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["close", "more than was asked for", "two responses", "HTTP/1.0"],
)
def test_a_connection_in_doubt_is_not_used_again(response: bytes) -> None:
    server = Server(response, OK)

    async def story(made: ConnectionPool) -> None:
        assert (await made.send(b"1")).body == b"ok"
        assert (await made.send(b"2")).body == b"ok"

    use(server, story)
    assert server.connections == 2


def test_a_connection_that_the_server_closed_or_spoke_on_while_idle_is_not_used_again() -> None:
    server = Server(OK, OK, OK)

    async def story(made: ConnectionPool) -> None:
        await made.send(b"{}")
        server.writers[-1].close()
        await asyncio.sleep(0.05)
        await made.send(b"{}")
        server.writers[-1].write(OK)
        await asyncio.sleep(0.05)
        await made.send(b"{}")

    use(server, story)
    assert server.connections == 3


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_IDLE_SECONDS_MAX", 0.0)
    server = Server(OK, OK)

    async def story(made: ConnectionPool) -> None:
        await made.send(b"{}")
        await made.send(b"{}")

    use(server, story)
    assert server.connections == 2


def test_a_late_answer_is_a_timeout_and_is_never_given_to_the_next_request() -> None:
    server = Server()

    async def story(made: ConnectionPool) -> None:
        with pytest.raises(TimeoutError):
            await made.send(b"first")
        made._timeout_seconds = PATIENCE_SECONDS  # noqa: SLF001 - a busy machine may take long for the next one
        server.responses.append(OK)
        assert (await made.send(b"second")).body == b"ok"

    use(server, story, seconds=0.2)
    assert server.connections == 2


def test_each_of_several_requests_has_a_time_of_its_own() -> None:
    """They share one timer: it continues with the next, and begins anew when there was none."""
    server = Server()

    async def story(made: ConnectionPool) -> None:
        first = asyncio.ensure_future(made.send(b"first"))
        while not server.bodies:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(made.send(b"second"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            for late in (first, second, made.send(b"third")):
                with pytest.raises(TimeoutError):
                    await late
        assert second.done()

    use(server, story, seconds=0.2)
    assert server.connections == 3


def test_a_response_that_streams_may_take_long_if_no_pause_in_it_does() -> None:
    """Eight pieces, seconds less than the limit apart: together they take longer than the limit."""
    server = Server()
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"

    async def story(made: ConnectionPool) -> None:
        asking = asyncio.ensure_future(made.send(b"{}", streams=True))
        while not server.bodies:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
        server.writers[0].write(whole)
        for _ in range(8):
            await asyncio.sleep(0.2)
            server.writers[0].write(b"x")
        assert (await asking).body == b"x" * 8

    use(server, story, seconds=1.5)


def test_a_response_that_streams_and_falls_silent_is_a_timeout() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")

    async def story(made: ConnectionPool) -> None:
        with pytest.raises(TimeoutError):
            await made.send(b"{}", streams=True)
        made._timeout_seconds = PATIENCE_SECONDS  # noqa: SLF001 - a busy machine may take long for the next one
        server.responses.append(OK)
        assert (await made.send(b"{}")).body == b"ok"

    use(server, story, seconds=0.2)
    assert server.connections == 2


def test_a_server_that_accepts_and_then_says_nothing_gives_no_connection() -> None:
    """It never answers the handshake: the request was not sent, so this is no late answer."""

    async def story() -> None:
        async with serving(Server()) as url:
            made = ConnectionPool(URL(url).with_scheme("https"), {}, timeout_seconds=0.2)
            with pytest.raises(ConnectionError, match=r"no connection within 0\.2 s"):
                await made.send(b"{}")
            await made.close()

    asyncio.run(story())


def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    server = Server()

    async def story(made: ConnectionPool) -> None:
        asking = asyncio.ensure_future(made.send(b"first"))
        while not server.bodies:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        server.responses.append(OK)
        assert (await made.send(b"second")).body == b"ok"

    use(server, story)
    assert server.connections == 2


def test_closing_ends_what_is_under_way() -> None:
    server = Server()

    async def story(made: ConnectionPool) -> None:
        asking = asyncio.ensure_future(made.send(b"{}"))
        while not server.bodies:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
        await made.close()
        with pytest.raises(ConnectionError):
            await asking

    use(server, story)


def test_the_head_says_host_length_and_the_given_headers() -> None:
    server = Server(OK)

    async def run() -> None:
        async with serving(server) as url:
            made = ConnectionPool(
                URL(url).with_user("me").with_password("pass"), {"ACCEPT-encoding": "gzip", "X-Mine": "ü"}, 5.0
            )
            await made.send(b"12345")
            await made.close()
            port = URL(url).port
            lines = server.heads[0].decode().split("\r\n")
            assert lines[0] == "POST /v1/x?a=b HTTP/1.1"
            assert set(lines[1:-2]) == {
                f"Host: localhost:{port}",
                "ACCEPT-encoding: gzip",
                "Authorization: Basic bWU6cGFzcw==",
                "X-Mine: ü",
                "Content-Length: 5",
            }

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here: no certificate can be made")
def test_a_server_behind_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *names], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)

    async def run() -> bytes:
        async with serving(Server(OK), tls) as url:
            asking = ConnectionPool(URL(url), {}, 5.0)
            try:
                return (await asking.send(b"{}")).body
            finally:
                await asking.close()

    connection._tls.cache_clear()  # noqa: SLF001 - other trust than this process began with
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(run())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    connection._tls.cache_clear()  # noqa: SLF001
    assert asyncio.run(run()) == b"ok"
    connection._tls.cache_clear()  # noqa: SLF001


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio leaves the socket to the gc
@pytest.mark.parametrize("rounds", range(8))
def test_a_pool_closes_after_a_request_was_cancelled_while_it_connected(rounds: int) -> None:
    """uvloop never reports the end of such a connection: a run that was refused (401) never ended."""

    is_closed: list[bool] = []

    async def story(made: ConnectionPool) -> None:
        sending = asyncio.ensure_future(made.send(b"{}"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        closing = asyncio.ensure_future(made.close())
        for _ in range(100):
            await asyncio.sleep(0)
        is_closed.append(closing.done())
        closing.cancel()

    use(Server(OK), story)
    gc.collect()  # the warning about the socket belongs to this test, not to a later one
    assert is_closed == [True]
