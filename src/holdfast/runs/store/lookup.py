"""Finding runs in a store: by id, unique prefix, `latest`, or folder. A store is a folder; a mirror is only read."""

import contextlib
import difflib
import os
import random
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

import msgspec

from holdfast.errors import UsageError
from holdfast.files import is_folder
from holdfast.journal import journal_folder, run_folder
from holdfast.journal.object_store import is_url
from holdfast.journal.start_copy import START_FILE
from holdfast.spec import RunLimits

_BEGUN_FILES = ("spec.yaml", START_FILE)
"""Written after a run's first record: they show that it had begun."""
_FILES = (*_BEGUN_FILES, "plan.jsonl.zst", "data.jsonl.zst")
"""A folder with one of these is a run's, whatever else it has lost."""
_WORDS = [
    "amber",
    "azure",
    "brisk",
    "calm",
    "clear",
    "coral",
    "crisp",
    "deep",
    "eager",
    "early",
    "fair",
    "fleet",
    "fresh",
    "gentle",
    "golden",
    "keen",
    "kind",
    "light",
    "lively",
    "lucid",
    "mellow",
    "mild",
    "noble",
    "north",
    "pale",
    "proud",
    "quick",
    "quiet",
    "rapid",
    "silver",
    "small",
    "smooth",
    "solid",
    "still",
    "sunny",
    "swift",
    "tall",
    "tidy",
    "true",
    "vivid",
    "warm",
    "wide",
    "young",
]
_THINGS = [
    "alder",
    "ash",
    "badger",
    "bay",
    "beech",
    "birch",
    "brook",
    "cedar",
    "cove",
    "crane",
    "delta",
    "dune",
    "elk",
    "falcon",
    "finch",
    "fjord",
    "fox",
    "glade",
    "grove",
    "hare",
    "hawk",
    "heron",
    "inlet",
    "isle",
    "jay",
    "lake",
    "larch",
    "lark",
    "maple",
    "marsh",
    "meadow",
    "oak",
    "otter",
    "owl",
    "peak",
    "pine",
    "plover",
    "pond",
    "reef",
    "ridge",
    "river",
    "robin",
    "seal",
    "shore",
    "spruce",
    "swan",
    "tide",
    "vale",
    "willow",
    "wren",
]


class RunPlace(msgspec.Struct, frozen=True):
    """A run's folder, and the names that lead to it."""

    store: str
    experiment: str
    run_id: str
    folder: str
    url: str = ""
    """Of the mirror that the folder is only a copy of."""

    @property
    def journal(self) -> str:
        return journal_folder(self.folder)

    def command(self, verb: str, *options: str) -> str:
        """A command about this run that works when it is copied."""
        if self.url:
            return shlex.join(["holdfast", verb, self.url, *options])
        return shlex.join(["holdfast", verb, self._unmistakable(), *options, *self._store_option()])

    def command_to_begin(self) -> str:
        """Starts a run of this id. Only the user knows where its spec is."""
        return shlex.join(["holdfast", "run", "SPEC", "--id", self.run_id, *self._store_option()])

    def _store_option(self) -> list[str]:
        return [] if os.path.abspath(default_store()) == self.store else ["--store", self.store]

    def _unmistakable(self) -> str:
        """The id alone, unless another experiment has a run of that id too."""
        own = os.path.basename(self.folder)
        above = os.path.dirname(self.folder)
        with contextlib.suppress(OSError):
            for other in os.listdir(self.store):
                path = os.path.join(self.store, other)
                if path != above and os.path.isdir(os.path.join(path, own, "journal")):
                    return f"{self.experiment}/{self.run_id}"
        return self.run_id

    def size(self) -> int:
        """Bytes of all its files."""
        total = 0
        for above, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # sealed or removed meanwhile
                    total += os.lstat(os.path.join(above, name)).st_size
        return total

    @property
    def has_begun_files(self) -> bool:
        """Whether a file exists that is written after the run's first record, so that the run had begun."""
        return any(os.path.lexists(os.path.join(self.folder, name)) for name in _BEGUN_FILES)

    @property
    def began(self) -> bool:
        """Whether a journal exists at all."""
        return is_folder(self.journal)


def default_store() -> str:
    return os.environ.get("HOLDFAST_STORE") or "runs"


def place_of(store: str, experiment: str, run_id: str) -> RunPlace:
    refuse_url(store)
    folder = run_folder(store, experiment, run_id)
    return RunPlace(os.path.abspath(store), experiment, run_id, folder)


def make_run_id(now: Callable[[], float] = time.time, chance: random.Random | None = None) -> str:
    """A name that sorts by time and can be said aloud."""
    chosen = chance or random.SystemRandom()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now()))}-{chosen.choice(_WORDS)}-{chosen.choice(_THINGS)}"


def runs_in(store: str) -> Iterator[RunPlace]:
    """Every run of a store, by the names of experiments and runs; also one whose journal is lost."""
    return (place for place in folders_in(store) if place.began or place.has_begun_files)


def newest_runs(store: str, experiment: str, count: int) -> list[RunPlace]:
    """At most so many of an experiment, the one that was written last first."""
    found = [place for place in runs_in(store) if place.experiment == experiment]
    return sorted(found, key=_written, reverse=True)[:count]


def folders_in(store: str) -> Iterator[RunPlace]:
    """Every folder that is a run, will be one, or was one before its journal was lost. UsageError if all are mirrors of
    runs.
    """
    refuse_url(store)
    store = os.path.abspath(store)
    if not os.path.isdir(store):
        return
    is_store = is_mirror = False
    for experiment in sorted(os.listdir(store)):
        above = os.path.join(store, experiment)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            if name.startswith("."):  # a fork that is being made: no run has such a name
                continue
            place = RunPlace(store, unquote(experiment), unquote(name), os.path.join(above, name))
            if _is_mirror(place.folder):
                is_mirror = True
            elif place.began or any(os.path.lexists(os.path.join(place.folder, each)) for each in _FILES):
                is_store = True
                yield place
    if is_mirror and not is_store:
        raise _no_folder_of_runs(store)


def refuse_mirror(folder: str) -> None:
    """A mirror in a folder is read as one, or its run would seem to be lost."""
    if _is_mirror(folder):
        raise _no_folder_of_runs(os.path.abspath(folder))


def _is_mirror(folder: str) -> bool:
    """Where a run has files of segments, its mirror has a folder for each epoch."""
    has_epochs = False
    if not is_folder(journal_folder(folder)):
        return False
    with contextlib.suppress(OSError), os.scandir(journal_folder(folder)) as entries:
        for entry in entries:
            if not entry.is_dir():
                return False
            has_epochs = has_epochs or entry.name.isdecimal()
    return has_epochs


def _no_folder_of_runs(path: str) -> UsageError:
    return UsageError(f"{path} is a mirror; write it as a URL: {shlex.quote(f'file://{path}')}")


def find_run(store: str, wanted: str, search: Callable[[str], Iterator[RunPlace]] = runs_in) -> RunPlace:
    """The one run that is meant, of those that `search` finds. UsageError if there is none, or more than one."""
    refuse_url(wanted)
    if any(os.path.lexists(os.path.join(wanted, name)) for name in ("journal", *_BEGUN_FILES)):
        refuse_mirror(wanted)
        folder = os.path.abspath(wanted)
        above, name = os.path.split(folder)
        return RunPlace(os.path.dirname(above), unquote(os.path.basename(above)), unquote(name), folder)
    every = list(search(store))
    if not every:
        raise UsageError(f"there are no runs in {store}; start one with: holdfast run SPEC")
    if wanted == "latest":
        return max(every, key=_written)
    return pick(every, wanted, store)


def _written(place: RunPlace) -> int:
    """When it last was; 0 if it was removed a moment ago."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(place.journal if place.began else place.folder).st_mtime_ns
    return 0


def refuse_url(text: str) -> None:
    """For whatever writes: a mirror is written by the process that has the run, and by nobody else."""
    if is_url(text):
        raise UsageError(
            f"{text} is in an object store, from which runs are only read; bring the run home with: holdfast recover "
            f"{shlex.quote(text)}, or, to go on with it: holdfast resume {shlex.quote(text)}"
        )


def pick(every: Sequence[RunPlace], wanted: str, store: str) -> RunPlace:
    """By its name, or the beginning of it."""
    exact = [place for place in every if wanted in (place.run_id, f"{place.experiment}/{place.run_id}")]
    found = exact or [place for place in every if place.run_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{place.experiment}/{place.run_id}" for place in found[:5])
        raise UsageError(f"{wanted!r} means {len(found)} runs: {names}; write more of the name")
    near = difflib.get_close_matches(wanted, [place.run_id for place in every], n=1)
    hint = f"did you mean {near[0]!r}? List them" if near else "list them"
    listed = f"holdfast ls --store {shlex.quote(store)}" if is_url(store) else "holdfast ls"
    raise UsageError(f"there is no run {wanted!r} in {store}; {hint} with: {listed}")


_BUDGET = "budget: limits.run."


def not_begun(place: RunPlace) -> UsageError:
    """For commands that need the record that a run begins with, when its process died before writing it."""
    return UsageError(
        f"{place.run_id} has not begun: its journal holds no run; start it with: {place.command_to_begin()}"
    )


def command_to_go_on(place: RunPlace, reason: str, limits: RunLimits | None) -> str:
    """`reason` is that of the run's status. At a budget a plain resume would stop at once, so the limit is doubled.
    `limits` is None for a run that has not begun: its first command starts it.
    """
    if limits is None:
        return place.command_to_begin()
    name = reason.removeprefix(_BUDGET).partition(" ")[0] if reason.startswith(_BUDGET) else ""
    limit = getattr(limits, name) if name else None
    if limit is None:
        return place.command("resume")
    raised = 2 * limit if isinstance(limit, int) else f"{2 * limit:g}"  # no 2e+06, which is no whole number
    return place.command("resume", "--set", f"limits.run.{name}={raised}")


_PREFIX = ".gone-"


def hide_folder(folder: str) -> str:
    """Rename it; returns the hidden folder, which the caller removes."""
    hidden = os.path.join(os.path.dirname(folder), f"{_PREFIX}{uuid.uuid4().hex}")
    os.rename(folder, hidden)
    return hidden


def remove_hidden(experiment: str) -> None:
    """What was renamed to be removed, and is still there."""
    for name in os.listdir(experiment) if os.path.isdir(experiment) else ():
        if name.startswith(_PREFIX):
            shutil.rmtree(os.path.join(experiment, name), ignore_errors=True)


def finish_removals(store: str) -> None:
    """In every experiment of a store."""
    for name in os.listdir(store) if os.path.isdir(store) else ():
        remove_hidden(os.path.join(store, name))
