"""Compares the spec that is given with the one that a run has stored, and refuses what would mix two experiments.

Reads the run's folder, and writes only to the user's cache: which rows were compared. `find_differences` classes each
changed field; this module adds what the fields do not show: renamed and corrected models, changed code and rows, and
which failed samples get new attempts.

A model may be corrected on resume (a wrong name, provider or parameter) only before its first answer: drift protects
recorded answers, and a cell without any has nothing to protect. A model counts as renamed if the same position in the
list of models has another name, and neither spec has both names.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.errors import DataError, DriftError, UsageError
from holdfast.plan import (
    ComparedRows,
    PlanExtension,
    changed_inputs,
    changed_rows,
    check_groups,
    planned_lines,
    scoring_roles,
)
from holdfast.records import Cell, Change, redact_credential_shapes
from holdfast.runs.execution.preparation import Given, Prepared, prefix_errors
from holdfast.runs.store.damage import require_originals
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import check_spec_file
from holdfast.spec import Model, Spec, changes_beyond_extension, find_differences, refused_changes
from holdfast.state import CheckedFiles, Fold, Story

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Model))


def find_renames(stored: Spec, given: Spec) -> dict[str, str]:
    """Map the stored names of renamed models to their new names."""
    if len(stored.models) != len(given.models):
        return {}
    old, new = ([model.name for model in spec.models] for spec in (stored, given))
    renamed = {was: now for was, now in zip(old, new, strict=True) if was != now}
    return {} if renamed.keys() & set(new) or set(renamed.values()) & set(old) else renamed


def with_names(spec: Spec, renamed: Mapping[str, str]) -> Spec:
    """Rename models everywhere in a spec."""
    if not renamed:
        return spec
    models = [msgspec.structs.replace(model, name=renamed.get(model.name, model.name)) for model in spec.models]
    tasks = [
        msgspec.structs.replace(task, models=task.models and [renamed.get(name, name) for name in task.models])
        for task in spec.tasks
    ]
    return msgspec.structs.replace(spec, models=models, tasks=tasks)


def corrected_models(changes: Iterable[Change], fold: Fold, renamed: Mapping[str, str]) -> dict[str, str]:
    """Map each model with a changed result field (by its new name) to the reason why it may not change; empty if it
    may.
    """
    stored = {renamed.get(cell.model, cell.model): cell.model for cell in fold.story.cells}
    names = dict.fromkeys(model_in(each.field, stored) for each in changes if each.kind == "result")
    return {name: find_obstacle(stored[name], fold) for name in names if name}


def model_in(field: str, names: Iterable[str]) -> str:
    """The model that a spec field belongs to; empty if it is not a field of a model. Names may contain dots."""
    return next((name for name in names if field in {f"models.{name}.{each}" for each in _FIELDS}), "")


def with_stored_models(spec: Spec, stored: Spec, names: Collection[str], renamed: Mapping[str, str]) -> Spec:
    """Undo the corrections: the models from which the stored plan was made, under their stored names."""
    before = {renamed.get(model.name, model.name): model for model in stored.models}
    models = [before[model.name] if model.name in names else model for model in spec.models]
    return msgspec.structs.replace(spec, models=models)


def cells_of(fold: Fold, models: Collection[str], renamed: Mapping[str, str]) -> list[Cell]:
    return [cell for cell in fold.story.cells if renamed.get(cell.model, cell.model) in models]


def find_obstacle(name: str, fold: Fold) -> str:
    """Why a model may not change; empty if it may. Lost records may have been answers. Torn and void bytes hold no
    answers that count.
    """
    # The cells with an answer, an answered step or an announced call.
    cells = [cell for cell in fold.story.cells if cell.model == name]
    ordinals = [ordinal for ordinal, trail in fold.trails.items() if trail.answered]
    answered = [
        cell
        for cell in cells
        if fold.finished.has_any(cell.first, cell.count)
        or any(cell.first <= ordinal < cell.first + cell.count for ordinal in ordinals)
    ]
    if answered:
        shown = dict.fromkeys(f"{cell.task} with {cell.model}" for cell in answered)  # one cell in each block
        return f"{', '.join(shown)} {'has' if len(shown) == 1 else 'have'} recorded answers or calls"
    if any(job.line == f"models.{name}" for job in fold.story.jobs.values()):
        return f"{name} has an open batch job"
    if ({each.kind for each in fold.damage} | {each.kind for each in fold.story.anomalies}) - {"torn", "void"}:
        return "the journal has losses, which may have been answers"
    return ""


class Retry(msgspec.Struct, frozen=True):
    """Which failed samples get new attempts: all (default), none (`keep`), those of some kinds, or those named."""

    keep: bool = False
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rounds: tuple[tuple[int, ...] | None, ...] | None = None
    """For a shard: the rounds that its run has begun. Each gives failed samples of the shard new attempts, once: those
    with these ordinals, or all (None).
    """

    def select_open(self, done: int) -> tuple[int, ...] | None:
        """Which samples get new attempts in a shard that has taken part in the first `done` rounds; None means all."""
        left = (self.rounds or ())[done:]
        return None if None in left else tuple(sorted({o for each in left for o in each or ()}))


def rounds_done(story: Story) -> int:
    """How many rounds of its run a shard has taken part in."""
    return max((each.resumed.round for each in story.resumes), default=0)


class AcceptedChanges(msgspec.Struct, frozen=True):
    """What a resume changes. Changes that are not accepted have been refused."""

    changes: list[Change]
    retried: tuple[int, ...] | None
    """Ordinals of the failed keys that get new attempts; None means all."""
    corrected: dict[str, str]
    """Corrected models without answers, by their new names."""
    renamed: dict[str, str]
    """Stored name to new name of the renamed models."""


class DriftCheck:
    """The comparison for one resume or extension. `fold` and `stored` are passed to each call: both change if another
    process writes the run before this one has claimed it.
    """

    def __init__(self, prepared: Prepared, given: Given, place: RunLocation, retry: Retry) -> None:
        self._prepared = prepared
        self._given = given
        self._place = place
        self._retry = retry

    def compare(self, fold: Fold, stored: Spec, uid: str) -> AcceptedChanges:
        """Compare the spec, the files and the data with what is stored. Raises DriftError for changes that are not
        accepted. `uid`: of the run.
        """
        renames = find_renames(stored, self._prepared.spec)
        obstacles = {old: find_obstacle(old, fold) for old in renames}
        renamed = {old: new for old, new in renames.items() if not obstacles[old]}
        changes = [Change(f"models.{new}.name", old, new, "result") for old, new in renamed.items()]
        changes += self.differences(with_names(stored, renamed))
        corrected = corrected_models(changes, fold, renamed)
        correctable = [name for name, obstacle in corrected.items() if not obstacle]
        wrong = [each for each in refused_changes(changes) if not model_in(each.field, correctable)]
        self._refuse(wrong, list(filter(None, [*obstacles.values(), *corrected.values()])))
        is_done = not (fold.unfinished or fold.failed.count or fold.unscored or fold.unjudged)
        require_originals(self._place, fold.story, CheckedFiles(self._place.folder, uid).stamps if is_done else None)
        check_spec_file(self._place, fold.story)
        spec = with_stored_models(self._prepared.spec, stored, corrected, renamed)
        self._refuse(self._changed_content(fold, spec, uid))
        if any(each.field.endswith(".dataset.group") for each in changes):
            with prefix_errors(self._given):
                check_groups(self._prepared.spec, self._prepared.works)
        return AcceptedChanges(changes, self.select_retried(fold), corrected, renamed)

    def differences(self, stored: Spec) -> list[Change]:
        """Fields that differ. A changed judge role is an `evaluation` change if only scores depend on the role."""
        found = find_differences(stored, self._prepared.spec)
        if any(each.field.startswith("tasks.") and each.field.endswith(".solver") for each in found):
            return found  # the new solver's use of roles says nothing about the recorded answers
        judges = scoring_roles(self._prepared.spec, self._prepared.works) | {"(order)"}
        changes = []
        for each in found:
            part, _, rest = each.field.partition(".")
            # `judge` for roles.judge.model; `(order)` if only the order of roles differs
            role = rest.partition(".")[0] if part == "roles" else part.removeprefix("roles ")
            is_judge = each.kind == "result" and role in judges
            changes.append(msgspec.structs.replace(each, kind="evaluation") if is_judge else each)
        return changes

    def require_agreement(self, fold: Fold, stored: Spec, uid: str) -> None:
        """DriftError unless a worker of a sharded run has the spec, the data and the code of the others: only speed
        and places may differ. A correction of models is refused too: the root journal does not know who has answered.
        """
        changes = [each for each in self.differences(stored) if each.kind in ("result", "evaluation")]
        evaluation = self._prepared.evaluation
        # The worker that began the run may have died before it recorded the evaluation.
        if not changes and fold.story.evaluation and fold.story.evaluation != evaluation:
            changes = [Change("scorers", "the code that the run began with", "different code", "evaluation")]
        self._refuse(changes)
        require_originals(self._place, fold.story, CheckedFiles(self._place.folder, uid).stamps)
        self._refuse(self._changed_content(fold, self._prepared.spec, uid))

    def compare_for_extension(self, fold: Fold, stored: Spec) -> tuple[list[Change], PlanExtension | None]:
        """The changes, and the block to add; None if an earlier extension has already added it."""
        changes = self.differences(stored)
        for change in changes:
            if (
                change.field == "limit"
                and isinstance(change.new, int)
                and (change.old is None or change.new < change.old)
            ):
                has = "all samples of its data" if change.old is None else f"{change.old} samples of each task"
                raise DriftError(
                    f"{self._place.run_id} already has {has} (limit): an extension only adds; give a greater limit"
                )
        self._refuse(changes_beyond_extension(changes))
        require_originals(self._place, fold.story)
        check_spec_file(self._place, fold.story)
        self._refuse(changed_inputs(fold.story.inputs, self._prepared.works))
        extension = PlanExtension(self._place.folder, self._prepared.spec, self._prepared.works, fold.story.blocks)
        self._refuse(extension.lost())
        if extension.count():
            return changes, extension
        if fold.story.extensions and not refused_changes(changes):
            return changes, None
        raise UsageError(
            f"{self._place.run_id} has all of these keys already; change repeats, limit, data, models or tasks"
        )

    def _refuse(self, changes: Sequence[Change], reasons: Sequence[str] = ()) -> None:
        """DriftError with every field, both values and the reasons, if there are changes."""
        if not changes:
            return
        fields = [f"{change.field}: stored {change.old!r}, given {change.new!r}" for change in changes]
        # Earlier versions stored API keys that were written in specs.
        rows = redact_credential_shapes("; ".join([*fields, *reasons]))
        raise DriftError(
            f"{self._place.run_id} cannot be resumed: it would mix two experiments ({rows}); give the stored values, "
            f"or start a run that reuses what is unchanged: {self._place.fork_command()}",
            changes,
            self._place.run_id,
            reasons,
        )

    def _changed_content(self, fold: Fold, spec: Spec, uid: str) -> list[Change]:
        """Changes that the spec's fields do not show: of solver code, few-shot examples and data rows. `spec`: with the
        stored models.
        """
        prepared, story = self._prepared, fold.story
        changes = changed_inputs(story.inputs, prepared.works)
        cells: Sequence[Cell] = story.cells
        if self._given.from_run and prepared.spec.record_data:
            cells = [cell for cell in cells if prepared.works[cell.task].has_other_source]
        if changes or not cells:
            return changes
        try:
            compared = ComparedRows(self._place.folder, uid, story.blocks)
            return changed_rows(self._place.folder, spec, prepared.works, cells, compared)
        except DataError as error:
            advice = f"the run has its own copy of rows and files: use it with: {self._place.command('resume')}"
            raise UsageError(f"{error}; {advice}" if prepared.spec.record_data else str(error)) from error

    def select_retried(self, fold: Fold) -> tuple[int, ...] | None:
        """The ordinals of the failed keys that get new attempts; None means all."""
        retry = self._retry
        if retry.keep:
            return ()
        if retry.rounds is not None:
            chosen = retry.select_open(rounds_done(fold.story))
            return None if chosen is None else tuple(o for o in chosen if o in fold.failed)
        if not retry.kinds and not retry.keys:
            return None
        failures = {ordinal: trail.failures for ordinal, trail in fold.trails.items() if ordinal in fold.failed}
        kinds = {ordinal: found[max(found)] if found else "" for ordinal, found in failures.items()}
        # Kinds and keys that an earlier `retry` took are accepted again, so that a killed `retry` can be repeated.
        unknown = sorted({*retry.kinds} - fold.failure_kinds)
        if unknown:
            there = ", ".join(sorted(fold.failure_kinds)) or "none"
            raise UsageError(f"no sample failed as {', '.join(unknown)}; kinds of failures in this run: {there}")
        named = self._ordinals(fold, retry.keys)
        for key, ordinal in named.items():
            if ordinal not in kinds and not any(ordinal in (each.resumed.retried or ()) for each in fold.story.resumes):
                raise UsageError(f"{key} has not failed: only failed samples can be retried")
        wanted = {*named.values(), *(ordinal for ordinal, kind in kinds.items() if kind in retry.kinds)}
        return tuple(sorted(wanted & kinds.keys()))

    def _ordinals(self, fold: Fold, keys: Iterable[str]) -> dict[str, int]:
        names = set(keys)
        found = {
            line.k: line.o
            for cell in (fold.story.cells if names else ())
            for line in planned_lines(self._place.folder, cell)
            if line.k in names
        }
        for key in names - found.keys():
            raise UsageError(
                f"{self._place.run_id} has no key {key!r}; list keys with: {self._place.command('export')}"
            )
        return found
