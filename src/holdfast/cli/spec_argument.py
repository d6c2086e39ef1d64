"""Loading the spec that a command names."""

import os

from holdfast.errors import Problems, SpecError, UsageError
from holdfast.runs import Given, Overrides, load_given

_DATA = (".jsonl", ".ndjson", ".csv", ".tsv")


def load_named(path: str, overrides: Overrides, problems: Problems | None = None, *, is_only: bool) -> Given:
    """Load a spec. If it is not the only one, every error names it, also that of an option such as `--task`.
    `problems`: receives errors that leave a spec to check further.
    """
    if path.lower().removesuffix(".gz").removesuffix(".zst").endswith(_DATA) and os.path.isfile(path):
        raise UsageError(f"{path} is data, not a spec; without a spec: holdfast run --model mock --data {path}")
    try:
        return load_given(path, overrides, problems)
    except SpecError as error:
        if is_only or str(error).startswith(path):
            raise
        raise SpecError(f"{path}: {error}") from error
