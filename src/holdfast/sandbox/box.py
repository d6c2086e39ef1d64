"""The sandboxes of a run: for each attempt at a sample, when a tool first needs it, a private folder to work in.

Calls in one sandbox are made one after the other; what one call does in it may be done at once. What a call changed,
in `/sandbox` and in `/tmp`, is kept before its step is recorded, and counts from the moment when the step is durable; a
replay runs nothing, and the first live call finds the files as the last recorded one left them. Whatever cannot be had
again makes the attempt fail with the kind `sandbox`, and the sample begin anew. Nothing here blocks the event loop;
when an attempt has ended nothing of it is left, and nothing is made for it any more.
"""

import asyncio
import functools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import xxhash

from holdfast.errors import SpecError, UsageError
from holdfast.journal.appender import NO_SPACE
from holdfast.journal.ownership.lease import own
from holdfast.records.facts import Files, Step
from holdfast.records.references import parse_reference
from holdfast.records.samples import Sample
from holdfast.sandbox.confinement import (
    HOST_NETWORK,
    MIB,
    PLAIN,
    Folder,
    Launch,
    Ran,
    SandboxFailedError,
    call_filter,
    control_groups,
    make_folders,
    remove_folder,
    why_no_docker,
    why_no_namespaces,
)
from holdfast.sandbox.orphans import clear, name_of
from holdfast.sandbox.snapshots import (
    Blobs,
    Capacity,
    FilesState,
    FolderSnapshot,
    LostFilesError,
    restore,
    take_snapshot,
)
from holdfast.sandbox.threads import Threads, WorkStopwatch
from holdfast.spec import Sandbox

_SPACE_PAUSE_SECONDS = 1.0
_TOLD_AGAIN_SECONDS = 60.0
T = TypeVar("T")
Tell = Callable[..., None]
ReadFile = Callable[[str], Awaitable[bytes]]
"""From a reference to its content, checked."""


class AttemptScope(Protocol):
    """Which attempt a sandbox belongs to."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...


class Sandboxes:
    """What the sandboxes of one run share: where they are, who works in them, what is told of them."""

    def __init__(self, uid: str, blobs: Blobs, tell: Tell, place: str = "") -> None:
        self.uid = uid
        self.blobs = blobs
        self.tell = tell
        self.place = place or os.path.realpath(tempfile.gettempdir())
        self.calls: set[Launch] = set()
        self.threads = Threads()
        self._plain: str | None = None
        self._counted = False
        self._told_at = -_TOLD_AGAIN_SECONDS

    async def begin(self, wanted: Sequence[Sandbox]) -> None:
        """End and remove what dead processes of this run left; say how well commands are confined here, if any will be
        run. UsageError if one needs what the machine has not.
        """
        await asyncio.to_thread(self.blobs.clear)
        images = any(each.image for each in wanted)
        ended, removed = await asyncio.to_thread(clear, self.uid, self.place, images)
        if ended or removed:
            self.tell("sandbox.cleared", f"ended {ended} processes and removed {removed} folders of an earlier process")
        refused = await asyncio.to_thread(why_refused, wanted)
        if refused:
            raise UsageError(refused)
        for doubt in await asyncio.to_thread(sandbox_doubts, wanted):
            self.tell("sandbox.unconfined", doubt)
        if not all(each.image for each in wanted):
            self.tell_counted((await asyncio.to_thread(control_groups))[1])
        why_not = await asyncio.to_thread(why_no_docker) if images else ""
        if why_not:
            raise UsageError(f"a task has sandbox.image, and {why_not}; start an engine, or leave the image out")

    def opener(self, wanted: Sandbox | None, read_file: ReadFile | None) -> "Callable[[Sample, AttemptScope], Box]":
        return lambda sample, scope: Box(self, wanted or Sandbox(), BoxOrigin(sample, scope, read_file))

    async def has_namespaces(self) -> bool:
        if self._plain is None:
            self._plain = await asyncio.to_thread(why_no_namespaces)
        return not self._plain

    async def keep(self, work: Callable[[], T], watch: WorkStopwatch) -> T:
        """Do what writes files. While the disk is full it is done again and again, and that is told: the run waits, as
        its journal does.
        """
        while True:
            try:
                return await self.threads.keep(work)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._tell_full(error)
            watch.wait()
            try:
                await asyncio.sleep(_SPACE_PAUSE_SECONDS)
            finally:
                watch.give_up()

    def tell_counted(self, why: str) -> None:
        """Once: it does not change."""
        if why and not self._counted:
            self._counted = True
            self.tell("sandbox.counted", f"memory of sandboxed commands is counted ten times a second: {why}")

    def _tell_full(self, error: OSError) -> None:
        if time.monotonic() - self._told_at >= _TOLD_AGAIN_SECONDS:
            self._told_at = time.monotonic()
            advice = "free some space, and it goes on by itself; nothing is lost meanwhile, nor by stopping it"
            self.tell("sandbox.disk_full", f"the files of sandboxes: {error.strerror}; {advice}")

    def close(self) -> None:
        """Nothing runs on."""
        for call in list(self.calls):
            call.stop()
        self.threads.close()


class BoxOrigin(msgspec.Struct, frozen=True):
    """Whose sandbox it is, and what its first files come from."""

    sample: Sample
    scope: AttemptScope
    read_file: ReadFile | None

    def name(self) -> str:
        """For the folder."""
        return xxhash.xxh3_64_hexdigest(f"{self.scope.key} {self.scope.name}".encode())


class Box:
    """The sandbox of one attempt, which tools know as `ctx.sandbox`."""

    def __init__(self, sandboxes: Sandboxes, wanted: Sandbox, origin: BoxOrigin) -> None:
        self.wanted = wanted
        self._sandboxes = sandboxes
        self._origin = origin
        self._turn = asyncio.Lock()
        self._making = asyncio.Lock()
        self._calls: dict[Launch, asyncio.Event] = {}
        self._closed = False
        self._known = FolderSnapshot(FilesState())
        self._pending: tuple[Files, FolderSnapshot] | None = None
        self._watch = WorkStopwatch()
        self._folder: Folder | None = None
        self._noted: list[Files] = []
        """What was delivered since it was known: put together when the folder is next needed, which may be never."""
        self._fits = False
        """Whether the folder is as it is known, but for what was not recorded."""
        self._used = False
        """Whether the call whose turn it is has had the folder."""
        self.lost: LostFilesError | None = None

    async def run(self, command: Sequence[str] | str, given: bytes | str = b"", output_kb: int | None = None) -> Ran:
        """Run a command, or a line for bash, with `given` as its standard input, and wait for its end."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        namespaces = await self._sandboxes.has_namespaces()
        if refused := why_refused([self.wanted]):
            raise SandboxFailedError(refused)
        folder = await self._ready()
        call = Launch(folder, self.wanted, namespaces, over_full=bool(self._known.state.lost))
        most = None if output_kb is None else output_kb << 10
        ended = self._calls[call] = asyncio.Event()
        self._sandboxes.calls.add(call)
        try:
            return await self._sandboxes.threads.command(lambda: call.run(argv, data, most), call.stop, self._watch)
        finally:
            self._sandboxes.calls.discard(call)
            del self._calls[call]
            ended.set()
            self._sandboxes.tell_counted(call.no_group)

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
        self._noted.append(files)
        self._fits = False
        self._pending = None
        if self._used:  # what that call left does not begin with what this one changed
            self._lose(LostFilesError("a recorded call was delivered while another was being made in the sandbox"))

    def turn(self) -> "SandboxTurn":
        return SandboxTurn(self)

    async def enter(self) -> WorkStopwatch:
        """Wait for one's turn. The watch runs from then on."""
        await self._turn.acquire()
        self._watch = WorkStopwatch()
        return self._watch

    def leave(self) -> None:
        self._pending = None  # what was not delivered is part of what the next call changes
        self._used = False
        self._turn.release()

    async def changes(self) -> Files | None:
        """What the call that is ending changed."""
        folder = self._folder
        if folder is None or not self._fits:
            return None  # it has not had the folder
        wanted, known, blobs = self.wanted, self._known, self._sandboxes.blobs
        bounds = Capacity(wanted.files_mb * MIB, wanted.files_max)
        try:
            files, after = await self._sandboxes.keep(
                lambda: take_snapshot(folder.files, known, bounds, blobs), self._watch
            )
        except OSError as error:
            raise SandboxFailedError(f"what the call changed in the sandbox cannot be kept: {error}") from error
        if files is None:
            self._known = after
        else:
            self._pending = files, after
        return files

    def check_open(self) -> None:
        if self._closed:
            raise SandboxFailedError("the attempt has ended, and its sandbox with it: wait for calls that you make")

    async def close(self) -> None:
        """What still runs is ended, the folder removed, and no other made."""
        self._closed = True
        await asyncio.shield(self._remove())

    async def _remove(self) -> None:
        for call, ended in list(self._calls.items()):
            call.stop()
            await ended.wait()
        async with self._making:
            folder, self._folder = self._folder, None
            if folder is not None:
                await asyncio.to_thread(remove_folder, folder.path)

    async def _ready(self) -> Folder:
        """The folder, as the last recorded call left it. A tool may want it several times at once: it is made once."""
        async with self._making:
            self.check_open()
            self._used = True
            if self._folder is None or not self._fits:
                await self._make_fit()
            assert self._folder is not None
            return self._folder

    async def _make_fit(self) -> None:
        if self.lost is not None:
            raise self.lost
        if self._noted:
            state, noted = self._known.state, self._noted
            self._known = FolderSnapshot(
                await self._sandboxes.threads.keep(lambda: functools.reduce(FilesState.after, noted, state))
            )
            self._noted = []
        begun = self._known.state.entries or self._known.state.lost  # the first call records at least the folders
        first = {} if begun else await self._first_files()
        try:
            self._known = await self._sandboxes.keep(lambda: self._make(first), self._watch)
        except LostFilesError as error:
            self._lose(error)
            raise
        except OSError as error:
            raise SandboxFailedError(f"the sandbox cannot be made: {error}") from error
        self._fits = True

    def _lose(self, error: LostFilesError) -> None:
        """The attempt ends, whatever its solver makes of it."""
        if self.lost is None:
            self.lost = error
            key = self._origin.scope.key
            self._sandboxes.tell("sandbox.lost", f"{key}: {error}; the sample begins anew", key=key)

    def _make(self, first: Mapping[str, bytes]) -> FolderSnapshot:
        if self._folder is None:
            self._folder = _new_folder(self._sandboxes.place, self._sandboxes.uid, self._origin.name())
        folder = self._folder
        remove_folder(folder.files)
        known = restore(folder.files, self._known.state, self._sandboxes.blobs)
        if known.state.entries and not os.path.isdir(folder.work):
            raise LostFilesError("the sandbox cannot be restored: what was recorded has no working folder")
        make_folders(folder)
        for path, content in first.items():
            _write_first(folder.work, path, content)
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


class SandboxTurn:
    """One call's right to a sandbox: from when it begins until its step has been delivered."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._entered = False

    async def during(self, ask: Callable[[], Awaitable[Step]]) -> Step:
        """Make the call, then keep what it changed. Its seconds are those of work: neither its turn nor a thread was
        waited for in them.
        """
        watch = await self._box.enter()
        self._entered = True
        step = await ask()
        self._box.check_open()  # that it was stopped is no answer
        files = None if self._box.lost is not None else await self._box.changes()
        self._box.check_open()  # nor is a folder that is being removed what it changed
        if self._box.lost is not None:
            raise self._box.lost  # whatever the tool made of it
        return msgspec.structs.replace(step, files=files, seconds=round(watch.seconds, 6))

    def end(self) -> None:
        if self._entered:
            self._box.leave()


def why_refused(wanted: Sequence[Sandbox]) -> str:
    """Why commands are not run here: nothing would keep them from your files, or from services of this machine. Both
    can be accepted by setting a variable of the environment.
    """
    own = [each for each in wanted if not each.image]
    why = why_no_namespaces() if own else ""
    if why and not os.environ.get(PLAIN):
        return (
            f"sandboxed commands have no namespaces here ({why}), so they could read and change what you can; use "
            f"sandbox.image, or another machine, or accept it by setting {PLAIN}=1"
        )
    if not why and any(each.network for each in own) and not os.environ.get(HOST_NETWORK):
        return (
            "sandbox.network: true needs a container (sandbox.image): the built-in sandbox has no network of its own, "
            "so commands would use this machine's, and reach every service that listens on 127.0.0.1 or on an abstract "
            f"socket; accept that by setting {HOST_NETWORK}=1"
        )
    return ""


def sandbox_doubts(wanted: Sequence[Sandbox]) -> list[str]:
    """What is not confined here, in words; nothing if no command will be run outside a container."""
    own = [each for each in wanted if not each.image]
    if not own:
        return []
    if refused := why_refused(own):
        return [refused]
    if why := why_no_namespaces():
        return [
            f"sandboxed commands have no namespaces here ({why}): they run with time, memory and output limits and are "
            "killed with the run, but they can use the network and can read and change what you can"
        ]
    found = []
    if any(each.network for each in own):
        found.append(f"{HOST_NETWORK} is set: sandboxed commands can reach services that listen on 127.0.0.1")
    if not call_filter(namespaces=True):
        found.append("this kernel has no filter for system calls (seccomp), so sandboxed commands can make all of them")
    return found


def check_paths(wanted: Sandbox, place: str) -> None:
    """SpecError for first files that would not be inside."""
    for path in wanted.files:
        if path.startswith("/") or ".." in path.split("/") or path.strip("/") != path or not path:
            raise SpecError(f"{place}.sandbox.files: {path!r} is no path inside the sandbox; write it relative to it")


def _new_folder(place: str, uid: str, name: str) -> Folder:
    """Dying before its owner's name is in it leaves a folder that the next start of the run removes."""
    path = tempfile.mkdtemp(prefix=f"{name_of(uid)}{name}-", dir=place)
    try:
        own(path)
    except OSError:
        remove_folder(path)
        raise
    return Folder(path, uid)


def _write_first(folder: str, path: str, content: bytes) -> None:
    target = os.path.join(folder, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content)
