"""Compares the spec that is given with the one that a run has stored, and refuses what would mix two experiments.

Reads the run's folder, and writes only to the user's cache: which rows were compared. `find_differences` classes each
changed field; this module adds what the fields do not show: renamed and corrected models, changed code and rows, and
which failed samples get new attempts.
"""

from collections.abc import Iterable, Sequence

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
from holdfast.records import Change, without_shapes
from holdfast.runs.execution.corrections import (
    corrected_models,
    find_obstacle,
    find_renames,
    model_in,
    with_names,
    with_stored_models,
)
from holdfast.runs.execution.preparation import Given, Prepared, prefix_errors
from holdfast.runs.execution.provenance import check_spec_file
from holdfast.runs.store.damage import require_originals
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import Spec, changes_beyond_extension, find_differences, refused_changes
from holdfast.state import CheckedFiles, Fold


class Retry(msgspec.Struct, frozen=True):
    """Which failed samples get new attempts: all (default), none (`keep`), those of some kinds, or those named."""

    keep: bool = False
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


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
        changes += self._differences(with_names(stored, renamed))
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
            with prefix_errors(self._given.where):
                check_groups(self._prepared.spec, self._prepared.works)
        return AcceptedChanges(changes, self._select_retried(fold), corrected, renamed)

    def _differences(self, stored: Spec) -> list[Change]:
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

    def compare_for_extension(self, fold: Fold, stored: Spec) -> tuple[list[Change], PlanExtension | None]:
        """The changes, and the block to add; None if an earlier extension has already added it."""
        changes = self._differences(stored)
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
        rows = without_shapes("; ".join([*fields, *reasons]))  # earlier versions stored API keys written in specs
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
        if changes or (self._given.from_run and prepared.spec.record_data):
            return changes
        try:
            compared = ComparedRows(self._place.folder, uid, story.blocks)
            return changed_rows(self._place.folder, spec, prepared.works, story.cells, compared)
        except DataError as error:
            advice = f"the run has its own copy of rows and files: use it with: {self._place.command('resume')}"
            raise UsageError(f"{error}; {advice}" if prepared.spec.record_data else str(error)) from error

    def _select_retried(self, fold: Fold) -> tuple[int, ...] | None:
        """The ordinals of the failed keys that get new attempts; None means all."""
        retry = self._retry
        if retry.keep:
            return ()
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
        chosen = {*named.values(), *(ordinal for ordinal, kind in kinds.items() if kind in retry.kinds)}
        return tuple(sorted(chosen & kinds.keys()))

    def _ordinals(self, fold: Fold, keys: Iterable[str]) -> dict[str, int]:
        names = set(keys)
        found = {
            line.k: line.o
            for cell in (fold.story.cells if names else ())
            for line in planned_lines(self._place.folder, cell)
            if line.k in names
        }
        for key in names - found.keys():
            raise UsageError(f"{self._place.run_id} has no key {key!r}; list keys with: holdfast export")
        return found
