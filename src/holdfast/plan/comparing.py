"""What a resume brings, compared with the plan that the run began with.

Cells are compared by their digests (prompt, solver and its code, model, seed); keys are compared line by line with
what the data gives now. Data that is gone is fine: the rows are in the run.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.plan.files import PlanLine, read_lines
from holdfast.plan.planning import PLAN, Work, cell_digest, cell_lines
from holdfast.records.facts import Cell, Change
from holdfast.spec import Spec

_plan_line = msgspec.json.Decoder(PlanLine)


def changed_cells(spec: Spec, works: Mapping[str, Work], cells: Sequence[Cell]) -> list[Change]:
    """Cells whose answers would come out differently, although no field of the spec says so: the code has changed."""
    models = {model.name: model for model in spec.models}
    return [
        Change(
            f"tasks.{cell.task} with {cell.model}: code of {works[cell.task].solver.name}",
            "as it was",
            "changed",
            "result",
        )
        for cell in cells
        if cell_digest(spec, works[cell.task], models[cell.model]).hex() != cell.digest
    ]


def changed_rows(run: str, spec: Spec, works: Mapping[str, Work], cells: Sequence[Cell]) -> list[Change]:
    """Tasks whose data is no longer what was planned; each with its first difference."""
    models = {model.name: model for model in spec.models}
    seen: set[str] = set()
    changes = []
    for cell in cells:
        work = works[cell.task]
        if cell.task in seen or (spec.record_data and not _is_there(work)):
            continue
        seen.add(cell.task)
        stored = map(_plan_line.decode, itertools.islice(read_lines(os.path.join(run, PLAN), cell.plan_at), cell.count))
        first = next(stored, None)
        lines = cell_lines(spec, work, models[cell.model], cell.first, first.r - 1 if first else 0)
        difference = _first_difference(itertools.chain([first], stored) if first else stored, lines)
        if difference is not None:
            changes.append(Change(f"tasks.{cell.task}.dataset", *difference, "result"))
    return changes


def _is_there(work: Work) -> bool:
    return work.rows is not None or os.path.exists(work.task.dataset.path)


def _first_difference(stored: Iterator[PlanLine], given: Iterator[PlanLine]) -> tuple[str, str] | None:
    for was, now in itertools.zip_longest(stored, given):
        if was is None:
            return "ends here", f"has {now.k} and maybe more"
        if now is None:
            return f"has {was.k} and maybe more", "ends here"
        if was.k != now.k:
            return was.k, now.k
        if was.x != now.x:
            return f"{was.k} asks {was.x[:8]}", f"{now.k} asks {now.x[:8]}: its row has changed"
    return None
