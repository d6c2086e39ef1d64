"""From what a user gave to what can be run: everything that a spec names is found, or refused with its place.

Nothing here creates anything on disk or sends anything.
"""

import asyncio
import contextlib
import difflib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadNameError, HoldfastError, JournalError, SpecError
from holdfast.journal import folder_name
from holdfast.journal.object_store import split_url
from holdfast.models import Listing, ModelError
from holdfast.models.opening import identity_of, open_batch_api, open_provider
from holdfast.plan import Rows, Work, prepare, survey
from holdfast.records.facts import TaskInputs
from holdfast.runs.estimate import check_budget, with_prices
from holdfast.score import Scorer, identity, resolve
from holdfast.score.anomalies import KINDS
from holdfast.spec import Counts, Model, Spec, Task
from holdfast.spec.api_keys import missing_keys, placed_models
from holdfast.spec.reductions import check_answers
from holdfast.spec.source.messages import nearest
from holdfast.spec.source.variables import adopt_stored

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


class Prepared(msgspec.Struct, frozen=True, dict=True):
    """A spec with everything that it names found."""

    spec: Spec
    works: Mapping[str, Work]
    scorers: Mapping[str, Sequence[Scorer]]

    @functools.cached_property
    def evaluation(self) -> str:
        """Computed once: it reads and parses the scorers' files."""
        return evaluation_of(self.scorers, self.spec)

    def scorer_identities(self) -> list[dict[str, Any]]:
        """What the evaluation is made of, for its record."""
        return scorer_identities(self.scorers, self.spec)


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
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(_identities(scorers, spec), order="deterministic"))


def scorer_identities(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> list[dict[str, Any]]:
    """As the record of an evaluation lists them."""
    return [{"task": task, **each} for task, every in _identities(scorers, spec).items() for each in every]


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
        names = [scorer.name for scorer in scorers[task.name]]
        _refuse_same_names(names, f"tasks[{index}].scorers")
        check_answers(task, set(names), f"tasks[{index}].reduce")
        for i, each in enumerate(scorers[task.name]):
            if each.needs_ctx:
                _check_judges(each, given.spec, f"tasks[{index}].scorers[{i}]")
    return scorers


def _check_anomalies(spec: Spec) -> None:
    for index, kind in enumerate(spec.anomalies_except):
        if kind not in KINDS:
            place = f"anomalies_except[{index}]"
            raise SpecError(f"{place}: there is no anomaly {kind!r}{nearest(kind, set(KINDS))}")


def prepare_given(
    given: Given,
    scorers: Mapping[str, Sequence[Scorer]],
    stored: Mapping[str, TaskInputs] | None = None,
    before: Spec | None = None,
) -> Prepared:
    """`stored`: what the run holds of its tasks, if it has begun; `before`: its spec until now."""
    check_experiment(given.spec)
    spec = with_prices(given.spec if before is None else adopt_stored(given.spec, before), before)
    check_budget(spec)
    _check_anomalies(spec)
    if spec.mirror is not None:
        split_url(spec.mirror.url)  # only to see that it is one
    works = prepare(spec, given.rows, given.solvers, stored, given.counted)
    for index, task in enumerate(spec.tasks):
        for server in works[task.name].solver.servers():
            server.check(f"tasks[{index}].solver: mcp")  # only to see that it can be opened: it opens none
    for place, model in placed_models(given.spec).items():
        open_provider(model, place)  # only to see that it can be made: it opens no connection
        if model.batch is not None:
            open_batch_api(model, place)
    return Prepared(spec, works, scorers)


def refuse_missing_keys(spec: Spec, answered: Collection[str] = ()) -> None:
    """SpecError before anything is asked of a server that answers nobody without a key. `answered`: the names of the
    evaluated models that are asked nothing more.
    """
    done = [f"models[{index}]" for index, model in enumerate(spec.models) if model.name in answered]
    missing = missing_keys(spec, os.environ, done)
    if missing:
        raise SpecError("\n".join(missing))


def _identities(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> dict[str, list[dict[str, Any]]]:
    """By task, of each scorer: where it is equal, a scorer says the same of the same answer."""
    counts = {task.name: _counts_told(task) for task in spec.tasks}
    return {
        task: [{**identity(scorer), **_judges_told(scorer, spec), **counts[task]} for scorer in every]
        for task, every in scorers.items()
    }


def _judges_told(scorer: Scorer, spec: Spec) -> dict[str, Any]:
    """The models of the roles that it asks. Which those are, only our own code says for certain: else all."""
    if not scorer.needs_ctx:
        return {}
    asked = scorer.roles() if _is_ours(scorer) else spec.roles
    judges = {role: spec.roles[role] for role in asked if role in spec.roles}
    return {"judges": {role: {**identity_of(model), "params": model.params} for role, model in judges.items()}}


def _is_ours(scorer: Scorer) -> bool:
    name = getattr(scorer.function, "__module__", "").partition(".")[0]
    return name == __name__.partition(".")[0] and all(_is_ours(part) for part in scorer.parts() if part.needs_ctx)


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


_SECONDS_MAX = 5.0


class Served(msgspec.Struct, frozen=True):
    """What a model's server said. `error`: it is not there or refuses us; `doubt`: it does not list the model."""

    place: str
    model: str
    error: str = ""
    doubt: str = ""


async def ask_servers(spec: Spec, seconds: float = _SECONDS_MAX) -> list[Served]:
    """Models and roles that have a server, all at once."""
    places = {f"models[{index}]": model for index, model in enumerate(spec.models)}
    places |= {f"roles.{name}": model for name, model in spec.roles.items()}
    found = await asyncio.gather(*(_asked(place, model, seconds) for place, model in places.items()))
    return [each for each in found if each is not None]


async def _asked(place: str, model: Model, seconds: float) -> Served | None:
    provider = open_provider(model, place)
    try:
        if not isinstance(provider, Listing):
            return None
        names = await provider.served(seconds)
    except ModelError as error:
        return Served(place, model.name, error=f"{place}: {error.message}")
    finally:
        await provider.close()
    if names is None or model.model in names:
        return Served(place, model.name)
    near = difflib.get_close_matches(model.model, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:5]) or 'none'}"
    return Served(place, model.name, doubt=f"{place}.model: the server does not list {model.model!r}; {hint}")
