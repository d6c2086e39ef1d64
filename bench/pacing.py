"""How soon does a run use what a server bears, and what does finding out cost? Holdfast with its adaptive window
against itself with a fixed one (too low, right, too high), on servers that bear so many requests at a time: always the
same, or more and then less.

Time until 90 % of the server's capacity is used, time for everything, and requests refused with 429. No target but one:
adaptive takes at most 1.3 times as long as the right number, which nobody knows beforehand.
"""

import asyncio
import time

import msgspec

from bench.measure import Spread, scratch
from bench.outcome import Verdict, at_most, print_table, save
from holdfast.api import Task, run_async
from holdfast.testing import Behaviour, Load, ModelServer

SAMPLES = 2_000
BEARS = 40
ROUNDS = 3
_LATENCY_SECONDS = 0.1
_CEILING = 256
_TICK_SECONDS = 0.05
_CHANGES = ((0.0, 20), (2.0, 80), (4.0, 30))
"""From so many seconds on it bears so many."""

_CLIENTS: dict[str, dict[str, object]] = {
    "adaptive": {"max_connections": _CEILING},
    "fixed, too low (10)": {"max_connections": 10, "adaptive": False},
    "fixed, right (40)": {"max_connections": BEARS, "adaptive": False},
    "fixed, too high (256)": {"max_connections": _CEILING, "adaptive": False},
}


class Took(msgspec.Struct, frozen=True):
    """One run."""

    seconds: float
    seconds_to_90: float
    """Until the server first had nine tenths of what it bears under way; the whole time if it never had."""
    refused: int
    failed: int


def main() -> list[Verdict]:
    figures: dict[str, dict[str, list[Took]]] = {}
    for kind, changes in (("fixed limit", ((0.0, BEARS),)), ("changing limit", _CHANGES)):
        took: dict[str, list[Took]] = {name: [] for name in _CLIENTS}
        for _ in range(ROUNDS):
            for name, settings in _CLIENTS.items():
                took[name].append(asyncio.run(_measure(settings, changes)))
        figures[kind] = took
        rows = [_row(name, found) for name, found in took.items()]
        title = (
            f"{SAMPLES:,} samples of {_LATENCY_SECONDS:g} s, {kind}: {', '.join(str(bears) for _, bears in changes)}"
        )
        print_table(title, ["who", "s to 90 %", "s in all", "refused", "failed"], rows)
    verdicts = [
        at_most(f"pacing: adaptive / right number, seconds, {kind}", _ratio(took), 1.3)
        for kind, took in figures.items()
    ]
    verdicts.append(at_most("pacing: samples failed, adaptive", _failed(figures), 0))
    save("pacing", figures, verdicts)
    return verdicts


def _ratio(took: dict[str, list[Took]]) -> float:
    adaptive, right = (
        Spread.of([each.seconds for each in took[name]]).median for name in ("adaptive", "fixed, right (40)")
    )
    return adaptive / right


def _failed(figures: dict[str, dict[str, list[Took]]]) -> int:
    return sum(each.failed for took in figures.values() for each in took["adaptive"])


def _row(name: str, found: list[Took]) -> list[str]:
    return [
        name,
        Spread.of([each.seconds_to_90 for each in found]).show(2),
        Spread.of([each.seconds for each in found]).show(2),
        Spread.of([each.refused for each in found]).show(),
        Spread.of([each.failed for each in found]).show(),
    ]


async def _measure(settings: dict[str, object], changes: tuple[tuple[float, int], ...]) -> Took:
    rows = [{"id": number, "question": f"{number} + 1", "answer": number + 1} for number in range(SAMPLES)]
    task = Task("sums", rows, "{question}", scorers=["numeric"])
    async with ModelServer(_behaviour(changes[0][1])) as server:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url, **settings}
        with scratch("pacing") as folder:
            watching = asyncio.ensure_future(_change_and_watch(server, changes))
            began = time.perf_counter()
            run = await run_async(task, [model], id="r", store=folder, concurrency={"samples": _CEILING}, quiet=True)
            took = time.perf_counter() - began
            watching.cancel()
            reached = await asyncio.gather(watching, return_exceptions=True)
            failed = run.summary().failed
        to_90 = reached[0] if isinstance(reached[0], float) else took
        return Took(took, to_90, server.stats().faults.get("429", 0), failed)


async def _change_and_watch(server: ModelServer, changes: tuple[tuple[float, int], ...]) -> float:
    """Change what the server bears, from its first request on. When 90 % of what it bears at last were under way."""
    while not server.stats().requests:  # noqa: ASYNC110 - the server tells nobody of its requests
        await asyncio.sleep(_TICK_SECONDS / 10)
    began = time.perf_counter()
    for at, bears in changes:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        server.behaviour = _behaviour(bears)
    changed = time.perf_counter()
    answered = server.stats().answered
    while True:
        await asyncio.sleep(_TICK_SECONDS * 4)
        before, answered = answered, server.stats().answered
        if answered - before >= 0.9 * changes[-1][1] * _TICK_SECONDS * 4 / _LATENCY_SECONDS:
            break
    reached = time.perf_counter() - changed
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return reached
    raise AssertionError("unreachable")


def _behaviour(bears: int) -> Behaviour:
    return Behaviour(latency_seconds=_LATENCY_SECONDS, load=Load(in_flight=bears))


if __name__ == "__main__":
    main()
