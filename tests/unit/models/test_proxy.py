"""Proxies of the environment, on real sockets. The servers' names lead nowhere: only the proxy here knows them."""

import asyncio
import base64
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from holdfast.models import BadConnectionError, Connection, Listing, ModelError, Request, make_provider
from holdfast.models.batch.transfer import BatchTransport
from holdfast.models.http import connection as connection_module
from holdfast.models.http.connection import ConnectionPool, Response
from holdfast.models.http.endpoint import ApiKey, Endpoint
from holdfast.models.http.proxy import proxy_for
from tests.unit.models.byte_server import OK, Server, serving

SERVER = "https://models.example/v1/x?a=b"
PASSWORD = "hush/hush"
CREDENTIALS = base64.b64encode(f"me:{PASSWORD}".encode())
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Tunnels:
    """A proxy that answers every request for a tunnel with these bytes and, if they open one, leads it to this server,
    whatever its name. Nothing to say: it hangs.
    """

    def __init__(self, said: bytes = OPENED, port: int = 0) -> None:
        self.said = said
        self.port = port
        self.heads: list[bytes] = []
        self.carried = b""
        self.under_way: list[asyncio.Task[None] | None] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.under_way.append(asyncio.current_task())
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.said)
            if self.said == OPENED:
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
                back = asyncio.ensure_future(carry(from_server, writer))
                self.carried += await carry(reader, to_server)
                await back
            elif not self.said:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    carried = b""
    try:
        while part := await reader.read(65536):
            carried += part
            writer.write(part)
    except ConnectionError:
        pass
    writer.close()
    return carried


@asynccontextmanager
async def proxied(tunnels: Tunnels) -> AsyncIterator[str]:
    """Its address. At the end every connection to it must have been closed by who made it."""
    async with await asyncio.start_server(tunnels.handle, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(5.0):
            await asyncio.gather(*(each for each in tunnels.under_way if each is not None))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=models.example", "-addext", "subjectAltName=DNS:models.example"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *curve, *names, *files], check=True, capture_output=True)
    return made, key


@pytest.fixture
def tls(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """A server's side of it; this process trusts the certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    connection_module._tls.cache_clear()  # noqa: SLF001 - other trust than this process began with
    yield made
    connection_module._tls.cache_clear()  # noqa: SLF001


async def send_to(url: str, *bodies: bytes) -> list[Response]:
    """One after another, over the proxy that the environment names."""
    made = ConnectionPool(URL(url), {"X-Key": "sk-123"}, 5.0, proxy=proxy_for(URL(url)))
    try:
        return [await made.send(body) for body in bodies]
    finally:
        await made.close()


def test_a_server_behind_tls_is_asked_through_one_tunnel_that_hides_the_requests(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(OK, OK)

    async def run() -> Tunnels:
        async with serving(server, tls) as url:
            tunnels = Tunnels(port=URL(url).port or 0)
            async with proxied(tunnels) as address:
                monkeypatch.setenv("HTTPS_PROXY", f"http://me:hush%2Fhush@{address}")
                assert [each.body for each in await send_to(SERVER, b"first", b"second")] == [b"ok", b"ok"]
            return tunnels

    tunnels = asyncio.run(run())
    assert server.bodies == [b"first", b"second"]
    assert server.heads[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\nHost: models.example\r\n")
    assert not any(b"proxy" in head.lower() for head in server.heads)
    assert [sorted(head.split(b"\r\n")) for head in tunnels.heads] == [
        sorted(
            [
                b"CONNECT models.example:443 HTTP/1.1",
                b"Host: models.example:443",
                b"Proxy-Authorization: Basic " + CREDENTIALS,
                b"",
                b"",
            ]
        )
    ]
    assert tunnels.carried
    assert b"sk-123" not in tunnels.carried


def test_the_server_at_the_end_of_a_tunnel_is_checked(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(OK)

    async def run() -> None:
        async with serving(server, tls) as url, proxied(Tunnels(port=URL(url).port or 0)) as address:
            monkeypatch.setenv("HTTPS_PROXY", address)
            with pytest.raises(ssl.SSLCertVerificationError):
                await send_to("https://other.example/v1", b"{}")

    asyncio.run(run())
    assert server.heads == []


def test_a_server_without_tls_is_asked_with_whole_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Server(OK, OK)

    async def run() -> None:
        async with serving(proxy) as url:
            monkeypatch.setenv("HTTP_PROXY", f"http://me:hush%2Fhush@127.0.0.1:{URL(url).port}")
            await send_to("http://models.example:8000/v1/x?a=b", b"{}", b"{}")

    asyncio.run(run())
    assert proxy.connections == 1
    lines = proxy.heads[1].split(b"\r\n")
    assert lines[0] == b"POST http://models.example:8000/v1/x?a=b HTTP/1.1"
    assert {b"Host: models.example:8000", b"Proxy-Authorization: Basic " + CREDENTIALS} <= set(lines)


async def fail_through(proxy: str, base_url: str = "https://models.example/v1") -> ModelError:
    """`proxy` in the environment; a request to a provider, to a batch API, and for a list of models."""
    connection = Connection("openai", "m", base_url=base_url)
    provider = make_provider(connection)
    with pytest.raises(ModelError) as raised:
        await provider.generate(Request([]))
    with pytest.raises(ModelError) as raised_too:
        await BatchTransport(endpoint_of(connection)).get(URL(base_url), dict[str, Any])
    assert isinstance(provider, Listing)
    with pytest.raises(ModelError, match=raised.value.kind):
        await provider.served(5.0)
    await provider.close()
    assert proxy in raised.value.message
    assert proxy in raised_too.value.message
    assert not any(secret in str(raised.value) + str(raised_too.value) for secret in (PASSWORD, CREDENTIALS.decode()))
    assert raised.value.kind == raised_too.value.kind
    return raised.value


def endpoint_of(connection: Connection) -> Endpoint:
    return Endpoint(connection, URL(str(connection.base_url)), ApiKey("", ""), {})


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (b"HTTP/1.1 407 Who are you\r\n\r\n", "auth", "HTTP 407 Who are you"),
        (b"HTTP/1.1 403 Not " + CREDENTIALS + b"\r\n\r\n", "connection", "HTTP 403 Not [redacted]"),
        (b"HTTP/1.0 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "connection", "HTTP 502 Bad Gateway"),
    ],
)
def test_a_proxy_that_refuses_is_reported_with_its_name_and_no_credentials(
    said: bytes, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> ModelError:
        proxy = Tunnels(said)
        async with proxied(proxy) as address:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:hush%2Fhush@{address}")
            error = await fail_through(address)
        assert [CREDENTIALS in head for head in proxy.heads] == [True, True, True]
        return error

    error = asyncio.run(run())
    assert error.kind == kind
    assert text in error.message
    assert "HTTPS_PROXY" in error.message


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"220 mail.example ready\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 70_000, "is not HTTP"),
        (OPENED + b"more", "sent data into it"),
        (b"HTTP/1.1 200", "closed the connection before"),
    ],
)
def test_a_proxy_that_does_not_behave_gives_no_connection(
    said: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with proxied(Tunnels(said)) as address:
            monkeypatch.setenv("HTTPS_PROXY", address)
            with pytest.raises(ConnectionError, match=text):
                await send_to(SERVER, b"{}")

    asyncio.run(run())


def test_a_proxy_that_hangs_gives_no_connection_and_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        tunnels = Tunnels(b"")
        async with proxied(tunnels) as address:
            monkeypatch.setenv("ALL_PROXY", address)
            provider = make_provider(Connection("openai", "m", base_url="https://models.example", timeout_seconds=0.1))
            with pytest.raises(
                ModelError, match=rf"no connection within 0\.1 s.* through the proxy {address}"
            ) as raised:
                await provider.generate(Request([]))
            assert raised.value.kind == "connection"
            await provider.close()

    asyncio.run(run())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_down_is_a_connection_failure(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> ModelError:
        async with proxied(Tunnels()) as address:
            pass
        monkeypatch.setenv("ALL_PROXY", f"http://me:hush%2Fhush@{address}")
        return await fail_through(address, f"{scheme}://models.example/v1")

    error = asyncio.run(run())
    assert error.kind == "connection"
    assert "the proxy cannot be reached" in error.message


def test_a_proxy_that_wants_credentials_for_plain_http_stops_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> ModelError:
        async with proxied(Tunnels(b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")) as address:
            monkeypatch.setenv("HTTP_PROXY", address)
            return await fail_through(address, "http://models.example/v1")

    error = asyncio.run(run())
    assert error.kind == "auth"
    assert "check the user and password in HTTP_PROXY" in error.message


def test_lists_of_models_and_batch_apis_are_asked_through_the_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = b'{"data": [{"id": "m"}]}'
    said = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(listed), listed)
    proxy = Tunnels(said)

    async def run() -> None:
        async with proxied(proxy) as address:
            monkeypatch.setenv("ALL_PROXY", f"http://me:hush%2Fhush@{address}")
            connection = Connection("openai", "m", base_url="http://models.example/v1")
            provider, batches = make_provider(connection), endpoint_of(connection)
            assert isinstance(provider, Listing)
            assert await provider.served(5.0) == ["m"]
            found = await BatchTransport(batches).get(URL("http://models.example/v1"), dict[str, Any])
            assert found == {"data": [{"id": "m"}]}
            await provider.close()

    asyncio.run(run())
    assert [head.split(b"\r\n")[0] for head in proxy.heads] == [
        b"GET http://models.example/v1/models HTTP/1.1",
        b"GET http://models.example/v1 HTTP/1.1",
    ]
    assert all(CREDENTIALS in head for head in proxy.heads)


@pytest.mark.parametrize(
    ("url", "environment", "through"),
    [
        ("https://models.example", {"HTTPS_PROXY": "http://p:1"}, "p:1"),
        ("https://models.example", {"https_proxy": "http://low:1", "HTTPS_PROXY": "http://p:1"}, "low:1"),
        ("https://models.example", {"HTTP_PROXY": "http://p:1"}, ""),
        ("https://models.example", {"ALL_PROXY": "http://all:1"}, "all:1"),
        ("http://models.example", {"ALL_PROXY": "http://all:1", "http_proxy": "p"}, "p:80"),
        ("http://models.example", {"ALL_PROXY": "http://[fd00::1]:3128"}, "[fd00::1]:3128"),
        ("https://models.example", {"ALL_PROXY": "p:1", "NO_PROXY": "*"}, ""),
        ("https://models.example", {"ALL_PROXY": "p:1", "NO_PROXY": "other, .example"}, ""),
        ("https://models.example:8000", {"ALL_PROXY": "p:1", "NO_PROXY": "models.example:8000"}, ""),
        ("https://models.example:8001", {"ALL_PROXY": "p:1", "NO_PROXY": "models.example:8000"}, "p:1"),
        ("http://10.1.2.3:8000", {"ALL_PROXY": "p:1", "NO_PROXY": "corp,10.0.0.0/8"}, ""),
        ("http://11.1.2.3:8000", {"ALL_PROXY": "p:1", "NO_PROXY": "corp,10.0.0.0/8"}, "p:1"),
        ("http://[fd00::2]:8000", {"ALL_PROXY": "p:1", "NO_PROXY": "fd00::2"}, ""),
        ("http://127.0.0.1:8000", {"ALL_PROXY": "socks5://p:1"}, ""),
        ("http://[::1]:8000", {"ALL_PROXY": "p:1"}, ""),
        ("http://0.0.0.0:8000", {"ALL_PROXY": "p:1"}, ""),
        ("http://localhost:8000", {"ALL_PROXY": "p:1"}, ""),
        ("http://localhost.example:8000", {"ALL_PROXY": "p:1"}, "p:1"),
    ],
)
def test_the_environment_says_which_proxy_and_this_machine_needs_none(
    url: str, environment: dict[str, str], through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = proxy_for(URL(url))
    assert (found.name if found is not None else "") == through


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("socks5://me:hush/hush@p:1080", "HTTPS_PROXY names a socks5:// proxy"),
        ("https://me:hush%2Fhush@p", "HTTPS_PROXY names a https:// proxy"),
        ("http://me:hush/hush@p:1", "HTTPS_PROXY is not a URL"),
        ("http://me:hush%2Fhush@", "HTTPS_PROXY is not a URL"),
        ("me:hu://hush@p:1", "HTTPS_PROXY is not a URL"),
        ("http://p:port", "HTTPS_PROXY is not a URL"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused_before_anything_is_sent(
    given: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", given)
    with pytest.raises(BadConnectionError, match=text) as raised:
        make_provider(Connection("openai", "m", base_url="https://models.example/v1"))
    assert "model 'm': " in str(raised.value)
    assert "add models.example to NO_PROXY" in str(raised.value)
    assert "hush" not in str(raised.value)
