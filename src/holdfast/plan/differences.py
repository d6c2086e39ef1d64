"""Compares the inputs of a resume with the plan of the run.

Solver code and few-shot examples are compared with their copies in the journal; the keys that the data gives now are
compared with the planned keys, block by block. A missing data file is no difference: the rows are stored in the run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.plan.files import PlanLine, StoredRows, planned_lines
from holdfast.plan.planner import PreparedTask, cell_lines, inputs_of
from holdfast.plan.stamps import ComparedRows, cells_to_compare, stamp_of_data
from holdfast.records import Cell, Change, TaskInputs, parse_key
from holdfast.spec import Model, Spec

_LISTED_MAX = 3
"""How many added, removed or changed samples an error lists."""


def changed_inputs(stored: Mapping[str, TaskInputs], works: Mapping[str, PreparedTask]) -> list[Change]:
    """Return changes that no field of the spec shows: of a solver's code, or of the examples."""
    changes = []
    for name, given in inputs_of({name: work for name, work in works.items() if name in stored}).items():
        was = stored[name]
        if was.solver != given.solver:
            solver = works[name].solver.described()
            changes.append(Change(f"tasks.{name}.solver", f"the code of {solver}", "different code", "result"))
        if was.shots != given.shots:
            old, new = f"{len(was.shots)} rows", "other rows in that file"
            changes.append(Change(f"tasks.{name}.fewshot", old, new, "result"))
    return changes


def changed_rows(
    run: str,
    spec: Spec,
    works: Mapping[str, PreparedTask],
    cells: Sequence[Cell],
    compared: ComparedRows | None = None,
) -> list[Change]:
    """Return the tasks whose data differs from the plan, with the samples that were added, removed or changed. Data
    that has not changed since it was `compared` is not read.
    """
    models = {model.name: model for model in spec.models}
    changes = []
    for task, mine in cells_to_compare(cells).items():
        work, model = works[task], models[mine[0].model]
        if spec.record_data and work.rows is None and work.source is not None and work.source.is_missing():
            continue
        if compared is not None and isinstance(work.rows, StoredRows):
            continue  # they are the planned ones
        if compared is not None and compared.has(spec, work, model, mine):
            continue
        stamp = stamp_of_data(spec, work)  # before reading: a later change then shows
        stored = [planned_lines(run, cell) for cell in mine]
        given = cell_lines(spec, work, model, work.samples(spec))
        try:
            is_same = not any(new for _, new in is_new(stored, given))
        except MismatchError:
            is_same = False
        if is_same and compared is not None:
            compared.remember(stamp, spec, work, model, mine)
        if not is_same:
            found = _describe(run, spec, work, model, mine)
            changes.append(Change(f"tasks.{task}.dataset", "the rows that were planned", found, "result"))
    return changes


def is_new(stored: Sequence[Iterator[PlanLine]], given: Iterable[PlanLine]) -> Iterator[tuple[PlanLine, bool]]:
    """Yield each given key, and whether it is new. MismatchError if a planned key is missing or has another digest.

    Blocks keep the order of the data, so comparing the next key of each block is enough: a merge, without sets.
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
    """A planned key is missing from the given keys, or its digest differs."""


def _describe(run: str, spec: Spec, work: PreparedTask, model: Model, cells: Sequence[Cell]) -> str:
    """Summarise the differences for an error. Holds both plans in memory, so it is only called for a refusal."""
    was = dict(_first_repeats(line for cell in cells for line in planned_lines(run, cell)))
    now = dict(_first_repeats(cell_lines(spec, work, model, work.samples(spec))))
    found = [
        _describe_keys([key for key in now if key not in was], "added"),
        _describe_keys([key for key in was if key not in now], "removed"),
        _describe_keys([key for key in was if key in now and was[key] != now[key]], "changed"),
    ]
    order = list(was) != list(now) and was.keys() == now.keys()
    return "; ".join([*filter(None, found), *(["the rows are in another order"] if order else [])])


def _first_repeats(lines: Iterable[PlanLine]) -> Iterator[tuple[str, str]]:
    """Yield key and digest of each sample's first repeat."""
    return ((line.k, line.x) for line in lines if line.k.endswith("/1"))


def _describe_keys(keys: Sequence[str], what: str) -> str:
    if not keys:
        return ""
    ids = ", ".join(parse_key(key).sample_id for key in keys[:_LISTED_MAX])
    more = ", …" if len(keys) > _LISTED_MAX else ""
    return f"{len(keys)} {'sample' if len(keys) == 1 else 'samples'} {what} ({ids}{more})"
