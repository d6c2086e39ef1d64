"""Specs: their types, how they are read, and what changing each field means for a resume."""

from holdfast.spec.drift import changes_beyond_extension, find_differences, refused_changes
from holdfast.spec.providers import (
    LOCAL_BATCHES,
    PROVIDERS,
    expand_names,
    is_external,
    key_variables,
    missing_keys,
    placed_models,
)
from holdfast.spec.reductions import MEAN, Reduction, check_answers, stored_reductions
from holdfast.spec.sampling_parameters import PER_KEY
from holdfast.spec.selection import Selection, select
from holdfast.spec.source.assignment import value_of
from holdfast.spec.source.loader import (
    build_spec,
    change_spec,
    check_prices,
    check_stored_spec,
    load_spec,
    read_spec,
    read_stored_spec,
    spec_mapping,
)
from holdfast.spec.source.messages import nearest
from holdfast.spec.source.sweeps import base_of
from holdfast.spec.source.variables import (
    adopt_stored,
    fill_environment,
    fill_options,
    fill_params,
    refused_variables,
    variables_in,
)
from holdfast.spec.source.yaml import NO_YAML, TEXT_BYTES_MAX, VARIABLE, BoundedLoader, expand, parse_yaml
from holdfast.spec.types import (
    Batch,
    Concurrency,
    Counts,
    Dataset,
    Fewshot,
    Limits,
    Mirror,
    Model,
    Price,
    RunLimits,
    SampleLimits,
    Sandbox,
    Spec,
    Task,
)
from holdfast.spec.warnings import find_warnings

__all__ = [
    "LOCAL_BATCHES",
    "MEAN",
    "NO_YAML",
    "PER_KEY",
    "PROVIDERS",
    "TEXT_BYTES_MAX",
    "VARIABLE",
    "Batch",
    "BoundedLoader",
    "Concurrency",
    "Counts",
    "Dataset",
    "Fewshot",
    "Limits",
    "Mirror",
    "Model",
    "Price",
    "Reduction",
    "RunLimits",
    "SampleLimits",
    "Sandbox",
    "Selection",
    "Spec",
    "Task",
    "adopt_stored",
    "base_of",
    "build_spec",
    "change_spec",
    "changes_beyond_extension",
    "check_answers",
    "check_prices",
    "check_stored_spec",
    "expand",
    "expand_names",
    "fill_environment",
    "fill_options",
    "fill_params",
    "find_differences",
    "find_warnings",
    "is_external",
    "key_variables",
    "load_spec",
    "missing_keys",
    "nearest",
    "parse_yaml",
    "placed_models",
    "read_spec",
    "read_stored_spec",
    "refused_changes",
    "refused_variables",
    "select",
    "spec_mapping",
    "stored_reductions",
    "value_of",
    "variables_in",
]
