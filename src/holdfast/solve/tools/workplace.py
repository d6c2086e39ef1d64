"""What the tools of one attempt at a sample share: its files, and what they opened for it and will need again.

Invariant: what was opened here is closed when the attempt ends, however it ends, by the task that opened it. A replay
opens nothing: only a tool that is really called does.
"""

import asyncio
import copy
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.records.facts import Files
from holdfast.records.references import parse_reference
from holdfast.records.samples import Sample
from holdfast.sandbox.box import Box, ReadFile

_SHOWN = 100
T = TypeVar("T")


class Workplace:
    """A tool that has a parameter `ctx` is given this: `async def look(ctx, path: str)`. The model does not see it."""

    def __init__(
        self,
        sample: Sample,
        read_file: ReadFile | None = None,
        secrets: tuple[str, ...] = (),
        open_box: "Callable[[], Box] | None" = None,
    ) -> None:
        self.sample = sample
        self.secrets = secrets
        self.entered = False
        self._open_box = open_box
        self._box: Box | None = None
        self._read_file = read_file
        self._kept: dict[Hashable, _Kept] = {}
        self._closed = asyncio.Event()  # shared with copies of this

    @property
    def box(self) -> "Box | None":
        """The attempt's sandbox, made when it is first asked for: most samples have none."""
        if self._box is None and self._open_box is not None:
            self._box = self._open_box()
        return self._box

    def note_files(self, files: Files) -> None:
        """What a step that is being delivered changed in the sandbox."""
        if self.box is not None:
            self.box.note(files)

    @property
    def sandbox(self) -> "Box":
        """The attempt's sandbox, for a tool that says `sandboxed=True`: the call has it for itself."""
        box = self.box if self.entered else None
        if box is None:
            raise HoldfastError("ctx.sandbox is there for tools that say so: @holdfast.tool(sandboxed=True)")
        return box

    def inside(self) -> "Workplace":
        """The same workplace, as a sandboxed tool sees it."""
        _ = self.box  # made before the copy: one for both
        other = copy.copy(self)
        other.entered = True
        return other

    async def file(self, reference: str) -> bytes:
        """The content of a file of the sample's row. It is the same whenever it is read."""
        if parse_reference(reference) is None or self._read_file is None:
            raise HoldfastError(
                f"ctx.file({_shown(reference)}): not a file of this run; give it a value of a column that "
                "dataset.files names (a URL stays as it is, and is not fetched)"
            )
        return await self._read_file(reference)

    async def keep(self, name: Hashable, open_it: "Callable[[], AbstractAsyncContextManager[T]]") -> T:
        """What `open_it` opens, for this and all later calls with this name; closed when the attempt ends."""
        if self._closed.is_set():
            raise HoldfastError(
                "the attempt has ended: nothing is opened for it any more; wait for calls that you make"
            )
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _Kept(open_it)
        try:
            return await asyncio.shield(kept.opened)
        except BaseException:
            failed = kept.opened.done() and (kept.opened.cancelled() or kept.opened.exception() is not None)
            if failed and self._kept.get(name) is kept:
                del self._kept[name]  # the next call tries again
            raise

    def forget(self, name: Hashable) -> None:
        """What was kept under this name is of no more use: it is closed, and the next `keep` opens it anew."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._kept[_Forgotten()] = kept
            kept.release()

    def raise_loss(self) -> None:
        """If the sandbox could not be restored: an attempt without it is none, whatever its solver made of that."""
        if self._box is not None and self._box.lost is not None:
            raise self._box.lost

    async def close(self) -> None:
        """Close what was opened, the last first. What goes wrong here hurts nothing that is recorded. Whoever still
        asks for something is refused: nobody would close it.
        """
        self._closed.set()
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.close()
        if self._box is not None:
            await self._box.close()


class _Forgotten:
    """The name of what nobody asks for any more, and the attempt's end still waits for."""


class _Kept:
    """Something open, and the task that opened it and will close it: some can be closed by no other."""

    def __init__(self, open_it: "Callable[[], AbstractAsyncContextManager[Any]]") -> None:
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self._owner = asyncio.ensure_future(self._own(open_it))

    def release(self) -> None:
        """Let it be closed, without waiting for it."""
        self._done.set()

    async def close(self) -> None:
        self.release()
        if not self.opened.done():
            self._owner.cancel()
        await asyncio.gather(self._owner, return_exceptions=True)
        if self.opened.done() and not self.opened.cancelled():
            self.opened.exception()  # seen, so that nobody is told that nobody saw it

    async def _own(self, open_it: "Callable[[], AbstractAsyncContextManager[Any]]") -> None:
        try:
            async with open_it() as opened:
                if not self.opened.done():
                    self.opened.set_result(opened)
                await self._done.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self.opened.cancel()
            else:
                self.opened.set_exception(error)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
