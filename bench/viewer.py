"""What does the web viewer cost: the server, per page, and the run that people look at?

Pages: server CPU per page on complete runs of 10,000 and 100,000 samples, and the server's memory after all of them;
`python -m bench.viewer 1000000` for others. The first request of a page may catch up an index; the later ones find it
up to date. Every page of the viewer's table is measured, so a new one is measured too. Target: 300 ms of CPU a page and
150 MB.

Transcript: the server's CPU for the page of a sample with 10,000 steps, when it is opened first and later. Target: 1 s.

Copy: the CPU time of `view --bundle` for 10,000 samples: of one thread, so on a quiet machine it takes as long. Target:
30 s.

Readers: a run that is going on, alone and with 50 open pages. Each reader holds an event stream and, as the viewer's
script does, loads its page again after an event, at most once a second. The run is measured by its own CPU and by the
time from its first record to its last; the samples wait for a server, as most runs do. Target: 3 percent.
"""

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from bench.looking import make_run, measure
from bench.measure import Spread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from holdfast.api import Task, run_async
from holdfast.journal import Entry, Reader, journal_folder
from holdfast.testing import Behaviour, start_server_process
from holdfast.view.pages import PAGES

SIZES = (10_000, 100_000)
READERS = 50
STEPS = 10_000
COPIED = 10_000
_ROUNDS = 5
_REPEATS = 5
_SAMPLES = 1_000
_AT_ONCE = 16
_RELOAD_SECONDS = 1.0
_ALONE, _READ = "alone", f"{READERS} readers"
_NAMES = {
    "experiment": "default",
    "run": "r",
    "task": "sums",
    "model": "mock",
    "sample": "500",
    "repeat": "1",
}
_RECORDS = "/api/runs/default/r/samples/sums/mock/500/1/records"
_SOLVER = """
async def walk(sample, ctx):
    for number in range(%d):
        answer = await ctx.generate([{"role": "user", "content": f"step {number} of {sample.input}"}])
    return answer
"""
_QUERIES = {
    "/": ["q=r"],
    "/runs/{experiment}/{run}/samples": ["status=finished", "wrong=1", "sort=-seconds", "q=499", "model=other"],
}
"""More addresses of some pages: filters, orders and a search."""


class PageCost(msgspec.Struct, frozen=True):
    """What a page takes from the server."""

    first_ms: float
    ms: float
    kilobytes: float


class ServerCost(msgspec.Struct, frozen=True):
    """All pages of one size of run."""

    pages: dict[str, PageCost]
    resident_mb: float
    peak_mb: float


class LiveCost(msgspec.Struct, frozen=True):
    """What a run came to while others looked at it."""

    dispatch_seconds: float
    cpu_seconds: float
    server_cpu_seconds: float = 0.0
    reloads: int = 0
    events: int = 0


class ViewServer:
    """`holdfast view` in a process of its own."""

    def __init__(self, folder: str) -> None:
        environment = {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, "cache")}
        command = [sys.executable, "-m", "holdfast", "view", "runs", "--port", "0", "--no-open"]
        self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        link = urlsplit(self._process.stdout.readline().strip())
        self.url = f"{link.scheme}://{link.netloc}"
        self.headers = {"Authorization": f"Bearer {link.query.removeprefix('token=')}"}

    def cpu_seconds(self) -> float:
        """From the CPU clock of the process (see clock_getcpuclockid(3)), also of threads that have ended: the ticks in
        /proc are too coarse for one page.
        """
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def memory_mb(self) -> tuple[float, float]:
        """Now, and at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        now, most = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return now, most

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(sizes: tuple[int, ...] = SIZES) -> list[Verdict]:
    pages = {size: _measure_pages(size) for size in sizes}
    verdicts = _report_pages(pages)
    transcript, copy_seconds = _measure_transcript(), _measure_copy()
    verdicts += _report_others(transcript, copy_seconds)
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        readers = {_ALONE: 0, _READ: READERS}
        live = take_turns(
            _ROUNDS, {name: partial(_measure_live, server.base_url, count) for name, count in readers.items()}
        )
    verdicts += _report_live(live)
    found = {"pages": pages, "transcript": transcript, "copy_seconds": copy_seconds, "live": live}
    save("viewer", found, verdicts)
    return verdicts


def _addresses(record: str) -> Iterator[str]:
    names = {**_NAMES, "n": record}
    for page in PAGES:
        path = re.sub(r"\{(\w+)[^{}]*\}", lambda match: quote(names[match[1]], safe=""), page.path)
        yield path
        yield "/api/runs" if path == "/" else f"/api{path}"
        yield from (f"{path}?{query}" for query in _QUERIES.get(page.path, ()))


def _measure_pages(size: int) -> ServerCost:
    with scratch("viewer") as folder:
        make_run(folder, size)
        server = ViewServer(folder)
        try:
            pages = asyncio.run(_load_pages(server))
            return ServerCost(pages, *server.memory_mb())
        finally:
            server.close()


async def _load_pages(server: ViewServer) -> dict[str, PageCost]:
    found = {}
    async with aiohttp.ClientSession(server.url, headers=server.headers) as session:
        async with session.get(_RECORDS) as response:
            record = (await response.json())["records"][0]["n"]
        await _wait_for_list(session)
        for address in _addresses(str(record)):
            used, length, status = [], 0, 0
            for _ in range(1 + _REPEATS):
                before = server.cpu_seconds()
                async with session.get(address) as response:
                    length, status = len(await response.read()), response.status
                used.append(1000 * (server.cpu_seconds() - before))
            if status == 200:
                found[address] = PageCost(used[0], statistics.median(used[1:]), length / 1000)
            else:
                print(f"  {address}: status {status}, not measured")
    return found


def _measure_transcript() -> PageCost:
    """The page of a sample with many steps. Its first window is requested, and then the last one."""
    with scratch("viewer-steps") as folder:
        Path(folder, "walking.py").write_text(_SOLVER % STEPS)
        rows = Path(folder, "rows.jsonl")
        rows.write_text('{"id": "1", "question": "a long way", "target": "the end"}\n')
        task = {"name": "sums", "dataset": {"path": "rows.jsonl"}, "prompt": "{question}", "solver": "walking:walk"}
        spec = {"experiment": "default", "tasks": [task], "models": [{"name": "mock", "provider": "mock"}]}
        Path(folder, "spec.json").write_bytes(msgspec.json.encode(spec))
        command = [sys.executable, "-m", "holdfast", "run", "spec.json", "--id", "r"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = ViewServer(folder)
        try:
            return asyncio.run(_load_transcript(server))
        finally:
            server.close()


async def _load_transcript(server: ViewServer) -> PageCost:
    address = "/runs/default/r/samples/sums/mock/1/1"
    used, length = [], 0
    async with aiohttp.ClientSession(server.url, headers=server.headers) as session:
        async with session.get("/runs/default/r") as response:  # the index of the run is not that of the sample
            assert response.status == 200
        for query in ("", *["?step=last"] * _REPEATS):
            before = server.cpu_seconds()
            async with session.get(address + query) as response:
                text = await response.text()
                assert response.status == 200, text
            used.append(1000 * (server.cpu_seconds() - before))
            assert f"of {STEPS:,}" in text
            length = len(text)
    return PageCost(used[0], statistics.median(used[1:]), length / 1000)


def _measure_copy() -> float:
    with scratch("viewer-copy") as folder:
        make_run(folder, COPIED)
        environment = {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, "cache")}
        command = [sys.executable, "-m", "holdfast", "view", "r", "--bundle", "copy"]
        return measure(command, folder, environment).cpu_seconds


def _report_others(transcript: PageCost, copy_seconds: float) -> list[Verdict]:
    rows = [
        [f"a sample with {STEPS:,} steps, opened first: CPU ms", f"{transcript.first_ms:.0f}", "1000"],
        [f"a sample with {STEPS:,} steps, its last window: CPU ms", f"{transcript.ms:.0f}", "1000"],
        [f"a static copy of {COPIED:,} samples: CPU s", f"{copy_seconds:.1f}", "30"],
    ]
    print_table("Transcript and static copy", ["what", "measured", "target"], rows)
    most = max(transcript.first_ms, transcript.ms)
    return [
        at_most(f"viewer: a sample with {STEPS:,} steps, CPU ms", most, 1000),
        at_most(f"viewer: a static copy of {COPIED:,} samples, CPU s", copy_seconds, 30),
    ]


async def _wait_for_list(session: aiohttp.ClientSession) -> None:
    """The list of samples is made in the background at the first request."""
    while True:
        async with session.get("/runs/default/r/samples") as response:
            if "data-poll" not in await response.text():
                return
        await asyncio.sleep(0.2)


def _report_pages(found: dict[int, ServerCost]) -> list[Verdict]:
    sizes = list(found)
    heads = [f"{size:,}: {what}" for size in sizes for what in ("first ms", "ms", "kB")]
    rows = []
    for address in found[sizes[0]].pages:
        costs = [found[size].pages.get(address) for size in sizes]
        rows.append([address, *(cell for each in costs for cell in _cells(each))])
    print_table("Server CPU per page", ["page", *heads], rows)
    memory = [[f"{size:,}", f"{found[size].resident_mb:.0f}", f"{found[size].peak_mb:.0f}"] for size in sizes]
    print_table("Memory of the server after all pages", ["samples", "MB", "peak MB"], memory)
    largest, size = found[sizes[-1]], sizes[-1]
    slowest = max(largest.pages, key=lambda each: largest.pages[each].ms)
    return [
        at_most(f"viewer: slowest page at {size:,} ({slowest}), CPU ms", largest.pages[slowest].ms, 300),
        at_most(f"viewer: memory of the server at {size:,}, MB", largest.resident_mb, 150),
    ]


def _cells(cost: PageCost | None) -> list[str]:
    return ["", "", ""] if cost is None else [f"{cost.first_ms:.0f}", f"{cost.ms:.1f}", f"{cost.kilobytes:.0f}"]


def _measure_live(base_url: str, readers: int) -> LiveCost:
    with scratch("viewer-live") as folder:
        os.mkdir(os.path.join(folder, "runs"))
        server = ViewServer(folder) if readers else None
        before = server.cpu_seconds() if server is not None else 0.0
        command = [sys.executable, "-m", "bench.viewer", "--run", base_url]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        run = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
        try:
            if server is None:
                return _outcome(run, folder)
            journal = Path(folder, "runs", "default", "r", "journal")
            while run.poll() is None and not (journal.is_dir() and any(journal.iterdir())):
                time.sleep(0.01)
            reloads, events = asyncio.run(_read(server, readers, run))
            used = server.cpu_seconds() - before
            return msgspec.structs.replace(
                _outcome(run, folder), server_cpu_seconds=used, reloads=reloads, events=events
            )
        finally:
            run.kill()
            run.wait()
            if server is not None:
                server.close()


def _outcome(run: "subprocess.Popen[bytes]", folder: str) -> LiveCost:
    out, _ = run.communicate()
    (journal,) = Path(folder).glob(f"runs/*/r/{journal_folder('')}")
    times = [each.line.at for each in Reader(str(journal)).read() if isinstance(each, Entry)]
    first, last = (datetime.fromisoformat(at) for at in (times[0], times[-1]))
    return LiveCost((last - first).total_seconds(), float(out))


async def _read(server: ViewServer, readers: int, run: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """Readers until the run has ended. How often they have loaded the page, and how many events they got."""
    counts = [0, 0]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, headers=server.headers, connector=connector) as session:
        async with session.get("/runs/default/r") as response:
            assert response.status == 200, await response.text()
        tasks = [asyncio.create_task(_follow(session, counts)) for _ in range(readers)]
        await asyncio.to_thread(run.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return counts[0], counts[1]


async def _follow(session: aiohttp.ClientSession, counts: list[int]) -> None:
    """As the viewer's script does: an event loads the page, unless it is being loaded."""
    changed = asyncio.Event()

    async def reload() -> None:
        while True:
            await changed.wait()
            changed.clear()
            async with session.get("/runs/default/r") as response:
                await response.read()
            counts[0] += 1
            await asyncio.sleep(_RELOAD_SECONDS)

    task = asyncio.create_task(reload())
    try:
        async with session.get("/api/runs/default/r/events") as response:
            async for line in response.content:
                if line.startswith(b"event: records"):
                    counts[1] += 1
                    changed.set()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _report_live(found: dict[str, list[LiveCost]]) -> list[Verdict]:
    rows = []
    for name, every in found.items():
        rows.append(
            [
                name,
                Spread.of([each.dispatch_seconds for each in every]).show(2),
                Spread.of([each.cpu_seconds for each in every]).show(2),
                Spread.of([each.server_cpu_seconds for each in every]).show(2),
                Spread.of([each.reloads for each in every]).show(),
                Spread.of([each.events for each in every]).show(),
            ]
        )
    header = ["the run", "dispatch s", "CPU s", "CPU s of the server", "pages loaded", "events"]
    print_table(f"A live run of {_SAMPLES:,} samples", header, rows)
    alone, read = found[_ALONE], found[_READ]
    cpu = paired_ratio([each.cpu_seconds for each in read], [each.cpu_seconds for each in alone])
    lowest = min(each.dispatch_seconds for each in read) / min(each.dispatch_seconds for each in alone)
    return [
        at_most(f"viewer: dispatch with {READERS} readers, lowest to lowest without", lowest, 1.03),
        at_most(f"viewer: CPU of a run with {READERS} readers to without", cpu.median, 1.03),
    ]


def _be_run(base_url: str) -> float:
    async def run() -> None:
        rows = [{"id": n, "question": f"{n} + 1", "answer": n + 1} for n in range(_SAMPLES)]
        task = Task("sums", rows, "{question}", scorers=["numeric"])
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": base_url, "max_connections": _AT_ONCE}
        await run_async(task, [model], id="r", store="runs", experiment="default", concurrency={"samples": _AT_ONCE})

    before = time.process_time()
    asyncio.run(run())
    return time.process_time() - before


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(_be_run(sys.argv[2]))
    else:
        print_verdicts(main(tuple(map(int, sys.argv[1:])) or SIZES))
