"""Shows a page of samples: filters, columns, the table, and the links to the next and the previous page.

Everything works with links and GET forms alone, and the whole state is in the address.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.printable import clean
from holdfast.report import brief, dollars, format_number, value_text
from holdfast.score import KINDS
from holdfast.view.layout import badge
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body
from holdfast.view.pages.evaluations import evaluation_choice
from holdfast.view.pages.list_state import encode_list
from holdfast.view.pages.samples import COLUMNS, SampleList
from holdfast.view.table import COLUMN_PREFIX, LOOKED_MAX, SCORE_PREFIX, SORTS, SampleLine

_NUMBERS = frozenset(
    {"repeat", "attempts", "input_tokens", "output_tokens", "tokens", "seconds", "cost", "record", "score"}
)
_TITLES = {
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "seconds": "time",
    "marks": "marks and anomalies",
}
_RANGES = (
    ("seconds", "time in seconds"),
    ("tokens", "tokens"),
    ("cost", "cost in dollars"),
    ("score", "score of the scorer"),
)
_CLASSES = {
    **dict.fromkeys(("task", "model", "sample"), "name"),
    **dict.fromkeys(("input", "answer", "failure"), "text"),
    "target": "text short",
}
_POLL_SECONDS = 2


def render(found: SampleList, links: Links) -> Body:
    parts = [
        h("h1", "Samples"),
        evaluation_choice(
            found.choices.evaluations,
            found.evaluation,
            lambda each: _with_evaluation(found, links, each),
        ),
        _filters(found, links),
        h("section", _results(found, links), id="samples", data_live=True, aria_live="off"),
    ]
    return Body(
        f"Samples of {found.ref.run_id}",
        join(parts),
        found.ref,
        "samples",
        found.status,
        found.durability,
        found.state["evaluation"],
        is_live=found.live and found.ref.at is None,
    )


def _address(found: SampleList, links: Links, **changes: str) -> str:
    """This page with changes; an empty value takes something away. Without a cursor it is the first page."""
    return links.run(found.ref, "samples", **{**found.state, **changes})


def _with_evaluation(found: SampleList, links: Links, evaluation: str) -> str:
    """This list with the scores of another evaluation, which may have other scorers."""
    of_scores = {name: "" for name in found.filters if name.startswith("score") or name == "label"}
    of_scores |= {"sort": ""} if found.sort.removeprefix("-").startswith(SCORE_PREFIX) else {}
    return _address(found, links, evaluation=evaluation, **of_scores)


# The form.


def _filters(found: SampleList, links: Links) -> Markup:
    given, choices = found.filters, found.choices
    fields = [
        h(
            "input",
            type="search",
            name="q",
            value=given.get("q", ""),
            placeholder="Search words in questions, targets and answers",
            aria_label="Search words in questions, targets and answers",
            class_="wide-field",
        ),
        _choice("status", "any status", given, ["finished", "failed", "unfinished"]),
        _choice("task", "any task", given, choices.tasks) if len(choices.tasks) > 1 else None,
        _choice("model", "any model", given, choices.models) if len(choices.models) > 1 else None,
        _choice("scorer", "any scorer", given, choices.scorers) if choices.scorers else None,
        _score_choice(found) if choices.scorers else None,
        _choice("kind", "any failure", given, choices.kinds) if choices.kinds else None,
        _choice("anomaly", "any mark or anomaly", given, choices.anomalies),
        h("button", "Apply"),
        h("a", "Clear", href=_cleared(found, links)) if given else None,
        more_filters(found.filters, found.choices.row_columns, has_scorer=bool(found.filters.get("scorer"))),
        [h("input", type="hidden", name=name, value=value) for name, value in _hidden(found).items()],
    ]
    form = h("form", fields, class_="filters", method="get", action=links.run(found.ref, "samples"))
    return join([form, _chosen(found, links), _columns(found, links)])


def _cleared(found: SampleList, links: Links) -> str:
    return _address(found, links, **dict.fromkeys(found.filters, ""))


def _hidden(found: SampleList) -> dict[str, str]:
    """What the form keeps as it is."""
    kept = {
        name: value
        for name, value in found.state.items()
        if name not in found.filters or name.startswith(COLUMN_PREFIX) or name in ("cause", "label")
    }
    kept |= found.ref.query
    return {name: value for name, value in kept.items() if value}


def _choice(name: str, any_text: str, given: Mapping[str, str], values: Sequence[str]) -> Markup:
    chosen = given.get(name, "")
    known = [*values, *([chosen] if chosen and chosen not in values else [])]
    options = [h("option", any_text, value="")]
    options += [h("option", value, value=value, selected=value == chosen) for value in known]
    return h("select", options, name=name, aria_label=name)


def _score_choice(found: SampleList) -> Markup:
    """Whether an answer is right; without a scorer only wrong answers can be chosen."""
    given = found.filters
    if not given.get("scorer"):
        options = [h("option", "any score", value=""), h("option", "wrong", value="1", selected="wrong" in given)]
        return h("select", options, name="wrong", aria_label="score")
    labels = {"right": "right (1)", "wrong": "wrong (0)", "failed": "scorer failed", "none": "no score"}
    options = [h("option", "any score", value="")]
    options += [h("option", text, value=name, selected=name == given.get("score")) for name, text in labels.items()]
    return h("select", options, name="score", aria_label="score")


def more_filters(given: Mapping[str, str], columns: Iterable[str] | None, *, has_scorer: bool) -> Markup:
    """Ranges, and a column of the row. `columns`: suggested names; None if rows cannot be filtered by a column."""
    ranges = []
    for name, label in _RANGES:
        if name == "score" and not has_scorer:
            continue
        ends = [
            h(
                "input",
                name=f"{name}_{end}",
                value=given.get(f"{name}_{end}", ""),
                inputmode="decimal",
                placeholder=text,
                aria_label=f"{label}, {text}",
                class_="short-field",
            )
            for end, text in (("min", "at least"), ("max", "at most"))
        ]
        ranges.append(h("label", f"{label} ", ends))
    column = columns is not None and h(
        "label",
        "column of the row ",
        h("input", name="column", list="row-columns", placeholder="name", aria_label="column of the row"),
        h("input", name="value", placeholder="is", aria_label="value of the column"),
        h("datalist", [h("option", value=name) for name in columns], id="row-columns"),
    )
    is_open = any(name.endswith(("_min", "_max")) for name in given)
    fields = (ranges, column or None)
    return h("details", h("summary", "More filters"), *fields, class_="more", id="more-filters", open=is_open)


def _chosen(found: SampleList, links: Links) -> Markup | None:
    """Filters that no field shows, each with a link that takes it away, and columns that could be indexed."""
    marks = []
    needed = dict.fromkeys([*found.filters, found.sort.removeprefix("-")])
    for name, value in found.filters.items():
        if name.startswith(COLUMN_PREFIX) or name in ("cause", "label"):
            text = "one cause" if name == "cause" else f"{name} = {value}"
            away = h("a", "remove", href=_address(found, links, **{name: ""}), aria_label=f"without {text}")
            marks.append(h("span", text, " ", away, class_="tag"))
    for name in needed if found.progress.planned > LOOKED_MAX and not links.is_static else ():
        column = name.removeprefix(COLUMN_PREFIX)
        if name.startswith(COLUMN_PREFIX) and column not in found.choices.indexed:
            address = _address(found, links, index=column)
            marks.append(h("a", f"Index {column} to search and sort all samples", href=address))
    return h("p", marks) if marks else None


def _columns(found: SampleList, links: Links) -> Markup:
    boxes = [
        h(
            "label",
            h("input", type="checkbox", name="columns", value=name, checked=name in found.columns),
            f" {_TITLES.get(name, name)}",
        )
        for name in (*COLUMNS, *(f"{COLUMN_PREFIX}{each}" for each in found.choices.row_columns))
    ]
    kept = {**_hidden(found), **found.filters}
    kept.pop("columns", None)
    hidden = [h("input", type="hidden", name=name, value=value) for name, value in kept.items()]
    form = h(
        "form",
        boxes,
        h("button", "Show these columns"),
        hidden,
        class_="columns",
        method="get",
        action=links.run(found.ref, "samples"),
    )
    return h("details", h("summary", "Columns"), form, id="columns")


# The table.


def _results(found: SampleList, links: Links) -> Iterator[Child]:
    # Screen readers announce a status: not each time that a live list is replaced.
    yield h("p", _count_text(found), class_="quiet", role=None if found.live else "status")
    if found.progress.problem:
        yield h("p", f"The list is not up to date: {found.progress.problem}", class_="problem", role="alert")
    for line in _coverage_lines(found):
        yield h("p", line, class_="note")
    for note in found.notes:
        yield h("p", note, class_="note")
    if found.progress.building:
        yield h("span", data_poll=str(_POLL_SECONDS), hidden=True)
    if found.samples:
        head = h("tr", list(_heads(found, links)))
        rows = [_row(found, links, each) for each in found.samples]
        table = h("table", h("thead", head), h("tbody", rows), class_="rows samples")
        yield h("div", table, class_="wide", tabindex="0", role="region", aria_label="Samples")
    else:
        yield h("p", "No sample matches." if found.filters else "No sample is listed.")
    yield _pager(found, links)


def _count_text(found: SampleList) -> str:
    if found.total is None:
        return f"{len(found.samples):,} samples on this page"
    count = f"{found.total:,}" if found.exact else f"more than {found.total:,}"
    what = "match" if found.filters else "samples"
    return f"{count} {what}, {len(found.samples):,} on this page"


def _coverage_lines(found: SampleList) -> Iterator[str]:
    progress = found.progress
    if not progress.is_complete:
        yield f"{int(100 * found.coverage)}% of the samples are listed so far."
    elif progress.building:
        yield "The list is being brought up to date."
    if found.filters.get("q") and progress.searched < progress.listed:
        yield f"The words of {100 * progress.searched // max(progress.listed, 1)}% of the samples are indexed so far."


def _heads(found: SampleList, links: Links) -> Iterator[Markup]:
    for name in found.columns:
        if name == "scores":
            yield from (_head(found, links, scorer, f"score:{scorer}") for scorer in found.choices.scorers)
        else:
            sort = "kind" if name == "failure" else name if name in SORTS or name.startswith(COLUMN_PREFIX) else ""
            yield _head(found, links, _TITLES.get(name, name), sort, name in _NUMBERS)


def _head(found: SampleList, links: Links, title: str, sort: str, is_number: bool = True) -> Markup:
    """A column's name; a click sorts by it, the greatest first, then the other way round, then in plan order."""
    class_ = "number" if is_number else None
    if not sort or links.is_static:
        return h("th", title, scope="col", class_=class_)
    following = {f"-{sort}": sort, sort: ""}.get(found.sort, f"-{sort}")
    arrow, order = {f"-{sort}": (" ↓", "descending"), sort: (" ↑", "ascending")}.get(found.sort, ("", None))
    link = h("a", f"{title}{arrow}", href=_address(found, links, sort=following), title="Sort")
    return h("th", link, scope="col", class_=class_, aria_sort=order)


def _row(found: SampleList, links: Links, sample: SampleLine) -> Markup:
    cells: list[Markup] = []
    for name in found.columns:
        if name == "scores":
            cells += [h("td", _score(sample, scorer), class_="number") for scorer in found.choices.scorers]
        elif name.startswith(COLUMN_PREFIX):
            value = sample.row.get(name.removeprefix(COLUMN_PREFIX))
            cells.append(h("td", _clipped(value_text(value) or ""), class_="text short"))
        else:
            class_ = "number" if name in _NUMBERS else _CLASSES.get(name)
            cells.append(h("td", _cell(found, links, sample, name), class_=class_))
    return h("tr", cells)


def _cell(found: SampleList, links: Links, sample: SampleLine, name: str) -> Child:
    if name == "sample":
        evaluation, listed = found.state["evaluation"], encode_list(found.state)
        address = links.sample(found.ref, sample.key, evaluation=evaluation, list=listed)
        return h("a", sample.sample_id, href=address, title=sample.key)
    if name in ("task", "model", "repeat"):
        return str(getattr(sample, name))
    if name == "status":
        return badge(sample.status, sample.message)
    if name == "answer" and sample.kind:
        return _failure(sample)
    if name in ("input", "target", "answer"):
        return _clipped(getattr(sample, name))
    if name == "failure":
        return _failure(sample) if sample.kind else ""
    if name == "marks":
        hints = [(mark, "") for mark in sample.marks] + [(kind, KINDS[kind]) for kind in sample.anomalies]
        return [h("span", text, class_="tag", title=hint or None) for text, hint in hints]
    return _number(sample, name)


def _number(sample: SampleLine, name: str) -> str:
    if name == "record":
        return f"{sample.n:,}" if sample.n else ""
    if name == "attempts":
        return f"{sample.attempts:,}" if sample.attempts else ""
    if name == "seconds":
        return "" if sample.seconds is None else brief(sample.seconds)
    if name == "cost":
        return "" if sample.cost_usd is None else dollars(sample.cost_usd)
    tokens: Any = {
        "input_tokens": sample.input_tokens,
        "output_tokens": sample.output_tokens,
        "tokens": None if sample.input_tokens is None else sample.input_tokens + (sample.output_tokens or 0),
    }[name]
    return "" if tokens is None else f"{tokens:,}"


def _failure(sample: SampleLine) -> Markup:
    return h("span", h("strong", sample.kind), f": {sample.message}", class_="clip damage")


def _clipped(text: str) -> Markup:
    """At most three lines; the page of the sample has the whole text."""
    return h("span", clean(text), class_="clip")


def _score(sample: SampleLine, scorer: str) -> Child:
    if scorer not in sample.scores:
        return ""
    value = sample.scores[scorer]
    edited = h("span", "*", title="set by hand") if scorer in sample.edited else None
    if value is None:
        return join([h("span", "no score", class_="quiet"), edited])
    if isinstance(value, dict):
        return badge("failed", str(value.get("failure", "")))
    if isinstance(value, bool):
        return join([h("span", "true" if value else "false", class_=f"badge {'right' if value else 'wrong'}"), edited])
    return join([format_number(value) if isinstance(value, int | float) else str(value), edited])


def _pager(found: SampleList, links: Links) -> Markup | None:
    parts = [
        h("a", "First page", href=_address(found, links)) if not found.is_first else None,
        h("a", "← Previous page", href=_address(found, links, before=found.prev), rel="prev") if found.prev else None,
        h("a", "Next page →", href=_address(found, links, after=found.next), rel="next") if found.next else None,
    ]
    shown = [part for part in parts if part is not None]
    return h("nav", shown, class_="pager", aria_label="Pages of samples") if shown else None
