"""Compare runs, or the models of one run: sentences, differences with intervals, and the samples behind each number."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.report import (
    Comparison,
    common_model,
    comparison_method,
    count_of,
    format_interval,
    format_number,
    format_p,
    overlap_line,
    shortened,
)
from holdfast.view.diff import DiffPart
from holdfast.view.layout import badge, table
from holdfast.view.links import Links, run_name
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body
from holdfast.view.pages.compare_data import (
    ChangeCounts,
    ChangedSample,
    ChangeList,
    CompareView,
    parse_value,
    run_of,
    sample_name,
)
from holdfast.view.pages.evaluations import evaluation_choice, without_option
from holdfast.view.sources import RunRef, RunStatus

_WORDS = {"higher": "higher", "lower": "lower", "other": "other label", "equal": "equal"}
_RIGHT_OR_WRONG = {True: "right", False: "wrong"}
_COLUMNS = (
    "task",
    "model",
    "first",
    "second",
    "scorer",
    "was",
    "is",
    "difference",
    "95% interval",
    "p",
    "adjusted p",
    "dz",
    "n",
    "higher",
    "lower",
    "equal",
)
_NAMES = 5
_LABEL_MAX = 40
_COMPUTING_SECONDS = "1"
_LIVE_SECONDS = "5"


def render(found: CompareView, links: Links) -> Body:
    refs = [each.ref for each in found.runs]
    title = "Compare"
    parts: list[Child] = [
        h("h1", "Compare runs" if len(refs) != 1 else "Compare the models of this run"),
        _runs(found, links),
        None if links.is_static else _evaluations(found, links),
        _chooser(found, links),
        _results(found, links),
    ]
    content = h("div", parts, id="compare", data_live=_seconds(found))
    if len(refs) == 1:
        run = found.runs[0]
        status = RunStatus(run.status, "", run.failed, run.planned)
        return Body(f"{title} {run.ref.run_id}", content, run.ref, "compare", status, run.durability, found.evaluation)
    return Body(title, content, part="compare")


def _evaluations(found: CompareView, links: Links) -> Markup | None:
    """The evaluations of a run whose models are compared."""
    if not found.evaluations:
        return None
    ref = found.runs[0].ref
    return evaluation_choice(found.evaluations, found.shown, lambda each: links.run(ref, "compare", evaluation=each))


def _seconds(found: CompareView) -> str:
    """After how many seconds the page is loaded again."""
    if found.is_computing:
        return _COMPUTING_SECONDS
    return _LIVE_SECONDS if not found.is_current or any(run.is_live for run in found.runs) else "0"


def _runs(found: CompareView, links: Links) -> Markup | None:
    if len(found.runs) < 2:
        return None
    items = [
        h(
            "li",
            h("a", f"{run.ref.experiment} / {run.ref.run_id}", href=links.run(run.ref)),
            " ",
            badge(run.status, "", run.failed, run.planned),
            f" as of record {run.ref.at:,}" if run.ref.at is not None else None,
        )
        for run in found.runs
    ]
    return h("ol", items, class_="compared")


def _chooser(found: CompareView, links: Links) -> Markup | None:
    """The form that compares with another run."""
    if not found.others or links.is_static:
        return None
    refs = [each.ref for each in found.runs]
    hidden = [h("input", type="hidden", name="run", value=run_name(ref)) for ref in refs]
    options = [h("option", f"{ref.experiment} / {ref.run_id}", value=run_name(ref)) for ref in found.others]
    selects = [_run_select("another run", options)]
    if not refs:
        selects.insert(0, _run_select("the first run", options))
    return h(
        "form", hidden, selects, h("button", "Compare"), class_="choose", method="get", action=links.page("compare")
    )


def _run_select(label: str, options: Sequence[Markup]) -> Markup:
    return h("label", f"{label} ", h("select", options, name="run"))


def _results(found: CompareView, links: Links) -> Iterator[Child]:
    if found.problem:
        yield h("p", found.problem, class_="problem", role="alert")
    if found.result is None:
        if found.is_computing:
            yield h(
                "p",
                "Computing the comparison. It takes seconds for a million samples; this page shows it as soon as it is "
                "ready.",
                class_="computing",
                role="status",
            )
        return
    if not found.is_current:
        counted = " and ".join(f"record {each:,}" for each in found.records)
        yield h("p", f"The runs have changed: this is the comparison up to {counted}.", class_="quiet", role="status")
    for sentence in found.sentences:
        yield h("p", _sentence(sentence), class_="sentence")
    for warning in found.result.warnings:
        yield h("p", without_option(warning), class_="warning")
    yield _table(found, links)
    comparisons = found.result.comparisons
    several = len({common_model(each) for each in comparisons} - {""}) > 1
    yield h("p", comparison_method(comparisons, found.result.adjusted, found.result.family), class_="quiet")
    lines = dict.fromkeys(overlap_line(each, several) for each in comparisons)
    is_partial = any(each.missing_first or each.missing_second for each in comparisons)
    shown = [h("p", line, class_="quiet") for line in lines]
    yield h("details", h("summary", "What was compared"), shown, id="overlap", open=is_partial or len(lines) == 1)
    yield _matrices(found, links)
    yield _listed(found, links)
    yield h("details", h("summary", "Command"), h("pre", found.command), id="command")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text[:1].isupper() else f"{text}."


def _address(found: CompareView, links: Links, **query: str) -> str:
    """This page with another list of samples."""
    given = {**({"evaluation": found.evaluation} if found.evaluation else {}), **query}
    refs = [each.ref for each in found.runs]
    if len(refs) == 1:
        return links.run(refs[0], "compare", **given)
    return links.page("compare", run=[run_name(ref) for ref in refs], **given)


def _table(found: CompareView, links: Links) -> Markup:
    assert found.result is not None
    rows = []
    for number, (each, changes) in enumerate(zip(found.result.comparisons, found.changes, strict=True)):
        difference = each.difference
        counts: list[Child] = [
            _count(changes.counts[name], _address(found, links, row=str(number), change=name) + "#changes")
            for name in ("higher", "lower", "equal")
        ]
        if changes.counts["other"]:
            counts[0] = _count(
                changes.counts["other"], _address(found, links, row=str(number), change="other") + "#changes"
            )
        values: list[Child] = [
            each.first.task if each.first.task == each.second.task else each.first.family,
            common_model(each),
            each.first.label(each.second),
            each.second.label(each.first),
            each.scorer,
            _number(each.mean_first),
            _number(each.mean_second),
            _number(difference.mean if difference is not None else None, "+"),
            format_interval(difference, "+") if difference is not None else "",
            format_p(each.p, each.p_is_bound),
            format_p(each.adjusted_p, each.p_is_bound),
            _number(each.effect, "+"),
            count_of(difference) if difference is not None else f"{each.common:,}",
            *counts,
        ]
        rows.append(
            h("tr", [h("td", value, class_="number" if at >= _NAMES else None) for at, value in enumerate(values)])
        )
    return table(_COLUMNS, rows, numbers=frozenset(_COLUMNS[_NAMES:]), class_="dense")


def _count(count: int, address: str) -> Child:
    return h("a", f"{count:,}", href=address) if count else "0"


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else format_number(value, sign)


def _label(each: Comparison) -> str:
    task = each.first.task if each.first.task == each.second.task else each.first.family
    model = f" {common_model(each)}" if common_model(each) else ""
    return f"{task}{model} {each.scorer}: {each.first.label(each.second)} → {each.second.label(each.first)}"


def _matrices(found: CompareView, links: Links) -> Markup | None:
    assert found.result is not None
    shown = [
        _matrix(number, each, changes, found, links)
        for number, (each, changes) in enumerate(zip(found.result.comparisons, found.changes, strict=True))
        if changes.matrix
    ]
    if not shown:
        return None
    return join([h("h2", "Changes"), h("div", shown, class_="matrices")])


def _matrix(number: int, each: Comparison, changes: ChangeCounts, found: CompareView, links: Links) -> Markup:
    """Rows: the value on the first side. Columns: on the second. Every count opens its samples."""
    values = [cell.after for cell in changes.matrix if cell.before == changes.matrix[0].before]
    if not values:
        values = [changes.matrix[0].after]
    first, second = each.first.label(each.second), each.second.label(each.first)
    words = [_value_text(value, changes.is_right_or_wrong) for value in values]
    head = h("tr", h("th", ""), [h("th", f"{second}: {word}", scope="col", class_="number") for word in words])
    rows = []
    for index, value in enumerate(values):
        cells = changes.matrix[index * len(values) : (index + 1) * len(values)]
        shown = [
            h(
                "td",
                _count(
                    cell.count,
                    _address(found, links, row=str(number), change="all", before=_json(value), after=_json(cell.after))
                    + "#changes",
                ),
                class_=f"number {cell.change}",
            )
            for cell in cells
        ]
        rows.append(h("tr", h("th", f"{first}: {words[index]}", scope="row"), shown))
    grid = h("table", h("caption", _label(each)), h("thead", head), h("tbody", rows), class_="matrix")
    return h("div", grid, class_="wide", tabindex="0")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _value_text(value: Any, is_right_or_wrong: bool) -> str:
    if is_right_or_wrong:
        return _RIGHT_OR_WRONG[bool(value)]
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return shortened(text, _LABEL_MAX)


def _listed(found: CompareView, links: Links) -> Markup | None:
    listed = found.listed
    if listed is None or found.result is None:
        return None
    each, changes = found.result.comparisons[listed.row], found.changes[listed.row]
    refs = [run.ref for run in found.runs]
    sides = (refs[0], run_of(refs, found.result, each.second))
    parts: list[Child] = [
        h("h2", "Samples"),
        _list_filters(found, listed, links),
        h("p", f"{listed.total:,} of {each.common:,} keys{_which(listed, changes)}", class_="quiet"),
        [_sample(sample, sides, each, changes, listed, links) for sample in listed.samples],
        _pager(found, listed, links),
    ]
    return h("section", parts, id="changes")


def _which(listed: ChangeList, changes: ChangeCounts) -> str:
    if listed.before and listed.after:
        before, after = (
            _value_text(parse_value(text), changes.is_right_or_wrong) for text in (listed.before, listed.after)
        )
        return f": {before} → {after}"
    return f": {_WORDS.get(listed.change, listed.change)}"


def _list_filters(found: CompareView, listed: ChangeList, links: Links) -> Markup | None:
    assert found.result is not None
    if links.is_static:
        return None
    refs = [each.ref for each in found.runs]
    hidden = [h("input", type="hidden", name="run", value=run_name(ref)) for ref in refs] if len(refs) > 1 else []
    kept = {**(refs[0].query if len(refs) == 1 else {}), "evaluation": found.evaluation}
    hidden += [h("input", type="hidden", name=name, value=value) for name, value in kept.items() if value]
    rows = [
        h("option", _label(each), value=str(number), selected=number == listed.row)
        for number, each in enumerate(found.result.comparisons)
    ]
    counts = found.changes[listed.row].counts
    kinds = [("changed", "all changes", sum(counts.values()) - counts["equal"])]
    kinds += [(name, _WORDS[name], count) for name, count in counts.items()]
    kinds.append(("all", "all keys", sum(counts.values())))
    chosen = "" if listed.before and listed.after else listed.change
    options = [
        h("option", f"{label} ({count:,})", value=name, selected=name == chosen)
        for name, label, count in kinds
        if count or name == chosen
    ]
    return h(
        "form",
        hidden,
        h("select", rows, name="row", aria_label="Comparison"),
        h("select", options, name="change", aria_label="Kind of change"),
        h("button", "Show"),
        class_="filters",
        method="get",
        action=_address(found, links).partition("?")[0] + "#changes",
    )


def _sample(
    sample: ChangedSample,
    refs: tuple[RunRef, RunRef],
    each: Comparison,
    changes: ChangeCounts,
    listed: ChangeList,
    links: Links,
) -> Markup:
    before, after = (_value_text(value, changes.is_right_or_wrong) for value in (sample.before, sample.after))
    address = links.repeats if listed.is_reduced else links.sample
    labels = (each.first.label(each.second), each.second.label(each.first))
    head = h(
        "h3",
        h("span", sample_name(sample.first_key), class_="name"),
        " ",
        h("span", f"{before} → {after}", class_=f"change {sample.change}"),
    )
    kept: Sequence[str] = ("deleted", "inserted")
    sides = [
        h(
            "div",
            h("p", h("a", label, href=address(ref, key)), class_="side"),
            _answer(sample, side, kept[side]) if not listed.is_reduced else h("p", "see the repeats", class_="quiet"),
        )
        for side, (label, ref, key) in enumerate(zip(labels, refs, (sample.first_key, sample.second_key), strict=True))
    ]
    return h(
        "article",
        head,
        h("p", sample.question, class_="asked") if sample.question else None,
        h("p", h("span", "target ", class_="quiet"), sample.target, class_="asked") if sample.target else None,
        h("div", sides, class_="sides"),
        class_="changed",
    )


def _answer(sample: ChangedSample, side: int, marked: str) -> Markup:
    """One answer, with the words that the other does not have marked."""
    text = (sample.first_answer, sample.second_answer)[side]
    length = (sample.first_length, sample.second_length)[side]
    more = f"The first {len(text):,} of {length:,} characters." if length > len(text) else ""
    return join(
        [
            h("pre", [_part(part) for part in sample.diff if part.kind in ("same", marked)] or "(empty)"),
            h("p", more, class_="quiet") if more else None,
        ]
    )


def _part(part: DiffPart) -> Child:
    if part.kind == "same":
        return part.text
    return h("del" if part.kind == "deleted" else "ins", part.text)


def _pager(found: CompareView, listed: ChangeList, links: Links) -> Markup | None:
    query = {"row": str(listed.row), "change": listed.change, "before": listed.before, "after": listed.after}
    parts: list[Child] = []
    if listed.previous is not None:
        address = _address(found, links, **query, before_key=str(listed.previous)) + "#changes"
        parts.append(h("a", "← previous", href=address, rel="prev"))
    if listed.next is not None:
        address = _address(found, links, **query, after_key=str(listed.next)) + "#changes"
        parts.append(h("a", "next →", href=address, rel="next"))
    return h("nav", parts, class_="pager", aria_label="Pages of samples") if parts else None
