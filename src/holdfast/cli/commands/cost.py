"""`cost`: what runs have cost, or an estimate of what a spec will cost."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.cli.targets import run_to_read
from holdfast.errors import UsageError
from holdfast.journal import is_url
from holdfast.report import Grid, counted, dollars, short, sum_costs, unpriced_line
from holdfast.runs import Overrides, default_store, load_given
from holdfast.runs import check as check_given
from holdfast.runs.estimate import Estimate, Range, estimate, load_observed_usage

_SPECS = (".yaml", ".yml")
_USED = ("requests", "input", "cached", "output", "reasoning", "cost", "a sample", "saved", "orphaned")
_GUESSED = ("answers", "requests", "input", "output", "cost")


def print_costs(names: Sequence[str], overrides: Overrides, store: str | None, as_json: bool) -> int:
    specs = [name for name in names if name.endswith(_SPECS) and not is_url(name) and not os.path.isdir(name)]
    if not specs:
        if overrides.sets:
            raise UsageError("--set changes a spec: use it to estimate a spec, not with runs")
        _print_runs(names, store, as_json)
    elif len(names) > 1:
        raise UsageError(f"{specs[0]} is a spec: estimate one spec at a time, or sum the costs of runs")
    else:
        _print_estimate(specs[0], overrides, store, as_json)
    return 0


def _print_runs(names: Sequence[str], store: str | None, as_json: bool) -> None:
    with ExitStack() as stack:
        runs = [stack.enter_context(run_to_read(name, store)) for name in dict.fromkeys(names)]
        if len({run.place.folder for run in runs}) < len(runs):
            raise UsageError("the same run is named twice, and would be counted twice: name each run once")
        limits = runs[0].limits() if len(runs) == 1 else {}
        costs = ((run.run_id, run.cost_lines()) for run in runs)
        report = sum_costs(costs, {name: value for name, value in limits.items() if value is not None})
    if as_json:
        print_json(report)
        return
    rows = []
    for line in report.lines:
        usage, each = line.usage, line.dollars_per_sample
        numbers = (
            str(line.requests),
            short(usage.input_tokens),
            _format_count(usage.cached_tokens),
            short(usage.output_tokens),
            _format_count(usage.reasoning_tokens),
            str(line.cost) or "no price",
            "" if each is None else dollars(each),
            _format_value(line.saved.tokens, line.cost.saved_dollars),
            _format_value(line.orphaned.tokens, line.cost.orphaned_dollars),
        )
        rows.append((line.task, line.model, line.role, *numbers))
    print_table(Grid(("task", "model", "role", *_USED), rows, titles=2, right=_USED))
    cost, several = report.cost, f" in {counted(len(report.runs), 'run')}" if len(report.runs) > 1 else ""
    total = f"{counted(report.requests, 'request')}{several}, {counted(report.finished, 'answer')}"
    print_line(f"{total}: {dollars(cost.dollars)}" if cost.dollars is not None else f"{total}; no price is known")
    if cost.saved_dollars:
        print_line(f"replay saved {dollars(cost.saved_dollars)}: recorded answers were not requested again")
    if cost.orphaned_dollars:
        paid = dollars(cost.orphaned_dollars)
        print_line(f"{paid} were paid for recorded answers that the code did not request again")
    if cost.unpriced:
        print_line(unpriced_line(cost.unpriced))
    for name, limit in report.limits.items():
        print_line(f"limits.run.{name} is {limit:g}")


def _format_count(count: int) -> str:
    return short(count) if count else ""


def _format_value(tokens: int, amount: float | None) -> str:
    """Dollars if there is a price, else tokens; empty for 0 tokens."""
    return "" if not tokens else f"{short(tokens)} tokens" if amount is None else dollars(amount)


def _print_estimate(path: str, overrides: Overrides, store: str | None, as_json: bool) -> None:
    prepared, _ = check_given(load_given(path, overrides))
    seen = load_observed_usage(prepared.spec, store or default_store())
    guess = estimate(prepared.spec, prepared.works, seen)
    if as_json:
        print_json(guess)
        return
    rows = [
        (
            cell.task,
            cell.model,
            str(cell.answers),
            format_range(cell.requests),
            format_range(cell.input_tokens),
            format_range(cell.output_tokens),
            "no price" if cell.dollars is None else format_range(cell.dollars, money=True),
            "its prompts" if cell.of == "prompts" else f"the answers of {cell.of}",
        )
        for cell in guess.cells
    ]
    print_table(Grid(("task", "model", *_GUESSED, "estimated by"), rows, titles=2, right=_GUESSED))
    for line in estimate_lines(guess):
        print_line(line)
    for line in guess.over():
        warn(line)


def estimate_lines(guess: Estimate) -> Iterator[str]:
    """The total of an estimate, and why it is not more exact."""
    if guess.dollars is not None:
        yield f"An estimate: {format_range(guess.dollars, money=True)} in all; no request was sent."
    if guess.unpriced:
        yield unpriced_line(guess.unpriced)
    if any(cell.output_tokens.high is None or cell.input_tokens.high is None for cell in guess.cells):
        yield (
            "The output or the number of requests per sample has no limit: set max_tokens, or run a part with --limit; "
            "the next estimate uses its answers."
        )


def format_range(amount: Range, *, money: bool = False) -> str:
    """Format a range: `$1.20 to $3.40`, `at least $1.20`."""
    low, high = (
        None if each is None else dollars(each) if money else short(each) for each in (amount.low, amount.high)
    )
    if high is None:
        return f"at least {low}"
    return f"{low} to {high}" if low != high else f"{low}"
