"""The test server in a process of its own, as a test of a killed process needs it."""

import asyncio
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from holdfast.models import Connection, Request, Retries, make_provider
from holdfast.testing import Behaviour, Fault, ServerStartError, start_server_process
from holdfast.testing.__main__ import main, parse_fault
from tests.unit.models.unpaced import ask
from tests.unit.testing.patience import until


async def ask_twenty(base_url: str) -> list[str]:
    async def no_sleep(seconds: float) -> None: ...

    provider = make_provider(Connection("openai", "m", base_url=base_url))
    requests = [Request([{"role": "user", "content": f"{number} * 2"}]) for number in range(20)]
    answers = await asyncio.gather(*(ask(provider, request, Retries(3), no_sleep) for request in requests))
    await provider.close()
    return [answer.text for answer, _ in answers]


def test_a_server_process_serves_misbehaves_and_counts() -> None:
    with start_server_process(Behaviour(latency_seconds=0.001, faults=[Fault("503", first=3)], seed=7)) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        assert asyncio.run(ask_twenty(server.base_url)) == [str(2 * number) for number in range(20)]
        stats = server.stats()
    assert (stats.requests, stats.repeats, stats.in_flight) == (23, 3, 0)
    assert sum(stats.by_digest.values()) == 23


def test_closing_ends_the_process_and_may_be_repeated() -> None:
    server = start_server_process()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        server.stats()


def test_the_server_ends_when_its_parent_is_killed() -> None:
    program = (
        "import sys, holdfast.testing; server = holdfast.testing.start_server_process(); "
        "print(server.base_url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        parent.kill()
    assert url.startswith("http://127.0.0.1:")
    asyncio.run(until(lambda: not listens(url)))


def listens(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port_of(url))) == 0


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def test_a_port_that_is_taken_is_an_error_that_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with start_server_process() as server:
        port = port_of(server.base_url)
        with pytest.raises(ServerStartError, match=str(port)):
            start_server_process(port=port)
    assert "address already in use" in capfd.readouterr().err


def test_a_reply_function_cannot_go_to_another_process() -> None:
    with pytest.raises(ServerStartError, match="reply"):
        start_server_process(Behaviour(reply=lambda messages: "x"))


def test_the_command_prints_its_url_first_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "holdfast.testing", "--latency-ms", "1", "--fault", "429:first=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        answers = asyncio.run(ask_twenty(url))
        process.terminate()
        assert process.wait() == 0
    assert answers[:3] == ["0", "2", "4"]


def test_faults_are_written_in_short() -> None:
    assert parse_fault("hang") == Fault("hang")
    assert parse_fault("429:rate=0.5,first=10") == Fault("429", rate=0.5, first=10)
    assert parse_fault("429-retry-after:every=3,retry_after=2") == Fault("429-retry-after", every=3, retry_after="2")


@pytest.mark.parametrize("fault", ["nonsense", "429:often=1", "429:rate", "429:every=x"])
def test_a_fault_that_means_nothing_is_a_usage_error(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--fault", fault])
    assert "usage:" in capsys.readouterr().err
