"""`OpenedRun`: a run in a store whose files are checked before anything of it is shown. Its index, damage, status and
report.

The first access brings the derived index in the user's cache up to date and checks the journal, the plan and the data
for damage; no number is returned before that check. A crash leaves at most a stale index, which the next reader
updates. Nothing here writes to the run's folder.
"""

import os
import time
import warnings
from collections.abc import Collection, Sequence
from typing import Any, Self

import msgspec

from holdfast.errors import DamageWarning, UsageError
from holdfast.journal import unrecorded
from holdfast.report import (
    PartialEvaluation,
    RunReport,
    cost_lines,
    model_profiles,
    parse_columns,
    report_cells,
    total,
    unlooked,
    withhold_messages,
)
from holdfast.runs.mirror.remote import TransferProgress, find_to_read
from holdfast.runs.shards.copy import readable
from holdfast.runs.shards.sessions import explain_status, read_shards, with_sessions, worked_seconds
from holdfast.runs.store.damage import DamageReport, find_damage
from holdfast.runs.store.lookup import RunLocation, not_started_error, suggest_resume_command
from holdfast.runs.summary import benchmark_data, benchmark_lines, evaluation_names, step_counts
from holdfast.spec import Spec, read_stored_spec
from holdfast.state import Index, Standing, standing_of, status_of

_COPY_SECONDS = 1.0
"""So long the copy of a sharded run counts as up to date. Workers write heartbeats less often."""


class OpenedRun:
    """One run in a store. Close it, or use it in a `with` statement, to release its index."""

    def __init__(self, place: RunLocation, *, quiet: bool = False, sizes_only: bool = False) -> None:
        """`quiet`: issue no `DamageWarning`, because the caller shows `damage`. `sizes_only`: check plan and data by
        size only, without computing digests.
        """
        self.place = readable(place)
        self._copied_at = time.monotonic()
        self._opened: Index | None = None
        self._damage = DamageReport()
        self._quiet = quiet
        self._sizes_only = sizes_only

    @classmethod
    def find(cls, store: str, wanted: str, moved: TransferProgress | None = None) -> Self:
        """`moved` is called with the progress of fetching a run from a mirror."""
        return cls(find_to_read(store, wanted, moved))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def run_id(self) -> str:
        return self.place.run_id

    @property
    def _index(self) -> Index:
        """The index, opened and brought up to date on first use. Warns once of each damage."""
        if self._opened is None:
            # The lock is checked before the journal is read: otherwise a run that ends in between would look damaged.
            standing = standing_of(self.place.folder)
            self._opened = Index(self.place.folder)
            warned = self._damage.sentences
            self._damage = find_damage(self.place, self._opened, standing, sizes_only=self._sizes_only)
            for sentence in self._damage.sentences:
                if not self._quiet and sentence not in warned:
                    warnings.warn(sentence, DamageWarning, stacklevel=3)
        return self._opened

    @property
    def damage(self) -> tuple[str, ...]:
        """What is missing or changed in the run's files, one sentence each; empty if nothing is."""
        return self.damage_report.sentences

    @property
    def damage_report(self) -> DamageReport:
        self._index  # noqa: B018 - opening it checks the files
        return self._damage

    def require_whole(self) -> None:
        """Raise DamagedError if anything is damaged. For verdicts such as `gate`, which missing data could reverse."""
        if self.damage:
            self._damage.require_whole()

    def status(self) -> tuple[str, str]:
        """The status and its reason."""
        before = self._opened
        self._update_copy()
        # The lock is checked before the journal is read: otherwise a run that ends in between would look interrupted.
        standing = standing_of(self.place.folder)
        if before is not None and (standing.held or before.story.end is None):
            self.close()  # the run may have progressed, or ended, since the index was brought up to date
        return self._status_at(standing)

    def _status_at(self, standing: Standing) -> tuple[str, str]:
        """The status from the index as it is. `standing` was taken before the journal was read."""
        found = status_of(self._index.story, self._index.unfinished, standing, bool(self._index.damage))
        if found[0] != "interrupted" or self._index.story.end:
            return found
        shards = read_shards(self.place)
        return explain_status(shards) if shards else found

    def _update_copy(self) -> None:
        """Bring the copy of a sharded run up to date, unless it was a moment ago: one command needs one update."""
        if self.place.root and time.monotonic() - self._copied_at > _COPY_SECONDS:
            self.place = readable(self.place.whole)
            self._copied_at = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """False if the journal has no `run.started` record (yet)."""
        return self._index.story.started is not None

    def spec(self) -> Spec:
        """The spec in force. Raises UsageError if the run has not begun."""
        if not self.has_begun:
            raise not_started_error(self.place)
        return read_stored_spec(self._index.story.spec)

    def limits(self) -> dict[str, Any]:
        """The limits of the whole run (`limits.run`)."""
        found: dict[str, Any] = msgspec.to_builtins(self.spec().limits.run) if self.has_begun else {}
        return found

    def suggest_resume_command(self, reason: str) -> str:
        """The command that continues this run. `reason`: from `status()`."""
        return suggest_resume_command(self.place, reason, self.spec().limits.run if self.has_begun else None)


class WritableReport(RunReport, frozen=True, dict=True):
    """The report of a run in a store."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "",
        columns: Sequence[str] = (),
        at_least: float | None = None,
        include_restricted: bool = False,
    ) -> None:
        """Write it to a file, as `holdfast report --output` does. `format`: html, markdown, latex, junit or json; by
        default that of the file's suffix.

        `columns` of the data rows are shown with each question in HTML and JUnit. `at_least`: in JUnit, a score below
        this fails. `include_restricted` also writes texts that a benchmark's terms forbid publishing.
        """
        from holdfast.runs.actions import naming_parameters
        from holdfast.runs.export import ReportChoice, save_report  # late: rarely needed

        place = self.__dict__.get("place")
        if not isinstance(place, RunLocation):  # a copy, as after pickling
            raise UsageError("this report no longer knows its run: use holdfast.open_run(…).report().save(…)")
        choice = ReportChoice(self.evaluation, at_least, parse_columns(columns))
        with naming_parameters():
            save_report(place, os.fspath(path), format, choice, include_restricted=include_restricted)


def report_of(
    place: RunLocation,
    index: Index,
    evaluation: str,
    status: tuple[str, str] = ("", ""),
    damage: tuple[str, ...] = (),
    withheld: Collection[str] = (),
) -> WritableReport:
    """Make the report from an index. `evaluation`: an id; empty means the newest. `status`: with its reason.
    `withheld`: tasks whose texts must not be published.
    """
    story, shown = index.story, evaluation or index.story.evaluation
    shards = read_shards(place)
    profile = with_sessions(index.profile, shards)
    report = WritableReport(
        run_id=place.run_id,
        experiment=place.experiment,
        status=status[0],
        reason=status[1],
        evaluation=shown,
        evaluations=evaluation_names(story),
        cells=tuple(withhold_messages(report_cells(index, evaluation), withheld)),
        steps=step_counts(story),
        usage=story.usage,
        saved=story.saved,
        anomalies=len(story.anomalies) + len(unrecorded(index.damage, story.anomalies)),
        cost=total(cost_lines(story, {})),
        unlooked=unlooked(index),
        models=tuple(model_profiles(profile)),
        damage=damage,
        worked_seconds=round(profile.until_now()[1], 3),
        summed_seconds=round(worked_seconds(shards), 3),
        partial=partial_evaluation(index, shown),
        benchmarks=tuple(benchmark_lines(story)),
        benchmark_data=tuple(benchmark_data(story)),
    )
    report.__dict__["place"] = place  # not a field: the JSON of a report does not have it
    return report


def partial_evaluation(index: Index, evaluation: str) -> PartialEvaluation | None:
    chosen = index.story.partial.get(evaluation)
    if chosen is None:
        return None
    return PartialEvaluation(index.counts_of(evaluation).answers, index.finished, tuple(chosen))
