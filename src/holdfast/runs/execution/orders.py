"""Orders to the workers of a sharded run: `cancel` and `tune`, as records of the root journal.

The commands also send a request to every live worker, which obeys within a heartbeat. A worker that is paused, cut off
from the store, or between two shards misses that request. So the record is what counts: every worker reads the root
journal again while it works on a shard, and applies what it finds. A crash loses nothing: the next worker reads the
same records before it claims a shard.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from holdfast.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.runs.execution.session import Observe
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import Spec, change_spec, spec_mapping
from holdfast.state import Story

_log = logging.getLogger("holdfast")


def is_cancelled(root: Story) -> bool:
    return root.end is not None and root.end.kind == "run.cancelled"


def with_tuned(spec: Spec, root: Story) -> Spec:
    """The spec of a worker, with the limits that `tune` has set for all workers. A limit that a later resume has
    changed is the worker's own again.
    """
    tuned: dict[str, Any] = {}
    for resume in root.resumes:
        for change in resume.resumed.changes:
            tuned.pop(change.field, None)
            if resume.resumed.live:
                tuned[change.field] = change.new
    if not tuned:
        return spec
    return change_spec(spec_mapping(spec), [f"{field}={json.dumps(value)}" for field, value in tuned.items()])


class OrderWatch:
    """Applies new orders to the engine of a shard, beside another observer of that engine."""

    def __init__(
        self, read_root: Callable[[], Story], observe: Observe | None, pause_seconds: float, *, tunes: bool
    ) -> None:
        """`read_root`: reads new records of the root journal, in a thread. `tunes`: whether limits of the run are those
        of the shard.
        """
        self._read_root = read_root
        self._observe = observe
        self._pause_seconds = pause_seconds
        self._tunes = tunes
        self._engine: Engine | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped the engine of the last shard, also if that was after its end: a signal that
        arrives between two shards stops that one. An engine that stops because it lost its shard has no reason.
        """
        return self._engine is not None and self._engine.reason != ""

    async def __call__(self, engine: Engine, place: RunLocation) -> None:
        self._engine = engine
        observing = asyncio.ensure_future(self._observe(engine, place)) if self._observe else None
        try:
            while True:
                await self._apply(engine)
                await asyncio.sleep(self._pause_seconds)
        finally:
            if observing is not None:
                observing.cancel()
                (result,) = await asyncio.gather(observing, return_exceptions=True)
                if isinstance(result, Exception):
                    raise result

    async def _apply(self, engine: Engine) -> None:
        try:
            root = await asyncio.to_thread(self._read_root)
        except (HoldfastError, OSError) as error:  # the store may be back at the next look
            _log.debug("the root journal cannot be read now: %s", error)
            return
        if is_cancelled(root):
            engine.stop("by `holdfast cancel`", cancelled=True)
        elif self._tunes and (spec := with_tuned(engine.spec, root)) != engine.spec:
            engine.tune(spec)
            engine.tell("run.tuned", "limits that `holdfast tune` has set for all workers")
