"""The spec that continues a run: its own or one in a file, with the changes and the selection of the caller."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Problems, SpecError
from holdfast.plan import change_benchmarks, resolve_benchmarks
from holdfast.runs.execution.preparation import Given, find_modules_beside
from holdfast.runs.execution.resume import Reading, read_story, stored_rows, stored_spec
from holdfast.runs.shards.copy import mirror_of
from holdfast.runs.shards.layout import read_started
from holdfast.runs.shards.standings import has_failures, shard_standings
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import RunLocation, default_store, find_run, runs_in
from holdfast.runs.store.trust import executed_by, require_trust
from holdfast.spec import Selection, SpecFile, fill_environment, read_spec, select


class Overrides(msgspec.Struct, frozen=True):
    """What the caller changes in a spec, or selects of it."""

    sets: Sequence[str] = ()
    selection: Selection = Selection()
    trust: bool = False
    """Whether the user trusts the author of the spec that is stored in the run."""


def assignments(changes: Mapping[str, Any]) -> list[str]:
    """Changes as values of `--set`: every JSON value is valid YAML. Raises SpecError for what a spec cannot store."""
    try:
        return [f"{name}={msgspec.json.encode(value).decode()}" for name, value in changes.items()]
    except (TypeError, ValueError) as error:
        raise SpecError(f"a field of the spec cannot be stored as JSON: {error}") from error


def resolve_run(
    name: str, path: str | None, store: str | None, overrides: Overrides, forked: str | None = None
) -> tuple[RunLocation, Given]:
    """Find a run and the spec to continue it with: the one in a file, or the run's own if this user trusts it.

    `forked`: the id of the run's fork. `latest` and prefixes do not match it: they mean the same run before and after
    the fork is made.
    """

    def search(store: str) -> Iterator[RunLocation]:
        return (place for place in runs_in(store) if place.run_id != forked or name == forked)

    place = find_run(store or default_store(), name, search)
    return place, resolve_given(place, path, overrides)


def resolve_given(place: RunLocation, path: str | None, overrides: Overrides) -> Given:
    """The spec to continue a run with: the one in a file, or the run's own if this user trusts it."""
    fold, uid = read_story(place)
    require_started(place, fold)
    if path is not None:
        given = load_given(path, overrides)
        return msgspec.structs.replace(given, rows=stored_rows(place, fold, given.spec))
    started = fold.story.started
    source, included = (started.source, started.included) if started is not None else ("", ())
    require_trust(place, uid, executed_by(stored_spec(fold), source, included), given=overrides.trust)
    for assignment in overrides.sets:
        if assignment.startswith("defaults."):
            raise SpecError(
                f"--set {assignment}: the spec stored in a run has no defaults; set the field of a task or a model"
            )
    fill_environment(fold.story.spec, overrides.sets)
    spec = change_benchmarks(fold.story.spec, overrides.sets) if overrides.sets else stored_spec(fold)
    find_modules_beside(source, spec, included)
    spec = select(spec, overrides.selection)
    return Given(spec, rows=stored_rows(place, fold, spec), from_run=True)


def load_given(path: str, overrides: Overrides, problems: Problems | None = None) -> Given:
    """Read a spec file, with the assignments and the selection of the caller applied. A `.env` file provides values.
    `problems`: receives errors that leave a spec to check further.
    """
    file = read_spec(path)
    fill_environment(file.raw, overrides.sets)
    return resolve_spec_file(file, overrides, problems)


def resolve_spec_file(file: SpecFile, overrides: Overrides, problems: Problems | None = None) -> Given:
    """Apply the assignments and the selection of the caller to a spec file, and make its modules importable."""
    resolved = resolve_benchmarks(file, overrides.sets, problems=problems)
    spec = select(resolved.spec, overrides.selection)
    find_modules_beside(file.path, spec, file.included)
    return Given(spec, where=file.path, origins=file.origins, included=file.included, kept=resolved.kept)


def left_without_failures(place: RunLocation) -> int | None:
    """The number of unfinished samples of a run without failed ones, for which `retry` has nothing to do; else None."""
    started = read_started(place)
    if started is not None and started.shards:
        standings = shard_standings(place, started.shards, mirror_of(started.spec)).values()
        if any(map(has_failures, standings)):
            return None
        return read_story(place)[0].story.planned - sum(each.lease.finished for each in standings if each.lease)
    fold = Reading(place).fold
    # A killed `retry` leaves a resume, and unfinished samples that failed before. It can be repeated.
    is_repeated = fold.story.resumes and any(trail.failures for trail in fold.trails.values())
    return None if fold.failed.count or is_repeated else fold.unfinished
