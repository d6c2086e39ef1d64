"""Forks, extensions and retries in this process, on the runs of `tests.unit.engine.runs`; and what was asked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.models import ModelError, Request
from holdfast.records.samples import Answer, Usage
from holdfast.runs import Given, Retry, Run, RunOutcome, RunSummary, execute, extend, find_run, new_run_location
from holdfast.runs.fork import Forecast, Fork
from tests.unit.engine.runs import RUN

FORK = "fork"


class Told:
    """A model that repeats the last message, says which try it was if asked so, and remembers every request."""

    def __init__(self, fails: Callable[[str], bool] = lambda text: False) -> None:
        self.asked: list[str] = []
        self.requests: list[Request] = []
        self.fails = fails

    async def __call__(self, request: Request) -> Answer:
        text = str(request.messages[-1]["content"])
        self.asked.append(text)
        self.requests.append(request)
        if self.fails(text):
            raise ModelError("server", f"no answer to {text}")
        return Answer(text, {"role": "assistant", "content": text}, usage=Usage(10, 1))

    def since(self, before: int) -> list[str]:
        return sorted(self.asked[before:])


class Forked(msgspec.Struct, frozen=True):
    """What a fork said beforehand, and how it ended."""

    forecast: Forecast
    ended: RunOutcome
    doubt: str = ""


def fork(store: object, wanted: Given, run_id: str = FORK, parent: str = RUN) -> Forked:
    """As the command does it: forecast, make, continue."""

    async def work() -> Forked:
        place = new_run_location(wanted, str(store), run_id)
        making = Fork(find_run(str(store), parent), place, wanted)
        try:
            forecast = await making.forecast()
            await making.make()
        finally:
            await making.drop()
        return Forked(forecast, await execute(wanted, place), making.doubt)

    return asyncio.run(work())


def forecast(store: object, wanted: Given, run_id: str = FORK, parent: str = RUN) -> Forecast:
    """As `fork --dry-run` does it."""

    async def work() -> Forecast:
        making = Fork(find_run(str(store), parent), new_run_location(wanted, str(store), run_id), wanted)
        try:
            return await making.forecast()
        finally:
            await making.drop()

    return asyncio.run(work())


def grow(store: object, wanted: Given, run_id: str = RUN) -> RunOutcome:
    return asyncio.run(extend(wanted, new_run_location(wanted, str(store), run_id)))


def retry(store: object, wanted: Given, chosen: Retry, run_id: str = RUN) -> RunOutcome:
    return asyncio.run(execute(wanted, new_run_location(wanted, str(store), run_id), retry=chosen))


def summary(store: object, run_id: str = RUN) -> RunSummary:
    """Whose counts always add up."""
    with Run.find(str(store), run_id) as run:
        found = run.summary()
    assert found.finished + found.failed + found.unfinished == found.planned
    return found


def steps_of(store: object, run_id: str = RUN) -> tuple[int, int, int]:
    """Asked live, replayed, orphaned."""
    steps = summary(store, run_id).steps
    return steps["live"], steps["replayed"], steps["orphaned"]


def told_of(store: object, run_id: str = RUN) -> dict[str, tuple[str, str | None, dict[str, Any]]]:
    """By key: status, output, scores."""
    with Run.find(str(store), run_id) as run:
        found = list(run.lines())
    assert len({line.key for line in found}) == len(found)
    return {line.key: (line.status, line.output, line.scores) for line in found}


def files(folder: Path) -> dict[str, bytes]:
    """Every file and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(folder.rglob("*"))
    }
