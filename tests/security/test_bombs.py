"""Small inputs that stand for much: bounded time and memory, and one sentence. Each group has a negative control that
takes the bound away and sees the attack succeed.
"""

import asyncio
import contextlib
import gzip
import io
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import xxhash
import zstandard
from yarl import URL

from holdfast.bridge import server
from holdfast.datasets import open_rows, readers
from holdfast.errors import DamagedError, DataError, SpecError
from holdfast.journal import Position
from holdfast.models import ModelError
from holdfast.models.http import bodies, connection
from holdfast.models.http.connection import BadResponseError, ConnectionPool, Response
from holdfast.models.http.statuses import retry_after_seconds
from holdfast.models.pacing.pace import quotas_in
from holdfast.plan import files as plan_files
from holdfast.records import seed_of
from holdfast.records.samples import Answer, Sample
from holdfast.score import numbers, worker_process
from holdfast.score.scorers import numeric
from holdfast.solve import Prompt, Renderer, prompts
from holdfast.spec import load_spec
from holdfast.spec.source import text as spec_text
from holdfast.state.fold import Positions
from tests.e2e.commands import call, snapshot, write_spec
from tests.journals import unpacked
from tests.unit.bridge.test_server import FakeHost, body, opened, post
from tests.unit.models.byte_server import Server, serving

MODELS = "models: [{name: m, provider: mock, params: {x: %s}}]\ntasks: [{name: t, dataset: {path: x.jsonl}}]\n"


def laughs(levels: int, width: int = 9) -> str:
    """Nine aliases of nine aliases of …"""
    first = "l0: &l0 [" + ", ".join(["x"] * width) + "]\n"
    return first + "".join(f"l{i}: &l{i} [" + ", ".join([f"*l{i - 1}"] * width) + "]\n" for i in range(1, levels))


def merges(levels: int) -> str:
    return "l0: &l0 {a: 1}\n" + "".join(
        f"l{i}: &l{i} {{<<: [" + ", ".join([f"*l{i - 1}"] * 9) + "]}\n" for i in range(1, levels)
    )


YAML_BOMBS = {
    "aliases": laughs(12),
    "merged mappings": merges(10),
    "an alias to itself": "models: &a [{name: m, provider: mock, params: {x: *a}}]\n",
    "nested lists": MODELS % ("[" * 100_000),
    "nested keys": "? " * 20_000,
    "a number": MODELS % ("9" * 100_000),
    "a number of base 60": MODELS % ("1" + ":59" * 100_000),
    "a long text": MODELS % ("x " * 1_000_000),
}


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_a_spec_that_is_a_bomb_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text(YAML_BOMBS[name])
    done = call("run", "eval.yaml", cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("holdfast: eval.yaml")
    assert len(done.err) < 600
    assert len(done.err.splitlines()) == 1


def test_without_the_bound_aliases_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    text = laughs(6)
    with pytest.raises(SpecError, match="counting an alias as its content"):
        spec_text.parse_yaml(text, "x")
    monkeypatch.setattr(spec_text, "_NODES_MAX", 10**9)
    assert len(json.dumps(spec_text.parse_yaml(text, "x"))) > 500 * len(text)


def test_aliases_and_nesting_of_ordinary_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"input": "a"}\n')
    path = tmp_path / "eval.yaml"
    path.write_text(
        f"models: [{{name: m, provider: mock, params: &p {{a: {'[' * 50}{']' * 50}}}}}, "
        "{name: n, provider: mock, params: *p}]\ntasks: [{name: t, dataset: {path: x.jsonl}}]\n"
    )
    spec = load_spec(str(path))
    assert spec.models[0].params == spec.models[1].params


def test_the_spec_file_of_a_strangers_run_is_not_expanded(tmp_path: Path) -> None:
    assert call("run", write_spec(tmp_path, rows=1), "--id", "x", cwd=tmp_path).code == 0
    path = tmp_path / "runs" / "sums" / "x" / "spec.yaml"
    header = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    for bomb in (laughs(12), "a: " + "x " * 1_000_000):
        path.write_text(header + bomb)
        before = snapshot(tmp_path)
        for command in (("doctor", "x"), ("resume", "x")):
            done = call(*command, cwd=tmp_path)
            assert done.code in (0, 3), done.said
            assert "spec.yaml" in done.said
        assert snapshot(tmp_path) == before


JINJA_BOMBS = [
    "{{ 'a' * 10**10 }}",
    "{{ question * count }}",
    "{{ ['a'] * 10**10 }}",
    "{{ 'a'|center(10**10) }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(99999) %}{{ question }}{{ question }}{% endfor %}",
]


@pytest.mark.parametrize("template", JINJA_BOMBS)
def test_a_template_that_multiplies_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"question": "x" * 1000, "count": 10**10}
    with pytest.raises(SpecError, match="the template "):
        Renderer(Prompt(prompt=template, template="jinja")).messages(Sample("s", "", None, row))


def test_a_template_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "SECONDS_MAX", 0.5)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(SpecError, match=r"takes longer than 0\.5 s"):
        render(endless)


def test_without_the_bound_a_template_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ 'a' * 20000000 }}"
    with pytest.raises(SpecError, match="becomes longer than"):
        render(template)
    monkeypatch.setattr(prompts, "_is_linear", lambda parsed: True)
    assert len(render(template)) == 20_000_000


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ question }}?", "why?"),
        ("{% for c in choices %}{{ loop.index }}. {{ c }}\n{% endfor %}", "1. a\n2. b\n"),
        ("{% for c in choices %}{% for d in choices %}{{ c ~ d }} {% endfor %}{% endfor %}", "aa ab ba bb "),
        ("{{ question * 2 }}", "whywhy"),
    ],
)
def test_templates_of_ordinary_size_are_filled_in(template: str, text: str) -> None:
    assert render(template, {"question": "why", "choices": ["a", "b"]}) == text


def test_a_row_that_makes_a_prompt_explode_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, rows=1, task={"template": "jinja", "prompt": "{{ question * (answer|int) ** 20 }}"})
    done = call("run", spec, "--id", "x", cwd=tmp_path)
    assert done.code == 2
    assert "row 's0001'" in done.err
    assert not (tmp_path / "runs").exists()


def render(template: str, row: dict[str, Any] | None = None) -> str:
    messages = Renderer(Prompt(prompt=template, template="jinja")).messages(Sample("s", "", None, row or {}))
    return str(messages[0]["content"])


def zeros(count: int, bits: int = 31) -> bytes:
    """So many MiB of zeros, compressed."""
    packing = zlib.compressobj(9, zlib.DEFLATED, bits)
    return b"".join(packing.compress(bytes(1 << 20)) for _ in range(count)) + packing.flush()


@pytest.mark.parametrize(("encoding", "bits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_a_compressed_response_unpacks_to_no_more_than_a_response_may_have(
    encoding: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 1 << 20)
    sent = answer_with(zeros(8, bits), encoding)
    with pytest.raises(BadResponseError, match="too large"):
        ask(sent)
    monkeypatch.setattr(connection, "BODY_BYTES_MAX", 1 << 30)
    assert len(ask(sent).body) == 8 << 20, "negative control"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_other_compression_is_refused(encoding: str) -> None:
    with pytest.raises(BadResponseError, match="not requested"):
        ask(answer_with(b"x", encoding))


def test_trailers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
    sent = head + b"a: b\r\n" * 5000 + b"\r\n"
    with pytest.raises(BadResponseError, match="more than 2000 headers"):
        ask(sent)
    monkeypatch.setattr(connection, "_HEADERS_MAX", 10**9)
    assert len(ask(sent).headers) > 5000, "negative control"


@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: {10**30}",
        "Content-Length: -1",
        "Content-Length: 1e9",
        "Transfer-Encoding: chunked\r\n\r\n" + "F" * 30 + "\r\nx",
        "Transfer-Encoding: chunked\r\n\r\n-5\r\nx",
        "\r\n".join(f"h{i}: x" for i in range(40_000)),
    ],
    ids=["length", "negative", "float", "chunk", "negative chunk", "many"],
)
def test_absurd_headers_of_a_server_are_a_bad_response(head: str) -> None:
    with pytest.raises((BadResponseError, ConnectionError)):
        ask(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\nok".encode(), closes=True)


@pytest.mark.parametrize(
    "value",
    [
        "1e308",
        "9" * 5000,
        "Mon, 01 Jan 2024 00:00:00 +99999999999999",
        "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT",
    ],
)
def test_absurd_waits_that_a_server_requests_are_bounded_or_ignored(value: str) -> None:
    assert (retry_after_seconds({"Retry-After": value}, time.time()) or 0) <= 3600
    names = (b"x-ratelimit-remaining-requests", b"x-ratelimit-limit-requests", b"x-ratelimit-reset-requests")
    for quota in quotas_in([(name, value.encode()) for name in names], time.time()):
        assert max(quota.remaining, quota.limit) < 1e300
        assert quota.reset_seconds <= 3600


def test_a_stream_has_a_bounded_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = b"data: 1\n\n" * 1000
    assert len(list(bodies.parse_events(stream))) == 1000
    monkeypatch.setattr(bodies, "EVENTS_MAX", 999)
    with pytest.raises(ModelError, match="more than 999 events"):
        list(bodies.parse_events(stream))


def answer_with(body: bytes, encoding: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def ask(response: bytes, closes: bool = False) -> Response:
    async def work() -> Response:
        async with serving(Server(response, closes=closes)) as url:
            asked = ConnectionPool(URL(url), {}, 30.0)
            try:
                return await asked.send(b"{}")
            finally:
                await asked.close()

    return asyncio.run(work())


@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: {10**30}\r\n\r\n",
        "Content-Length: -1\r\n\r\n",
        "Content-Length: 1\r\nContent-Length: 99999999999\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n" + "F" * 30 + "\r\nx",
        "Transfer-Encoding: chunked\r\n\r\n-5\r\nx",
        "".join(f"h{i}: x\r\n" for i in range(200_000)) + "\r\n",
        f"h: {'x' * 1_000_000}\r\n\r\n",
    ],
    ids=["length", "negative", "two lengths", "chunk", "negative chunk", "many", "long"],
)
def test_the_bridge_refuses_absurd_headers_and_continues(head: str) -> None:
    async def work(host: FakeHost, door: server.AttemptEndpoint, session: Any) -> None:
        address = urlsplit(door.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: x\r\n{head}".encode())
        said = b""
        try:
            await writer.drain()
            said = await reader.read(1000)
        except ConnectionError:
            pass  # it did not read to the end
        writer.close()
        assert said[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b"")
        assert host.wishes == []
        assert (await post(session, door, body()))[0] == 200

    at_the_bridge(work)


def test_the_bridge_takes_any_number_for_the_count_of_retries() -> None:
    async def work(host: FakeHost, door: server.AttemptEndpoint, session: Any) -> None:
        assert (await post(session, door, body(), **{"x-stainless-retry-count": "9" * 6000}))[0] == 200

    at_the_bridge(work)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_bridge_holds_no_more_of_a_request_than_can_be_saved(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = json.dumps(body("x" * (3 << 20))).encode()
    packed = gzip.compress(sent) if encoding == "gzip" else sent

    async def status(door: server.AttemptEndpoint, session: Any) -> int:
        headers = {"Content-Encoding": encoding} if encoding == "gzip" else {}
        async with session.post(f"{door.url}/chat/completions", data=io.BytesIO(packed), headers=headers) as response:
            return int(response.status)

    async def work(host: FakeHost, door: server.AttemptEndpoint, session: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(server, "LINE_BYTES_MAX", 1 << 20)
            assert await status(door, session) == 413
            assert host.wishes == []
        assert await status(door, session) == 200, "negative control"

    at_the_bridge(work)


def test_the_bridge_refuses_a_body_that_is_nested_too_deeply() -> None:
    async def work(host: FakeHost, door: server.AttemptEndpoint, session: Any) -> None:
        deep = b'{"model": "m", "messages": ' + b"[" * 200_000
        async with session.post(f"{door.url}/chat/completions", data=deep) as response:
            assert response.status == 400
        assert (await post(session, door, body()))[0] == 200

    at_the_bridge(work)


def at_the_bridge(work: "Callable[[FakeHost, server.AttemptEndpoint, Any], Awaitable[None]]") -> None:
    async def limited() -> None:
        host = FakeHost()
        host.go.set()
        async with opened(host) as (door, session):
            await work(host, door, session)

    asyncio.run(asyncio.wait_for(limited(), 60))


def test_a_small_zstd_file_is_unpacked_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl.zst"
    packing = zstandard.ZstdCompressor(level=1).compressobj()
    path.write_bytes(b"".join(packing.compress(bytes(1 << 20)) for _ in range(100)) + packing.flush())

    assert path.stat().st_size < 20_000
    held = _largest_piece(path, monkeypatch)
    assert held <= 10 << 20
    monkeypatch.setattr(readers, "_PACKED_BYTES", 16 * 1024)
    assert _largest_piece(path, monkeypatch) > 50 << 20, "negative control"


def _largest_piece(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    sizes: list[int] = []

    def noted(piece: bytes) -> memoryview:
        sizes.append(len(piece))
        return memoryview(piece)

    with monkeypatch.context() as patch:
        patch.setattr(readers, "memoryview", noted, raising=False)
        with pytest.raises(DataError, match="longer than 64 MiB"):
            list(open_rows(str(path)))
    return max(sizes)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_json_file_that_must_be_read_whole_is_bounded(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x.json.{suffix}"
    content = b"[" + b" " * (3 << 20) + b'{"input": "a"}]'
    path.write_bytes(gzip.compress(content) if suffix == "gz" else zstandard.compress(content))
    assert len(list(open_rows(str(path)))) == 1
    monkeypatch.setattr(readers, "_WHOLE_BYTES_MAX", 1 << 20)
    with pytest.raises(DataError, match="unpacks to more than 1 MiB"):
        list(open_rows(str(path)))


def test_a_file_of_empty_lines_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n" * 2000 + b'{"input": "a"}\n')
    assert len(list(open_rows(str(path)))) == 1
    monkeypatch.setattr(readers, "_EMPTY_LINES_MAX", 1000)
    with pytest.raises(DataError, match="empty lines"):
        list(open_rows(str(path)))


def test_a_csv_row_over_many_lines_is_bounded_and_a_wide_header_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    wide = ",".join(f"c{i}" for i in range(100_000))
    path.write_text(f"{wide}\n{wide}\n")
    assert len(list(open_rows(str(path)))) == 1
    path.write_text("a\n" + '"\n",' * 100_000)
    with pytest.raises(DataError, match="100001 fields"):
        list(open_rows(str(path)))
    monkeypatch.setattr(readers, "LINE_BYTES_MAX", 100_000)
    with pytest.raises(DataError, match="check its quotes"):
        list(open_rows(str(path)))


def test_a_line_without_end_in_a_strangers_plan_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("run", write_spec(tmp_path, rows=3), "--id", "x", cwd=tmp_path).code == 0
    path = str(tmp_path / "runs" / "sums" / "x" / "data.jsonl.zst")
    assert len(list(plan_files.read_lines(path))) == 3
    monkeypatch.setattr(plan_files, "LINE_BYTES_MAX", 10)
    with pytest.raises(DamagedError, match="longer than any that is written"):
        list(plan_files.read_lines(path))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"o":0,', '"o":900000000000000,', "record 4 (step) was not written by Holdfast"),
        ('"seed":0,', '"seed":"x",', "the spec in the journal cannot be read"),
    ],
)
def test_a_forged_journal_is_refused_in_one_sentence(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert call("run", write_spec(tmp_path, rows=1), "--id", "x", cwd=tmp_path).code == 0
    forge(tmp_path / "runs" / "sums" / "x", old.encode(), new.encode())
    for command in (("resume", "x", "--trust"), ("fork", "x", "--dry-run", "--trust"), ("verify", "x", "--scores")):
        done = call(*command, cwd=tmp_path)
        assert done.code == 5, done.said
        assert said in done.err
    for reading_command in (("show", "x"), ("report", "x"), ("ls",), ("export", "x")):
        assert call(*reading_command, cwd=tmp_path).code in (0, 5)


def forge(run: Path, old: bytes, new: bytes) -> None:
    """Change what the records say, with checksums that are right."""
    sealed = run / "journal" / "000001.jsonl.zst"
    content = unpacked(str(sealed))
    uid = json.loads(content.splitlines()[0])["d"]["run"]
    forged = []
    for line in content.splitlines():
        body = line[: line.rindex(b',"x":"')].replace(old, new)
        forged.append(b'%b,"x":"%016x"}\n' % (body, xxhash.xxh3_64_intdigest(body, seed_of(uid))))
    assert b"".join(forged) != content
    sealed.unlink()
    (run / "started.jsonl").unlink()
    (run / "journal" / "000001.jsonl").write_bytes(b"".join(forged))


def test_large_ordinals_take_little_memory() -> None:
    positions = Positions()
    for ordinal in (5, (1 << 30) - 1, 2000):
        positions[ordinal] = Position(1, 2, ordinal)
    assert list(positions) == [5, 2000, (1 << 30) - 1]
    assert positions[2000] == Position(1, 2, 2000)
    del positions[2000]
    assert 2000 not in positions
    assert len(positions) == 2


def test_a_pattern_that_backtracks_on_an_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SECONDS_MAX", 0.5)
    with pytest.raises(TimeoutError):
        worker_process.is_match("a" * 40 + "!", "(a+)+$")

    def seconds(length: int) -> float:
        began = time.process_time()
        worker_process.match_pattern("search", "a" * length + "!", "(a+)+$", False, 0)
        return time.process_time() - began

    assert seconds(20) > 16 * seconds(12), "negative control: in this process it would take for ever"


def test_an_expression_that_takes_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    monkeypatch.setattr(numeric, "_SECONDS_MAX", 2.0)
    began = time.monotonic()
    made = numeric.maths.function(Sample("s", "", "12", {}), Answer("$9^{9^{9^{9}}} + 1$"))
    with contextlib.suppress(TimeoutError, ValueError):
        assert asyncio.run(made).value is False
    assert time.monotonic() - began < 180  # with the import of math-verify on a busy machine


NUMBERS = {
    "groups": "1" + ",11" * 60_000,
    "groups, then words": "1" + ",11" * 60_000 + " " + "x" * 9_000,
    "European groups": "1" + ".111" * 40_000 + ".1",
    "powers": "9**9**9**9 " * 10_000,
    "exponents": "1e999999999 " * 10_000,
    "digits": "9" * 1_000_000,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_a_model_are_read_in_linear_time(name: str) -> None:
    began = time.process_time()
    numeric.numeric.function(Sample("s", "", "12", {}), Answer(NUMBERS[name]))
    assert time.process_time() - began < 5


def test_without_windows_reading_numbers_is_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "1" + ",11" * 3_000

    def seconds() -> float:
        began = time.process_time()
        numbers.last_quantity(text)
        return time.process_time() - began

    bounded = seconds()
    monkeypatch.setattr(numbers, "_WINDOW", 10**9)
    assert seconds() > 3 * bounded


@pytest.mark.parametrize("before", ["x" * 3990 + " ", "3 apples, " * 2000, ""])
@pytest.mark.parametrize("after", ["", "y" * 3995, " so it is." * 1000])
def test_the_last_number_is_found_wherever_windows_end(before: str, after: str) -> None:
    found = numbers.last_quantity(f"{before}1,234,567.5{after}")
    assert found is not None
    assert found.text == "1,234,567.5"
