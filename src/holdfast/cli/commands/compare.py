"""`compare`: what changed between runs, or between the models and variants of one. `gate`: exit 7 unless a run is as
good as a baseline, less a margin, or reaches a number.

Invariant: what cannot be judged never passes the gate. Exit 2 if `gate_result_of` refuses to judge.
"""

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.cli.output import print_json, print_line, print_sentence, print_table, warn
from holdfast.cli.targets import run_to_show
from holdfast.report import (
    Comparison,
    ComparisonResult,
    asked_texts,
    common_model,
    comparison_title,
    first_line,
)
from holdfast.runs import GateOptions, Run, ShownQuestions, comparison_of, gate_result_of

NOT_PASSED = 7
_STYLES = {"passed": "green", "worse": "red", "missing": "red", "unsure": "yellow"}
_EXCERPT = 70
_CHANGED = 5


class CompareOptions(msgspec.Struct, frozen=True):
    """Which scores to compare, how p values are adjusted, and how many changed keys to list per scorer."""

    scorer: str | None = None
    evaluation: str = ""
    adjust: str = "holm"
    limit: int | None = None
    all_columns: bool = False
    columns: tuple[str, ...] = ()
    """Columns of the data rows beside each question; see `parse_columns`."""


def compare_runs(names: Sequence[str], options: CompareOptions, store: str | None, as_json: bool) -> None:
    with opened_runs(names, store) as runs:
        limit = _CHANGED if options.limit is None and not as_json else options.limit
        shown = ShownQuestions(limit, options.columns)
        found = comparison_of(runs, options.scorer, options.evaluation, options.adjust, shown)
    if as_json:
        limited = (msgspec.structs.replace(each, changed=each.changed[: options.limit]) for each in found.comparisons)
        print_json(msgspec.structs.replace(found, comparisons=tuple(limited)))
        return
    for doubt in found.warnings:
        warn(doubt)
    _print_comparisons(found, options)


def _print_comparisons(result: ComparisonResult, options: CompareOptions) -> None:
    found = result.comparisons
    several = len({common_model(each) for each in found} - {""}) > 1
    for sentence in result.sentences():
        print_sentence(sentence, "bold")
    print_line("")
    print_table(result.table(all_columns=options.all_columns).grid())
    print_line("")
    for line in result.notes(all_columns=options.all_columns):
        print_sentence(line, "dim")
    for each in found:
        if each.depends_on_missing:
            title = comparison_title(each, each.first.family, several)
            print_sentence(
                f"{title}: the difference would not be significant if the missing scores were against it", "yellow"
            )
    for each in found:
        _print_changed(each, several, _CHANGED if options.limit is None else options.limit)


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(value)


def _print_changed(each: Comparison, several: bool, limit: int) -> None:
    if not each.changed or not limit:
        return
    sides = f"{each.first.label(each.second)} -> {each.second.label(each.first)}"
    count = f"{len(each.changed)} of {each.common} changed"
    print_line("")
    print_sentence(f"{comparison_title(each, each.first.task, several)}, {sides}: {count}", "bold")
    for shift in each.changed[:limit]:
        name = shift.sample_id if shift.repeat <= 1 else f"{shift.sample_id} ({shift.repeat})"
        print_line(f"  {name}  {_format_value(shift.before)} -> {_format_value(shift.after)}")
        for label, text in asked_texts(shift):
            print_line(f"    {label}: {first_line(text, _EXCERPT)}")
        if shift.repeat:
            print_line(f"    - {first_line(shift.output_before, _EXCERPT)}")
            print_line(f"    + {first_line(shift.output_after, _EXCERPT)}")
    if len(each.changed) > limit:
        print_sentence(f"  … and {len(each.changed) - limit} more; to list all, add --limit {len(each.changed)}")


@contextlib.contextmanager
def opened_runs(names: Sequence[str], store: str | None) -> Iterator[list[Run]]:
    """Open runs for a `with` block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(run_to_show(name, store)) for name in names]


def gate_run(name: str, options: GateOptions, store: str | None, as_json: bool, all_columns: bool = False) -> int:
    """Judge a run; return 7 if a task, model or scorer does not pass. Raises UsageError if it cannot be judged."""
    options.bar()  # contradictions are reported before a run is looked for
    with opened_runs([name] if options.baseline is None else [name, options.baseline], store) as runs:
        result = gate_result_of(runs, options)
    if as_json:
        print_json(result)
        return 0 if result.passed else NOT_PASSED
    for note in result.warnings:
        warn(note)
    for each in result.verdicts:
        print_sentence(each.reason, _STYLES[each.outcome])
    print_line("")
    print_table(result.table(all_columns=all_columns).grid())
    for line in result.notes():
        print_line("")
        print_sentence(line, "dim")
    return 0 if result.passed else NOT_PASSED
