"""Asking something of a live run, from another process: requests are files in the run's folder.

A request is made whole under a temporary name and renamed; the run's watch sees it with its next beat, does it, and
writes what came of it beside it. It works wherever the folder can be written, on any host, and leaves nothing behind. A
request that nobody meets in time is taken back.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator

import msgspec

from holdfast import files
from holdfast.records.facts import ScoreGiven

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
