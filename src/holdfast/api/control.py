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
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{uuid.uuid4().hex}.wish")
    with open(f"{path}.tmp", "wb") as file:
        file.write(msgspec.json.encode(wish))
    os.replace(f"{path}.tmp", path)
    end = clock() + seconds
    try:
        while clock() < end:
            with contextlib.suppress(OSError, msgspec.DecodeError), open(f"{path}.done", "rb") as file:
                return msgspec.json.decode(file.read(), type=tuple[bool, str])
            time.sleep(_PAUSE_SECONDS)
        return None
    finally:
        for leftover in (path, f"{path}.done"):
            with contextlib.suppress(OSError):
                os.unlink(leftover)


def wishes(run: str, since: float = 0.0) -> Iterator[tuple[str, Wish | None]]:
    """What has been asked and not met, each with its place; None for one that cannot be read. What is older than
    `since` was asked of another process, and whoever asked has gone: it is removed.
    """
    folder = os.path.join(run, _FOLDER)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".wish") or os.path.exists(f"{path}.done"):
            continue
        try:
            if os.stat(path).st_mtime < since:
                os.unlink(path)
                continue
            with open(path, "rb") as file:
                yield path, msgspec.json.decode(file.read(), type=Wish)
        except OSError:
            continue  # taken back
        except msgspec.DecodeError:
            yield path, None


def answer_wish(path: str, done: bool, sentence: str) -> None:
    with contextlib.suppress(OSError):  # whoever asked has gone
        with open(f"{path}.done.tmp", "wb") as file:
            file.write(msgspec.json.encode((done, sentence)))
        os.replace(f"{path}.done.tmp", f"{path}.done")
        if not os.path.exists(path):
            os.unlink(f"{path}.done")
