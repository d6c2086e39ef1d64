"""Small specs and their plans."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.plan import (
    DATA,
    PLAN,
    DataLine,
    PlanLine,
    PreparedTask,
    WrittenPlan,
    draft_plan,
    prepare,
    read_lines,
    survey,
    write_plan,
)
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


def drafted_plan_of(folder: Path, spec: Spec, works: Mapping[str, PreparedTask]) -> WrittenPlan | None:
    """The plan as it is written after one reading of the data; None if it must be read again."""
    draft = draft_plan(str(folder / "drafted"), spec, works)
    if draft is None:
        return None
    with tempfile.TemporaryDirectory() as other:
        planned = write_plan(other, spec, works, draft=draft)
        for name in (PLAN, DATA):
            assert (Path(other) / name).read_bytes() == (folder / name).read_bytes()
    return planned


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
    assert drafted_plan_of(folder, spec, works) in (None, planned)
    lines = [msgspec.json.decode(raw, type=PlanLine) for raw in read_lines(str(folder / PLAN))]
    data = [msgspec.json.decode(raw, type=DataLine) for raw in read_lines(str(folder / DATA))]
    return Plan(planned, lines, data)
