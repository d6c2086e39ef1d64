"""Whether runs can be compared, and what a reader of a comparison must know.

Two runs are comparable if rows with the same id are equal and scorers with the same name are the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.report import CellName, SideAnswers, StoredBenchmark, counted, differing_scorers
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import not_started_error
from holdfast.runs.summary import changed_benchmark_lines
from holdfast.spec import Reduction


def require_comparable(runs: Sequence[Run]) -> None:
    """Raise UsageError for a run that has not begun, because it has no scores, and DamagedError for a damaged one,
    because a verdict on it could be wrong.
    """
    for run in runs:
        run.require_whole()
        if not run.has_begun:
            raise not_started_error(run.place)


def all_sides(runs: Sequence[Run], evaluation: str = "") -> list[dict[CellName, SideAnswers]]:
    """The answers of each run by cell. Each task gets the reducers of all runs: they only read scores."""
    reductions: dict[str, dict[Reduction, None]] = {}
    for run in runs:
        for task, several in run.reductions().items():
            reductions.setdefault(task, {}).update(dict.fromkeys(several))
    how = {task: tuple(several) for task, several in reductions.items()}
    return [run.sides(name, evaluation, how) for name, run in zip(_names_of(runs), runs, strict=True)]


def _names_of(runs: Sequence[Run]) -> list[str]:
    """A name for each run, no two alike: its id; its experiment too if another run has the same id; its folder or URL
    if another store has a run of the same name. A run that is given several times gets numbers.
    """
    homes = [run.place.url or run.place.home for run in runs]
    names = [run.run_id for run in runs]
    for longer in (
        [f"{run.place.experiment}/{run.run_id}" for run in runs],
        homes,
        [f"{home} ({number})" for number, home in enumerate(homes, 1)],
    ):
        counts = Counter(names)
        names = [name if counts[name] == 1 else other for name, other in zip(names, longer, strict=True)]
    return names


def evaluations_of(runs: Sequence[Run], evaluation: str) -> dict[str, str]:
    """The id of the evaluation that is used, by the name of the run and in the order of the runs; empty for a run
    without scores.
    """
    return {name: run.evaluation_id(evaluation) for name, run in zip(_names_of(runs), runs, strict=True)}


def incomparable_reasons(
    first: Run, second: Run, evaluation: str = "", scorers: Sequence[str] | None = None
) -> list[str]:
    """Why two runs are not comparable, one sentence per reason; empty if they are.

    Reasons are rows that differ, and scorers that differ under the same name (only `scorers`, if given).
    """
    found = []
    mine, theirs = first.row_digests(), second.row_digests()
    other = sum(mine[each] != theirs[each] for each in mine.keys() & theirs.keys())
    both = f"{first.run_id} and {second.run_id} are not comparable"
    if other:
        found.append(f"{both} on {counted(other, 'sample')}: rows with the same id differ")
    names = differing_scorers(first.scorer_identities(evaluation), second.scorer_identities(evaluation))
    for name in names:
        if scorers is None or any(each == name or each.startswith((f"{name}.", f"{name} ")) for each in scorers):
            older = min((first, second), key=lambda run: _scored_at(run, evaluation))
            again = f"to score the older one again: {older.place.command('score')}"
            found.append(f"{both} by {name}: the scorers differ in code, arguments or judges; {again}")
    return found


def _scored_at(run: Run, evaluation: str) -> str:
    """When the evaluation that is compared began."""
    current = run.evaluation_id(evaluation)
    return next((each.begun for each in run.evaluations() if each.evaluation == current), "")


def without_data(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs without stored rows: whether they answered the same questions is not known."""
    for run in runs if len(runs) > 1 else ():
        if not run.holds_data():
            why = "whether rows with the same id differ is not known"
            yield f"{run.run_id} does not hold its data (record_data is off): {why}"


def of_several(runs: Sequence[Run], evaluation: str) -> Iterator[str]:
    """Say which evaluation is used, if a run has several and none was chosen."""
    for run in runs if not evaluation else ():
        current, names = run.evaluation_id(), run.evaluation_names()
        if current and len(names) > 1:
            of = f"the evaluation {current} ({names[current]}), one of {len(names)}"
            yield f"{run.run_id}: scores of {of}; for another, add --evaluation"


def without_groups(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs for which the groups of samples are not known."""
    for run in runs:
        yield from (f"{run.run_id}: {task}: {why}" for task, why in run.unknown_groups().items())


def unfinished(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs that have not completed."""
    for run in runs:
        status, _ = run.status()
        if status != "completed":
            yield f"{run.run_id} is {status}: only finished samples count"


def changed_benchmarks(runs: Sequence[Run]) -> Iterator[str]:
    """Say which tasks differ from their benchmark, and which are of different benchmarks, versions or commits."""
    versions: dict[str, dict[tuple[str, str], list[tuple[Run, StoredBenchmark]]]] = {}
    for run in runs:
        every = run.benchmarks()
        yield from (f"{run.run_id}: {line}" for line in changed_benchmark_lines(every))
        for task, origin in every.items():
            same = versions.setdefault(task, {}).setdefault((origin.title, origin.commit), [])
            same.append((run, origin))
    for task, every_version in versions.items():
        if len(every_version) > 1:
            found = "; ".join(
                f"{same[0][1].described} in {', '.join(run.run_id for run, _ in same)}"
                for same in every_version.values()
            )
            yield f"{task} is not the same benchmark in all runs: {found}"


def partially_scored(runs: Sequence[Run], evaluation: str = "") -> Iterator[str]:
    """Warn of evaluations in which only chosen answers are scored."""
    for run in runs:
        partial = run.partial(evaluation)
        if partial is not None:
            count = f"only {partial.scored} of {partial.answers} answers are scored"
            yield f"{run.run_id}: the evaluation is partial: {count}, chosen with {'; '.join(partial.chosen)}"
