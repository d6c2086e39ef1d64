"""The list of samples in a static copy: rows in packed files, which a script filters, sorts and shows in pages."""

import base64
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
from holdfast.view.sources import RunRef
from holdfast.view.table.words import shape
from holdfast.view.table.writer import cause_id, scorer_kind

PER_FILE = 2_000
_EXCERPT = 160
_CHOICES_MAX = 20
_LEVEL = 9
_FAILED = "scorer failed"
"""bundle_table.js has the same text."""
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


class RowChoices(msgspec.Struct):
    """What can be chosen in the filters, counted while the rows are made."""

    scorers: list[str]
    tasks: Counter[str]
    models: Counter[str]
    statuses: Counter[str]
    kinds: Counter[str]
    scores: Counter[tuple[str, str]]

    @classmethod
    def of(cls, scorers: Sequence[str]) -> "RowChoices":
        return cls(list(scorers), Counter(), Counter(), Counter(), Counter(), Counter())

    def add(self, row: BundleRow) -> None:
        for counter, value in (
            (self.tasks, row.task),
            (self.models, row.model),
            (self.statuses, row.status),
            (self.kinds, row.kind),
        ):
            if value:
                counter[value] += 1
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
        )


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


def render_samples(ref: RunRef, status: tuple[str, str], choices: RowChoices, files: int, per_sample_file: int) -> Body:
    """The page of the list. Its rows are in `files` files."""
    total = choices.statuses.total()
    scores = [(name, value, count) for (name, value), count in choices.scores.most_common()]
    few = {name for name in choices.scorers if len([each for each in scores if each[0] == name]) <= _CHOICES_MAX}
    sorts = ["seconds", "tokens", "cost", *choices.scorers]
    orders = [each for name in sorts for each in ((name, f"{name} ↑"), (f"-{name}", f"{name} ↓"))]
    shown = [(f"{name}:{value}", f"{name} = {value} ({count:,})") for name, value, count in scores if name in few]
    form = h(
        "form",
        h("input", type="search", name="q", placeholder="Search samples", aria_label="Search samples"),
        _select("task", _counted(choices.tasks)),
        _select("model", _counted(choices.models)),
        _select("status", _counted(choices.statuses)),
        _select("kind", _counted(choices.kinds), "any cause"),
        _select("score", shown),
        _select("sort", orders, "in order"),
        h("button", "Apply"),
        class_="filters",
        id="bundle-filters",
        method="get",
    )
    columns = ["status", "task", "model", "sample", *choices.scorers, "seconds", "tokens", "cost", "question", "answer"]
    numbers = {"seconds", "tokens", "cost", *choices.scorers}
    content = [
        h("h1", "Samples"),
        form,
        h("p", f"{total:,} samples", class_="quiet", id="bundle-count", role="status"),
        h("noscript", h("p", "The list needs JavaScript.", class_="problem")),
        table(columns, [], numbers=numbers, class_="rows", id="bundle-rows"),
        h("p", class_="pager", id="bundle-pager"),
        h("p", _SEARCHED, class_="quiet"),
    ]
    described = h(
        "div",
        content,
        id="bundle-samples",
        data_scorers=msgspec.json.encode(choices.scorers).decode(),
        data_per_file=per_sample_file,
    )
    scripts = ("bundle.js", *(f"rows-{number:04d}.js" for number in range(files)), "bundle_table.js")
    return Body("Samples", described, ref, "samples", status, scripts=scripts)


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
