"""Runs that live in processes of their own, watched from this one."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.commands import call, finish, shown, start, write_spec

RUN = "x"
PATIENCE_SECONDS = 300.0
"""Only a failing test waits so long: a busy machine may be a hundred times slower than a quiet one."""

ASK_TWICE = '''\
async def ask_twice(sample, ctx):
    """Two turns, so that a kill also finds samples that are half done."""
    first = await ctx.generate()
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])
'''
"""Beside a spec, as `twice.py`."""

MINE = '''\
"""Solvers and scorers that misbehave."""
import asyncio, pathlib, time

def begin():
    pathlib.Path("begun").touch()

async def twice(sample, ctx):
    first = await ctx.generate()
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])

async def block_the_loop(sample, ctx):
    if sample.id == "s0001":
        await ctx.generate()
        time.sleep(4)
    return await ctx.generate()

async def wait_for_ever(sample, ctx):
    if sample.id == "s0002":
        await ctx.generate()
        await asyncio.Event().wait()
    return await ctx.generate()

async def hang_and_work(sample, ctx):
    if sample.id == "s0001":
        await asyncio.Event().wait()
    for turn in range(100):
        await asyncio.sleep(0.2)
        await ctx.generate([{"role": "user", "content": f"{turn} + 1"}])
    return "done"

async def swallow_cancellation(sample, ctx):
    begin()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def try_for_ever(sample, ctx):
    begin()
    while True:
        try:
            return await ctx.generate()
        except:
            pass

async def block_for_ever(sample, ctx):
    await ctx.generate()
    begin()
    while True:
        time.sleep(1)

async def use_threads(sample, ctx):
    if int(sample.id[1:]) <= 30:
        await asyncio.to_thread(time.sleep, 5)
    return await ctx.generate()

async def ask_many(sample, ctx):
    asked = [ctx.generate([{"role": "user", "content": f"{i} + {sample.input}"}]) for i in range(10)]
    return (await asyncio.gather(*asked))[0]

async def slow_scorer(sample, answer):
    await asyncio.sleep(3600)
    return True

async def hanging_scorer(sample, answer):
    if sample.id == "s0001":
        await asyncio.Event().wait()
    return True
'''


class Stage(NamedTuple):
    """A spec with code beside it, and a store."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        return self.store / "sums" / RUN

    def has_begun(self) -> bool:
        """Whether commands find the run: its folder is made before its journal."""
        return any(path.name.endswith((".jsonl", ".jsonl.zst")) for path in self.run.glob("journal/*"))

    @property
    def command(self) -> tuple[str | Path, ...]:
        return "run", self.folder / "eval.yaml", "--id", RUN, "--store", self.store

    @property
    def resume(self) -> tuple[str | Path, ...]:
        return "resume", RUN, "--store", self.store

    def show(self) -> dict[str, Any]:
        return shown(RUN, self.store)

    def told(self) -> str:
        """`show` as a person sees it."""
        done = call("show", RUN, "--store", self.store, cwd=self.folder)
        assert done.code == 0, done.err
        return done.out

    def status(self) -> str:
        return str(self.show()["status"])

    def log(self) -> list[dict[str, Any]]:
        path = self.run / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self) -> list[str]:
        return [line["event"] for line in self.log()]


def stage(folder: Path, rows: int = 6, base_url: str = "", **changes: Any) -> Stage:
    (folder / "mine.py").write_text(MINE)
    write_spec(folder, rows, base_url, **{"stall_seconds": 1.0, "grace_seconds": 1.0, **changes})
    return Stage(folder)


@contextmanager
def alive(course: Stage, *arguments: str | Path) -> "Iterator[subprocess.Popen[str]]":
    """The run in a process that does not outlive the test."""
    process = start(*(arguments or course.command), cwd=course.folder)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(happened: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Fails, with what was waited for, if it does not happen in time."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"it did not happen in {seconds:g} s: {what}"
        time.sleep(0.05)


def begun(course: Stage, process: "subprocess.Popen[str]") -> None:
    """Wait until the run is at work: its first beat has been written."""
    lease = course.run / "lease.json"

    def is_at_work() -> bool:
        assert process.poll() is None, finish(process).err
        try:
            found = json.loads(lease.read_text())
        except (OSError, json.JSONDecodeError):
            return False
        return bool(found["holder"]["pid"] == process.pid and found.get("in_flight", 0) > 0)

    wait_for(is_at_work, "the run works")


def ends(process: "subprocess.Popen[str]", seconds: float = PATIENCE_SECONDS) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


GATED = """\
import asyncio, itertools, json, os

number = itertools.count(1).__next__

async def answer(request):
    mine = number()
    with open({asked!r}, "a") as file:
        file.write(json.dumps(request.messages) + "\\n")
    if mine > {free}:
        while not os.path.exists({gate!r}) and not (mine <= {some} and os.path.exists({gate!r} + "-for-some")):
            await asyncio.sleep(0.01)
    return "8"
"""


class Gate(NamedTuple):
    """A model that answers the first few requests of each process at once, and the others when the gate is open."""

    path: Path

    @property
    def model(self) -> dict[str, Any]:
        return {"provider": "gated:answer", "options": {}}

    @property
    def asked(self) -> list[str]:
        """Every request, of all processes."""
        path = self.path.with_name("asked")
        return path.read_text().splitlines() if path.exists() else []

    def open(self) -> None:
        self.path.touch()

    def open_for_some(self) -> None:
        self.path.with_name(f"{self.path.name}-for-some").touch()


def gate(folder: Path, free: int = 0, some: int = 0) -> Gate:
    """`some`: how many requests of each process are also answered when the gate is open for some."""
    made = Gate(folder / "gate")
    values = {"free": free, "some": some, "gate": str(made.path), "asked": str(folder / "asked")}
    (folder / "gated.py").write_text(GATED.format(**values))
    return made


def is_stopping(course: Stage) -> bool:
    """Whether the run knows that it is to stop."""
    return "run.shutdown_requested" in course.events()


def mock(seconds: float, **options: Any) -> dict[str, Any]:
    """A model that answers late."""
    return {"options": {"reply": "8", "latency_seconds": seconds, **options}}
