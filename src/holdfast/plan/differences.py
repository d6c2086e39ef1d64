"""What a resume brings, compared with the plan that the run has.

Solver code and examples are compared by what the journal holds of them; keys are compared with what the data gives now,
block by block. Data that is gone is fine: the rows are in the run.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.plan.files import PlanLine, planned_lines
from holdfast.plan.planner import Work, cell_lines, inputs_of
from holdfast.records.facts import Cell, Change, TaskInputs
from holdfast.records.keys import parse_key
from holdfast.spec import Model, Spec

_NAMED = 3
"""How many samples of a kind a refusal names."""


def changed_inputs(stored: Mapping[str, TaskInputs], works: Mapping[str, Work]) -> list[Change]:
    """What has changed although no field of the spec says so: a solver's code, the examples."""
    changes = []
    for name, given in inputs_of({name: work for name, work in works.items() if name in stored}).items():
        was = stored[name]
        if was.solver != given.solver:
            solver = works[name].solver.described()
            changes.append(Change(f"tasks.{name}.solver", f"the code of {solver}", "other code", "result"))
        if was.shots != given.shots:
            old, new = f"{len(was.shots)} rows", "other rows in that file"
            changes.append(Change(f"tasks.{name}.fewshot", old, new, "result"))
    return changes


def changed_rows(run: str, spec: Spec, works: Mapping[str, Work], cells: Sequence[Cell]) -> list[Change]:
    """Tasks whose data is no longer what was planned, with the samples that were added, removed or changed."""
    models = {model.name: model for model in spec.models}
    changes = []
    firsts: dict[str, str] = {}
    for cell in cells:
        firsts.setdefault(cell.task, cell.model)
    for task, model in firsts.items():
        work = works[task]
        if spec.record_data and not _is_there(work):
            continue
        mine = [cell for cell in cells if (cell.task, cell.model) == (task, model)]
        if not _is_same(run, spec, work, models[model], mine):
            told = _described(run, spec, work, models[model], mine)
            changes.append(Change(f"tasks.{task}.dataset", "the rows that were planned", told, "result"))
    return changes


def is_new(stored: Sequence[Iterator[PlanLine]], given: Iterable[PlanLine]) -> Iterator[tuple[PlanLine, bool]]:
    """Each given key, and whether no block has it. Raises MismatchError where the blocks hold something else.

    Within a block, keys keep their order; so each block needs to be looked at only where it stands.
    """
    heads = [next(lines, None) for lines in stored]
    for line in given:
        found = next((index for index, head in enumerate(heads) if head is not None and head.k == line.k), None)
        if found is None:
            yield line, True
            continue
        head = heads[found]
        if head is None or head.x != line.x:
            raise MismatchError
        heads[found] = next(stored[found], None)
        yield line, False
    if any(head is not None for head in heads):
        raise MismatchError


class MismatchError(Exception):
    """A key of the plan is not among those given, or asks something else."""


def _is_same(run: str, spec: Spec, work: Work, model: Model, cells: Sequence[Cell]) -> bool:
    stored = [planned_lines(run, cell) for cell in cells]
    try:
        return not any(new for _, new in is_new(stored, cell_lines(spec, work, model, work.samples(spec))))
    except MismatchError:
        return False


def _described(run: str, spec: Spec, work: Work, model: Model, cells: Sequence[Cell]) -> str:
    """In a refusal only: both plans are held in memory."""
    was = dict(_firsts(line for cell in cells for line in planned_lines(run, cell)))
    now = dict(_firsts(cell_lines(spec, work, model, work.samples(spec))))
    told = [
        _named([key for key in now if key not in was], "added"),
        _named([key for key in was if key not in now], "removed"),
        _named([key for key in was if key in now and was[key] != now[key]], "changed"),
    ]
    order = list(was) != list(now) and was.keys() == now.keys()
    return "; ".join([*filter(None, told), *(["the rows are in another order"] if order else [])])


def _firsts(lines: Iterable[PlanLine]) -> Iterator[tuple[str, str]]:
    """One key for each sample: its first repeat."""
    return ((line.k, line.x) for line in lines if line.k.endswith("/1"))


def _named(keys: Sequence[str], what: str) -> str:
    if not keys:
        return ""
    ids = ", ".join(parse_key(key).sample_id for key in keys[:_NAMED])
    more = ", …" if len(keys) > _NAMED else ""
    return f"{len(keys)} {'sample' if len(keys) == 1 else 'samples'} {what} ({ids}{more})"


def _is_there(work: Work) -> bool:
    return work.rows is not None or os.path.exists(work.task.dataset.path)
