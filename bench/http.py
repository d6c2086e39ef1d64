"""What does saving everything cost over HTTP? 10,000 samples against a server that takes 100 ms, 500 in flight, beside
a bare aiohttp loop that asks the same and saves nothing. Target: 0.85 times the loop's rate.
"""

import asyncio
import time

import aiohttp
import msgspec

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_least, print_table, save
from holdfast.api import Task, run_async
from holdfast.testing import Behaviour, start_server_process

SAMPLES = 10_000
IN_FLIGHT = 500
ROUNDS = 3
_BEHAVIOUR = Behaviour(latency_seconds=0.1)


class Took(msgspec.Struct, frozen=True):
    """One pass over all samples."""

    wall_seconds: float
    cpu_seconds: float


def main() -> list[Verdict]:
    took: dict[str, list[Took]] = {"bare loop": [], "holdfast": []}
    with start_server_process(_BEHAVIOUR) as server:
        for _ in range(ROUNDS):
            took["bare loop"].append(_timed_bare(server.base_url))
            took["holdfast"].append(_timed_holdfast(server.base_url))
    rows = [
        [
            name,
            Spread.of([SAMPLES / each.wall_seconds for each in found]).show(),
            Spread.of([each.wall_seconds for each in found]).show(2),
            Spread.of([each.cpu_seconds for each in found]).show(2),
        ]
        for name, found in took.items()
    ]
    print_table(f"{SAMPLES:,} requests, {IN_FLIGHT} in flight", ["who", "samples / s", "wall s", "client CPU s"], rows)
    bare, ours = (Spread.of([each.wall_seconds for each in found]).median for found in took.values())
    verdicts = [at_least("http: rate / bare loop that saves nothing", bare / ours, 0.85)]
    save("http", took, verdicts)
    return verdicts


def _timed_bare(base_url: str) -> Took:
    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(_bare(base_url))
    return Took(time.perf_counter() - began, time.process_time() - cpu)


def _timed_holdfast(base_url: str) -> Took:
    with scratch("http") as folder:
        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(_holdfast(base_url, folder))
        return Took(time.perf_counter() - began, time.process_time() - cpu)


async def _bare(base_url: str) -> None:
    numbers = iter(range(SAMPLES))
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                body = {"model": "m", "messages": [{"role": "user", "content": f"{number} + 1"}]}
                async with session.post(f"{base_url}/chat/completions", json=body) as response:
                    (await response.json())["choices"][0]["message"]["content"]

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def _holdfast(base_url: str, folder: str) -> None:
    rows = [{"id": number, "question": f"{number} + 1", "answer": number + 1} for number in range(SAMPLES)]
    task = Task("sums", rows, "{question}", scorers=["numeric"])
    model = {"name": "m", "provider": "openai", "model": "m", "base_url": base_url, "max_connections": IN_FLIGHT}
    await run_async(task, [model], id="r", store=folder, concurrency={"samples": IN_FLIGHT})


if __name__ == "__main__":
    main()
