"""`gate`: exit 7 unless a run is as good as a baseline, less a margin, or reaches a number.

Invariant: what cannot be judged never passes. Exit 2 if `gate_result_of` refuses to judge.
"""

from holdfast.cli.commands.compare import opened_runs
from holdfast.cli.output import print_json, print_line, print_sentence, print_table, warn
from holdfast.report import describe_methods
from holdfast.runs import GateOptions, gate_result_of

NOT_PASSED = 7
_STYLES = {"passed": "green", "worse": "red", "missing": "red", "unsure": "yellow"}


def gate_run(name: str, options: GateOptions, store: str | None, as_json: bool, all_columns: bool = False) -> int:
    """Judge a run; return 7 if a task, model or scorer does not pass. Raises UsageError if it cannot be judged."""
    options.bar()  # contradictions are reported before a run is looked for
    with opened_runs([name] if options.baseline is None else [name, options.baseline], store) as runs:
        result = gate_result_of(runs, options)
    if as_json:
        print_json(result)
        return 0 if result.passed else NOT_PASSED
    bar = result.bar
    for note in result.warnings:
        warn(note)
    for each in result.verdicts:
        print_sentence(each.reason, _STYLES[each.outcome])
    print_line("")
    print_table(result.table(all_columns=all_columns).grid())
    method = describe_methods(each.interval for each in result.verdicts)
    if method:
        level, error = 100 * bar.confidence, 50 * (1 - bar.confidence)
        rate = f"; a run exactly at the bound passes in at most {error:.4g}% of cases"
        if bar.unsure_passes or bar.identical_passes:
            rate = ""
        print_line("")
        print_sentence(f"{level:.4g}% intervals: {method}{rate}", "dim")
    return 0 if result.passed else NOT_PASSED
