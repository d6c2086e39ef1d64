"""Asking something of a live run, from another process: requests are files in the run's folder.

A request is made whole under a temporary name and renamed; the run's watch sees it with its next beat, does it, and
writes what came of it beside it. It works wherever the folder can be written, on any host, and leaves nothing behind. A
request that nobody meets in time is taken back.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import UsageError
from holdfast.records import Draft, draft
from holdfast.records.facts import Note, RunResumed, ScoreGiven
from holdfast.runs.execution.provenance import code, host
from holdfast.spec import Spec, change_spec, read_stored_spec, spec_mapping
from holdfast.spec.drift import differences
from holdfast.state import Story
from holdfast.version import __version__

_FOLDER = "control"
_PAUSE_SECONDS = 0.1


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked: `cancel`, `tune` with assignments, `note` with a text, `tag` with tags to add and to take away,
    `score` with one that was set by hand.
    """

    do: str
    sets: list[str] = []
    text: str = ""
    add: list[str] = []
    remove: list[str] = []
    key: str = ""
    score: ScoreGiven | None = None


def ask_run(
    run: str, wish: Wish, seconds: float = 15.0, clock: Callable[[], float] = time.monotonic
) -> tuple[bool, str] | None:
    """Whether it was done, and a sentence; None if nobody answered."""
    folder = os.path.join(run, _FOLDER)
    files.make_folder(folder)
    path = os.path.join(folder, f"{uuid.uuid4().hex}.wish")
    files.replace_file(path, msgspec.json.encode(wish))
    end = clock() + seconds
    try:
        while clock() < end:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                return msgspec.json.decode(files.read_file(f"{path}.done"), type=tuple[bool, str])
            time.sleep(_PAUSE_SECONDS)
        return None
    finally:
        for leftover in (path, f"{path}.done"):
            with contextlib.suppress(OSError):
                files.remove(leftover)


def wishes(run: str, since: float = 0.0) -> Iterator[tuple[str, Wish | None]]:
    """What has been asked and not met, each with its place; None for one that cannot be read. What is older than
    `since` was asked of another process, and whoever asked has gone: it is removed.
    """
    folder = os.path.join(run, _FOLDER)
    try:
        names = sorted(files.list_names(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".wish") or f"{name}.done" in names:
            continue
        try:
            found = files.status_of(path)
            if found is not None and found.st_mtime < since:
                files.remove(path)
                continue
            yield path, msgspec.json.decode(files.read_file(path), type=Wish)
        except OSError:
            continue  # taken back
        except msgspec.DecodeError:
            yield path, None


def answer_wish(path: str, done: bool, sentence: str) -> None:
    with contextlib.suppress(OSError):  # whoever asked has gone
        files.replace_file(f"{path}.done", msgspec.json.encode((done, sentence)))
        if files.status_of(path) is None:
            files.remove(f"{path}.done")


_AT_THE_NEXT_START = (".timeout_seconds",)
"""Throughput fields that open connections keep: accepted and without effect would be a lie."""


def tuned(story: Story, sets: Sequence[str]) -> tuple[Spec, Draft]:
    """The spec with other limits, and the record of it. UsageError for a field that is not only about speed."""
    spec = change_spec(story.spec, sets)
    changes = differences(read_stored_spec(story.spec), spec)
    if not changes:
        raise UsageError("nothing would change")
    for change in changes:
        if change.kind != "throughput":
            raise UsageError(
                f"{change.field} is of the class {change.kind}: only throughput fields of a live run change"
            )
        if change.field.endswith(_AT_THE_NEXT_START) or ".batch" in change.field:
            raise UsageError(f"{change.field} counts from the next start: stop the run and resume it with --set")
    record = RunResumed(tuple(changes), spec_mapping(spec), code(), host(), __version__, (), live=True)
    return spec, draft("run.resumed", record)


def record_of(wish: Wish) -> Draft:
    """A person's note, tags that come and go, or a score that was set by hand."""
    if wish.score is not None:
        return draft("score", wish.score, wish.key)
    return draft("note", Note(wish.text, wish.add, wish.remove))
