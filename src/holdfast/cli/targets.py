"""What a command works on: opens the run that it names, here or in a mirror, or loads the spec."""

import os
import sys

from holdfast.cli.progress import spinner
from holdfast.errors import Problems, SpecError, UsageError
from holdfast.journal import is_url
from holdfast.runs import Given, Overrides, Run, default_store, load_given

_DATA = (".jsonl", ".ndjson", ".csv", ".tsv")


def run_to_read(name: str, store: str | None) -> Run:
    """Open a run. If it has not begun, say so on standard error, because its tables are empty."""
    run = run_to_show(name, store)
    if not run.has_begun:
        status, reason = run.status()
        sys.stderr.write(f"{run.run_id}: {status}{f', {reason}' if reason else ', it has just been started'}\n")
    return run


def run_to_show(name: str, store: str | None) -> Run:
    """Open a run, for commands that print its status themselves."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return Run.find(where, name)
    with spinner("fetching from the mirror") as spin:
        return Run.find(where, name, spin.update)


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
