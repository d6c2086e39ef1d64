"""Who asks a model server faster, and at what cost? 10,000 samples against a server that takes 100 ms, 500 and 2,000 in
flight: Holdfast (a fixed number at a time, and adaptive), a bare aiohttp loop, a loop over the `openai` SDK, which both
save nothing, and inspect-ai, if HOLDFAST_INSPECT names its `inspect` command (with `openai` installed beside it). The
last two are given fewer samples. Then Holdfast's memory with 5,000 in flight.

Every contestant has a process of its own. Their rates are shown as shares of the bare loop's of the same round, for all
samples and for the second half of them: `adaptive` finds its number of connections in the first half. What is counted
begins when their modules are imported, except for inspect-ai: of that, all of the process.

Targets: 0.95 of the bare loop, of all samples with a fixed number, of the second half with `adaptive`.
"""

import asyncio
import functools
import importlib
import resource
import sys
import time
from datetime import datetime
from pathlib import Path

import aiohttp
import msgspec

from bench.inspect_peer import environment, inspect_command
from bench.measure import Spread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_least, at_most, print_table, save
from bench.processes import taken_by
from holdfast.api import Task, run_async
from holdfast.journal import Entry, Reader
from holdfast.testing import Behaviour, start_server_process

SAMPLES = 10_000
ROUNDS = 3
IN_FLIGHT = (500, 2_000)
TARGET = 0.95
MOST_IN_FLIGHT = 5_000
_ROOT = Path(__file__).resolve().parents[1]
_FEWER = {"openai SDK": 1_000, "inspect-ai": 300}
_OWN = {"bare loop": "bare", "holdfast, fixed": "fixed", "holdfast, adaptive": "adaptive", "openai SDK": "sdk"}
_BEHAVIOUR = Behaviour(latency_seconds=0.1)
_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match

@task
def sums(n: int = 1000) -> Task:
    rows = [Sample(id=i, input=f"{i} + 1", target=str(i + 1)) for i in range(1, n + 1)]
    return Task(dataset=MemoryDataset(rows, name="sums"), scorer=match(location="any"))
"""


class Took(msgspec.Struct, frozen=True):
    """One pass over all samples."""

    samples: int
    wall_seconds: float
    cpu_seconds: float
    peak_mb: float
    later_per_second: float = 0.0
    """Of the second half of the samples; 0 if not measured."""

    @property
    def per_second(self) -> float:
        return self.samples / self.wall_seconds

    @property
    def cpu_microseconds(self) -> float:
        """Of each sample."""
        return 1e6 * self.cpu_seconds / self.samples


def main() -> list[Verdict]:
    figures: dict[str, dict[str, list[Took]]] = {}
    verdicts: list[Verdict] = []
    with start_server_process(_BEHAVIOUR) as server:
        for at_once in IN_FLIGHT:
            took = _compared(server.base_url, at_once)
            figures[f"{at_once} in flight"] = took
            _show(at_once, took)
            rates = {name: [each.per_second for each in found] for name, found in took.items()}
            later = {name: [each.later_per_second for each in found] for name, found in took.items()}
            fixed = paired_ratio(rates["holdfast, fixed"], rates["bare loop"]).median
            adaptive = paired_ratio(later["holdfast, adaptive"], later["bare loop"]).median
            verdicts.append(at_least(f"clients: fixed / bare loop, {at_once} in flight", fixed, TARGET))
            verdicts.append(at_least(f"clients: adaptive / bare loop after its start, {at_once}", adaptive, TARGET))
        most = _measure("fixed", server.base_url, SAMPLES, MOST_IN_FLIGHT)
    figures[f"{MOST_IN_FLIGHT} in flight"] = {"holdfast, fixed": [most]}
    print(f"  {MOST_IN_FLIGHT:,} in flight: {most.peak_mb:.0f} MB, {most.cpu_microseconds:.0f} us of CPU a sample")
    verdicts.append(at_most(f"clients: MB with {MOST_IN_FLIGHT} in flight", most.peak_mb, 400))
    save("clients", figures, verdicts)
    return verdicts


def _compared(base_url: str, at_once: int) -> dict[str, list[Took]]:
    contestants = {
        name: functools.partial(_measure, what, base_url, _FEWER.get(name, SAMPLES), at_once)
        for name, what in _OWN.items()
    }
    took = take_turns(ROUNDS, contestants)
    if inspect_command():
        took["inspect-ai"] = [_measure_inspect(base_url, at_once)]
    return took


def _show(at_once: int, took: dict[str, list[Took]]) -> None:
    bare = Spread.of([each.per_second for each in took["bare loop"]]).median
    later = Spread.of([each.later_per_second for each in took["bare loop"]]).median
    rows = [
        [
            name,
            Spread.of([each.per_second for each in found]).show(),
            f"{Spread.of([each.per_second for each in found]).median / bare:.2f}",
            f"{Spread.of([each.later_per_second for each in found]).median / later:.2f}",
            Spread.of([each.cpu_microseconds for each in found]).show(),
            Spread.of([each.peak_mb for each in found]).show(),
        ]
        for name, found in took.items()
    ]
    print_table(
        f"{at_once} in flight", ["who", "samples / s", "to bare", "second half", "CPU us a sample", "peak MB"], rows
    )


def _measure(what: str, base_url: str, samples: int, at_once: int) -> Took:
    with scratch("clients") as folder:
        there = {**environment(folder), "PYTHONPATH": ":".join((str(_ROOT), *filter(None, sys.path)))}
        taken = taken_by(
            [sys.executable, "-m", "bench.clients", what, base_url, str(samples), str(at_once)], there, folder
        )
        told = msgspec.json.decode(Path(folder, "said.txt").read_bytes().splitlines()[-1], type=Took)
    return msgspec.structs.replace(told, peak_mb=taken.peak_mb)


def _measure_inspect(base_url: str, at_once: int) -> Took:
    samples = _FEWER["inspect-ai"]
    with scratch("inspect") as folder:
        Path(folder, "inspect_task.py").write_text(_TASK)
        model = ["--model", "openai/m", "--model-base-url", base_url, "-M", "responses_api=false"]
        limits = ["--max-connections", str(at_once), "--max-samples", str(at_once), "--display", "plain"]
        command = [inspect_command(), "eval", "inspect_task.py", "-T", f"n={samples}", "--log-dir", "logs"]
        there = {**environment(folder), "OPENAI_API_KEY": "none"}
        taken = taken_by([*command, *model, *limits], there, folder)
    return Took(samples, taken.wall_seconds, taken.cpu_seconds, taken.peak_mb)


async def _ask_bare(base_url: str, samples: int, at_once: int) -> list[float]:
    numbers = iter(range(samples))
    ended: list[float] = []
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                body = {"model": "m", "messages": [{"role": "user", "content": f"{number} + 1"}]}
                async with session.post(f"{base_url}/chat/completions", json=body) as response:
                    (await response.json())["choices"][0]["message"]["content"]
                ended.append(time.time())

        await asyncio.gather(*(work() for _ in range(at_once)))
    return ended


async def _ask_sdk(base_url: str, samples: int, at_once: int) -> list[float]:
    from openai import AsyncOpenAI

    numbers = iter(range(samples))
    ended: list[float] = []
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=10) as client:

        async def work() -> None:
            for number in numbers:
                asked = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"{number} + 1"}]
                )
                assert asked.choices[0].message.content
                ended.append(time.time())

        await asyncio.gather(*(work() for _ in range(at_once)))
    return ended


async def _ask_holdfast(base_url: str, samples: int, at_once: int, folder: str, *, adaptive: bool) -> None:
    rows = [{"id": number, "question": f"{number} + 1", "answer": number + 1} for number in range(samples)]
    task = Task("sums", rows, "{question}", scorers=["numeric"])
    model = {"name": "m", "provider": "openai", "model": "m", "base_url": base_url, "max_connections": at_once}
    limits = {"samples": at_once}
    await run_async(task, [{**model, "adaptive": adaptive}], id="r", store=folder, concurrency=limits)


def _times_in_journal(folder: str) -> list[float]:
    """When each answer was saved."""
    reader = Reader(str(next(Path(folder).rglob("journal"))))
    entries = (each for each in reader.read() if isinstance(each, Entry) and each.line.t == "sample.finished")
    return [datetime.fromisoformat(each.line.at).timestamp() for each in entries]


def _be_child(what: str, base_url: str, samples: int, at_once: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if what == "sdk":
        importlib.import_module("openai")  # not counted
    with scratch("store") as folder:
        began, cpu = time.perf_counter(), time.process_time()
        if what == "bare":
            ended = asyncio.run(_ask_bare(base_url, samples, at_once))
        elif what == "sdk":
            ended = asyncio.run(_ask_sdk(base_url, samples, at_once))
        else:
            asyncio.run(_ask_holdfast(base_url, samples, at_once, folder, adaptive=what == "adaptive"))
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        if what in {"fixed", "adaptive"}:
            ended = _times_in_journal(folder)
    half = len(ended) // 2
    print(msgspec.json.encode(Took(samples, wall, used, 0.0, half / (ended[-1] - ended[-half - 1]))).decode())


if __name__ == "__main__":
    if sys.argv[1:]:
        _be_child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
