"""Runs a solver on recorded steps alone: no request is sent, no tool is called, no record is written.

The solver itself really runs, with everything that it does besides its steps: the program of a `command` is started.

`prepare_replay` prepares such a run. `rehearse` uses it to find out what a sample would still request: a request that
is not recorded waits forever, branches that need nothing new continue, and when nothing moves the rehearsal ends. Code
that for some seconds neither takes a step nor returns counts as if it made a new request.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec

from holdfast.bridge import Bridge
from holdfast.engine.attachments import Attachments
from holdfast.engine.client import attempt_limits
from holdfast.engine.failures import failure_in
from holdfast.engine.schedule import Ticket
from holdfast.errors import HoldfastError, JournalError
from holdfast.journal import Position
from holdfast.models import ModelCall, identity_of
from holdfast.plan import PreparedTask
from holdfast.records import Answer, Draft, Step, ToolCall, Usage
from holdfast.solve import AttemptResources, Context, ModelHandle, RecordedStep, Scope, Send, Steps, Tool, Workplace
from holdfast.spec import Spec

_QUIET_ROUNDS = 20
_QUIET_OUTSIDE_SECONDS = 0.1
"""The event loop sees nothing of an agent outside this process before its next HTTP request arrives."""
_STILL_SECONDS = 10.0
_STILL_LOOKS = 10
_ENDING_SECONDS = 5.0
"""How long to wait for cancelled code to end."""


class NotRecordedError(HoldfastError):
    """The code made a request that is not recorded."""


class ReplayInput(msgspec.Struct, frozen=True):
    """One attempt at a key, with its recorded steps."""

    ticket: Ticket
    work: PreparedTask
    spec: Spec
    attempt: int
    steps: list[RecordedStep]
    changed: bool = False
    """The solver's code has changed since the run was recorded."""
    run: str = ""
    """The folder of the run, which holds the files of its row."""


class Rehearsal(msgspec.Struct, frozen=True):
    """How many recorded steps a sample would reuse, the usage that saves, and whether it may request more."""

    reused: int
    saved: Usage
    incomplete: bool
    restarts: bool = False
    """The solver failed on recorded steps alone. Such an attempt uses up no retry: the run sends all requests again."""


class ReplayContext(msgspec.Struct, frozen=True):
    """What the solver runs with. Close it afterwards."""

    steps: Steps
    ctx: Context
    bridge: Bridge

    async def close(self) -> None:
        self.steps.close()
        await self.ctx.close()
        await self.bridge.close()


async def _refuse() -> NoReturn:
    raise NotRecordedError("code that runs on recorded steps records nothing")


def prepare_replay(
    scene: ReplayInput, send: Send, record: Callable[[], Awaitable[NoReturn]] = _refuse
) -> ReplayContext:
    """`send` is called for every request that is not recorded. `record` is called where a record would be written
    without a request: `ctx.now`, and announcements of calls that must not be repeated.
    """
    ticket, spec = scene.ticket, scene.spec
    steps = Steps(Scope(ticket.o, ticket.key, f"solve/{scene.attempt}"), _ClosedJournal(record), scene.steps)
    specs = {"": next(model for model in spec.models if model.name == ticket.cell.model), **spec.roles}
    models = {role: ModelHandle(identity_of(model), model.params, send, model.price) for role, model in specs.items()}
    messages = scene.work.renderer.messages(ticket.sample)
    seed = f"{spec.seed}/{ticket.key}/{scene.attempt}"
    files = Attachments(scene.run) if scene.run and scene.work.task.dataset.files else None

    async def call(tool: Tool, called: ToolCall, workplace: Workplace) -> Step:
        await send(ModelCall([{"role": "assistant", "content": f"{called.tool}({called.arguments})"}], {}, []))
        raise NotRecordedError("code that runs on recorded steps calls no tool")

    bridge = Bridge()
    read = None if files is None else files.read
    resources = AttemptResources(models, attempt_limits(spec), read, call=call, open_endpoint=bridge.open)
    return ReplayContext(steps, Context(ticket.sample, messages, steps, seed, resources), bridge)


async def rehearse(scene: ReplayInput) -> Rehearsal:
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_forever() -> NoReturn:
        if not asked.done():
            asked.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(call: ModelCall) -> Answer:
        await wait_forever()

    replay = prepare_replay(scene, send, wait_forever)
    solving = asyncio.ensure_future(_fails(scene, replay.ctx))
    settled = await _wait_until_quiet({solving, asked}, replay.steps)
    for _ in range(_QUIET_ROUNDS if asked.done() else 0):
        await asyncio.sleep(0)
    if asked.done() and replay.bridge.is_open:
        await asyncio.sleep(_QUIET_OUTSIDE_SECONDS)
    spent, incomplete = replay.steps.spent(), asked.done() or not settled
    restarts = not incomplete and spent.replayed > 0 and solving.result()
    replay.steps.close()
    solving.cancel()
    asked.cancel()
    await asyncio.wait({solving}, timeout=_ENDING_SECONDS)
    await replay.close()
    return Rehearsal(spent.replayed, spent.saved, incomplete or restarts, restarts)


async def _wait_until_quiet(futures: "set[asyncio.Future[Any]]", steps: Steps) -> bool:
    """Wait until one of them is done; return False if nothing moves any more.

    Several short waits instead of one long: a process that was suspended meanwhile finds one of them over, not all.
    """
    taken, looks = steps.spent().replayed, 0
    while looks < _STILL_LOOKS:
        pause = _STILL_SECONDS / _STILL_LOOKS
        done, _ = await asyncio.wait(futures, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return True
        before, taken = taken, steps.spent().replayed
        looks = looks + 1 if taken == before else 0
    return False


async def _fails(scene: ReplayInput, ctx: Context) -> bool:
    """Run the solver, and return whether it fails in a way that the run tries again. The error itself is ignored: the
    solver fails in the run too, and is recorded there.
    """
    try:
        await scene.work.solver.solve(scene.ticket.sample, ctx)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - user code may raise anything
        with contextlib.suppress(JournalError):
            return not failure_in(error, ()).final
    return False


class _ClosedJournal:
    """A journal that is never written."""

    def __init__(self, record: Callable[[], Awaitable[NoReturn]]) -> None:
        self._record = record

    async def append(self, record: Draft) -> Position:
        await self._record()

    def append_soon(self, record: Draft) -> None:
        """Only cancelled calls are recorded this way, and they are nothing new."""
