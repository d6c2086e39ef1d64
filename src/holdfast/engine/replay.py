"""A sample's code with nothing but recorded steps: no model is asked, no tool is called, no record is written.

The code itself really runs, with all that it does beside its steps: the program of a `command` is started.

`set_stage` is for everyone who runs it so. A rehearsal is one such: it sees what a sample would still have to ask.
Where its code asks for what is not recorded, it waits for ever; branches that need nothing new go on, and when all is
quiet the rehearsal ends. Code that for some seconds neither takes a step nor ends is left there, as if it would ask.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec

from holdfast.bridge.server import Bridge
from holdfast.engine.attachments import Attachments
from holdfast.engine.client import allowance_of, identity_of
from holdfast.engine.schedule import Ticket
from holdfast.errors import HoldfastError
from holdfast.journal.positions import Position
from holdfast.plan import Work
from holdfast.records import Draft
from holdfast.records.facts import Called, Step
from holdfast.records.samples import Answer, Message, Usage
from holdfast.solve import Asking, Context, Means, Recorded, Scope, Steps, Tool, Workplace
from holdfast.solve.resources import Ask
from holdfast.spec import Spec

_QUIET_ROUNDS = 20
_QUIET_OUTSIDE_SECONDS = 0.1
"""Branches of an agent that asks over HTTP are not seen by the event loop before they ask."""
_STILL_SECONDS = 10.0
_STILL_LOOKS = 10
_ENDING_SECONDS = 5.0
"""What code that was cancelled may take to end."""


class NotRecordedError(HoldfastError):
    """The code asks for something that no step answers."""


class Scene(msgspec.Struct, frozen=True):
    """Everything that one attempt at a key needs to be run on its recorded steps."""

    ticket: Ticket
    work: Work
    spec: Spec
    attempt: int
    steps: list[Recorded]
    changed: bool = False
    """The solver's code is not what the run began with."""
    run: str = ""
    """The folder that holds the files of its row."""


class Rehearsed(msgspec.Struct, frozen=True):
    """How many recorded steps a sample would take, what they cost then, and whether it would ask for more, or may."""

    reused: int
    saved: Usage
    asks: bool


class Stage(msgspec.Struct, frozen=True):
    """What the solver is given, to be closed behind it."""

    steps: Steps
    ctx: Context
    bridge: Bridge

    async def close(self) -> None:
        self.steps.close()
        await self.ctx.close()
        await self.bridge.close()


async def _refuse() -> NoReturn:
    raise NotRecordedError("code that runs on recorded steps records nothing")


def set_stage(scene: Scene, ask: Ask, record: Callable[[], Awaitable[NoReturn]] = _refuse) -> Stage:
    """`ask` is told of every request that no step answers, `record` of what would be written before anything is asked:
    the time, and that a call is made which must not be made twice.
    """
    ticket, spec = scene.ticket, scene.spec
    steps = Steps(Scope(ticket.o, ticket.key, f"solve/{scene.attempt}"), _Nowhere(record), scene.steps)
    models = {"": next(model for model in spec.models if model.name == ticket.cell.model), **spec.roles}
    asking = {role: Asking(identity_of(model), model.params, ask, model.price) for role, model in models.items()}
    messages = scene.work.renderer.messages(ticket.sample)
    seed = f"{spec.seed}/{ticket.key}/{scene.attempt}"
    files = Attachments(scene.run) if scene.run and scene.work.task.dataset.files else None

    async def call(tool: Tool, called: Called, workplace: Workplace) -> Step:
        await ask([{"role": "assistant", "content": f"{called.tool}({called.arguments})"}], {}, [])
        raise NotRecordedError("code that runs on recorded steps calls no tool")

    bridge = Bridge()
    read = None if files is None else files.read
    means = Means(asking, allowance_of(spec), read, call=call, open_door=bridge.open)
    return Stage(steps, Context(ticket.sample, messages, steps, seed, means), bridge)


async def rehearse(scene: Scene) -> Rehearsed:
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_for_ever() -> NoReturn:
        if not asked.done():
            asked.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def ask(messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]) -> tuple[Answer, int]:
        await wait_for_ever()

    stage = set_stage(scene, ask, wait_for_ever)
    solving = asyncio.ensure_future(_solve(scene, stage.ctx))
    settled = await _settle({solving, asked}, stage.steps)
    for _ in range(_QUIET_ROUNDS if asked.done() else 0):
        await asyncio.sleep(0)
    if asked.done() and stage.bridge.is_open:
        await asyncio.sleep(_QUIET_OUTSIDE_SECONDS)
    spent, asks = stage.steps.spent(), asked.done() or not settled
    stage.steps.close()
    solving.cancel()
    asked.cancel()
    await asyncio.wait({solving}, timeout=_ENDING_SECONDS)
    await stage.close()
    return Rehearsed(spent.replayed, spent.saved, asks)


async def _settle(either: "set[asyncio.Future[None]]", steps: Steps) -> bool:
    """Wait until one of them is done; False if nothing moves any more.

    The wait is made of several short ones: a process that was stopped or starved meanwhile finds one of them over, and
    not all of its patience.
    """
    taken, looks = steps.spent().replayed, 0
    while looks < _STILL_LOOKS:
        pause = _STILL_SECONDS / _STILL_LOOKS
        done, _ = await asyncio.wait(either, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return True
        before, taken = taken, steps.spent().replayed
        looks = looks + 1 if taken == before else 0
    return False


async def _solve(scene: Scene, ctx: Context) -> None:
    """A solver that fails here will fail in the run, and be told of there."""
    with contextlib.suppress(Exception, SystemExit, KeyboardInterrupt):
        await scene.work.solver.solve(scene.ticket.sample, ctx)


class _Nowhere:
    """A journal that is never written."""

    def __init__(self, record: Callable[[], Awaitable[NoReturn]]) -> None:
        self._record = record

    async def append(self, record: Draft) -> Position:
        await self._record()

    def append_soon(self, record: Draft) -> None:
        """A call that the code cancels, or that ends with us, is no new fact."""
