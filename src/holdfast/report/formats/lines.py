"""One line for each planned key: its status, its output, its error, what it took, its scores. In plan order, streamed.

A score is a value, null where the scorer said nothing, or `{"failure": {"message": …}}` where the scorer broke: the
two must not look alike. Tokens and seconds are those of the attempt that counts, replayed steps included.

JSONL holds every text as it is; the stream that it is written to escapes control characters (`cli.streams`). CSV has
no escapes: it shows them as `\\u001b`. It is mostly opened in spreadsheets, which run what looks like a formula: a text
that begins with =, +, -, @ (also full-width: Excel takes those too) or a tab, and is no number, gets a quote before it.
"""

import contextlib
import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.plan import PlanLine, planned_lines
from holdfast.printable import clean
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Failure, SampleFailed, SampleFinished
from holdfast.records.keys import parse_key
from holdfast.records.samples import Usage
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Prices, Told, used_dollars
from holdfast.report.groups import Groups
from holdfast.report.text import own_words
from holdfast.state import AnswerRow, Index, MadeRow, ScoreRow

_finished = FactDecoder(SampleFinished)
_failed = FactDecoder(SampleFailed)
_PLAIN = ("key", "task", "model", "sample_id", "repeat", "status", "output")
_SPENT = ("attempt", "input_tokens", "output_tokens", "cost_usd", "seconds")
_FORMULA = re.compile(r"\A\s*[=+\-@\t＝＋－＠﹦﹢﹣﹫]")  # noqa: RUF001 - other spellings of the same signs
_NUMBER = re.compile(r"\A\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z")


class ExportLine(msgspec.Struct, frozen=True):
    """What an export says of one key."""

    key: str
    task: str
    model: str
    sample_id: str
    repeat: int
    status: str
    output: str | None
    error: Failure | None
    scores: dict[str, Any]
    attempt: int = 0
    finish_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    tool_calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the scorers that gave one."""
    marks: tuple[str, ...] = ()
    """What is wrong with the answer, if anything is: filtered, empty, truncated."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    """Of the same steps as the tokens; None if a model has no price."""
    scores_edited: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)
    """Of scores that people have set by hand: first what the scorer said, then each `value` with its `reason`, `author`
    and time (`at`). The last one is in `scores`.
    """
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """What else is odd about the answer, by kind, each with what shows it."""
    group: str = ""
    """What the sample has in the column that `dataset.group` names (a digest of it, if it is long); empty: nothing."""

    @property
    def edited(self) -> dict[str, str]:
        """The scorers whose score a person has set, and who did so last."""
        return {name: str(history[-1]["author"]) for name, history in self.scores_edited.items()}

    @property
    def values(self) -> dict[str, Any]:
        """What the scorers said; None is no score. Those that broke are not in it."""
        return {name: score for name, score in self.scores.items() if not isinstance(score, dict)}

    @property
    def broken(self) -> dict[str, str]:
        """The scorers that broke, and how."""
        return {name: score["failure"]["message"] for name, score in self.scores.items() if isinstance(score, dict)}


def export_lines(run: str, index: Index, evaluation: str = "") -> Iterator[ExportLine]:
    """Every key once, finished or not. `evaluation` empty means the newest."""
    with contextlib.closing(Reader(journal_folder(run))) as reader:
        yield from _export(run, index, evaluation or index.story.evaluation, reader)


def _export(run: str, index: Index, evaluation: str, reader: Reader) -> Iterator[ExportLine]:
    """Plan, answers and scores are walked side by side."""
    answers = index.answers()
    scores = itertools.groupby(index.scores(evaluation), key=lambda row: row.o)
    answer, scored = next(answers, None), next(scores, None)
    told, anomalies = Told.of(index.story.spec), Anomalies(index, evaluation)
    prices: dict[str, Prices] = {}
    groups = Groups(run, index.story.spec, index.story.cells)
    for line in itertools.chain.from_iterable(planned_lines(run, cell) for cell in index.story.cells):
        mine = answer if answer is not None and answer.o == line.o else None
        if mine is not None:
            answer = next(answers, None)
        given: list[ScoreRow] = []
        if scored is not None and scored[0] == line.o:
            given = list(scored[1])
            scored = next(scores, None)
        model = parse_key(line.k).model
        if model not in prices:
            prices[model] = told.prices(model)
        told_line = _line(line, mine, given, reader, prices[model])
        group = groups.at(line.o)
        if group:
            told_line = msgspec.structs.replace(told_line, group=group)
        if mine is None or told_line.status != "finished":
            yield told_line
            continue
        edited = _edited(index, evaluation, mine) if any(each.author for each in given) else {}
        odd = anomalies.of(mine)
        more = edited or odd
        yield msgspec.structs.replace(told_line, scores_edited=edited, anomalies=odd) if more else told_line


def _edited(index: Index, evaluation: str, answer: AnswerRow) -> dict[str, list[dict[str, Any]]]:
    """What scorers said and people set in its place, by scorer."""
    edits = index.edits_of(answer.o, answer.n, evaluation)
    names = {each.scorer for each in edits}
    made = [each for each in index.made_of(answer.o, answer.n, evaluation) if each.scorer in names]
    history: dict[str, list[dict[str, Any]]] = {
        each.scorer: [{"value": _score(each), "reason": each.reason}] for each in made
    }
    for each in edits:
        told = {"value": each.value, "reason": each.reason, "author": each.author, "at": each.at}
        history[each.scorer].append(told)
    return history


def write_jsonl(lines: Iterable[ExportLine], out: IO[str]) -> None:
    for line in lines:
        out.write(msgspec.json.encode(line).decode() + "\n")


def write_csv(lines: Iterator[ExportLine], out: IO[str], scorers: list[str]) -> None:
    """One column for each scorer, empty where it gave no score; `score_errors` says where one broke, and how,
    `reasons` what the others said, and `edited` which scores were set by hand, and by whom.
    """
    writer = csv.writer(out)
    taken = (*_PLAIN, "marks", "anomalies", "error", *_SPENT, "score_errors", "reasons", "edited")
    columns = [score_column(name, taken) for name in scorers]
    writer.writerow(map(harmless, [*taken[:-3], *columns, *taken[-3:]]))
    for line in lines:
        plain = [getattr(line, name) for name in _PLAIN]
        spent = [getattr(line, name) for name in _SPENT]
        error = "" if line.error is None else f"{line.error.kind}: {line.error.message}"
        given = line.values
        values = [given.get(name) for name in scorers]
        told = [listed(line.broken), listed(line.reasons), listed(line.edited)]
        odd = [" ".join(line.marks), listed(line.anomalies)]
        writer.writerow(map(harmless, [*plain, *odd, error, *spent, *values, *told]))


def score_column(scorer: str, taken: Collection[str]) -> str:
    """The column of a scorer, in every table: its name, unless another column has it."""
    return f"score.{scorer}" if scorer in taken else scorer


def harmless(value: Any) -> Any:
    """For a spreadsheet. Numbers are left alone, also those that are texts: an answer is often -5."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text


def listed(told: dict[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in told.items())


def _score(row: ScoreRow | MadeRow) -> Any:
    return {"failure": {"message": own_words(row.scorer, row.failure)}} if row.failure else row.value


def _line(line: PlanLine, row: AnswerRow | None, scores: list[ScoreRow], reader: Reader, prices: Prices) -> ExportLine:
    key = parse_key(line.k)
    status, output, error, reason = "unfinished", None, None, ""
    tool_calls: list[dict[str, Any]] = []
    if row is not None and row.status in {"finished", "failed"}:
        entry = reader.record_at(row.segment, row.at_byte)
        if entry is None or entry.line.n != row.n:  # it was lost to damage since the index saw it
            row = None
        elif row.status == "finished":
            answer = _finished.decode(entry.line).answer
            status, output, reason = row.status, answer.text, answer.finish_reason
            tool_calls = answer.tool_calls
        else:
            status, error = row.status, _failed.decode(entry.line).failure
    used = row.used_by_role() if row else {}
    whole = sum(used.values(), Usage())
    return ExportLine(
        key=line.k,
        task=key.task,
        model=key.model,
        sample_id=key.sample_id,
        repeat=key.repeat,
        status=status,
        output=output,
        error=error,
        scores={each.scorer: _score(each) for each in scores} if status == "finished" else {},
        attempt=row.attempt if row else 0,
        finish_reason=reason,
        input_tokens=row.input_tokens if row else 0,
        output_tokens=row.output_tokens if row else 0,
        seconds=row.seconds if row else 0.0,
        tool_calls=tool_calls,
        marks=tuple(row.marks.split()) if row else (),
        cached_tokens=whole.cached_tokens,
        reasoning_tokens=whole.reasoning_tokens,
        cost_usd=used_dollars(used, prices) if row else None,
        reasons={each.scorer: each.reason for each in scores if each.reason} if status == "finished" else {},
    )


class ScoreLine(msgspec.Struct, frozen=True):
    """What one scorer says of one answer. `value` None is no score; `failure` says how the scorer broke, if it did."""

    key: str
    task: str
    model: str
    sample_id: str
    repeat: int
    scorer: str
    value: Any
    reason: str = ""
    failure: str = ""
    author: str = ""
    """Who set it by hand, if somebody did."""
    evaluation: str = ""


def score_lines(index: Index, evaluation: str = "") -> Iterator[ScoreLine]:
    """`evaluation` empty means the newest. Answers and scores are walked side by side."""
    answers = index.answers("finished")
    answer = next(answers, None)
    evaluation = evaluation or index.story.evaluation
    for row in index.scores(evaluation):
        while answer is not None and answer.o < row.o:
            answer = next(answers, None)
        assert answer is not None
        key = parse_key(answer.key)
        failure = own_words(row.scorer, row.failure)
        yield ScoreLine(answer.key, *key, row.scorer, row.value, row.reason, failure, row.author, evaluation)
