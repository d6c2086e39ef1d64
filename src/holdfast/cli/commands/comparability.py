"""Whether runs can be compared at all: the same rows under the same ids, the same scorers under the same names."""

import contextlib
from collections.abc import Iterator, Sequence

from holdfast.cli.run_argument import run_to_show
from holdfast.report.compare.comparison import unlike_scorers
from holdfast.report.compare.sides import Answers, Cell, sides_of
from holdfast.report.text import counted
from holdfast.runs import Run
from holdfast.runs.store.lookup import not_begun
from holdfast.spec.reductions import Reduction


@contextlib.contextmanager
def opened_runs(names: Sequence[str], store: str | None) -> Iterator[list[Run]]:
    """Open until the end of a `with`. UsageError if one has not begun: it has no scores. DamagedError if one is
    damaged: a verdict on it could be wrong.
    """
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(run_to_show(name, store)) for name in names]
        for run in runs:
            run.require_whole()
            if not run.has_begun:
                raise not_begun(run.place)
        yield runs


def all_sides(runs: Sequence[Run], evaluation: str = "") -> list[dict[Cell, Answers]]:
    """Of each run. All are reduced in all ways that one of them asks for: reducers only read scores."""
    ways: dict[str, dict[Reduction, None]] = {}
    for run in runs:
        for task, several in run.reductions().items():
            ways.setdefault(task, {}).update(dict.fromkeys(several))
    how = {task: tuple(several) for task, several in ways.items()}
    return [sides_of(name, run.lines(evaluation), how) for name, run in zip(_names(runs), runs, strict=True)]


def _names(runs: Sequence[Run]) -> list[str]:
    """Their ids; with the experiment, where two experiments have a run of the same."""
    ids = [run.run_id for run in runs]
    return [f"{run.place.experiment}/{run.run_id}" if ids.count(run.run_id) > 1 else run.run_id for run in runs]


def unlike(first: Run, second: Run, evaluation: str = "", scorers: Sequence[str] | None = None) -> list[str]:
    """Why two runs are not comparable, a sentence each: other data, another scorer of the same name (of `scorers`, if
    they are given). Empty if they are.
    """
    found = []
    mine, theirs = first.row_digests(), second.row_digests()
    other = sum(mine[each] != theirs[each] for each in mine.keys() & theirs.keys())
    both = f"{first.run_id} and {second.run_id} are not comparable"
    if other:
        found.append(f"{both} on {counted(other, 'sample')}: other data, rows of the same id differ")
    names = unlike_scorers(first.scorer_identities(evaluation), second.scorer_identities(evaluation))
    for name in names:
        if scorers is None or any(each == name or each.startswith((f"{name}.", f"{name} ")) for each in scorers):
            again = f"score one of them again with: {first.place.command('score')}"
            found.append(f"{both} by {name}: it is another scorer (other code, arguments or judges); {again}")
    return found


def without_data(runs: Sequence[Run]) -> Iterator[str]:
    """Of which runs nobody can say whether they were asked about the same."""
    for run in runs if len(runs) > 1 else ():
        if not run.holds_data():
            why = "whether rows of the same id differ is not known"
            yield f"{run.run_id} does not hold its data (record_data is off): {why}"


def without_groups(runs: Sequence[Run]) -> Iterator[str]:
    """Of which runs nobody can say which samples share a group."""
    for run in runs:
        yield from (f"{run.run_id}: {task}: {why}" for task, why in run.unknown_groups().items())


def unfinished(runs: Sequence[Run]) -> Iterator[str]:
    """What a reader of numbers about runs that have not ended must know."""
    for run in runs:
        status, _ = run.status()
        if status != "completed":
            yield f"{run.run_id} is {status}: only what it has finished counts"
