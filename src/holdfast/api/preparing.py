"""From what a user gave to what can be run: everything that a spec names is found, or refused with its place.

Nothing here creates anything on disk or sends anything.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.api.pricing import check_budget, with_prices
from holdfast.engine import identity_of, open_batch_api, open_provider
from holdfast.errors import BadNameError, HoldfastError, JournalError, SpecError
from holdfast.journal import folder_name
from holdfast.plan import Rows, Work, prepare, survey
from holdfast.records.facts import TaskInputs
from holdfast.score import Scorer, identity, resolve
from holdfast.spec import Counts, Spec, Task

_PARTS_OF_RUNS = ("journal", "lease")
"""By them a mirror's runs are told from what holds runs."""


class Given(msgspec.Struct, frozen=True):
    """A spec, and what a script passed as Python objects instead of names."""

    spec: Spec
    rows: Mapping[str, Rows] = msgspec.field(default_factory=dict)
    solvers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scorers: Mapping[str, Sequence[Any]] = msgspec.field(default_factory=dict)
    where: str = ""
    """The file that the spec was read from, for errors."""
    counted: Callable[[], None] | None = None
    """Called for each row that is read, for whoever shows that."""
    from_run: bool = False
    """The spec is the one that the run itself holds: its rows are the run's too, and data files do not matter."""


class Prepared(msgspec.Struct, frozen=True):
    """A spec with everything that it names found."""

    spec: Spec
    works: Mapping[str, Work]
    scorers: Mapping[str, Sequence[Scorer]]

    @property
    def evaluation(self) -> str:
        return evaluation_of(self.scorers, self.spec)

    def scorer_identities(self) -> list[dict[str, Any]]:
        """What the evaluation is made of, for its record."""
        counts = {task.name: _counts_told(task) for task in self.spec.tasks}
        return [
            {"task": task, **identity(each), **counts[task]} for task, every in self.scorers.items() for each in every
        ]


def check(given: Given) -> tuple[Prepared, int]:
    """Everything that can be wrong with a spec, without creating anything. Returns how many keys it means."""
    with naming(given.where):
        prepared = prepare_given(given, find_scorers(given))
        return prepared, survey(given.spec, prepared.works)


def evaluation_of(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> str:
    """The identity of a scorer configuration: what it is called, what its code is, how answers count that are not shown
    to it, and, if it asks judges, which models those are. Empty if there is none.
    """
    if not any(scorers.values()):
        return ""
    counts = {task.name: _counts_told(task) for task in spec.tasks}
    told: dict[str, Any] = {
        name: [{**identity(scorer), **counts[name]} for scorer in every] for name, every in scorers.items()
    }
    if any(scorer.needs_ctx for every in scorers.values() for scorer in every):
        told = {"scorers": told, "roles": {name: [identity_of(m), m.params] for name, m in spec.roles.items()}}
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(told, order="deterministic"))


def find_modules_beside(path: str) -> None:
    """The user's own modules are found in the current folder and beside the spec."""
    for folder in (os.path.dirname(os.path.abspath(path)) if path else "", os.getcwd()):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """What is wrong with a spec is told with the file that it is in."""
    try:
        yield
    except JournalError:
        raise
    except HoldfastError as error:
        text = str(error)
        raise SpecError(text if not where or text.startswith(where) else f"{where}: {text}") from error


def check_experiment(spec: Spec) -> None:
    """Its name must do as the name of a folder."""
    try:
        folder_name(spec.experiment)
    except BadNameError as error:
        raise SpecError(f"experiment: {error}") from error
    if spec.experiment in _PARTS_OF_RUNS:
        raise SpecError(f"experiment: {spec.experiment!r} is what a part of every run is called; choose another name")


def find_scorers(given: Given) -> dict[str, list[Scorer]]:
    """By task. They come first: which answers of a run are not scored yet depends on them."""
    scorers = {}
    for index, task in enumerate(given.spec.tasks):
        entries: Sequence[Any] = given.scorers.get(task.name) or task.scorers
        scorers[task.name] = [resolve(entry, f"tasks[{index}].scorers[{i}]") for i, entry in enumerate(entries)]
        _refuse_same_names([scorer.name for scorer in scorers[task.name]], f"tasks[{index}].scorers")
        for i, each in enumerate(scorers[task.name]):
            if each.needs_ctx:
                _check_judges(each, given.spec, f"tasks[{index}].scorers[{i}]")
    return scorers


def prepare_given(
    given: Given,
    scorers: Mapping[str, Sequence[Scorer]],
    stored: Mapping[str, TaskInputs] | None = None,
    before: Spec | None = None,
) -> Prepared:
    """`stored`: what the run holds of its tasks, if it has begun; `before`: its spec until now."""
    check_experiment(given.spec)
    spec = with_prices(given.spec, before)
    check_budget(spec)
    works = prepare(spec, given.rows, given.solvers, stored, given.counted)
    for index, task in enumerate(spec.tasks):
        for server in works[task.name].solver.servers():
            server.check(f"tasks[{index}].solver: mcp")  # only to see that it can be opened: it opens none
    models = {f"models[{index}]": model for index, model in enumerate(given.spec.models)}
    for place, model in (models | {f"roles.{name}": model for name, model in given.spec.roles.items()}).items():
        open_provider(model, place)  # only to see that it can be made: it opens no connection
        if model.batch is not None:
            open_batch_api(model, place)
    return Prepared(spec, works, scorers)


def _counts_told(task: Task) -> dict[str, Any]:
    """Nothing, where they count as they do by themselves."""
    return {} if task.counts == Counts() else {"counts": msgspec.to_builtins(task.counts)}


def _check_judges(scorer: Scorer, spec: Spec, place: str) -> None:
    """Before anything is paid for: a judge that nobody described cannot be asked."""
    if not spec.roles:
        raise SpecError(f"{place}: {scorer.name} asks a judge, and the spec has no roles; add roles: {{judge: …}}")
    for role in scorer.roles():
        if role not in spec.roles:
            known = ", ".join(sorted(spec.roles))
            raise SpecError(f"{place}: {scorer.name}: there is no role {role!r}; there are: {known}")


def _refuse_same_names(names: Sequence[str], place: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            hint = f"{{{name}: {{name: another}}}}"
            raise SpecError(f"{place}[{index}]: there is a scorer {name!r} already; rename one of them: {hint}")
