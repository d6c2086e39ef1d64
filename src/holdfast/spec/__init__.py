"""What is asked: the types of a spec, how it is read, and what changing each field means."""

from holdfast.spec.loading import build_spec, change_spec, check_prices, load_spec, read_spec, spec_mapping
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

__all__ = [
    "Batch",
    "Concurrency",
    "Counts",
    "Dataset",
    "Fewshot",
    "Limits",
    "Mirror",
    "Model",
    "Price",
    "RunLimits",
    "SampleLimits",
    "Sandbox",
    "Spec",
    "Task",
    "build_spec",
    "change_spec",
    "check_prices",
    "load_spec",
    "read_spec",
    "spec_mapping",
]
