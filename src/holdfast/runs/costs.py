"""What runs have cost, and what answers of earlier runs tell about the next."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.report.costs import CostReport, summed
from holdfast.runs.estimate import Observed
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import newest_runs
from holdfast.spec import Spec

_LOOKED_AT = 20
"""So many of the newest runs."""


def costs_of(runs: Sequence[Run]) -> CostReport:
    """Of all of them together; what was spent against which limits, if it is one."""
    limits: dict[str, Any] = {}
    if len(runs) == 1:
        limits = {name: value for name, value in runs[0].limits().items() if value is not None}
    return summed(((run.run_id, run.cost_lines()) for run in runs), limits)


def observed_before(spec: Spec, store: str) -> Mapping[tuple[str, str], Observed]:
    """What an answer took in earlier runs of the experiment, by task and model; the newest run that has any counts."""
    wanted = {model.name: (model.provider, model.model, model.params) for model in spec.models}
    found: dict[tuple[str, str], Observed] = {}
    for place in newest_runs(store, spec.experiment, _LOOKED_AT):
        try:
            with Run(place) as run:
                told = run.observed()
                models = run.spec().models
        except (HoldfastError, OSError, msgspec.ValidationError):
            continue  # a run that cannot be read tells nothing
        same = {each.name for each in models if (each.provider, each.model, each.params) == wanted.get(each.name)}
        for (task, model), each in told.items():
            if model in same:
                found.setdefault((task, model), each)
    return found
