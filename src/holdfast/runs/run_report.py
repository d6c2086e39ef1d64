"""The report of a run, from its index; a program can write it to a file."""

import os
from collections.abc import Sequence

from holdfast.errors import UsageError
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
)
from holdfast.runs.shards.sessions import read_shards, with_sessions, worked_seconds
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.summary import benchmark_data, benchmark_lines, evaluation_names, step_counts
from holdfast.state import Index


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
        from holdfast.runs.report_file import ReportChoice, save_report  # late: rarely needed

        place = self.__dict__.get("place")
        if not isinstance(place, RunLocation):  # a copy, as after pickling
            raise UsageError("this report no longer knows its run: use holdfast.open_run(…).report().save(…)")
        choice = ReportChoice(self.evaluation, at_least, parse_columns(columns))
        with naming_parameters():
            save_report(place, os.fspath(path), format, choice, include_restricted=include_restricted)


def report_of(
    place: RunLocation, index: Index, evaluation: str, status: tuple[str, str] = ("", ""), damage: tuple[str, ...] = ()
) -> WritableReport:
    """Make the report from an index. `evaluation`: an id; empty means the newest. `status`: with its reason."""
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
        cells=tuple(report_cells(index, evaluation)),
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
