"""The sandboxes of a run: for each attempt at a sample, when a tool first needs it, a private folder to work in.

Calls in one sandbox are made one after the other. What a call changed is kept before its step is recorded, and counts
from the moment when the step is durable; a replay runs nothing, and the first live call finds the files as the last
recorded one left them. Whatever cannot be had again makes the attempt fail with the kind `sandbox`, and the sample
begin anew. Nothing here blocks the event loop, and nothing is left when an attempt ends.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import SpecError, UsageError
from holdfast.journal.lease import own
from holdfast.records.exchange import Sample
from holdfast.records.facts import Files, Step
from holdfast.records.references import parse_reference
from holdfast.solve.confining import (
    MIB,
    ROOT,
    Call,
    Folder,
    Ran,
    SandboxFailedError,
    make_folders,
    why_no_docker,
    why_no_namespaces,
)
from holdfast.solve.orphans import clear, name_of
from holdfast.solve.snapshots import (
    Blobs,
    Bounds,
    LostFilesError,
    Snapshot,
    State,
    remove_folder,
    restore,
    take_snapshot,
)
from holdfast.solve.steps import Scope
from holdfast.solve.workplace import ReadFile
from holdfast.spec import Sandbox

_AT_ONCE_MIN = 4
T = TypeVar("T")
Tell = Callable[..., None]


class Sandboxes:
    """What the sandboxes of one run share: where they are, who works in them, what is told of them."""

    def __init__(self, uid: str, blobs: Blobs, tell: Tell, place: str = "") -> None:
        self.uid = uid
        self.blobs = blobs
        self.tell = tell
        self.place = place or os.path.realpath(tempfile.gettempdir())
        self.calls: set[Call] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._plain: str | None = None

    async def begin(self, wanted: Sequence[Sandbox]) -> None:
        """End and remove what dead processes of this run left; say how well commands are confined here, if any will be
        run. UsageError if one needs what the machine has not.
        """
        images = any(each.image for each in wanted)
        ended, removed = await asyncio.to_thread(clear, self.uid, self.place, images)
        if ended or removed:
            self.tell("sandbox.cleared", f"ended {ended} processes and removed {removed} folders of an earlier process")
        for doubt in await asyncio.to_thread(sandbox_doubts, wanted):
            self.tell("sandbox.unconfined", doubt)
        why_not = await asyncio.to_thread(why_no_docker) if images else ""
        if why_not:
            raise UsageError(f"a task has sandbox.image, and {why_not}; start an engine, or leave the image out")

    def opener(self, wanted: Sandbox | None, read_file: ReadFile | None) -> "Callable[[Sample, Scope], Box]":
        return lambda sample, scope: Box(self, wanted or Sandbox(), Origin(sample, scope, read_file))

    async def has_namespaces(self) -> bool:
        if self._plain is None:
            self._plain = await asyncio.to_thread(why_no_namespaces)
        return not self._plain

    async def in_thread(self, work: Callable[[], T], call: Call | None = None) -> T:
        """Whoever is cancelled meanwhile ends the call first: nothing of it runs on."""
        if self._threads is None:
            most = max(_AT_ONCE_MIN, 2 * (os.cpu_count() or 1))
            self._threads = ThreadPoolExecutor(most, thread_name_prefix="sandbox")
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        if call is not None:
            self.calls.add(call)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            if call is not None:
                call.stop()
            await _to_the_end(working)
            raise
        finally:
            if call is not None:
                self.calls.discard(call)

    def close(self) -> None:
        """Nothing runs on."""
        for call in list(self.calls):
            call.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


class Origin(msgspec.Struct, frozen=True):
    """Whose sandbox it is, and what its first files come from."""

    sample: Sample
    scope: Scope
    read_file: ReadFile | None

    def name(self) -> str:
        """For the folder."""
        return xxhash.xxh3_64_hexdigest(f"{self.scope.key} {self.scope.name}".encode())


class Box:
    """The sandbox of one attempt, which tools know as `ctx.sandbox`."""

    def __init__(self, sandboxes: Sandboxes, wanted: Sandbox, origin: Origin) -> None:
        self.wanted = wanted
        self._sandboxes = sandboxes
        self._origin = origin
        self._turn = asyncio.Lock()
        self._known = Snapshot(State())
        self._pending: tuple[Files, Snapshot] | None = None
        self._folder: Folder | None = None
        self._fits = False
        """Whether the folder is as it is known, but for what was not recorded."""
        self.lost: LostFilesError | None = None

    async def run(self, command: Sequence[str] | str, given: bytes | str = b"", output_kb: int | None = None) -> Ran:
        """Run a command, or a line for bash, with `given` as its standard input, and wait for its end."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        folder = await self._ready()
        call = Call(folder, self.wanted, await self._sandboxes.has_namespaces())
        most = None if output_kb is None else output_kb << 10
        return await self._sandboxes.in_thread(lambda: call.run(argv, data, most), call)

    async def read(self, path: str) -> bytes:
        """The content of a file. FileNotFoundError, or what else the command says, if it cannot be read."""
        ran = await self.run(["cat", "--", path], output_kb=2 * self.wanted.files_mb << 10)
        if ran.code:
            raise FileNotFoundError(ran.stderr.strip() or f"{path} cannot be read")
        return ran.out.head + ran.out.tail

    async def write(self, path: str, content: bytes | str) -> None:
        """Make or replace a file, and the folders above it."""
        program = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        ran = await self.run(["sh", "-c", program, "sh", path], given=content)
        if ran.code:
            raise OSError(ran.stderr.strip() or f"{path} cannot be written")

    def note(self, files: Files) -> None:
        """A step with these changes is durable, or was: it is being delivered."""
        if self._pending is not None and self._pending[0] is files:
            self._known, self._pending = self._pending[1], None
            return
        self._known = Snapshot(self._known.state.after(files))
        self._fits = False

    def turn(self) -> "Turn":
        return Turn(self)

    async def enter(self) -> None:
        await self._turn.acquire()

    def leave(self) -> None:
        self._pending = None  # what was not delivered is part of what the next call changes
        self._turn.release()

    async def changes(self) -> Files | None:
        """What the call that is ending changed."""
        folder = self._folder
        if folder is None or not self._fits:
            return None  # it came to nothing
        wanted, known, blobs = self.wanted, self._known, self._sandboxes.blobs
        bounds = Bounds(wanted.files_mb * MIB, wanted.files_max)
        try:
            files, after = await self._sandboxes.in_thread(lambda: take_snapshot(folder.files, known, bounds, blobs))
        except OSError as error:
            raise SandboxFailedError(f"what the call changed in the sandbox cannot be kept: {error}") from error
        if files is None:
            self._known = after
        else:
            self._pending = files, after
        return files

    async def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.shield(asyncio.to_thread(remove_folder, folder.path))

    async def _ready(self) -> Folder:
        """The folder, as the last recorded call left it."""
        if self._folder is not None and self._fits:
            return self._folder
        first = await self._first_files() if not self._known.state.entries and not self._known.state.lost else {}
        try:
            self._known = await self._sandboxes.in_thread(lambda: self._make(first))
        except LostFilesError as error:
            self.lost = error
            key = self._origin.scope.key
            self._sandboxes.tell("sandbox.lost", f"{key}: {error}; the sample begins anew", key=key)
            raise
        except OSError as error:
            raise SandboxFailedError(f"the sandbox cannot be made: {error}") from error
        self._fits = True
        assert self._folder is not None
        return self._folder

    def _make(self, first: Mapping[str, bytes]) -> Snapshot:
        if self._folder is None:
            self._folder = _new_folder(self._sandboxes.place, self._sandboxes.uid, self._origin.name())
        folder = self._folder
        remove_folder(folder.files)
        known = restore(folder.files, self._known.state, self._sandboxes.blobs)
        make_folders(folder)
        for path, content in first.items():
            _write_first(folder.files, path, content)
        return known

    async def _first_files(self) -> dict[str, bytes]:
        """What the spec puts there, from the columns of the sample's row."""
        row, found = self._origin.sample.row, {}
        for path, column in self.wanted.files.items():
            value: Any = row.get(column)
            if self._origin.read_file is not None and parse_reference(value) is not None:
                found[path] = await self._origin.read_file(value)
            elif value is not None:
                found[path] = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return found


class Turn:
    """One call's right to a sandbox: from when it begins until its step has been delivered."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._entered = False

    async def during(self, ask: Callable[[], Awaitable[Step]]) -> Step:
        """Make the call, then keep what it changed."""
        await self._box.enter()
        self._entered = True
        step = await ask()
        if self._box.lost is not None:
            raise self._box.lost  # whatever the tool made of it
        return msgspec.structs.replace(step, files=await self._box.changes())

    def end(self) -> None:
        if self._entered:
            self._box.leave()


def sandbox_doubts(wanted: Sequence[Sandbox]) -> list[str]:
    """What is not confined here, in words; nothing if no command will be run outside a container."""
    if all(each.image for each in wanted):
        return []
    why = why_no_namespaces()
    if not why:
        return []
    return [
        f"sandboxed commands have no namespaces here ({why}): they run with time, memory and output limits and are "
        "killed with the run, but they can use the network and can read and change what you can"
    ]


def check_paths(wanted: Sandbox, place: str) -> None:
    """SpecError for first files that would not be inside."""
    for path in wanted.files:
        if path.startswith("/") or ".." in path.split("/") or path.strip("/") != path or not path:
            raise SpecError(f"{place}.sandbox.files: {path!r} is no path inside the sandbox; write it relative to it")


def _new_folder(place: str, uid: str, name: str) -> Folder:
    """Dying before its owner's name is in it leaves a folder that the next start of the run removes."""
    path = tempfile.mkdtemp(prefix=f"{name_of(uid)}{name}-", dir=place)
    own(path)
    os.mkdir(os.path.join(path, ROOT))
    return Folder(path, uid)


def _write_first(folder: str, path: str, content: bytes) -> None:
    target = os.path.join(folder, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content)


async def _to_the_end(working: "asyncio.Future[Any]") -> None:
    """Until the thread is done, however often we are told to stop waiting."""
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            continue
    if not working.cancelled():
        working.exception()
