"""Control requests to a live run from another process: cancel, tune, note, tag, set a score.

A request is a file in the run's `control` folder, written under a temporary name and then renamed. The run's watchdog
sees it at its next heartbeat, executes it, and writes a reply file beside it. This works from every host that can write
the folder, and for a mirrored run also from others (`journal.mirror.requests`). The sender removes both files; it
withdraws a request that gets no reply in time. A crash of the sender leaves a `.wish` file (the suffix is part of the
on-disk format), which the next process of the run removes as stale.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import StoreError, UsageError
from holdfast.journal import CONTROL, REPLY_SUFFIX, REQUEST_SUFFIX, Objects, request_name
from holdfast.records import Draft, Note, RunResumed, ScoreGiven, draft
from holdfast.runs.store.provenance import collect_versions, describe_host
from holdfast.spec import Spec, change_spec, find_differences, read_stored_spec, spec_mapping
from holdfast.state import Story
from holdfast.version import __version__

NOTHING_CHANGES = "nothing would change"
_POLL_SECONDS = 0.1
_POLL_MIRROR_SECONDS = 1.0


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`do` is `cancel`, `tune` (with assignments), `note` (with a text), `tag` (with tags to add and to remove), or
    `score` (with a score that was set by hand).
    """

    do: str
    sets: list[str] = []
    text: str = ""
    add: list[str] = []
    remove: list[str] = []
    key: str = ""
    score: ScoreGiven | None = None


def send_control_request(
    run: str, request: ControlRequest, seconds: float = 15.0, clock: Callable[[], float] = time.monotonic
) -> tuple[bool, str] | None:
    """Send a request and wait for the reply: whether it was done, and a sentence. None without a reply in time."""
    folder = os.path.join(run, CONTROL)
    files.make_folder(folder)
    path = os.path.join(folder, f"{uuid.uuid4().hex}{REQUEST_SUFFIX}")
    files.replace_file(path, msgspec.json.encode(request))
    end = clock() + seconds
    try:
        while clock() < end:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                return msgspec.json.decode(files.read_file(f"{path}{REPLY_SUFFIX}"), type=tuple[bool, str])
            time.sleep(_POLL_SECONDS)
        return None
    finally:
        for leftover in (path, f"{path}{REPLY_SUFFIX}"):
            with contextlib.suppress(OSError):
                files.remove(leftover)


def send_through_mirror(
    objects: Objects, epoch: int, request: ControlRequest, seconds: float, clock: Callable[[], float] = time.monotonic
) -> tuple[bool, str] | None:
    """The same for a run on another machine: its owner looks for requests when it writes its heartbeat to the mirror.
    `seconds` must be longer than the pause between two heartbeats.
    """
    name = request_name(epoch, uuid.uuid4().hex)
    objects.put(name, msgspec.json.encode(request))
    end = clock() + seconds
    try:
        while clock() < end:
            time.sleep(_POLL_MIRROR_SECONDS)
            data = objects.get(f"{name}{REPLY_SUFFIX}")
            if data is not None:
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.json.decode(data, type=tuple[bool, str])
        return None
    finally:
        for leftover in (name, f"{name}{REPLY_SUFFIX}"):
            with contextlib.suppress(StoreError):  # it stays, and no later owner obeys it
                objects.delete(leftover)


def pending_requests(run: str, since: float = 0.0) -> Iterator[tuple[str, ControlRequest | None]]:
    """Yield the path of each request without a reply, and the request; None if it cannot be decoded. Requests older
    than `since` were meant for an earlier process, and their senders have given up: they are removed.
    """
    folder = os.path.join(run, CONTROL)
    try:
        names = sorted(files.list_names(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(REQUEST_SUFFIX) or f"{name}{REPLY_SUFFIX}" in names:
            continue
        try:
            status = files.status_of(path)
            if status is not None and status.st_mtime < since:
                files.remove(path)
                continue
            yield path, msgspec.json.decode(files.read_file(path), type=ControlRequest)
        except OSError:
            continue  # the sender withdrew it
        except msgspec.DecodeError:
            yield path, None


def write_control_reply(path: str, done: bool, sentence: str) -> None:
    with contextlib.suppress(OSError):  # the sender, and with it the folder, may be gone
        files.replace_file(f"{path}{REPLY_SUFFIX}", msgspec.json.encode((done, sentence)))
        if files.status_of(path) is None:  # withdrawn in the meantime: nobody else would remove the reply
            files.remove(f"{path}{REPLY_SUFFIX}")


_FIXED_WHILE_LIVE = (".timeout_seconds",)
"""Throughput fields that open connections keep. Accepting a change that has no effect would mislead the user."""


def tune_spec(story: Story, sets: Sequence[str]) -> tuple[Spec, Draft]:
    """Return the changed spec and its record. UsageError for a field that is not of the class `throughput`."""
    spec = change_spec(story.spec, sets)
    changes = find_differences(read_stored_spec(story.spec), spec)
    if not changes:
        raise UsageError(NOTHING_CHANGES)
    for change in changes:
        if change.kind != "throughput":
            raise UsageError(
                f"{change.field} is a {change.kind} field: only throughput fields of a live run can be changed"
            )
        if change.field.endswith(_FIXED_WHILE_LIVE) or ".batch" in change.field:
            raise UsageError(f"{change.field} takes effect only at a start: stop the run and resume it with --set")
    record = RunResumed(
        tuple(changes), spec_mapping(spec), collect_versions(), describe_host(), __version__, (), live=True
    )
    return spec, draft("run.resumed", record)


def make_control_record(request: ControlRequest) -> Draft:
    """The journal record of a note, a change of tags, or a score that was set by hand."""
    if request.score is not None:
        return draft("score", request.score, request.key)
    return draft("note", Note(request.text, request.add, request.remove))
