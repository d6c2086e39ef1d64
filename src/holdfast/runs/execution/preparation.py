"""Prepares a spec: resolves its data, solvers, scorers and providers, or raises SpecError with the field.

Also computes the identity of an evaluation. Nothing here writes to disk, besides the user's cache. Only `check_servers`
and data sets of the Hub use the network.

Makes the user's own modules importable: those that a spec refers to as `module:function`.

They are searched in the folders of the spec and of the files that it includes, and in the current folder. These come
last on `sys.path`, so that a file in a downloaded folder (`scipy.py`) never shadows the standard library or an
installed package. A user module with the name of an installed one, or of one in another of these folders, would
therefore not be found: that is an error that shows both paths.
"""

import asyncio
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadNameError, HoldfastError, JournalError, Problems, ScorerError, SpecError
from holdfast.journal import folder_name, split_url
from holdfast.models import Listing, ModelError, describe_models, identity_of, open_batch_api, open_provider
from holdfast.plan import PreparedTask, Rows, pin_revisions, prepare, survey
from holdfast.records import ScoringStarted, TaskInputs, comparable_by_task, normalized
from holdfast.runs.estimate import check_budget, with_prices
from holdfast.runs.store.trust import references_of
from holdfast.score import KINDS, Scorer, identity, mixed_scales, resolve
from holdfast.spec import (
    Counts,
    KeptCombinations,
    Model,
    Origins,
    Spec,
    adopt_stored,
    check_answers,
    missing_keys,
    nearest,
    placed_models,
)

_RUN_FOLDERS = ("journal", "lease")
"""Folders of a run in a mirror. They distinguish a run from an experiment, so no experiment may have such a name."""


class Given(msgspec.Struct, frozen=True):
    """A spec, and the Python objects that a script passed instead of names, by task."""

    spec: Spec
    rows: Mapping[str, Rows] = msgspec.field(default_factory=dict)
    solvers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scorers: Mapping[str, Sequence[Any]] = msgspec.field(default_factory=dict)
    where: str = ""
    """The file of the spec, for error messages."""
    names_experiment: bool = True
    """Whether the user named the experiment. False: its name was made from what is run."""
    origins: Origins = msgspec.field(default_factory=Origins)
    """Which values come from files that the spec includes, for error messages."""
    included: Sequence[str] = ()
    """These files. The user's own modules may be beside them."""
    kept: Sequence[KeptCombinations] = ()
    """How many combinations each `when` kept."""
    counted: Callable[[], None] | None = None
    """Called for each row that is read, to show progress."""
    from_run: bool = False
    """Whether the spec is the stored one of the run. Its rows are then stored too, and data files are not compared."""
    scorers_file: str | None = None
    """For `score`: the YAML file of the scorers, empty if there is none. None: a run is started or continued."""
    apart: bool = False
    """For a shard that shares no store with others: the limits in its spec are its own part of those of the run."""

    def explain(self, problem: str) -> str:
        """Add the file of the spec, and the included file that the value comes from."""
        text = problem if problem.startswith(self.where) else f"{self.where}: {problem}"
        return self.origins.explain(text, self.where)


class Prepared(msgspec.Struct, frozen=True, dict=True):
    """A spec with its resolved tasks and scorers."""

    spec: Spec
    works: Mapping[str, PreparedTask]
    scorers: Mapping[str, Sequence[Scorer]]
    apart: bool = False
    """As of `Given`."""

    @functools.cached_property
    def evaluation(self) -> str:
        """The id of the evaluation. Cached, because it reads and parses the source files of scorers."""
        return evaluation_of(self.scorers, self.spec)

    def scorer_identities(self) -> list[dict[str, Any]]:
        """The scorers of the evaluation, for its record."""
        return scorer_identities(self.scorers, self.spec)

    def declares_other_scales(self, started: ScoringStarted | None) -> bool:
        """Whether the scorers of a recorded evaluation are the same, and only their declared scales have changed."""
        if started is None:
            return False
        own, recorded = self.scorer_identities(), started.scorers
        if comparable_by_task(own) != comparable_by_task(recorded):
            return False
        return _declared_by_task(own) != _declared_by_task(recorded)


def check(given: Given, before: Problems | None = None) -> tuple[Prepared, int]:
    """Check a spec completely without creating anything. Also returns the number of its keys. SpecError with all
    problems, one line each. `before`: those that were found when the spec was loaded.
    """
    problems = Problems()
    scorers = find_scorers(given, problems=problems)
    if not problems.found:
        with problems.collecting():
            refuse_mixed_scales(given, scorers)
    prepared = prepare_given(given, scorers, problems=problems)
    planned = survey(given.spec, prepared.works, problems)
    every = Problems()
    every.found = {**(before.found if before is not None else {}), **dict.fromkeys(map(given.explain, problems.found))}
    every.refuse()
    return prepared, planned


def check_startable(given: Given) -> None:
    """SpecError if a run of the spec could not be started now: like `check`, and for a missing API key."""
    check(given)
    with prefix_errors(given):
        refuse_missing_keys(given.spec)


def evaluation_of(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> str:
    """The id of a scorer configuration, a digest of the names, arguments and code of the scorers, the treatment of
    answers that they do not see, and the models of judges. Empty without scorers.
    """
    if not any(scorers.values()):
        return ""
    found = {task: list(map(normalized, every)) for task, every in _identities(scorers, spec).items()}
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(found, order="deterministic"))


def scorer_identities(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> list[dict[str, Any]]:
    """The scorers as listed in the record of an evaluation."""
    return [{"task": task, **each} for task, every in _identities(scorers, spec).items() for each in every]


@contextlib.contextmanager
def prefix_errors(given: Given) -> Iterator[None]:
    """Add the name of the spec file to errors in the spec, and the included file that the value comes from."""
    try:
        yield
    except JournalError:
        raise
    except HoldfastError as error:
        raise SpecError(given.explain(str(error))) from error


def check_experiment(spec: Spec) -> None:
    """SpecError if the name of the experiment cannot be the name of a folder."""
    try:
        folder_name(spec.experiment)
    except BadNameError as error:
        raise SpecError(f"experiment: {error}") from error
    if spec.experiment in _RUN_FOLDERS:
        raise SpecError(f"experiment: {spec.experiment!r} is the name of a folder in every run; choose another name")


def find_scorers(given: Given, *, judged: bool = True, problems: Problems | None = None) -> dict[str, list[Scorer]]:
    """Resolve the scorers of each task. Needed before the journal is read: they decide which answers are unscored.
    `judged`: SpecError if a judge has no model. `problems`: receives errors; by default the first is raised.
    """
    problems = problems or Problems(stop=True)
    scorers: dict[str, list[Scorer]] = {}
    for index, task in enumerate(given.spec.tasks):
        entries: Sequence[Any] = given.scorers.get(task.name) or task.scorers
        found, place = scorers.setdefault(task.name, []), f"tasks[{index}].scorers"
        for i, entry in enumerate(entries):
            with problems.collecting():
                scorer = resolve(entry, f"{place}[{i}]")
                if scorer.name in [each.name for each in found]:
                    hint = f"{{{scorer.name}: {{name: another}}}}"
                    problem = f"there is a scorer {scorer.name!r} already; rename one of them: {hint}"
                    raise SpecError(f"{place}[{i}]: {problem}")
                found.append(scorer)
                if scorer.needs_ctx and judged:
                    is_named = given.scorers_file is not None and given.scorers.get(task.name)
                    _check_judges(scorer, given, "--scorers" if is_named else f"{place}[{i}]")
        if len(found) == len(entries):
            with problems.collecting():
                check_answers(task, {each.name for each in found}, f"tasks[{index}].reduce")
    return scorers


def refuse_mixed_scales(given: Given, scorers: Mapping[str, Sequence[Scorer]], before: Spec | None = None) -> None:
    """ScorerError for a scorer that combines parts with different scales. `before`: the stored spec, whose tasks are
    accepted: earlier versions did not refuse them.
    """
    stored = {} if before is None else {task.name: list(task.scorers) for task in before.tasks}
    for index, task in enumerate(given.spec.tasks):
        if list(given.scorers.get(task.name) or task.scorers) == stored.get(task.name):
            continue
        for i, scorer in enumerate(scorers[task.name]):
            problem = mixed_scales(scorer)
            if problem:
                raise ScorerError(f"tasks[{index}].scorers[{i}]", problem)


def prepare_given(
    given: Given,
    scorers: Mapping[str, Sequence[Scorer]],
    stored: Mapping[str, TaskInputs] | None = None,
    before: Spec | None = None,
    problems: Problems | None = None,
) -> Prepared:
    """Resolve all but the scorers. `stored` and `before`: the stored task inputs and spec, if the run has begun.
    `problems`: receives errors; by default the first is raised.
    """
    problems = problems or Problems(stop=True)
    with problems.collecting():
        check_experiment(given.spec)
    spec = with_prices(given.spec if before is None else adopt_stored(given.spec, before), before)
    with problems.collecting():
        spec = pin_revisions(spec, before)
    with problems.collecting():
        check_budget(spec)
    for number, kind in enumerate(spec.anomalies_except):
        with problems.collecting():
            if kind not in KINDS:
                problem = f"there is no anomaly {kind!r}{nearest(kind, set(KINDS))}"
                raise SpecError(f"anomalies_except[{number}]: {problem}")
    with problems.collecting():
        if spec.mirror is not None:
            split_url(spec.mirror.url)  # validates the URL
    works = prepare(spec, given.rows, given.solvers, stored, given.counted, problems)
    for index, task in enumerate(spec.tasks):
        for server in works[task.name].solver.servers() if task.name in works else ():
            with problems.collecting():
                server.check(f"tasks[{index}].solver: mcp")  # validates only: starts no server
    for place, model in placed_models(given.spec).items():
        with problems.collecting():
            open_provider(model, place)  # validates only: opens no connection
            if model.batch is not None:
                open_batch_api(model, place)
    return Prepared(spec, works, scorers, given.apart)


def refuse_missing_keys(spec: Spec, answered: Collection[str] = (), *, roles: Collection[str] | None = None) -> None:
    """SpecError if an API key is missing that a model will need. `answered`: names of models that need no more
    requests. `roles`: only the models of these roles get requests.
    """
    done = [f"models[{index}]" for index, model in enumerate(spec.models) if model.name in answered]
    if roles is not None:
        used = {f"roles.{name}" for name in roles}
        done = [place for place in placed_models(spec) if place not in used]
    missing = missing_keys(spec, os.environ, done)
    if missing:
        raise SpecError("\n".join(missing))


def _identities(scorers: Mapping[str, Sequence[Scorer]], spec: Spec) -> dict[str, list[dict[str, Any]]]:
    """The identity of each scorer, by task. Equal identities mean equal scores for the same answer."""
    counts = {task.name: _counts_identity(task.counts) for task in spec.tasks}
    found: dict[str, list[dict[str, Any]]] = {task: [] for task in scorers}
    for task, scorer in ((task, scorer) for task, every in scorers.items() for scorer in every):
        judges: dict[str, Any] = {}
        if scorer.needs_ctx:
            roles = scorer.roles() if has_declared_roles(scorer) else spec.roles
            models = {role: spec.roles[role] for role in roles if role in spec.roles}
            identities = {role: {**identity_of(model), "params": model.params} for role, model in models.items()}
            judges["judges"] = identities
        found[task].append({**identity(scorer), **judges, **counts[task]})
    return found


def _counts_identity(counts: Counts) -> dict[str, Any]:
    """Default counts have no identity, so that the ids of earlier evaluations stay the same. `failed` has none: it
    changes no recorded score, reports apply it.
    """
    given = {name: value for name, value in msgspec.to_builtins(counts).items() if name != "failed"}
    return {"counts": given} if any(value != getattr(Counts(), name) for name, value in given.items()) else {}


def _declared_by_task(identities: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The declared scales in identities and their parts, in an order that depends only on the scorers."""
    found: dict[str, list[Any]] = {}
    for each in identities:
        found.setdefault(str(each.get("task", "")), []).extend(_declared_scales(each))
    return found


def _declared_scales(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if {"name", "function", "args"} <= value.keys():
            yield value.get("scale")
        for name in sorted(value):
            yield from _declared_scales(value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _declared_scales(each)


def has_declared_roles(scorer: Scorer) -> bool:
    """Whether `scorer.roles()` are all roles that it calls: only of built-in scorers. Other code may call any role."""
    name = getattr(scorer.function, "__module__", "").partition(".")[0]
    return name == __name__.partition(".")[0] and all(
        has_declared_roles(part) for part in scorer.parts() if part.needs_ctx
    )


def _check_judges(scorer: Scorer, given: Given, place: str) -> None:
    """SpecError if a judge has no model in `roles`: found before anything is paid."""
    known = given.spec.roles
    if not known and not scorer.roles():
        raise SpecError(f"{place}: {scorer.name} calls a model, and no role has one; {_role_advice('judge', given)}")
    for role in scorer.roles():
        if role not in known:
            there = f" (there are: {', '.join(sorted(known))})" if known else ""
            problem = f"{scorer.name} calls the role {role!r}, which has no model{there}"
            raise SpecError(f"{place}: {problem}; {_role_advice(role, given)}")


def _role_advice(role: str, given: Given) -> str:
    """The line to add, and where; or an option."""
    model, line = "openai/MODEL", f"roles: {{{role}: openai/MODEL}}"
    if given.scorers_file is not None:
        if given.scorers_file:
            file = f"write into {given.scorers_file} the line `{line}`, beside `scorers:` with the list of scorers"
        else:
            file = f"write a YAML file with the line `{line}`, beside `scorers:` with the list of scorers"
        return f"add --role {role}={model}, or {file}"
    if not given.where:
        return f"add it with --set roles.{role}={model}, or in a spec with the line `{line}`"
    if given.spec.roles:
        place = f"add to {given.where}, under `roles:`, the line `{role}: {model}`"
    else:
        place = f"add to {given.where}, at the top level, the line `{line}`"
    return f"{place}, or use --set roles.{role}={model}"


_SECONDS_MAX = 5.0


class ServerCheck(msgspec.Struct, frozen=True):
    """The state of a model's server. `error`: it is down or refuses requests. `doubt`: it does not list the model."""

    place: str
    model: str
    error: str = ""
    doubt: str = ""


async def check_servers(spec: Spec, seconds: float = _SECONDS_MAX) -> list[ServerCheck]:
    """Check the servers of all models and roles concurrently. Providers without a model listing are skipped."""
    places = placed_models(spec)
    found = await asyncio.gather(*(_check_server(place, model, seconds) for place, model in places.items()))
    return [each for each in found if each is not None]


async def _check_server(place: str, model: Model, seconds: float) -> ServerCheck | None:
    provider = open_provider(model, place)
    try:
        if not isinstance(provider, Listing):
            return None
        names = await provider.served(seconds)
    except ModelError as error:
        return ServerCheck(place, model.name, error=f"{place}: {error.message}")
    finally:
        await provider.close()
    if names is None or model.model in names:
        return ServerCheck(place, model.name)
    hint = describe_models(model.model, names)
    return ServerCheck(place, model.name, doubt=f"{place}.model: the server does not list {model.model!r}; {hint}")


def find_modules_beside(path: str, spec: Spec, included: Sequence[str] = ()) -> None:
    """Add the search folders to `sys.path`. `path`: the file of the spec; empty if there is none. `included`: the files
    that it includes. SpecError if another module shadows one that the spec refers to.
    """
    beside = dict.fromkeys(os.path.dirname(os.path.abspath(each)) for each in ((path, *included) if path else ()))
    folders = [*beside, os.getcwd()]
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    for reference in references_of(spec):
        name = reference.partition(":")[0].partition(".")[0]
        own = list(filter(None, (_module_in(folder, name) for folder in beside)))
        if len(own) > 1:  # the file that names it may mean either
            raise SpecError(f"{reference}: there are two modules of this name, {own[0]} and {own[1]}; rename one")
        found = own[0] if own else _module_in(os.getcwd(), name)
        if found:
            _refuse_shadowed(reference, name, found)


def _module_in(folder: str, name: str) -> str:
    """The file of a module in a folder; empty if there is none."""
    files = (os.path.join(folder, file) for file in (f"{name}.py", f"{name}/__init__.py"))
    return next(filter(os.path.isfile, files), "")


def _refuse_shadowed(reference: str, name: str, own: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # `__main__` and the like have no spec
        return
    origin = found.origin if found is not None else None
    if origin is not None and os.path.realpath(origin) != os.path.realpath(own):
        raise SpecError(
            f"{reference}: Python finds {origin} before {own}, which has the same name; rename yours, for example to "
            f"my_{name}.py, and name it so in the spec"
        )
