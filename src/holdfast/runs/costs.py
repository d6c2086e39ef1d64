"""The costs of runs, and the usage of earlier runs from which the cost of the next one is estimated. Reads only."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.report import CostReport, sum_costs
from holdfast.runs.run import Run
from holdfast.runs.store.lookup import newest_runs
from holdfast.runs.summary import Observed
from holdfast.spec import Spec

_RUNS_MAX = 20
"""How many of the newest runs of an experiment are read for an estimate."""


def costs_of(runs: Sequence[Run]) -> CostReport:
    """Add up the costs of the runs. For a single run, the report also shows its limits."""
    limits: dict[str, Any] = {}
    if len(runs) == 1:
        limits = {name: value for name, value in runs[0].limits().items() if value is not None}
    return sum_costs(((run.run_id, run.cost_lines()) for run in runs), limits)


def load_observed_usage(spec: Spec, store: str) -> Mapping[tuple[str, str], Observed]:
    """The usage of earlier runs of the experiment by task and model, from the newest run that has finished answers.
    Runs count only where provider, model name and parameters are the same as in `spec`.
    """
    current = {model.name: (model.provider, model.model, model.params) for model in spec.models}
    found: dict[tuple[str, str], Observed] = {}
    for place in newest_runs(store, spec.experiment, _RUNS_MAX):
        try:
            with Run(place) as run:
                observed = run.observed()
                models = run.spec().models
        except (HoldfastError, OSError, msgspec.ValidationError):
            continue  # an estimate does not need every run: skip those that cannot be read
        same = {each.name for each in models if (each.provider, each.model, each.params) == current.get(each.name)}
        for (task, model), each in observed.items():
            if model in same:
                found.setdefault((task, model), each)
    return found
