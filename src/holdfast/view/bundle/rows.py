"""The list of samples in a static copy: rows in packed files, which a script filters, sorts and shows in pages."""

import base64
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.printable import clean
from holdfast.report import ExportLine, readable_input, shortened, value_text
from holdfast.view.layout import table
from holdfast.view.markup import Child, Markup, h
from holdfast.view.page import Body
from holdfast.view.pages.sample_list import more_filters
from holdfast.view.sources import RunRef, RunStatus
from holdfast.view.table.words import column_text, excerpt, shape
from holdfast.view.table.writer import cause_id, scorer_kind

PER_FILE = 2_000
_EXCERPT = 160
_CHOICES_MAX = 20
_LEVEL = 9
_FAILED = "scorer failed"
"""bundle_table.js has the same text."""
_COLUMNS_MAX = 20
_NUMBER_MAX = 2**53
"""Greater numbers lose digits in a script."""
COLUMNS = (
    "status",
    "task",
    "model",
    "sample",
    "repeat",
    "scores",
    "seconds",
    "tokens",
    "cost",
    "attempts",
    "marks",
    "question",
    "target",
    "answer",
)
"""Columns of the list; bundle_table.js knows how to show each."""
_SEARCHED = f"Search looks at ids, and at the first {_EXCERPT} characters of questions, targets and answers."


class BundleRow(msgspec.Struct, frozen=True, array_like=True):
    """One sample in the list."""

    key: str
    task: str
    model: str
    sample_id: str
    repeat: int
    status: str
    kind: str
    """The cause of a failure."""
    seconds: float
    tokens: int
    cost: float | None
    scores: list[Any]
    """In the order of the scorers: a value, None, or the text `scorer failed`."""
    question: str
    target: str
    answer: str
    """Excerpts; the answer of a failed sample is its error."""
    anomalies: list[str]
    """Also the marks of the answer."""
    causes: list[str]
    """Of its failure and of failures of its scorers, numbered as on the page of errors."""
    attempts: int
    row: dict[str, Any]
    """The first columns of the data row: numbers and truth values as they are, the beginning of anything else."""


class RowChoices(msgspec.Struct):
    """What can be chosen in the filters, counted while the rows are made."""

    scorers: list[str]
    tasks: Counter[str]
    models: Counter[str]
    statuses: Counter[str]
    kinds: Counter[str]
    scores: Counter[tuple[str, str]]
    anomalies: Counter[str]
    columns: dict[str, None]
    """Of the data rows."""
    repeats: int = 1
    """The greatest number of a repeat."""

    @classmethod
    def of(cls, scorers: Sequence[str]) -> "RowChoices":
        return cls(list(scorers), Counter(), Counter(), Counter(), Counter(), Counter(), Counter(), {})

    @property
    def shown(self) -> list[str]:
        """The columns that are shown until the reader chooses others."""
        hidden = {"attempts", "marks"} | ({"repeat"} if self.repeats == 1 else set())
        return [name for name in COLUMNS if name not in hidden]

    def add(self, row: BundleRow) -> None:
        for counter, value in (
            (self.tasks, row.task),
            (self.models, row.model),
            (self.statuses, row.status),
            (self.kinds, row.kind),
        ):
            if value:
                counter[value] += 1
        self.repeats = max(self.repeats, row.repeat)
        self.anomalies.update(row.anomalies)
        self.columns |= dict.fromkeys(row.row)
        for scorer, value in zip(self.scorers, row.scores, strict=True):
            if value is not None and len(self.scores) < 10_000:
                self.scores[scorer, _shown(value)] += 1


def make_rows(lines: Iterable[ExportLine], scorers: Sequence[str]) -> Iterator[BundleRow]:
    for line in lines:
        failed = line.error
        yield BundleRow(
            line.key,
            line.task,
            line.model,
            line.sample_id,
            line.repeat,
            line.status,
            failed.kind if failed is not None else "",
            round(line.seconds, 3),
            line.input_tokens + line.output_tokens,
            line.cost_usd,
            [_value(line.scores.get(name)) for name in scorers],
            _excerpt(readable_input(line)),
            _excerpt(value_text(line.target) or ""),
            _excerpt(failed.message if failed is not None else line.output or ""),
            [*line.marks, *line.anomalies],
            [*_causes(line)],
            line.attempt,
            {name: _row_value(value) for name, value in itertools.islice((line.row or {}).items(), _COLUMNS_MAX)},
        )


def _row_value(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < _NUMBER_MAX):
        return value
    return clean(excerpt(column_text(value), _EXCERPT // 2))


def _causes(line: ExportLine) -> Iterator[str]:
    if line.error is not None:
        yield f"{cause_id(line.error.kind, shape(line.error.message)):x}"
    for name, message in line.broken.items():
        yield f"{cause_id(scorer_kind(name), shape(message)):x}"


def pack(value: Any) -> bytes:
    """A script that hands a value to the scripts of the copy: compressed, because a page and its neighbours repeat
    most of their text.
    """
    packed = zlib.compress(msgspec.json.encode(value), _LEVEL)
    return b'(window.holdfastData = window.holdfastData || []).push("%s");\n' % base64.b64encode(packed)


def render_samples(
    ref: RunRef, status: RunStatus, choices: RowChoices, files: int, per_sample_file: int, note: Markup | None
) -> Body:
    """The page of the list. Its rows are in `files` files. `note`: on their scores."""
    total = choices.statuses.total()
    scores = [(name, value, count) for (name, value), count in choices.scores.most_common()]
    few = {name for name in choices.scorers if len([each for each in scores if each[0] == name]) <= _CHOICES_MAX}
    shown = [(f"{name}:{value}", f"{name} = {value} ({count:,})") for name, value, count in scores if name in few]
    form = h(
        "form",
        h("input", type="search", name="q", placeholder="Search samples", aria_label="Search samples"),
        _select("task", _counted(choices.tasks)),
        _select("model", _counted(choices.models)),
        _select("status", _counted(choices.statuses)),
        _select("kind", _counted(choices.kinds), "any cause"),
        _select("score", shown),
        _select("anomaly", _counted(choices.anomalies), "any mark or anomaly"),
        h("button", "Apply"),
        h("a", "Clear", href="#"),
        more_filters({}, choices.columns or None, has_scorer=False),
        h("input", type="hidden", name="sort"),
        h("input", type="hidden", name="columns"),
        class_="filters",
        id="bundle-filters",
        method="get",
    )
    content = [
        h("h1", "Samples"),
        note,
        form,
        _columns(choices),
        h("p", f"{total:,} samples", class_="quiet", id="bundle-count", role="status"),
        h("noscript", h("p", "The list needs JavaScript.", class_="problem")),
        table([], [], class_="rows samples", id="bundle-rows"),
        h("p", class_="pager", id="bundle-pager"),
        h("p", _SEARCHED, class_="quiet"),
    ]
    described = h(
        "div",
        content,
        id="bundle-samples",
        data_scorers=msgspec.json.encode(choices.scorers).decode(),
        data_columns=",".join(choices.shown),
        data_per_file=per_sample_file,
    )
    scripts = ("bundle.js", *(f"rows-{number:04d}.js" for number in range(files)), "bundle_table.js")
    return Body("Samples", described, ref, "samples", status, scripts=scripts)


def _columns(choices: RowChoices) -> Markup:
    """Which columns are shown."""
    names = [*COLUMNS, *(f"row.{name}" for name in choices.columns)]
    boxes = [h("label", h("input", type="checkbox", name="columns", value=name), f" {name}") for name in names]
    form = h("form", boxes, h("button", "Show these columns"), class_="columns", id="bundle-columns", method="get")
    return h("details", h("summary", "Columns"), form, id="columns")


def _select(name: str, options: Sequence[tuple[str, str]], anything: str = "") -> Markup | None:
    if not options:
        return None
    found: list[Child] = [h("option", anything or f"any {name}", value="")]
    found += [h("option", text, value=value) for value, text in options]
    return h("select", found, name=name, aria_label=name)


def _counted(counter: Counter[str]) -> list[tuple[str, str]]:
    return [(name, f"{name} ({count:,})") for name, count in counter.most_common()]


def _value(score: Any) -> Any:
    if isinstance(score, dict):
        return _FAILED
    if not isinstance(score, float):
        return score
    return int(score) if score.is_integer() else round(score, 6)  # as scripts write numbers: 1, not 1.0


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _excerpt(text: str) -> str:
    return clean(" ".join(shortened(text, _EXCERPT).split()))
