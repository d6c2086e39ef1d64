"""Stores with runs in every state, made in this process: completed, interrupted, cancelled, failed, live."""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.engine import Engine
from holdfast.journal import Lock, Reader
from holdfast.models import ModelError, Request
from holdfast.records import Segment, draft, line_of, seed_of
from holdfast.records.line import FORMAT
from holdfast.runs import RunLocation, RunSummary, execute, find_run, list_runs, new_run_location
from holdfast.runs.maintenance.doctor import Finding, examine, fix
from tests.journals import unpacked
from tests.unit.engine.runs import Asked, cut_after, given, go, model, rows

ROWS = 3


def completed(store: Path, run_id: str = "done", experiment: str = "tests", **fields: Any) -> RunLocation:
    go(store, given([Asked(rows=rows(ROWS))], experiment=experiment, **fields), run_id=run_id)
    return find_run(str(store), f"{experiment}/{run_id}")


def interrupted(store: Path, run_id: str = "cut", experiment: str = "tests", finished: int = 1) -> RunLocation:
    """As a kill leaves it: no word of its end."""
    place = completed(store, run_id, experiment)
    seen = 0

    def keep(kind: str, data: dict[str, Any]) -> bool:
        nonlocal seen
        seen += kind == "sample.finished"
        return seen <= finished and kind != "run.completed"

    cut_after(store, keep, run_id)
    os.unlink(os.path.join(place.folder, "lease.json"))  # it knows of records that no kill would have lost
    return place


def stopped(store: Path, run_id: str, experiment: str = "tests", *, cancelled: bool = False) -> RunLocation:
    """Stopped in good order while its first requests were under way."""

    async def stop(engine: Engine, place: RunLocation) -> None:
        engine.stop("by the test", cancelled=cancelled)

    async def never(request: Request) -> str:
        await asyncio.sleep(3600)
        return ""

    wanted = given([Asked(rows=rows(ROWS))], [model("slow", never)], experiment=experiment, grace_seconds=0)
    go(store, wanted, stop, run_id)
    return find_run(str(store), f"{experiment}/{run_id}")


async def refuse(request: Request) -> str:
    raise ModelError("server", "no answer")


def with_failures(store: Path, run_id: str = "hurt", experiment: str = "tests") -> RunLocation:
    """Completed, and every sample failed."""
    task = Asked(rows=rows(ROWS), fields={"sample_retries": 0})
    go(store, given([task], [model("down", refuse)], experiment=experiment), run_id=run_id)
    return find_run(str(store), f"{experiment}/{run_id}")


@contextlib.contextmanager
def held(place: RunLocation) -> Iterator[None]:
    """As if a live process wrote it."""
    lock = Lock(place.folder)
    try:
        yield
    finally:
        lock.release()


def while_live(
    store: Path, run_id: str, work: Callable[[RunLocation], Awaitable[None]], samples: int = 2
) -> RunLocation:
    """A run whose requests are answered when the work beside it is done."""
    free = asyncio.Event()

    async def reply(request: Request) -> str:
        await free.wait()
        return "yes"

    async def beside(engine: Engine, place: RunLocation) -> None:
        try:
            await work(place)
        finally:
            free.set()

    wanted = given([Asked(rows=rows(samples))], [model("patient", reply)], grace_seconds=0, stall_seconds=1.0)

    async def both() -> None:
        where = new_run_location(wanted, str(store), run_id)
        problems: list[Exception] = []

        async def observe(engine: Engine, place: RunLocation) -> None:
            try:
                await beside(engine, place)
            except Exception as error:  # noqa: BLE001 - a failed assertion is raised below
                problems.append(error)

        await execute(wanted, where, observe)
        if problems:
            raise problems[0]

    asyncio.run(both())
    return find_run(str(store), run_id)


def of_newer_format(place: RunLocation) -> None:
    """Its journal begins as a later version of Holdfast would write it."""
    uid = Reader(place.journal).uid
    for name in sorted(os.listdir(place.journal)):
        path = os.path.join(place.journal, name)
        if os.path.isfile(path):
            os.unlink(path)
    newer = draft("segment", Segment(99, uid, 1, 1, 1))
    line = line_of(newer, 1, b"2030-01-01T00:00:00.000000Z", seed_of(uid))
    Path(place.journal, "000001.jsonl").write_bytes(line)
    assert FORMAT < 99


def damage(place: RunLocation, kind: str) -> None:
    """Flip a byte in the first record of a kind; the journal is unpacked for it."""
    for name in sorted(os.listdir(place.journal)):
        path = Path(place.journal, name)
        if not path.is_file():
            continue
        lines = unpacked(str(path)).splitlines(keepends=True)
        for index, line in enumerate(lines):
            if json.loads(line)["t"] == kind:
                lines[index] = line.replace(b'"t":"', b'"T":"', 1)
                path.unlink()
                path.with_name(name.removesuffix(".zst")).write_bytes(b"".join(lines))
                return
    raise AssertionError(f"there is no {kind} in {place.journal}")


def findings(store: Path, only: RunLocation | None = None) -> list[Finding]:
    return [diagnosis.finding for diagnosis in examine(str(store), only)]


def fixed_findings(store: Path) -> list[Finding]:
    return [fix(diagnosis) for diagnosis in examine(str(store))]


def listed(store: Path) -> dict[str, RunSummary]:
    return {summary.run_id: summary for summary in list_runs(str(store))}
