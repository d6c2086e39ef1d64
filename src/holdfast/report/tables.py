"""Reports for terminals and notebooks: the same cells as text and as HTML, and the lines below the table.

Every line generator (`failure_lines`, `marked_lines`, …) is shared by the terminal, Markdown and HTML reports, so that
they report the same facts.
"""

import html
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from holdfast.errors import RecordTooLargeError
from holdfast.printable import clean, one_line
from holdfast.records import LINE_BYTES_MAX, Usage
from holdfast.report.cells import CellReport, Example, RunReport, ScorerReport, unscored_counts
from holdfast.report.costs import Cost, unpriced_line
from holdfast.report.profile import ProfileReport
from holdfast.report.summaries.wrong_answers import describe_wrong
from holdfast.report.text import (
    Grid,
    Sentence,
    brief,
    count_of,
    counted,
    describe_methods,
    describe_missing,
    dollars,
    first_line,
    format_interval,
    format_mean,
    format_number,
    name_parameters,
    status_text,
    status_tone,
    three_digits,
)
from holdfast.score import KINDS
from holdfast.stats import NUMBER, Scale, Summary

_COLUMNS = (
    "task",
    "model",
    "scorer",
    "mean",
    "± s.e.",
    "95% interval",
    "n",
    "no score",
    "scorer failed",
    "failed",
    "unfinished",
    "left out",
    "tokens",
    "cost",
    "summed time",
)
STRATA = _COLUMNS[3:7]
_DEFAULT = ("task", "model", "scorer", "mean", "95% interval", "n")
_DEFAULT_IF_ROOM = ("left out", "cost", "tokens", "summed time")
_DEFAULT_MAX = 8
_OPTIONAL = ("summed time", "tokens", "cost")
_SENTENCES_MAX = 10
_MODELS_MAX = 5
_NAMES = 3
"""The first columns hold names, the others numbers."""
_TEXT_WIDTH = 1000
_CODE_FAILURES = ("solver", "record")
_TOO_LARGE = RecordTooLargeError.kind
_ONLY_IF_ANY = {"no score", "scorer failed", "failed", "unfinished", "left out", "cost"}
_STATUS_STYLE = {"completed": "green", "running": "cyan", "interrupted": "yellow", "failed": "red", "stalled": "red"}

_NO_LABELS: Mapping[str, int] = {}
Command = Callable[..., str]
"""Makes a command line for this run from a verb and its options, ready to be copied."""


def report_table(report: RunReport, command: Command | None = None, *, all_columns: bool = False) -> RenderableType:
    """The cells of a run, and below them what the numbers do not show. Empty columns are left out, and unless
    `all_columns` is set there are at most eight. With `command`, it also lists what to do about failed samples.
    """
    names, rows = report_rows(report, all_columns=all_columns)
    sentences = [Sentence(sentence, "bold") for sentence in result_sentences(report, command)]
    notices = notice_lines(report) if command is not None else map(name_parameters, notice_lines(report))
    above: list[RenderableType] = [headline(report), *map(Sentence, notices), *sentences, ""]
    every = command("report", "--all") if command is not None else f"holdfast report {report.run_id} --all"
    table = plain_table(names, rows, () if all_columns else _OPTIONAL, f"see {every}")
    titles, parts = strata_rows(report.cells)
    if parts and all_columns:
        grid = Grid([*titles, *STRATA], parts, titles=len(titles), right=STRATA, whole=("scorer",))
        return Group(*above, table, "", grid, *_footnotes(report, command))
    hint = [Sentence(f"the mean of each {titles[-1]}: {every}", "dim")] if parts else []
    return Group(*above, table, *hint, *_footnotes(report, command))


def strata_rows(cells: Sequence[CellReport]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The mean of each stratum of macro means: the names of the columns before the numbers, and the rows."""
    rows: list[tuple[str, ...]] = []
    for cell in cells:
        for scorer in cell.shown_scorers():
            for macro in scorer.macro:
                name, scale = f"{scorer.scorer} {macro.reducer}".rstrip(), scorer.scale_of(macro.title)
                names = (cell.task, cell.model, name)
                rows += [(*names, each.name, *scorer_numbers(each.summary, scale)) for each in macro.strata]
    columns = {macro.column for cell in cells for scorer in cell.scorers for macro in scorer.macro}
    return ["task", "model", "scorer", columns.pop() if len(columns) == 1 else "part"], rows


def report_html(report: RunReport) -> str:
    """The same for a notebook, with the columns that most readers need."""
    below = html_lines(str(line) for line in _footnotes(report, None))
    notices = map(name_parameters, notice_lines(report))
    above = html_lines((headline(report).plain, *notices, *result_sentences(report)))
    return f"{above}{html_table(*report_rows(report, all_columns=False))}{below}"


def report_rows(report: RunReport, *, all_columns: bool = True) -> tuple[list[str], list[list[str]]]:
    """The names of the non-empty columns, and the rows. Without `all_columns`: only the most important columns, with
    one sum of the answers that are left out of a mean.
    """
    rows: list[tuple[str, ...]] = []
    for cell in report.cells:
        used = tokens(cell.usage)
        counts = (str(cell.failed), str(cell.unfinished))
        spent = (used, str(cell.cost), duration(cell.seconds))
        if not cell.scorers:
            n, left = map(str, unscored_counts(cell, report.partial))
            rows.append((cell.task, cell.model, "-", "-", "-", "-", n, "0", "0", *counts, left, *spent))
        named = [(each, *row) for each in cell.shown_scorers() for row in scorer_rows(each)]
        for number, (scorer, name, numbers) in enumerate(named):
            left = str(left_out(scorer, name))
            name = cell.marked_name(name)
            if number == 0:
                rows.append((cell.task, cell.model, name, *numbers, *counts, left, *spent))
            else:
                rows.append(("", "", name, *numbers, "", "", left, "", "", ""))
    filled = [
        name
        for i, name in enumerate(_COLUMNS)
        if name not in _ONLY_IF_ANY or any(row[i] not in ("", "0") for row in rows)
    ]
    if all_columns:
        wanted = [name for name in filled if name != "left out"]
    else:
        wanted = [*_DEFAULT, *(name for name in _DEFAULT_IF_ROOM if name in filled)][:_DEFAULT_MAX]
    shown = [i for i, name in enumerate(_COLUMNS) if name in wanted]
    return [_COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in rows]


def plain_table(
    names: Sequence[str], rows: Iterable[Sequence[str]], optional: Sequence[str] = (), hint: str = ""
) -> Grid:
    """Names to the left, numbers to the right. `optional`: columns that a narrow terminal leaves out, see `Grid`."""
    grid = Grid(list(names), [list(row) for row in rows], titles=_NAMES, right=_COLUMNS[_NAMES:], whole=("scorer",))
    return grid.with_optional(optional, hint)


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Without CSS: notebooks have their own."""
    head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_lines(lines: Iterable[str]) -> str:
    """One paragraph for each line that is not empty."""
    return "".join(f"<div>{_escaped(line)}</div>" for line in lines if line)


def _escaped(text: str) -> str:
    return html.escape(clean(text))


def as_text(shown: RenderableType) -> str:
    """Plain text without colours, never shortened, for output that is not a terminal."""
    out = io.StringIO()
    # In a notebook, rich would show the text as an output of the cell instead of writing it to the file.
    console = Console(
        file=out,
        width=_TEXT_WIDTH,
        highlight=False,
        markup=False,
        color_system=None,
        force_jupyter=False,
        force_terminal=False,
    )
    console.print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def headline(report: RunReport) -> Text:
    text = _line(f"{report.experiment}/{report.run_id}  ")
    failed, planned = sum(cell.failed for cell in report.cells), sum(cell.planned for cell in report.cells)
    tone = status_tone(report.status, failed, planned)
    text.append(status_text(report.status, failed, planned), style=_STATUS_STYLE.get(tone, ""))
    if report.reason:
        text.append(f"  ({one_line(report.reason)})")
    return text


def notice_lines(report: RunReport) -> Iterator[str]:
    """What a reader must know before the numbers: damage, and which evaluation is shown if there are several."""
    yield from (f"damaged: {sentence}" for sentence in report.damage)
    yield from evaluation_lines(report)


def evaluation_lines(report: RunReport) -> Iterator[str]:
    """Which evaluation is shown if there are several, what a partial one covers, and which tasks are benchmarks."""
    if len(report.evaluations) > 1 and report.evaluation:
        called = report.evaluations.get(report.evaluation, "")
        yield f"scores of the evaluation {report.evaluation} ({called}), one of {len(report.evaluations)}"
    yield from partial_lines(report)
    yield from report.benchmarks


def partial_lines(report: RunReport) -> Iterator[str]:
    """How much of the run a partial evaluation covers, or that there are only partial ones."""
    if report.partial is not None:
        count = f"only {report.partial.scored} of {report.partial.answers} answers are scored in this evaluation"
        chosen = f" (chosen with {'; '.join(report.partial.chosen)})" if report.partial.chosen else ""
        rest = "to score the rest, repeat the command without --limit, --sample and --wrong"
        yield f"partial: {count}{chosen}; {rest}"
    elif report.evaluations and not report.evaluation:
        names = ", ".join(report.evaluations)
        yield f"no scores are shown, because only chosen answers are scored; see --evaluation {names}"


def result_sentences(report: RunReport, command: Command | None = None) -> Iterator[str]:
    """The sentences about scores; with several models, also which command shows whether they differ."""
    yield from score_sentences(report)
    names = [(cell.task, each.scorer) for cell in report.cells for each in _results(cell)]
    if len(set(names)) < len(names):
        options = ("--evaluation", report.evaluation) if report.partial is not None else ()
        plain = " ".join(("holdfast compare", report.run_id, *options))
        compare = command("compare", *options) if command is not None else plain
        yield f"to see whether the models differ: {compare}"


def score_sentences(report: RunReport) -> Iterator[str]:
    """One sentence per task and scorer: the mean of each model, in percent if it is a share."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in report.cells:
        for each in _results(cell):
            found.setdefault((cell.task, each.scorer), []).append(f"{cell.model} {_result(each)}")
    for (task, scorer), models in list(found.items())[:_SENTENCES_MAX]:
        more = f" and {len(models) - _MODELS_MAX} more" if len(models) > _MODELS_MAX else ""
        yield f"{task}, {scorer}: {'; '.join(models[:_MODELS_MAX])}{more}"


def _results(cell: CellReport) -> list[ScorerReport]:
    """The scorers that a sentence is about. A judge's vote is part of its panel's row."""
    parts = tuple(f"{each.scorer}." for each in cell.scorers)
    return [
        each
        for each in cell.scorers
        if each.plain and each.summary.mean is not None and not each.scorer.startswith(parts)
    ]


def _result(scorer: ScorerReport) -> str:
    """`has 85.4% right (95%: 68.5 to 94.1, 16 samples)`."""
    summary, scale = scorer.summary, scorer.scale
    is_share = (scale.lowest, scale.highest) == (0.0, 1.0)

    def written(value: float) -> str:
        return f"{100 * value:.1f}" if is_share else three_digits(value)

    mean = written(summary.mean or 0.0)
    text = f"has {mean}% right" if scale.is_bool else f"has a mean of {mean}%" if is_share else f"has a mean of {mean}"
    if scale.kind == "range" and not is_share:
        text += f" on a scale from {scale.lowest:g} to {scale.highest:g}"
    notes = [counted(summary.n if summary.samples is None else summary.samples, "sample")]
    if summary.low is not None and summary.high is not None:
        notes[:0] = [f"95%: {written(summary.low)} to {written(summary.high)}"]
    return f"{text} ({', '.join(notes)})"


def tokens(usage: Usage) -> str:
    return f"{short(usage.input_tokens)} in, {short(usage.output_tokens)} out"


def short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def profile_title(report: ProfileReport) -> str:
    """The line above the table of a profile."""
    return f"{report.experiment}/{report.run_id}  {report.status}, worked for {duration(report.worked_seconds)}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def failure_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Failures by kind, each with one example: of samples, and of scorers on finished answers."""
    for cell in cells:
        place = f"{cell.task}/{cell.model}"
        for kind, count in cell.failures.items():
            yield f"{place}: {counted(count, 'sample')} failed: {kind}{_such_as(cell.examples.get(kind))}"
        for each in cell.scorers:
            if each.failures and not each.of:  # else those of the scorer that gave the grades
                answers = counted(each.failures, "answer")
                yield f"{place}: scorer {each.scorer} failed on {answers}{_such_as(each.example)}"


def reading_lines(cells: Sequence[CellReport], *, advise: bool = True) -> Iterator[str]:
    """What a reader needs to interpret the numbers: how they were computed, what is missing in them, agreement of
    judges, unknown groups, unknown scales. `advise`: also how to declare these.
    """
    yield from method_lines(cells)
    for cell in cells:
        yield from wrong_lines([cell])
        yield from left_out_lines([cell])
        yield from macro_lines([cell])
        yield from weight_lines([cell])
        yield from grade_lines([cell])
        yield from (f"{cell.task}/{cell.model}: {each}" for each in cell.agreement)
        yield from group_lines([cell])
    unknown = dict.fromkeys(
        each.scorer
        for cell in cells
        for each in cell.scorers
        if each.summary.n and each.scale == NUMBER and not each.is_declared
    )
    for name in unknown:
        advice = f": {SCALE_HINT}" if advise else ""
        yield f"scorer {name} does not declare a scale, so its numbers have no known ends{advice}"


SCALE_HINT = 'write @scorer(scale="bool") or @scorer(scale=(1, 5)), or scale: [1, 5] in the spec'


def method_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """One line: how the intervals of a report were computed."""
    rows = (row for cell in cells for scorer in cell.scorers for row in scorer_summaries(scorer))
    method = describe_methods(summary for _, summary, _ in rows)
    if method:
        yield f"95% intervals: {method}"


def wrong_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Which answers count as wrong without a comparison, and the mean over the others. One line for each scorer;
    scorers with the same rates and mean share it.
    """
    for cell in cells:
        lines: dict[str, list[str]] = {}
        for scorer in cell.scorers:
            if scorer.wrong is not None:
                lines.setdefault(describe_wrong(scorer.wrong), []).append(scorer.scorer)
        for line, scorers in lines.items():
            yield f"{cell.task}/{cell.model}: {', '.join(scorers)}: {line}"


def macro_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Why a macro mean is missing, or has no standard error."""
    for cell in cells:
        for scorer in cell.scorers:
            for macro in scorer.macro:
                name = f"{cell.task}/{cell.model}: {scorer.scorer} {macro.reducer}".rstrip()
                if macro.unknown:
                    yield f"{name}: no macro mean: {macro.unknown}"
                elif macro.summary.standard_error is None:
                    few = f"a {macro.column} has one independent sample only"
                    yield f"{name}: the macro mean has no standard error, because {few}"


def grade_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """For grades as in SimpleQA: shares of correct answers, and their F1."""
    for cell in cells:
        yield from (f"{cell.task}/{cell.model}: {each.scorer}: {each.grades}" for each in cell.scorers if each.grades)


def weight_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Means that are shares of all parts of samples, or why they are not. Scorers of the same parts share a line."""
    for cell in cells:
        lines: dict[str, list[str]] = {}
        for scorer in cell.scorers:
            if scorer.weight is not None:
                share = f"the mean is the share of all {scorer.weight.parts:g} entries of {scorer.weight.column}"
                lines.setdefault(scorer.weight.unknown or share, []).append(scorer.scorer)
        for line, scorers in lines.items():
            yield f"{cell.task}/{cell.model}: {', '.join(scorers)}: {line}"


def left_out_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Which planned answers are not part of a mean, and what it would be with all of them wrong or right."""
    for cell in cells:
        for scorer in cell.scorers:
            yield from (f"{cell.task}/{cell.model}: {line}" for line in _missing_lines(scorer))


def _missing_lines(scorer: ScorerReport) -> Iterator[str]:
    if scorer.missing:  # also above reduced rows: these do not say why a score is missing
        count = scorer.summary.n or sum(scorer.labels.values())
        whole = count + sum(scorer.missing.values())
        left = f"{count} of {whole} answers count; left out: {describe_missing(scorer.missing)}"
        bounds = f"; {_describe_bounds(scorer.bounds)}" if scorer.plain and scorer.summary.n else ""
        yield f"{scorer.scorer}: {left}{bounds}"
    for each in scorer.reduced:
        if each.no_value:
            few = f"{counted(each.no_value, 'sample')} without a value (a score is missing, or no majority)"
            bounds = f"; {_describe_bounds(each.bounds)}" if each.summary.n else ""
            yield f"{scorer.scorer} {each.reducer}: {few}{bounds}"


def _describe_bounds(bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return "what they would change is unknown, because the scale has no known ends"
    low, high = map(format_number, bounds)
    return f"the mean is {low} if all of them are at the low end of the scale, {high} if at the high end"


def group_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Tasks whose groups are unknown although the spec names a group column."""
    for cell in cells:
        if cell.groups_unknown:
            yield f"{cell.task}/{cell.model}: {cell.groups_unknown}"


def marked_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """Answers that are filtered, empty or truncated."""
    for cell in cells:
        for mark, count in cell.marks.items():
            answers = f"{counted(count, 'answer')} {'is' if count == 1 else 'are'} {mark}"
            example = cell.marked[mark]
            yield f"{cell.task}/{cell.model}: {answers} ({example.message}), e.g. {example.key}"


def anomaly_lines(report: RunReport, command: Command | None = None) -> Iterator[str]:
    """Anomalies of answers, each with the command that shows them, and answers that were not checked yet."""
    show = command or (lambda verb, *rest: f"holdfast {verb} {report.run_id} {' '.join(rest)}".rstrip())
    for cell in report.cells:
        for kind, count in cell.anomalies.items():
            example = cell.odd[kind]
            count_text = f"anomaly {kind} in {counted(count, 'answer')} ({KINDS[kind]})"
            example_text = f"e.g. {example.key}: {first_line(example.message)}; see: {show('show', '--anomaly', kind)}"
            yield f"{cell.task}/{cell.model}: {count_text}, {example_text}"
    if report.unlooked:
        look = show("score", "--anomalies")
        count_text = f"{counted(report.unlooked, 'answer')} not checked with the current anomaly rules"
        yield f"{count_text}; look with: {look}"


def cost_sentences(cost: Cost) -> Iterator[str]:
    """The cost in one line; no line if no price is known."""
    if cost.dollars is None:
        return
    line = f"cost: {dollars(cost.dollars)}"
    if cost.orphaned_dollars:
        line += f", {dollars(cost.orphaned_dollars)} of it for orphaned steps"
    yield line if not cost.unpriced else f"{line}; {unpriced_line(cost.unpriced)}"


def speed_lines(report: RunReport) -> Iterator[str]:
    """The wall time, and one line per model."""
    yield from wall_time_lines(report)
    yield from request_lines(report)


def wall_time_lines(report: RunReport) -> Iterator[str]:
    if report.worked_seconds:
        summed = f"; summed over workers: {duration(report.summed_seconds)}" if report.summed_seconds else ""
        yield f"wall time: {duration(report.worked_seconds)} over all sessions{summed}"


def request_lines(report: RunReport) -> Iterator[str]:
    """How long the requests of each model take, without judges that only other evaluations used."""
    for model in report.models:
        request = model.phases["request"]
        if request is None or model.evaluations.keys().isdisjoint(("", report.evaluation)):
            continue
        text = f"{model.title}: a request takes {brief(request.p50)} (p50), {brief(request.p90)} (p90)"
        if model.output_tokens_per_second:
            text += f", {short(round(model.output_tokens_per_second, 1))} output tokens/s"
        if model.rate_limited_share:
            text += f", {model.rate_limited_share:.0%} of the time held by rate limits"
        yield text


def retry_lines(cells: Iterable[CellReport], command: Command) -> Iterator[str]:
    """What to do about failed samples. A resume retries all of them. An error in the solver's code or an answer that is
    too large usually needs a change first, which makes it another experiment: a fork.
    """
    cells = list(cells)
    broken = sum(cell.failures.get(kind, 0) for cell in cells for kind in _CODE_FAILURES)
    large = sum(cell.failures.get(_TOO_LARGE, 0) for cell in cells)
    failed = sum(cell.failed for cell in cells) - broken - large
    if failed:
        yield f"{counted(failed, 'failed sample')} can be tried again with: {command('resume')}"
    if large:
        limit = f"a record can have at most {LINE_BYTES_MAX >> 20} MiB"
        text = f"{counted(large, 'sample')} could not be saved: the text is too large ({limit})"
        change = f"To change max_tokens or the solver: {command('fork')}"
        yield f"{text}. To try again: {command('resume')}. {change}"
    if broken:
        keys = (cell.examples[kind].key for cell in cells for kind in _CODE_FAILURES if kind in cell.examples)
        look = f"look at one: {command('show', next(keys))}"
        text = f"{counted(broken, 'sample')} failed in the solver's code; {look}. If it depends on chance, try again: "
        yield f"{text}{command('resume')}. If the code is wrong, fix it, then: {command('fork')}"


def _such_as(example: Example | None) -> str:
    return "" if example is None else f", e.g. {example.key}: {first_line(example.message)}"


def scorer_rows(scorer: ScorerReport) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The table rows of a scorer: `numeric` over all answers, `numeric pass@5` over all samples. Missing scores are
    shown in the first row only.
    """
    missing = (str(scorer.no_score), str(scorer.failures))
    for index, (name, summary, labels) in enumerate(scorer_summaries(scorer)):
        scale = scorer.scale_of(name)
        shown = ", ".join(f"{label} {count}" for label, count in list(labels.items())[:4]) or "-"
        numbers = (shown, "", "", str(sum(labels.values())))
        if summary.mean is not None:
            numbers = scorer_numbers(summary, scale)
        yield name, (*numbers, *(("", "") if index else missing))


def scorer_numbers(summary: Summary, scale: Scale) -> tuple[str, str, str, str]:
    """Mean, standard error, interval and n."""
    error = format_number(summary.standard_error or None)  # no variation seen is not an error of 0
    return format_mean(summary.mean, scale), error, format_interval(summary), count_of(summary)


def scorer_summaries(scorer: ScorerReport) -> Iterator[tuple[str, Summary, Mapping[str, int]]]:
    """The summaries that the task's reducers request: the mean over all answers, and reduced values over samples. A
    macro mean follows its mean.
    """
    macros = {each.reducer: (each.title, each.summary, _NO_LABELS) for each in scorer.macro if not each.unknown}
    if scorer.plain:
        yield scorer.scorer, scorer.summary, scorer.labels
        if scorer.grades is not None:
            yield f"{scorer.scorer} F1", scorer.grades.f1, _NO_LABELS
        yield from [macros[""]] if "" in macros else ()
    for each in scorer.reduced:
        yield f"{scorer.scorer} {each.reducer}", each.summary, each.labels
        yield from [macros[each.reducer]] if each.reducer in macros else ()


def left_out(scorer: ScorerReport, name: str) -> int:
    """How many planned answers, or samples of a reduced row, are not part of a row's mean."""
    by_reducer = {each.reducer: each.no_value for each in scorer.reduced}
    by_name = {f"{scorer.scorer} {reducer}": count for reducer, count in by_reducer.items()}
    by_name |= {each.title: by_reducer[each.reducer] for each in scorer.macro if each.reducer}
    return by_name.get(name, sum(scorer.missing.values()))


def _footnotes(report: RunReport, command: Command | None) -> Iterable[RenderableType]:
    steps = report.steps
    yield ""
    line = f"steps: {steps['live']} recorded over all sessions, {steps['replayed']} replayed"
    if steps["orphaned"]:
        line += f", {steps['orphaned']} orphaned"
    if report.saved != Usage():
        saved, used = report.cost.saved_dollars, tokens(report.saved)
        line += f"; replay saved {dollars(saved)} ({used})" if saved else f"; replay saved {used}"
    yield Sentence(line, style="dim")
    sections = (
        ("dim", cost_sentences(report.cost)),
        ("dim", speed_lines(report)),
        ("", reading_lines(report.cells)),
        ("yellow", edited_lines(report.cells)),
        ("yellow", marked_lines(report.cells)),
        ("yellow", anomaly_lines(report, command)),
        ("red", failure_lines(report.cells)),
    )
    yield from (Sentence(line, style) for style, lines in sections for line in lines)
    if command is not None and report.status != "running":
        for line in retry_lines(report.cells, command):
            yield Sentence(line)
    if report.anomalies:
        found = counted(report.anomalies, "anomaly", "anomalies")
        look = command("verify") if command is not None else f"holdfast verify {report.run_id}"
        yield Sentence(f"{found} in the journal: see `{look}`", style="red")


def edited_lines(cells: Iterable[CellReport]) -> Iterator[str]:
    """How many scores were set by hand."""
    edited = sum(each.edited for cell in cells for each in cell.scorers)
    if edited:
        yield f"{counted(edited, 'score')} edited by hand"


def _line(text: str, style: str = "") -> Text:
    """One line of any length."""
    return Text(one_line(text), style=style, no_wrap=True, overflow="ignore")
