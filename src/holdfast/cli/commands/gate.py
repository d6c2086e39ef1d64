"""`gate`: exit 7 unless a run is as good as a baseline, less a margin, or reaches a number.

Invariant: what cannot be judged never passes. Exit 2 if `gate_result_of` refuses to judge.
"""

from holdfast.cli.commands.compare import opened_runs
from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.report import (
    POWER,
    GateRule,
    GateVerdict,
    Grid,
    count_of,
    counted,
    describe_methods,
    describe_missing,
    format_interval,
    format_number,
)
from holdfast.runs import GateOptions, gate_result_of

NOT_PASSED = 7
_COLUMNS = (
    "task",
    "model",
    "scorer",
    "verdict",
    "baseline",
    "mean",
    "difference",
    "interval",
    "bound",
    "n",
    "left out",
    "needed",
)
_HIDDEN = ("baseline", "mean", "left out", "needed")
_HIDDEN_OF_LEVEL = ("baseline", "difference", "left out", "needed")
"""Columns that only --all shows: with a baseline, and with a number to reach."""
_STYLES = {"passed": "green", "worse": "red", "missing": "red", "unsure": "yellow"}


def gate_run(name: str, options: GateOptions, store: str | None, as_json: bool, all_columns: bool = False) -> int:
    """Judge a run; return 7 if a task, model or scorer does not pass. Raises UsageError if it cannot be judged."""
    options.bar()  # contradictions are reported before a run is looked for
    with opened_runs([name] if options.baseline is None else [name, options.baseline], store) as runs:
        result = gate_result_of(runs, options)
    if as_json:
        print_json(result)
        return 0 if result.passed else NOT_PASSED
    found, bar = result.verdicts, result.bar
    for note in result.warnings:
        warn(note)
    for each in found:
        print_line(_describe_verdict(each, bar), _STYLES[each.outcome])
    print_line("")
    hidden = () if all_columns else _HIDDEN if bar.at_least is None else _HIDDEN_OF_LEVEL
    shown = [index for index, name in enumerate(_COLUMNS) if name not in hidden]
    rows = [[_row(each, bar)[index] for index in shown] for each in found]
    print_table(Grid([_COLUMNS[i] for i in shown], rows, titles=4, right=_COLUMNS[4:], whole=("scorer",)))
    method = describe_methods(each.interval for each in found)
    if method:
        level, error = 100 * bar.confidence, 50 * (1 - bar.confidence)
        rate = f"; a run exactly at the bound passes in at most {error:.4g}% of cases"
        if bar.unsure_passes or bar.identical_passes:
            rate = ""
        print_line("")
        print_line(f"{level:.4g}% intervals: {method}{rate}", "dim")
    return 0 if result.passed else NOT_PASSED


def _row(each: GateVerdict, bar: GateRule) -> list[str]:
    interval, against = each.interval, bar.at_least is None
    sign = "+" if against else ""
    return [
        each.task,
        each.model,
        each.scorer,
        each.outcome,
        "" if each.baseline is None else format_number(each.baseline),
        "" if each.mean is None else format_number(each.mean),
        format_number(interval.mean, "+") if against and interval.mean is not None else "",
        format_interval(interval, sign),
        format_number(each.bound, sign),
        count_of(interval),
        str(sum(each.missing.values()) or ""),
        "" if each.samples_needed is None else str(each.samples_needed),
    ]


def _count_samples(each: GateVerdict) -> str:
    samples, groups = counted(each.samples, "sample"), each.interval.groups
    return samples if groups is None else f"{samples} in {counted(groups, 'group')}"


def _describe_verdict(each: GateVerdict, bar: GateRule) -> str:
    """The verdict in a sentence, with the next step."""
    place = f"{each.task}/{each.model} {each.scorer}"
    what = "the mean" if bar.at_least is not None else "the difference to the baseline"
    level = f"{bar.confidence:.12g}"
    if each.outcome == "missing":
        if not each.missing:
            return f"{place}: not passed: no key has a score on both sides"
        keys, why = counted(sum(each.missing.values()), "key"), describe_missing(each.missing)
        return f"{place}: not passed: {keys} without a score ({why}); to accept them: --missing-max"
    accept = "--if-unsure pass or --identical-passes" if each.identical else "--if-unsure pass"
    decision = "passed because of --if-unsure pass" if each.passed else f"not passed (to accept: {accept})"
    if each.depends_on_missing:
        otherwise = "with the scores that the baseline lacks"
        if each.missing:
            otherwise = f"with {counted(sum(each.missing.values()), 'missing score')} counted as wrong"
        return f"{place}: it passes on what is scored, but perhaps not {otherwise}; {decision}"
    if each.identical and bar.identical_passes:
        return f"{place}: passed because of --identical-passes: every score is the same ({_count_samples(each)})"
    if each.outcome == "passed":
        also = f", also with {counted(sum(each.missing.values()), 'missing score')} counted as wrong"
        reached = f"{what} is at least {each.bound:.4g} at confidence {level}"
        return f"{place}: passed: {reached}{also if each.missing else ''}"
    if each.outcome == "worse":
        return f"{place}: not passed: {what} is below {each.bound:.4g} at confidence {level}"
    needed = "more samples are needed"
    if each.interval.low is None and each.samples > 1:
        needed = "too little varies for an interval, and the scale of the scorer has no known ends"
    if each.samples_needed is not None:
        stays = f"if {what} stays {each.interval.mean:.4g}"
        needed = f"about {each.samples_needed} samples would decide with power {POWER}, {stays}"
    return f"{place}: not enough data on {_count_samples(each)}: {needed}; {decision}"
