"""Whole runs in this process: a store in a temporary folder, models made of functions, the real journal."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.journal import Entry, Reader, journal_folder
from holdfast.journal.disk import OS_DISK
from holdfast.journal.ownership.lease import read_lease, write_lease
from holdfast.journal.segments import list_chain
from holdfast.models import Connection, Request
from holdfast.records.samples import Answer
from holdfast.report import ExportLine
from holdfast.runs import Given, Observe, Run, RunOutcome, execute, find_run, new_run_location
from holdfast.spec import build_spec
from tests.journals import unpacked

RUN = "run-1"
Reply = Callable[[Request], Awaitable[Answer | str]]
_REPLIES: dict[str, Reply] = {}
PROVIDER = f"{__name__}:make_provider"


class Replies:
    """A provider that a test wrote as a function."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def generate(self, request: Request) -> Answer:
        found = await self._reply(request)
        return Answer(found, {"role": "assistant", "content": found}) if isinstance(found, str) else found

    async def close(self) -> None: ...


def make_provider(connection: Connection) -> Replies:
    return Replies(_REPLIES[connection.model])


def model(name: str, reply: Reply, **fields: Any) -> dict[str, Any]:
    """A model of a spec that answers with a function."""
    _REPLIES[name] = reply
    return {"name": name, "provider": PROVIDER, "model": name, "request_retries": 0, **fields}


async def echo(request: Request) -> str:
    return str(request.messages[-1]["content"])


def mock(**fields: Any) -> dict[str, Any]:
    return {"name": "mock", "provider": "mock", "request_retries": 0, **fields}


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"s{number}", "input": f"question {number}", "target": f"question {number}"} for number in range(count)
    ]


class Asked(msgspec.Struct):
    """One task of a run."""

    name: str = "task"
    rows: Sequence[dict[str, Any]] = ()
    solver: Callable[..., Any] | None = None
    scorers: Sequence[Any] = ()
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


def given(tasks: Sequence[Asked], models: Sequence[Mapping[str, Any]] = (), **fields: Any) -> Given:
    raw = {
        "experiment": "tests",
        "tasks": [{"name": task.name, **task.fields} for task in tasks],
        "models": list(models or [mock()]),
        **fields,
    }
    return Given(
        spec=build_spec(raw),
        rows={task.name: list(task.rows) for task in tasks},
        solvers={task.name: task.solver for task in tasks if task.solver is not None},
        scorers={task.name: list(task.scorers) for task in tasks},
    )


def go(store: object, wanted: Given, observe: Observe | None = None, run_id: str = RUN) -> RunOutcome:
    return asyncio.run(execute(wanted, new_run_location(wanted, str(store), run_id), observe))


def folder(store: object, run_id: str = RUN) -> str:
    return find_run(str(store), run_id).folder


def lines(store: object, run_id: str = RUN) -> list[ExportLine]:
    with Run.find(str(store), run_id) as run:
        return list(run.lines())


def records(store: object, run_id: str = RUN) -> list[tuple[str, dict[str, Any]]]:
    """Every record's type and data."""
    found = Reader(journal_folder(folder(store, run_id))).read()
    return [(each.line.t, msgspec.json.decode(each.line.d)) for each in found if isinstance(each, Entry)]


def cut_after(
    store: object, keep: Callable[[str, dict[str, Any]], bool], run_id: str = RUN, *, forget: bool = True
) -> int:
    """As if the process had been killed: the journal ends before the first record that is not to be kept. `forget`: the
    lease does not know of the records behind it.
    """
    journal = journal_folder(folder(store, run_id))
    files = list_chain(OS_DISK, journal, None, {}).segments
    kept = 0
    done = False
    for file in files:
        content = unpacked(file.path)
        os.unlink(file.path)
        if done:
            continue
        left = b""
        for line in content.splitlines(keepends=True):
            record = msgspec.json.decode(line)
            if not keep(record["t"], record["d"]):
                done = True
                break
            left += line
            kept += 1
        if left:
            with open(file.path.removesuffix(".zst"), "wb") as out:
                out.write(left)
    lease = read_lease(folder(store, run_id)) if forget else None
    if lease is not None:  # it must not know of records that a killed process had not written
        write_lease(
            folder(store, run_id),
            msgspec.structs.replace(lease, acknowledged=min(lease.acknowledged, kept), end="", last_n=0),
        )
    return kept
