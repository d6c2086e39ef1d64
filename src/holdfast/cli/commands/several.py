"""Several specs in one `run`: one run after the other, in this process.

All specs are checked before the first request. A run that fails does not keep the others from being started, as a cell
that fails does not stop the other cells of a run. Only an interrupt and failed storage end the list. The exit code is
that of the first run that did not end with 0.

With `--id`, the name of its spec's file is part of each run's id, so that the same command continues all of them after
a crash.
"""

import itertools
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

import msgspec

from holdfast.cli.commands.run import run_spec
from holdfast.cli.errors import explain, explain_os_error, set_options
from holdfast.cli.output import print_line
from holdfast.cli.progress import spinner
from holdfast.cli.signals import StuckLoops, exit_if_stuck, release_signals
from holdfast.errors import DamagedError, DamageWarning, HoldfastError, UsageError
from holdfast.runs import Given, Overrides, check, default_store, new_run_location
from holdfast.runs.execution.preparation import prefix_errors, refuse_missing_keys

_SUFFIXES = (".yaml", ".yml", ".json")
_INTERRUPTED = 130
_STORAGE_FAILED = 8
_DAMAGED = 5


class RunChoice(msgspec.Struct, frozen=True):
    """What the options of `run` say about each of several runs."""

    run_id: str | None
    store: str | None
    overrides: Overrides

    def id_of(self, given: Given) -> str | None:
        """The id of one of the runs: that of the command, and the name of the spec's file."""
        if self.run_id is None:
            return None
        stem, suffix = os.path.splitext(os.path.basename(given.where))
        return f"{self.run_id}-{stem if suffix in _SUFFIXES else stem + suffix}"


def run_specs(specs: Sequence[Given], choice: RunChoice) -> int:
    """Execute the runs of several specs, one after the other. Returns the exit code."""
    _check_specs(specs, choice)
    stuck: StuckLoops = []
    codes: list[int] = []
    stopped = 0
    for number, given in enumerate(specs, 1):
        if codes:
            print_line("")  # between two reports
        sys.stderr.write(f"spec {number} of {len(specs)}: {given.where}\n")
        try:
            codes.append(_run_one(given, choice, stuck))
        except KeyboardInterrupt:  # before the run could handle signals itself
            codes.append(_INTERRUPTED)
            stopped = _INTERRUPTED
        if release_signals():
            stopped = _INTERRUPTED
        elif codes[-1] == _STORAGE_FAILED:  # the next run needs the same storage
            stopped = _STORAGE_FAILED
        if stopped:
            break
    _print_summary(specs, codes, choice)
    code = next(filter(None, codes), stopped)
    exit_if_stuck(stuck, code)
    return code


def _check_specs(specs: Sequence[Given], choice: RunChoice) -> None:
    """SpecError or UsageError if one of the runs could not be started, before anything is paid for."""
    names: dict[str, str] = {}
    for given in specs:
        place = new_run_location(given, choice.store or default_store(), choice.id_of(given))
        other = names.get(place.folder)
        if other is not None:
            both = f"{other} and {given.where} would both be the run {place.experiment}/{place.run_id}"
            raise UsageError(f"--id {choice.run_id}: {both}; rename a file, or run them one by one")
        names[place.folder] = given.where
        if not place.began:  # a run that has begun has its own copy of the data
            with spinner(f"checking {given.where}"), prefix_errors(given):
                check(given)
                refuse_missing_keys(given.spec)


def _run_one(given: Given, choice: RunChoice, stuck: StuckLoops) -> int:
    """Execute one run. An error is printed, and its exit code returned, so that the next run can be started."""
    try:
        return run_spec(given, choice.id_of(given), choice.store, choice.overrides, stuck)
    except DamagedError as error:
        warnings.warn(str(error), DamageWarning, stacklevel=2)
        return _DAMAGED
    except HoldfastError as error:
        return explain(error)
    except OSError as error:
        return explain_os_error(error)
    except SystemExit as error:  # interrupted before there was a run
        return error.code if isinstance(error.code, int) else 1


def _print_summary(specs: Sequence[Given], codes: Sequence[int], choice: RunChoice) -> None:
    """Print how the runs ended, and how to start those that were not."""
    failed = [f"{given.where} (exit code {code})" for given, code in zip(specs, codes, strict=False) if code]
    parts = [f"{len(codes) - len(failed)} of {len(specs)} specs done"]
    parts += [f"not done: {', '.join(failed)}"] if failed else []
    left = [given.where for given in specs[len(codes) :]]
    if left:
        again = "run the same command again"
        if choice.run_id is None:  # the same command would also start new runs of the others
            again = f"start with: {shlex.join(['holdfast', 'run', *left, *_options(choice)])}"
        parts.append(f"not started: {', '.join(left)}; {again}")
    sys.stderr.write(f"{'; '.join(parts)}\n")


def _options(choice: RunChoice) -> list[str]:
    """The options of `run` as they were typed."""
    part = choice.overrides.selection
    named = (("--sample", part.samples), ("--task", part.tasks), ("--model", part.models))
    options = itertools.chain.from_iterable((option, value) for option, values in named for value in values)
    limit = [] if part.limit is None else ["--limit", str(part.limit)]
    store = [] if choice.store is None else ["--store", choice.store]
    return [*set_options(choice.overrides.sets), *limit, *options, *store]
