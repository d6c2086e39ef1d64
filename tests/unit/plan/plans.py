"""Small specs and their plans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.plan import DATA, PLAN, DataLine, PlanLine, WrittenPlan, prepare, read_lines, survey, write_plan
from holdfast.spec import Spec, build_spec

ROWS = [{"id": "a", "q": "1+1", "target": "2"}, {"id": "b", "q": "2+2", "target": "4"}]


class Plan(NamedTuple):
    """What was written, read back."""

    planned: WrittenPlan
    lines: list[PlanLine]
    data: list[DataLine]

    @property
    def keys(self) -> list[str]:
        return [line.k for line in self.lines]

    @property
    def digests(self) -> list[str]:
        return [line.x for line in self.lines]


def task(name: str = "t", **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompt": "{q}", **fields}


def model(name: str = "m", **fields: Any) -> dict[str, Any]:
    return {"name": name, "provider": "mock", **fields}


def spec_of(**fields: Any) -> Spec:
    return build_spec({"models": [model()], "tasks": [task()], **fields})


def plan_of(
    folder: Path,
    spec: Spec,
    rows: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    solvers: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a spec whose tasks have these rows; all the same two, if none are given."""
    folder.mkdir(exist_ok=True)
    given = {each.name: ROWS for each in spec.tasks if not each.dataset.path} if rows is None else rows
    works = prepare(spec, given, solvers or {})
    counted = survey(spec, works)
    planned = write_plan(str(folder), spec, works)
    assert counted == planned.plan.count
    lines = [msgspec.json.decode(raw, type=PlanLine) for raw in read_lines(str(folder / PLAN))]
    data = [msgspec.json.decode(raw, type=DataLine) for raw in read_lines(str(folder / DATA))]
    return Plan(planned, lines, data)
