"""Finds runs in a store by id, unique prefix, `latest` or folder, makes new run ids, and suggests commands for a run.

A store is a folder; mirrors are read elsewhere. `RunLocation` is the identity of a run on disk. Folders whose names
begin with a dot are never runs: they are left by processes that were making or removing a run.
"""

import contextlib
import difflib
import itertools
import os
import random
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from holdfast.errors import UsageError
from holdfast.files import is_folder
from holdfast.journal import START_FILE, is_url, journal_folder, run_folder
from holdfast.spec import RunLimits

_BEGUN_FILES = ("spec.yaml", START_FILE)
"""Written after a run's first record: if one exists, the run had begun."""
_FILES = (*_BEGUN_FILES, "plan.jsonl.zst", "data.jsonl.zst")
"""A folder with one of these files belongs to a run, even if the journal is lost."""
_ADJECTIVES = (
    "amber azure brisk calm clear coral crisp deep eager early fair fleet fresh gentle golden keen kind light "
    "lively lucid mellow mild noble north pale proud quick quiet rapid silver small smooth solid still sunny "
    "swift tall tidy true vivid warm wide young"
)
_NOUNS = (
    "alder ash badger bay beech birch brook cedar cove crane delta dune elk falcon finch fjord fox glade grove "
    "hare hawk heron inlet isle jay lake larch lark maple marsh meadow oak otter owl peak pine plover pond reef "
    "ridge river robin seal shore spruce swan tide vale willow wren"
)


class RunLocation(msgspec.Struct, frozen=True):
    """Where a run is: its folder, and the names that lead to it."""

    store: str
    experiment: str
    run_id: str
    folder: str
    url: str = ""
    """The URL of the run in a mirror, if the folder is only a cached copy of it."""
    shard: str = ""
    """`3/8` if the folder is that of a shard."""
    root: str = ""
    """The folder of the run, if `folder` is a cached copy of the records of all its shards."""

    @property
    def journal(self) -> str:
        return journal_folder(self.folder)

    @property
    def home(self) -> str:
        """The folder of the whole run."""
        if self.root:
            return self.root
        return os.path.dirname(os.path.dirname(self.folder)) if self.shard else self.folder

    @property
    def whole(self) -> "RunLocation":
        """The run that commands work on: not a copy, not a single shard."""
        return msgspec.structs.replace(self, folder=self.home, shard="", root="")

    def command(self, verb: str, *options: str) -> str:
        """A shell command about this run that can be copied and pasted."""
        if self.url:
            return shlex.join(["holdfast", verb, self.url, *options])
        return shlex.join(["holdfast", verb, self.name_in_store(), *options, *self._store_option()])

    def fork_command(self, *options: str) -> str:
        """A shell command that forks this run, with an id that no run in its folder has."""
        number = 2
        while os.path.exists(run_folder(self.store, self.experiment, f"{self.run_id}-{number}")):
            number += 1
        return self.command("fork", *options, "--id", f"{self.run_id}-{number}")

    def start_command(self) -> str:
        """The command that starts a run of this id; the user must fill in SPEC."""
        return shlex.join(["holdfast", "run", "SPEC", "--id", self.run_id, *self._store_option()])

    def _store_option(self) -> list[str]:
        return [] if os.path.abspath(default_store()) == self.store else ["--store", self.store]

    def name_in_store(self) -> str:
        """The id, or experiment/id if another experiment has a run with the same id."""
        return f"{self.experiment}/{self.run_id}" if self.experiments_with_id() else self.run_id

    def experiments_with_id(self) -> list[str]:
        """The other experiments of the store that have a run with the same id."""
        above, own = os.path.split(self.home)
        with contextlib.suppress(OSError):
            folders = [os.path.join(self.store, name) for name in sorted(os.listdir(self.store))]
            found = (path for path in folders if path != above and is_folder(journal_folder(os.path.join(path, own))))
            return [unquote(os.path.basename(path)) for path in found]
        return []

    def size(self) -> int:
        """The size of all files in bytes."""
        total = 0
        for above, _, names in os.walk(self.home):
            for name in names:
                with contextlib.suppress(OSError):  # sealed or removed in the meantime
                    total += os.lstat(os.path.join(above, name)).st_size
        return total

    @property
    def has_begun_files(self) -> bool:
        """Whether a file exists that is only written after the run's first record."""
        return any(os.path.lexists(os.path.join(self.folder, name)) for name in _BEGUN_FILES)

    @property
    def began(self) -> bool:
        """Whether a journal folder exists."""
        return is_folder(self.journal)


def default_store() -> str:
    return os.environ.get("HOLDFAST_STORE") or "runs"


def run_location(store: str, experiment: str, run_id: str) -> RunLocation:
    refuse_url(store)
    folder = run_folder(store, experiment, run_id)
    return RunLocation(os.path.abspath(store), experiment, run_id, folder)


def make_run_id(now: Callable[[], float] = time.time, chance: random.Random | None = None) -> str:
    """An id that sorts by time and is easy to pronounce."""
    chosen = chance or random.SystemRandom()
    adjective, noun = chosen.choice(_ADJECTIVES.split()), chosen.choice(_NOUNS.split())
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now()))}-{adjective}-{noun}"


def command_with_runs(verb: str, places: Sequence[RunLocation]) -> str:
    """A shell command about several runs, which may be in several stores."""
    first, *others = places
    is_one_store = not any(each.url or each.store != first.store for each in places)
    return first.command(verb, *(each.name_in_store() if is_one_store else each.url or each.home for each in others))


def runs_in(store: str) -> Iterator[RunLocation]:
    """Every run of a store, ordered by experiment and id; also runs whose journal is lost."""
    return (place for place in folders_in(store) if place.began or place.has_begun_files)


def newest_runs(store: str, experiment: str, count: int) -> list[RunLocation]:
    """At most `count` runs of an experiment, the last written first."""
    found = [place for place in runs_in(store) if place.experiment == experiment]
    return sorted(found, key=_written_at, reverse=True)[:count]


def folders_in(store: str) -> Iterator[RunLocation]:
    """Every folder of a run, also of one that has not begun or has lost its journal. UsageError if the folder is a
    mirror instead of a store.
    """
    refuse_url(store)
    store = os.path.abspath(store)
    if not os.path.isdir(store):
        return
    is_store = is_mirror = False
    for experiment in sorted(os.listdir(store)):
        above = os.path.join(store, experiment)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            if name.startswith("."):  # being made or removed
                continue
            place = RunLocation(store, unquote(experiment), unquote(name), os.path.join(above, name))
            if _is_mirror(place.folder):
                is_mirror = True
            elif place.began or any(os.path.lexists(os.path.join(place.folder, each)) for each in _FILES):
                is_store = True
                yield place
    if is_mirror and not is_store:
        raise _mirror_error(store)


def refuse_mirror(folder: str) -> None:
    """UsageError if a folder is the mirror of a run: read as a run, it would seem to have lost its records."""
    if _is_mirror(folder):
        raise _mirror_error(os.path.abspath(folder))


def _is_mirror(folder: str) -> bool:
    """A run's journal folder holds segment files; that of a mirror holds only folders, one for each epoch."""
    has_epochs = False
    if not is_folder(journal_folder(folder)):
        return False
    with contextlib.suppress(OSError), os.scandir(journal_folder(folder)) as entries:
        for entry in entries:
            if not entry.is_dir():
                return False
            has_epochs = has_epochs or entry.name.isdecimal()
    return has_epochs


def _mirror_error(path: str) -> UsageError:
    return UsageError(f"{path} is a mirror; write it as a URL: {shlex.quote(f'file://{path}')}")


def find_run(store: str, name: str, search: Callable[[str], Iterator[RunLocation]] = runs_in) -> RunLocation:
    """Find the run that `name` (id, prefix, `latest` or folder) means among those that `search` yields. UsageError if
    there is none, or more than one.
    """
    refuse_url(name)
    if any(os.path.lexists(os.path.join(name, each)) for each in ("journal", *_BEGUN_FILES)):
        refuse_mirror(name)
        folder = os.path.abspath(name)
        above, run_id = os.path.split(folder)
        return RunLocation(os.path.dirname(above), unquote(os.path.basename(above)), unquote(run_id), folder)
    every = list(search(store))
    if not every:
        raise UsageError(f"there are no runs in {store}; start one with: holdfast run SPEC")
    if name == "latest":
        return max(every, key=_written_at)
    return pick(every, name, store)


def _written_at(place: RunLocation) -> int:
    """When the run was last written; 0 if it was removed in the meantime."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(place.journal if place.began else place.folder).st_mtime_ns
    return 0


def refuse_url(text: str) -> None:
    """UsageError if `text` is a URL. For commands that write: only the process that runs a run may write its mirror."""
    if is_url(text):
        raise UsageError(
            f"{text} is in an object store, where runs can only be read; restore the run here with: holdfast recover "
            f"{shlex.quote(text)}, or continue it with: holdfast resume {shlex.quote(text)}"
        )


def pick(every: Sequence[RunLocation], name: str, store: str) -> RunLocation:
    """Choose a run by its id, experiment/id, or a unique prefix of its id. UsageError otherwise, with a suggestion."""
    exact = [place for place in every if name in (place.run_id, f"{place.experiment}/{place.run_id}")]
    found = exact or [place for place in every if place.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{place.experiment}/{place.run_id}" for place in found[:5])
        raise UsageError(f"{name!r} means {len(found)} runs: {names}; write more of the name")
    near = difflib.get_close_matches(name, [place.run_id for place in every], n=1)
    hint = f"did you mean {near[0]!r}? List them" if near else "list them"
    listed = f"holdfast ls --store {shlex.quote(store)}" if is_url(store) else "holdfast ls"
    raise UsageError(f"there is no run {name!r} in {store}; {hint} with: {listed}")


_BUDGET_REASON = "budget: limits.run."
_UNKNOWN_MODEL = re.compile(
    r"(?:^|; )((?:models|roles)\.[^:\s][^:]*): unknown_model: (.*?)(?=; (?:models|roles)\.[^:]+: |$)"
)
_NEAREST = re.compile(r"did you mean '([^']+)'\?")
_RIGHT_NAME = "NAME"
"""What the user must replace if the server has no similar name."""


def not_started_error(place: RunLocation) -> UsageError:
    """The error of commands that need `run.started`, for a run whose process died before writing it."""
    return UsageError(f"{place.run_id} has not begun: its journal holds no run; start it with: {place.start_command()}")


def suggest_resume_command(place: RunLocation, reason: str, limits: RunLimits | None) -> str:
    """The command that continues a run, with the changes that it needs. `reason`: that of its status. `limits`: None
    for a run that has not begun, which must be started.
    """
    if limits is None:
        return place.start_command()
    sets = (("--set", f"{path}={value}") for path, value in needed_changes(reason, limits).items())
    return place.command("resume", *itertools.chain.from_iterable(sets))


def needed_changes(reason: str, limits: RunLimits) -> dict[str, Any]:
    """Fields of the spec to change, because a plain resume would stop again at once: a limit is doubled after a budget
    stop, and an unknown model gets another name.
    """
    if names := wrong_names(reason):
        return {f"{model}.model": name or _RIGHT_NAME for model, name in names.items()}
    name = reason.removeprefix(_BUDGET_REASON).partition(" ")[0] if reason.startswith(_BUDGET_REASON) else ""
    limit = getattr(limits, name) if name else None
    if limit is None:
        return {}
    doubled = 2 * limit if isinstance(limit, int) or 2 * limit % 1 else int(2 * limit)
    return {f"limits.run.{name}": doubled}


def wrong_names(reason: str) -> dict[str, str]:
    """The models whose names their servers do not know, by place in the spec (`models.NAME`), with the most similar
    name that the server lists, if there is one. `reason`: that of a run's status.
    """
    found = {}
    for place, message in _UNKNOWN_MODEL.findall(reason):
        near = _NEAREST.search(message)
        found[place] = near[1] if near else ""
    return found


_PREFIX = ".gone-"


def hide_folder(folder: str) -> str:
    """Rename a run's folder so that it is no longer a run; the caller removes the returned folder."""
    hidden = os.path.join(os.path.dirname(folder), f"{_PREFIX}{uuid.uuid4().hex}")
    os.rename(folder, hidden)
    return hidden


def remove_hidden(experiment: str) -> None:
    """Remove folders that `hide_folder` renamed and a crash left behind."""
    for name in os.listdir(experiment) if os.path.isdir(experiment) else ():
        if name.startswith(_PREFIX):
            shutil.rmtree(os.path.join(experiment, name), ignore_errors=True)


def finish_removals(store: str) -> None:
    """`remove_hidden` for every experiment of a store."""
    for name in os.listdir(store) if os.path.isdir(store) else ():
        remove_hidden(os.path.join(store, name))
