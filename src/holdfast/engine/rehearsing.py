"""A rehearsal: a solver runs with nothing but recorded steps, to see what it would still have to ask. Sends nothing.

The solver's own code runs, as in every replay. Where it asks for what is not recorded, it waits for ever; branches that
need nothing new go on, and when all is quiet the rehearsal ends.
"""

import asyncio
import contextlib
from typing import Any

import msgspec

from holdfast.engine.asking import identity_of
from holdfast.engine.tickets import Ticket
from holdfast.journal.marks import Position
from holdfast.plan import Work
from holdfast.records import Draft
from holdfast.records.exchange import Answer, Message, Usage
from holdfast.solve import Allowance, Asking, Context, Recorded, Scope, Steps
from holdfast.spec import Spec

_QUIET_ROUNDS = 20


class Rehearsed(msgspec.Struct, frozen=True):
    """How many recorded steps a sample would take, what they cost then, and whether it would ask for more."""

    reused: int
    saved: Usage
    asks: bool


async def rehearse(ticket: Ticket, work: Work, spec: Spec, recorded: list[Recorded], attempt: int) -> Rehearsed:
    steps = Steps(Scope(ticket.o, ticket.key, f"solve/{attempt}"), _Nowhere(), recorded)
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]) -> tuple[Answer, int]:
        if not asked.done():
            asked.set_result(None)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return] # never

    models = {"": next(model for model in spec.models if model.name == ticket.cell.model), **spec.roles}
    asking = {role: Asking(identity_of(model), model.params, ask) for role, model in models.items()}
    ctx = Context(
        ticket.sample,
        work.renderer.messages(ticket.sample),
        steps,
        asking,
        f"{spec.seed}/{ticket.key}/{attempt}",
        Allowance(),
    )
    solving = asyncio.ensure_future(_solve(work, ticket, ctx))
    either: set[asyncio.Future[Any]] = {solving, asked}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(_QUIET_ROUNDS if asked.done() else 0):
        await asyncio.sleep(0)
    spent, asks = steps.spent(), asked.done()
    steps.close()
    solving.cancel()
    asked.cancel()
    await asyncio.gather(solving, return_exceptions=True)
    return Rehearsed(spent.replayed, spent.saved, asks)


async def _solve(work: Work, ticket: Ticket, ctx: Context) -> None:
    """A solver that fails here will fail in the run, and be told of there."""
    with contextlib.suppress(Exception, SystemExit, KeyboardInterrupt):
        await work.solver.solve(ticket.sample, ctx)


class _Nowhere:
    """A journal that a rehearsal never writes."""

    async def append(self, record: Draft) -> Position:
        raise AssertionError("a rehearsal asks nothing, so it has nothing to save")

    def append_soon(self, record: Draft) -> None:
        """A call that ends with the rehearsal is no fact."""
