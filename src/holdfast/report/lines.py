"""Export lines: one per planned key with status, output, error, usage and scores, in plan order, streamed.

A score is a value, null if the scorer gave none, or `{"failure": {"message": …}}` if the scorer failed: the two must
not look alike. Tokens and seconds are those of the attempt that counts, replayed steps included.

Export lines with events: the steps of each key, and its last conversation.

A journal interleaves the records of all keys; an export lists one key after the other. So the journal is read once for
the positions of all steps, which are kept in a temporary database on disk. Each key's steps are read when its line is
written. Memory holds one key at a time. A crash leaves nothing: the database file has no name.
"""

import contextlib
import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.journal import Entry, Reader, journal_folder
from holdfast.plan import PlanLine, planned_lines
from holdfast.records import (
    Cell,
    FactDecoder,
    Failure,
    Key,
    Message,
    Row,
    SampleFailed,
    Step,
    Usage,
    check_fact,
    parse_key,
)
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Prices, StoredSpec, used_dollars
from holdfast.report.questions import UNKNOWN, Question, QuestionReader
from holdfast.report.reduction import SampleGroups
from holdfast.report.text import without_scorer_name
from holdfast.state import AnswerRow, Index, MadeRow, ScoreRow

_failed = FactDecoder(SampleFailed)


class ExportLine(msgspec.Struct, frozen=True):
    """One key in an export. Its fields are a contract: fields are only ever added."""

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
    """By scorer, for scorers that gave a reason."""
    marks: tuple[str, ...] = ()
    """What is wrong with the answer: filtered, empty, truncated."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    """For the same steps as the tokens; None if a model has no price."""
    scores_edited: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)
    """History of scores that were set by hand: first the scorer's, then each `value` with its `reason`, `author` and
    time (`at`). The last one is in `scores`.
    """
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """Anomalies of the answer: the reason by kind."""
    group: str = ""
    """The sample's value in the column `dataset.group` (a digest if it is long); empty: none."""
    input: Any = None
    """The value of the input column; without one, the prompt. This and the next are None if the run does not record its
    data, or the row cannot be read.
    """
    target: Any = None
    prompt: str | None = None
    """The last user message of the task's prompt, rendered."""
    row: Row | None = None
    """The columns of the row that were chosen; None if none was."""

    @property
    def edited(self) -> dict[str, str]:
        """Scorers whose score was set by hand, with the last author."""
        return {name: str(history[-1]["author"]) for name, history in self.scores_edited.items()}

    @property
    def values(self) -> dict[str, Any]:
        """Scores by scorer; None is no score. Without failed scorers."""
        return {name: score for name, score in self.scores.items() if not isinstance(score, dict)}

    @property
    def broken(self) -> dict[str, str]:
        """Failed scorers with their messages."""
        return {name: score["failure"]["message"] for name, score in self.scores.items() if isinstance(score, dict)}


def export_lines(
    run: str, index: Index, evaluation: str = "", columns: Sequence[str] = (), *, asked: bool = True
) -> Iterator[ExportLine]:
    """One line per planned key, finished or not. Empty `evaluation` means the newest. `columns`: of the rows, see
    `QuestionReader`. Without `asked` no rows are read, and the fields for what was asked are None.
    """
    evaluation = evaluation or index.story.evaluation
    cells = index.story.cells
    questions = QuestionReader(run, index.story.spec, columns).planned(cells if asked else [])
    with contextlib.closing(Reader(journal_folder(run))) as reader:
        maker = _LineMaker(index, evaluation, reader)
        for line, key, row, scores, group in _planned_rows(run, index, evaluation, cells):
            yield maker.make(line, key, row, scores, (group, questions.of(line)))


_PlannedRow = tuple[PlanLine, Key, AnswerRow | None, list[ScoreRow], str]


def _planned_rows(run: str, index: Index, evaluation: str, cells: Sequence[Cell]) -> Iterator[_PlannedRow]:
    """Every planned key with its row, its scores and its group. Plan, answers and scores are read side by side: all are
    in plan order, so memory stays small.
    """
    of_cells = [(cell.first, cell.count) for cell in cells]
    answers = itertools.chain.from_iterable(index.answers("", *each) for each in of_cells)
    scores = itertools.chain.from_iterable(index.scores(evaluation, *each) for each in of_cells)
    answer, score = next(answers, None), next(scores, None)
    groups = SampleGroups(run, index.story.spec, cells)
    has_groups = groups.any
    for line in itertools.chain.from_iterable(planned_lines(run, cell) for cell in cells):
        o = line.o
        row = answer if answer is not None and answer.o == o else None
        if row is not None:
            answer = next(answers, None)
        given: list[ScoreRow] = []
        while score is not None and score.o == o:
            given.append(score)
            score = next(scores, None)
        yield line, parse_key(line.k), row, given, groups.at(o) if has_groups else ""


class KeyScores(msgspec.Struct, frozen=True):
    """What a comparison needs of a key. Texts are read only where they are shown."""

    o: int
    sample_id: str
    repeat: int
    status: str
    scores: dict[str, Any]
    group: str = ""


def key_scores(run: str, index: Index, evaluation: str, cell: Cell) -> Iterator[KeyScores]:
    """One for each planned key of a cell, like `export_lines`, without reading answers from the journal."""
    for line, key, row, scores, group in _planned_rows(run, index, evaluation, [cell]):
        status = row.status if row is not None else "unfinished"
        given = {each.scorer: _score(each) for each in scores} if status == "finished" else {}
        yield KeyScores(line.o, key.sample_id, key.repeat, status, given, group)


def _edited(index: Index, evaluation: str, answer: AnswerRow) -> dict[str, list[dict[str, Any]]]:
    """By scorer: the score it gave, and the scores set by hand that replaced it."""
    edits = index.edits_of(answer.o, answer.n, evaluation)
    names = {each.scorer for each in edits}
    made = [each for each in index.made_of(answer.o, answer.n, evaluation) if each.scorer in names]
    history: dict[str, list[dict[str, Any]]] = {
        each.scorer: [{"value": _score(each), "reason": each.reason}] for each in made
    }
    for each in edits:
        edit = {"value": each.value, "reason": each.reason, "author": each.author, "at": each.at}
        history[each.scorer].append(edit)
    return history


def _score(row: ScoreRow | MadeRow) -> Any:
    return {"failure": {"message": without_scorer_name(row.scorer, row.failure)}} if row.failure else row.value


class _LineMaker:
    """Makes the lines of one export."""

    def __init__(self, index: Index, evaluation: str, reader: Reader) -> None:
        self._index = index
        self._evaluation = evaluation
        self._reader = reader
        self._spec = StoredSpec.of(index.story.spec)
        self._prices: dict[str, Prices] = {}
        self._anomalies = Anomalies(index, evaluation)

    def make(
        self, line: PlanLine, key: Key, row: AnswerRow | None, scores: list[ScoreRow], of_sample: tuple[str, Question]
    ) -> ExportLine:
        """`of_sample`: the group and the question of the key's sample."""
        status, output, error, reason = "unfinished", None, None, ""
        tool_calls: list[dict[str, Any]] = []
        if row is not None and row.status in {"finished", "failed"}:
            entry = self._reader.record_at(row.segment, row.at_byte)
            if entry is None or entry.line.n != row.n:  # lost to damage after it was indexed
                row = None
            elif row.status == "finished":
                answer = _finished.decode(entry.line).answer
                status, output, reason = row.status, answer.text, answer.finish_reason
                tool_calls = answer.tool_calls
            else:
                status, error = row.status, _failed.decode(entry.line).failure
        group, asked = of_sample
        if row is None:
            return ExportLine(
                *(line.k, *key, status, output, error, {}),
                group=group,
                input=asked.input,
                target=asked.target,
                prompt=asked.prompt,
                row=asked.row,
            )
        used = row.used_by_role()
        whole = sum(used.values(), _NO_USAGE)
        is_finished = status == "finished"
        return ExportLine(
            line.k,
            *key,
            status,
            output,
            error,
            {each.scorer: _score(each) for each in scores} if is_finished else {},
            row.attempt,
            reason,
            row.input_tokens,
            row.output_tokens,
            row.seconds,
            tool_calls,
            {each.scorer: each.reason for each in scores if each.reason} if is_finished else {},
            tuple(row.marks.split()),
            whole.cached_tokens,
            whole.reasoning_tokens,
            used_dollars(used, self._prices_of(key.model)),
            self._edited(row, scores) if is_finished else {},
            self._anomalies.of(row) if is_finished else {},
            group,
            asked.input,
            asked.target,
            asked.prompt,
            asked.row,
        )

    def _prices_of(self, model: str) -> Prices:
        found = self._prices.get(model)
        if found is None:
            found = self._prices[model] = self._spec.prices(model)
        return found

    def _edited(self, row: AnswerRow, scores: list[ScoreRow]) -> dict[str, list[dict[str, Any]]]:
        for each in scores:
            if each.author:
                return _edited(self._index, self._evaluation, row)
        return {}


class _Text(msgspec.Struct, frozen=True):
    """The fields of an answer that an export shows: decoding skips the rest."""

    text: str = ""
    finish_reason: str = ""
    tool_calls: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _FinishedText(msgspec.Struct, frozen=True):
    answer: _Text


_finished = FactDecoder(_FinishedText)
_NO_USAGE = Usage()


class ScoreLine(msgspec.Struct, frozen=True):
    """One scorer's score of one answer. `value` None: no score. `failure`: the message of a failed scorer."""

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
    """Who set it by hand; empty for a scorer's score."""
    evaluation: str = ""
    input: Any = None
    target: Any = None
    prompt: str | None = None


_UNASKED: Mapping[int, Question] = {}


def score_lines(index: Index, evaluation: str = "", asked: Mapping[int, Question] = _UNASKED) -> Iterator[ScoreLine]:
    """One line per score. Empty `evaluation` means the newest. Answers and scores are read side by side. `asked`: what
    each key was asked, by ordinal.
    """
    answers = index.answers("finished")
    answer = next(answers, None)
    evaluation = evaluation or index.story.evaluation
    for row in index.scores(evaluation):
        while answer is not None and answer.o < row.o:
            answer = next(answers, None)
        assert answer is not None
        key = parse_key(answer.key)
        failure = without_scorer_name(row.scorer, row.failure)
        question = asked.get(row.o, UNKNOWN)
        yield ScoreLine(
            *(answer.key, *key, row.scorer, row.value, row.reason, failure, row.author, evaluation),
            input=question.input,
            target=question.target,
            prompt=question.prompt,
        )


_TYPES = ("step", "step.started", "sample.failed")
_BATCH = 10_000
_data = msgspec.json.Decoder(dict[str, Any])
_step = FactDecoder(Step)


class Event(msgspec.Struct, frozen=True):
    """A record of the key, as docs/format.md describes it."""

    n: int
    at: str
    t: str
    d: dict[str, Any]


class EventLine(ExportLine, frozen=True):
    """A line with events: null if they were not requested, empty if nothing is recorded."""

    events: list[Event] | None = None
    messages: list[Message] | None = None
    """The last conversation with the evaluated model: its last request with all messages, and the answer."""


def with_events(lines: Iterable[ExportLine], run: str, *, of_finished: bool) -> Iterator[EventLine]:
    """The same lines with the steps of their keys; for finished keys only with `of_finished`."""
    places = _StepPositions()
    with contextlib.closing(places), contextlib.closing(Reader(journal_folder(run))) as reader:
        places.note(Reader(journal_folder(run)))
        for line in lines:
            fields = {name: getattr(line, name) for name in ExportLine.__struct_fields__}
            if line.status == "finished" and not of_finished:
                yield EventLine(**fields)
                continue
            entries = list(places.read(line.key, reader))
            steps = {each.line.n: _step.decode(each.line) for each in entries if each.line.t == "step"}
            events = []
            for each in entries:
                check_fact(each.line)
                data = _data.decode(each.line.d)
                answer = data.get("answer")
                if isinstance(answer, dict) and answer.pop("text_once", False):  # see `Answer.as_stored`
                    answer["message"]["content"] = answer["text"]
                events.append(Event(each.line.n, each.line.at, each.line.t, data))
            yield EventLine(**fields, events=events, messages=last_conversation(steps))


def last_conversation(steps: Mapping[int, Step]) -> list[Message]:
    """Empty if the evaluated model got no request, or if a step that the last request builds on was lost."""
    own = [
        n for n, step in steps.items() if step.asked is not None and not step.asked.role and step.scope[:6] == "solve/"
    ]
    answered = [n for n in own if steps[n].answer is not None] or own
    return conversation_of(answered[-1], steps.get) if answered else []


def conversation_of(n: int, find: Callable[[int], Step | None]) -> list[Message]:
    """All messages of the request in step `n`, and its answer if it has one. Empty if a step that it builds on was
    lost. `find` returns a step by its number.
    """
    # Built from the end: each step holds its new messages, and how many messages of which earlier step precede them.
    length = sys.maxsize
    parts: list[list[Message]] = []
    while n:
        step = find(n)
        if step is None or step.asked is None:
            return []
        new = [*step.asked.new, *([step.answer.message] if step.answer is not None else [])]
        parts.append(new[: max(length - step.asked.keep, 0)])
        n, length = step.asked.after, min(length, step.asked.keep)
    return [message for part in reversed(parts) for message in part]


class _StepPositions:
    """Positions of the records of each key, in a database file without a name that disappears with the process."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = off")
        self._database.execute("CREATE TABLE places (key INTEGER, n INTEGER, segment INTEGER, at_byte INTEGER)")

    def note(self, reader: Reader) -> None:
        rows: list[tuple[int, int, int, int]] = []
        self._database.execute("BEGIN")
        for each in reader.read(live=True):
            if isinstance(each, Entry) and each.line.k is not None and each.line.t in _TYPES:
                rows.append((_number(each.line.k), each.line.n, each.segment, each.offset))
                if len(rows) == _BATCH:
                    self._put(rows)
                    rows.clear()
        self._put(rows)
        self._database.execute("CREATE INDEX by_key ON places (key, n, segment, at_byte)")
        self._database.execute("COMMIT")

    def read(self, key: str, reader: Reader) -> Iterator[Entry]:
        """A key's records in order. A record that is no longer at its position was voided meanwhile, and is skipped."""
        query = "SELECT n, segment, at_byte FROM places WHERE key = ? ORDER BY n"
        for n, segment, at_byte in self._database.execute(query, (_number(key),)):
            entry = reader.record_at(segment, at_byte)
            if entry is not None and entry.line.n == n and entry.line.k == key:
                yield entry

    def close(self) -> None:
        self._database.close()

    def _put(self, rows: list[tuple[int, int, int, int]]) -> None:
        self._database.executemany("INSERT INTO places VALUES (?, ?, ?, ?)", rows)


def _number(key: str) -> int:
    """A 64-bit digest of a key. A collision is harmless: `read` compares the key of the record."""
    return xxhash.xxh3_64_intdigest(key.encode()) - (1 << 63)
