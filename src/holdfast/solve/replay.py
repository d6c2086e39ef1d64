"""The order of a replay: recorded steps are delivered one at a time, in journal order.

After each delivery the sample runs until it waits again, so races inside a sample come out as they did. No request goes
live while the sample waits for a recorded one. Nothing here is stored.
"""

import asyncio
import math
from collections.abc import Sequence

import msgspec

from holdfast.records import Step

_SETTLED_ROUNDS = 10
"""A sample counts as waiting after this many rounds of the event loop without a new request."""
_HOLD_SECONDS = 30.0
"""How long, beyond its recorded duration, a call that was cancelled then is held back before it goes live."""
_BRANCH_SECONDS = 0.25
"""How long a recorded step waits for an earlier one that the sample has not requested yet."""
_OUTSIDE_SECONDS = 0.02
"""How long code outside this event loop may take from a response to its next request, while others wait."""

Identity = tuple[str, int]
"""The digest of a request, and how often the same request was made before in its scope."""


class RecordedStep(msgspec.Struct, frozen=True):
    """A step in the journal. `at`: when it ended, in seconds since 1970; 0 if unknown."""

    n: int
    step: Step
    at: float = 0.0


class ReplayOrder:
    """The recorded steps of one scope, on their way to the code that requests them again."""

    def __init__(self, recorded: Sequence[RecordedStep] = ()) -> None:
        last = {_identity(each.step): each for each in recorded}
        self.left = [each for each in recorded if last[_identity(each.step)] is each]
        """Not requested yet. Of each identity only the last record counts."""
        self.orphans: list[RecordedStep] = []
        """Not delivered: the sample cancelled its request."""
        self.outside = False
        """Requests may come from threads and other processes: then a quiet event loop does not mean that the sample
        waits, because the loop sees nothing of them before the request arrives.
        """
        self._asked = 0  # grows with every request of the sample, and when it stops waiting for one
        self._asked_at: dict[Identity, float] = {}
        self._waiting: dict[Identity, asyncio.Future[RecordedStep | None]] = {}
        self._changed: asyncio.Event | None = None
        self._driver: asyncio.Task[None] | None = None
        self._delivered_at = -math.inf

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return len(self._waiting)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.cancel()

    async def settle(self) -> None:
        """Return when the sample has run until it makes no new requests."""
        quiet = 0
        seen = self._asked
        while quiet < _SETTLED_ROUNDS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._asked == seen else 0
            seen = self._asked

    async def is_quiet_outside(self) -> bool:
        """Give code outside this event loop a moment; return whether no request came."""
        seen = self._asked
        await asyncio.sleep(_OUTSIDE_SECONDS)
        return self._asked == seen

    async def take(self, identity: Identity) -> RecordedStep | None:
        """Wait for this request's turn; return None if it was not recorded and may go live."""
        waiting: asyncio.Future[RecordedStep | None] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = waiting
        self._asked_at[identity] = asyncio.get_running_loop().time()
        self._touch()
        if self._driver is None:
            self._driver = asyncio.ensure_future(self._deliver_recorded())
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and (found := waiting.result()) is not None:
                self.orphans.append(found)
            for each in [each for each in self.left if _identity(each.step) == identity]:
                self.left.remove(each)  # the same identity cannot come again
                self.orphans.append(each)
            raise
        finally:
            del self._waiting[identity]
            self._touch()

    def _touch(self) -> None:
        self._asked += 1
        if self._changed is not None:
            self._changed.set()

    async def _deliver_recorded(self) -> None:
        """Deliver the recorded steps in their order, then let all other requests go live."""
        changed = self._changed = asyncio.Event()
        while self.left:
            await self.settle()
            changed.clear()
            awaited = [each for each in self.left if self._is_awaited(_identity(each.step))]
            if self._may_come_first(awaited) and not await self.is_quiet_outside():
                continue
            if not awaited:
                self._release_to_live()
                if self.left:
                    await changed.wait()
            elif (awaited[0] is self.left[0] or awaited[0].step.origin) and not awaited[0].step.cancelled:
                self._deliver(awaited[0])  # steps copied by a fork have no order
            else:
                await self._wait_for_first(awaited, changed)
        await self.settle()
        self._release_to_live()

    def _may_come_first(self, awaited: list[RecordedStep]) -> bool:
        """Whether external code, which is slower than the loop, could still make a request that comes first. Matters
        where a request would go live, or where two responses would be delivered at once.
        """
        if not self.outside:
            return False
        if awaited:
            return self._asked_at[_identity(awaited[0].step)] <= self._delivered_at
        return any(not waiting.done() for waiting in self._waiting.values())

    def _deliver(self, found: RecordedStep) -> None:
        """Deliver a recorded step. Steps before it that were skipped move to the end: they may still be requested."""
        index = self.left.index(found)
        self.left = self.left[index + 1 :] + self.left[:index]
        self._delivered_at = asyncio.get_running_loop().time()
        self._waiting[_identity(found.step)].set_result(None if found.step.cancelled else found)

    def _release_to_live(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _wait_for_first(self, awaited: list[RecordedStep], changed: asyncio.Event) -> None:
        """An earlier step is not requested yet: the solver will cancel it, or a sleeping branch will request it.

        It was recorded before each of `awaited`, so wait no longer than the first of these took then.
        """
        due, found = min(((self._due(each), each) for each in awaited), key=lambda pair: pair[0])
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, due - asyncio.get_running_loop().time()))
        except TimeoutError:
            if self._is_awaited(_identity(found.step)):
                self._deliver(found)

    def _due(self, each: RecordedStep) -> float:
        slack = _HOLD_SECONDS if each.step.cancelled else _BRANCH_SECONDS
        return self._asked_at[_identity(each.step)] + each.step.seconds + slack

    def _is_awaited(self, identity: Identity) -> bool:
        waiting = self._waiting.get(identity)
        return waiting is not None and not waiting.done()


def _identity(step: Step) -> Identity:
    return step.q, step.c
