"""The sandboxes of a run: a private folder for each attempt at a sample, created when a tool first needs it.

Calls in one sandbox run one after the other; the commands of one call may run concurrently. The files that a call
changed in `/sandbox` and `/tmp` are stored before its step is recorded, and count from the moment when the step is
durable. A replay runs nothing; the first live call finds the files as the last recorded call left them. If they cannot
be restored, the attempt fails with the kind `sandbox`, and the sample starts again. Nothing here blocks the event loop.

A crash leaves folders, processes and containers; the next start of the run removes them (`orphans`).
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
from holdfast.journal import NO_SPACE, own
from holdfast.records import FileChanges, Sample, Step, parse_reference
from holdfast.sandbox.confinement import (
    HOST_NETWORK,
    MIB,
    PLAIN,
    CommandResult,
    Folder,
    Launch,
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
_REPORT_AGAIN_SECONDS = 60.0
T = TypeVar("T")
Tell = Callable[..., None]
ReadFile = Callable[[str], Awaitable[bytes]]
"""Returns the checked content of a reference."""


class AttemptScope(Protocol):
    """The attempt that a sandbox belongs to."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...


class Sandboxes:
    """What the sandboxes of one run share: their parent folder, threads, running commands, and the log."""

    def __init__(self, uid: str, blobs: Blobs, tell: Tell, place: str = "") -> None:
        self.uid = uid
        self.blobs = blobs
        self.tell = tell
        self.place = place or os.path.realpath(tempfile.gettempdir())
        self.calls: set[Launch] = set()
        self.threads = Threads()
        self._plain: str | None = None
        self._counted = False
        self._reported_at = -_REPORT_AGAIN_SECONDS

    async def begin(self, sandboxes: Sequence[Sandbox]) -> None:
        """Remove what dead processes of this run left, and log how well commands are confined here. UsageError if a
        sandbox needs what the machine does not have.
        """
        await asyncio.to_thread(self.blobs.clear)
        images = any(each.image for each in sandboxes)
        ended, removed = await asyncio.to_thread(clear, self.uid, self.place, images)
        if ended or removed:
            self.tell("sandbox.cleared", f"ended {ended} processes and removed {removed} folders of an earlier process")
        refused = await asyncio.to_thread(why_refused, sandboxes)
        if refused:
            raise UsageError(refused)
        for doubt in await asyncio.to_thread(sandbox_doubts, sandboxes):
            self.tell("sandbox.unconfined", doubt)
        if not all(each.image for each in sandboxes):
            self.log_missing_cgroups((await asyncio.to_thread(control_groups))[1])
        why_not = await asyncio.to_thread(why_no_docker) if images else ""
        if why_not:
            raise UsageError(f"a task has sandbox.image, and {why_not}; start an engine, or leave the image out")

    def opener(self, spec: Sandbox | None, read_file: ReadFile | None) -> "Callable[[Sample, AttemptScope], Box]":
        return lambda sample, scope: Box(self, spec or Sandbox(), BoxOrigin(sample, scope, read_file))

    async def has_namespaces(self) -> bool:
        if self._plain is None:
            self._plain = await asyncio.to_thread(why_no_namespaces)
        return not self._plain

    async def keep(self, work: Callable[[], T], watch: WorkStopwatch) -> T:
        """Run a function that writes files. While the disk is full, log that and repeat it: the run waits, as its
        journal does.
        """
        while True:
            try:
                return await self.threads.keep(work)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                if time.monotonic() - self._reported_at >= _REPORT_AGAIN_SECONDS:
                    self._reported_at = time.monotonic()
                    advice = "free some space, and the run continues by itself; nothing is lost, also if you stop it"
                    self.tell("sandbox.disk_full", f"the files of sandboxes: {error.strerror}; {advice}")
            watch.wait()
            try:
                await asyncio.sleep(_SPACE_PAUSE_SECONDS)
            finally:
                watch.give_up()

    def log_missing_cgroups(self, why: str) -> None:
        """Log once that there are no control groups."""
        if why and not self._counted:
            self._counted = True
            self.tell("sandbox.counted", f"memory of sandboxed commands is counted ten times a second: {why}")

    def close(self) -> None:
        """Stop all commands."""
        for call in list(self.calls):
            call.stop()
        self.threads.close()


class BoxOrigin(msgspec.Struct, frozen=True):
    """The attempt that a sandbox belongs to, and where its first files come from."""

    sample: Sample
    scope: AttemptScope
    read_file: ReadFile | None

    def name(self) -> str:
        """Return a short name for the folder."""
        return xxhash.xxh3_64_hexdigest(f"{self.scope.key} {self.scope.name}".encode())


class Box:
    """The sandbox of one attempt; tools use it as `ctx.sandbox`."""

    def __init__(self, sandboxes: Sandboxes, spec: Sandbox, origin: BoxOrigin) -> None:
        self.spec = spec
        self._sandboxes = sandboxes
        self._origin = origin
        self._turn = asyncio.Lock()
        self._making = asyncio.Lock()
        self._calls: dict[Launch, asyncio.Event] = {}
        self._closed = False
        self._known = FolderSnapshot(FilesState())
        self._pending: tuple[FileChanges, FolderSnapshot] | None = None
        self._watch = WorkStopwatch()
        self._folder: Folder | None = None
        self._delivered_changes: list[FileChanges] = []
        """Changes of delivered steps that `_known` lacks; applied when the folder is next needed, which may be never.
        """
        self._is_current = False
        """Whether the folder matches `_known`, except for changes that were not recorded."""
        self._used = False
        """Whether the current call has used the folder."""
        self.lost: LostFilesError | None = None

    async def run(
        self, command: Sequence[str] | str, given: bytes | str = b"", output_kb: int | None = None
    ) -> CommandResult:
        """Run a command (a list, or a line for bash) with `given` as its standard input, and wait for its end."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        namespaces = await self._sandboxes.has_namespaces()
        if refused := why_refused([self.spec]):
            raise SandboxFailedError(refused)
        folder = await self._ready()
        call = Launch(folder, self.spec, namespaces, over_full=bool(self._known.state.lost))
        most = None if output_kb is None else output_kb << 10
        ended = self._calls[call] = asyncio.Event()
        self._sandboxes.calls.add(call)
        try:
            return await self._sandboxes.threads.command(lambda: call.run(argv, data, most), call.stop, self._watch)
        finally:
            self._sandboxes.calls.discard(call)
            del self._calls[call]
            ended.set()
            self._sandboxes.log_missing_cgroups(call.no_group)

    async def read(self, path: str) -> bytes:
        """Return the content of a file. FileNotFoundError with the command's message if it cannot be read."""
        ran = await self.run(["cat", "--", path], output_kb=2 * self.spec.files_mb << 10)
        if ran.code:
            raise FileNotFoundError(ran.stderr.strip() or f"{path} cannot be read")
        return ran.out.head + ran.out.tail

    async def write(self, path: str, content: bytes | str) -> None:
        """Create or replace a file, and create the folders above it."""
        program = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        ran = await self.run(["sh", "-c", program, "sh", path], given=content)
        if ran.code:
            raise OSError(ran.stderr.strip() or f"{path} cannot be written")

    def note(self, files: FileChanges) -> None:
        """Note the changes of a step that is being delivered: just recorded, or replayed."""
        if self._pending is not None and self._pending[0] is files:
            self._known, self._pending = self._pending[1], None
            return
        self._delivered_changes.append(files)
        self._is_current = False
        self._pending = None
        if self._used:  # its changes would not start from the files that this step left
            self._lose(LostFilesError("a recorded call was delivered while another was being made in the sandbox"))

    def turn(self) -> "SandboxTurn":
        return SandboxTurn(self)

    async def enter(self) -> WorkStopwatch:
        """Wait for this call's turn; return a stopwatch that starts now."""
        await self._turn.acquire()
        self._watch = WorkStopwatch()
        return self._watch

    def leave(self) -> None:
        self._pending = None  # changes that were not recorded become part of the next call's
        self._used = False
        self._turn.release()

    async def changes(self) -> FileChanges | None:
        """Store and return the changes of the call that is ending; None if there are none."""
        folder = self._folder
        if folder is None or not self._is_current:
            return None  # the call did not use the folder
        spec, known, blobs = self.spec, self._known, self._sandboxes.blobs
        bounds = Capacity(spec.files_mb * MIB, spec.files_max)
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
        """Stop running commands and remove the folder. No new one is created."""
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
        """Return the folder as the last recorded call left it. Concurrent commands of one call share it."""
        async with self._making:
            self.check_open()
            self._used = True
            if self._folder is not None and self._is_current:
                return self._folder
            if self.lost is not None:
                raise self.lost
            if self._delivered_changes:
                state, noted = self._known.state, self._delivered_changes
                self._known = FolderSnapshot(
                    await self._sandboxes.threads.keep(lambda: functools.reduce(FilesState.after, noted, state))
                )
                self._delivered_changes = []
            begun = self._known.state.entries or self._known.state.lost  # every first call records at least the folders
            first = {} if begun else await self._first_files()
            try:
                self._known = await self._sandboxes.keep(lambda: self._make(first), self._watch)
            except LostFilesError as error:
                self._lose(error)
                raise
            except OSError as error:
                raise SandboxFailedError(f"the sandbox cannot be made: {error}") from error
            self._is_current = True
            assert self._folder is not None
            return self._folder

    def _lose(self, error: LostFilesError) -> None:
        """Mark the files as lost: the attempt fails, even if its solver catches the error."""
        if self.lost is None:
            self.lost = error
            key = self._origin.scope.key
            self._sandboxes.tell("sandbox.lost", f"{key}: {error}; the sample begins anew", key=key)

    def _make(self, first: Mapping[str, bytes]) -> FolderSnapshot:
        if self._folder is None:
            uid = self._sandboxes.uid
            path = tempfile.mkdtemp(prefix=f"{name_of(uid)}{self._origin.name()}-", dir=self._sandboxes.place)
            try:
                own(path)  # a crash before this line leaves a folder without an owner; the next start removes it
            except OSError:
                remove_folder(path)
                raise
            self._folder = Folder(path, uid)
        folder = self._folder
        remove_folder(folder.files)
        known = restore(folder.files, self._known.state, self._sandboxes.blobs)
        if known.state.entries and not os.path.isdir(folder.work):
            raise LostFilesError("the sandbox cannot be restored: what was recorded has no working folder")
        make_folders(folder)
        for path, content in first.items():
            target = os.path.join(folder.work, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(content)
        return known

    async def _first_files(self) -> dict[str, bytes]:
        """Return the files that the spec puts there, from columns of the sample's row."""
        row, found = self._origin.sample.row, {}
        for path, column in self.spec.files.items():
            value: Any = row.get(column)
            if self._origin.read_file is not None and parse_reference(value) is not None:
                found[path] = await self._origin.read_file(value)
            elif value is not None:
                found[path] = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return found


class SandboxTurn:
    """One call's exclusive use of a sandbox, from its start until its step has been delivered."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._entered = False

    async def during(self, ask: Callable[[], Awaitable[Step]]) -> Step:
        """Make the call, then store its changes. Its recorded seconds exclude waiting for its turn or a thread."""
        watch = await self._box.enter()
        self._entered = True
        step = await ask()
        self._box.check_open()  # a result of a call that was stopped does not count
        files = None if self._box.lost is not None else await self._box.changes()
        self._box.check_open()  # nor does a snapshot of a folder that was being removed
        if self._box.lost is not None:
            raise self._box.lost  # even if the tool caught the error
        return msgspec.structs.replace(step, files=files, seconds=round(watch.seconds, 6))

    def end(self) -> None:
        if self._entered:
            self._box.leave()


def why_refused(sandboxes: Sequence[Sandbox]) -> str:
    """Return why commands are not run here: they could reach the user's files, or services of this machine. Users
    accept either by setting an environment variable. Empty if commands may run.
    """
    own = [each for each in sandboxes if not each.image]
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


def sandbox_doubts(sandboxes: Sequence[Sandbox]) -> list[str]:
    """Return messages about what is not confined here; empty if all commands run in containers."""
    own = [each for each in sandboxes if not each.image]
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


def check_paths(spec: Sandbox, place: str) -> None:
    """Raise SpecError for first files outside the sandbox."""
    for path in spec.files:
        if path.startswith("/") or ".." in path.split("/") or path.strip("/") != path or not path:
            raise SpecError(f"{place}.sandbox.files: {path!r} is no path inside the sandbox; write it relative to it")
