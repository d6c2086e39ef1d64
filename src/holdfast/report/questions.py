"""What each sample was asked: its input, its target, the rendered prompt, and chosen columns of its row.

Rows come from the data files of the run, and the prompt from the stored spec, as the planner renders it. Everything is
None for runs that do not record their data and for rows that cannot be read: losing the rows must not lose the results.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, JournalError, UsageError
from holdfast.plan import DataLine, DataRow, PlanLine, data_lines_at, data_rows, planned_lines, rows_of
from holdfast.records import Cell, Message, Row
from holdfast.report.text import text_of
from holdfast.spec import nearest

ALL = "*"
"""Choose every column of the rows."""
BOOL, INTEGER, NUMBER, TEXT = "bool", "integer", "number", "text"
_PREFIX = "row."
_UNREADABLE = (OSError, JournalError, ValueError, RecursionError)
"""Errors of a file that is damaged, or that Holdfast did not write."""
_row = msgspec.json.Decoder(Row | None)
MakeQuestion = Callable[[DataRow], "Question"]


class _StoredDataset(msgspec.Struct, frozen=True):
    files: list[str] = []


class _StoredTask(msgspec.Struct, frozen=True):
    """The fields of a stored task that a prompt needs."""

    name: str
    prompt: str = ""
    messages: list[Message] = []
    template: str = "fields"
    dataset: _StoredDataset = _StoredDataset()


class Question(msgspec.Struct, frozen=True, gc=False):
    """What a sample was asked."""

    input: Any = None
    """The value of the input column; without one, the prompt."""
    target: Any = None
    prompt: str | None = None
    """The text of the last user message of the first request, rendered."""
    row: Row | None = None
    """The chosen columns; None if none was chosen."""


UNKNOWN = Question()


class QuestionReader:
    """Makes questions from the stored rows of one run."""

    def __init__(self, run: str, spec: Mapping[str, Any], columns: Sequence[str] = ()) -> None:
        """`columns`: names of columns, or ALL."""
        self._run = run
        self._records = bool(spec.get("record_data", True))
        self._tasks: dict[str, _StoredTask] = {}
        with contextlib.suppress(msgspec.ValidationError):  # of a version that has other prompts: none is rendered
            self._tasks = {task.name: task for task in msgspec.convert(spec.get("tasks", []), list[_StoredTask])}
        self._columns = tuple(columns)

    def planned(self, cells: Sequence[Cell]) -> "PlannedQuestions":
        """For reading beside the plan of these cells."""
        return PlannedQuestions(self._run, [(cell, self.maker(cell.task)) for cell in cells] if self._records else [])

    def of(self, task: str, line: DataLine | None) -> Question:
        """The question of one stored row of a task."""
        if line is None:
            return UNKNOWN
        return self.maker(task)(DataRow(line.r, line.id, _row.decode(line.row), line.i, line.t))

    def at(self, cells: Sequence[Cell], ordinals: Collection[int]) -> dict[int, Question]:
        """The questions of a few keys, by ordinal; without those that cannot be read. Reads only their rows."""
        found: dict[int, Question] = {}
        makers: dict[str, MakeQuestion] = {}
        with contextlib.suppress(*_UNREADABLE):
            for o, cell, line in data_lines_at(self._run, cells, ordinals) if self._records else ():
                if cell.task not in makers:
                    makers[cell.task] = self.maker(cell.task)
                found[o] = makers[cell.task](DataRow(line.r, line.id, _row.decode(line.row), line.i, line.t))
        return found

    def find(self, cells: Sequence[Cell], task: str, ids: Collection[str]) -> dict[str, Question]:
        """The questions of some samples of a task, by id; without those that cannot be read."""
        found: dict[str, Question] = {}
        wanted = set(ids) if self._records else set()
        make = self.maker(task)
        for cell in (cell for cell in cells if cell.task == task):
            if not wanted:
                break
            with contextlib.suppress(*_UNREADABLE):
                rows = _RowCursor(self._run, cell)
                for line in planned_lines(self._run, cell):
                    row = rows.at(line.r)
                    if row is not None and row.id in wanted:
                        found[row.id] = make(row)
                        wanted.remove(row.id)
                        if not wanted:
                            break
        return found

    def maker(self, task: str) -> "MakeQuestion":
        """A function that makes the questions of a task from its rows."""
        columns, render = self._columns, self._renderer(task)
        is_all = ALL in columns

        def make(line: DataRow) -> Question:
            nonlocal render
            row = line.row
            if row is None:
                return UNKNOWN
            given = row.get(line.i) if line.i else None
            prompt = None
            if render is not None:
                try:
                    prompt = render(row, given)
                except KeyError:  # only this row lacks a column
                    pass
                except Exception:  # noqa: BLE001 - a template may raise anything; also too slow or too large: stop trying
                    render = None
            if prompt is not None and not isinstance(prompt, str):
                prompt = text_of(prompt)
            chosen = None
            if columns:
                chosen = row if is_all else {name: row.get(name) for name in columns}
            return Question(prompt if given is None else given, row.get(line.t) if line.t else None, prompt, chosen)

        return make

    def _renderer(self, name: str) -> Callable[[Row, Any], Any] | None:
        """See `Renderer.last_question`. None if the template cannot be compiled here, as without its package."""
        from holdfast.solve import Prompt, Renderer  # imported late: solvers are slow to import

        task = self._tasks.get(name)
        if task is None:
            return None
        files = tuple(task.dataset.files)
        prompt = Prompt(prompt=task.prompt, messages=task.messages, template=task.template, files=files)
        try:
            return Renderer(prompt).last_question()
        except HoldfastError:
            return None


class PlannedQuestions:
    """The questions of keys in plan order. It reads forward only."""

    def __init__(self, run: str, cells: Sequence[tuple[Cell, MakeQuestion]]) -> None:
        self._run = run
        self._left = iter(cells)
        self._end = 0
        """The first ordinal after the cell that is being read."""
        self._number = 0
        self._found = UNKNOWN
        self._rows: _RowCursor | None = None
        self._make: MakeQuestion = lambda row: UNKNOWN

    def of(self, line: PlanLine) -> Question:
        if line.o >= self._end:
            self._open(line.o)
        if line.r != self._number:  # repeats share a row
            self._number = line.r
            try:
                row = self._rows.at(line.r) if self._rows is not None else None
            except _UNREADABLE:  # the rest of the cell cannot be read either
                row = self._rows = None
            self._found = UNKNOWN if row is None else self._make(row)
        return self._found

    def _open(self, o: int) -> None:
        """Go to the cell of an ordinal."""
        self._rows, self._number, self._found = None, 0, UNKNOWN
        for cell, make in self._left:
            self._end = cell.first + cell.count
            if o < self._end:
                self._rows, self._make = _RowCursor(self._run, cell), make
                return


class _RowCursor:
    """Reads the rows of a cell forward."""

    def __init__(self, run: str, cell: Cell) -> None:
        self._rows = data_rows(run, cell)
        self._row: DataRow | None = None

    def at(self, number: int) -> DataRow | None:
        """The row with this number; None if there is none. Raises one of _UNREADABLE if it cannot be read."""
        row = self._row
        while row is None or row.r < number:
            row = self._row = next(self._rows, None)
            if row is None:
                return None
        return row if row.r == number else None


def parse_columns(names: Iterable[str] | str) -> tuple[str, ...]:
    """Names of columns as users give them, or one name, perhaps with the prefix `row.` of tables. ALL alone if it is
    among them.
    """
    listed = [names] if isinstance(names, str) else names
    columns = dict.fromkeys(name.strip().removeprefix(_PREFIX) for name in listed if name.strip())
    return (ALL,) if ALL in columns else tuple(columns)


def resolve_columns(
    run: str, spec: Mapping[str, Any], cells: Sequence[Cell], columns: Sequence[str]
) -> tuple[str, ...]:
    """The names of parsed columns: with ALL, those of all rows. Raises UsageError for a column that no row has. Runs
    without readable rows accept every name: their values are None.
    """
    is_all = ALL in columns
    known: dict[str, None] = {}
    missing = set() if is_all else set(columns)
    for row in _every_row(run, spec, cells) if columns else ():
        known |= dict.fromkeys(row)
        missing.difference_update(row)
        if not missing and not is_all:
            break
    if missing and known:
        name = sorted(missing)[0]
        raise UsageError(f"columns: no row has a column {name!r}{nearest(name, set(known))}")
    return tuple(known) if is_all else tuple(columns)


def column_kinds(run: str, spec: Mapping[str, Any], cells: Sequence[Cell], columns: Sequence[str]) -> dict[str, str]:
    """Whether the values of each column are booleans, integers, numbers or anything else. Reads all rows."""
    found: dict[str, set[str]] = {name: set() for name in columns}
    for row in _every_row(run, spec, cells) if columns else ():
        for name, kinds in found.items():
            if (value := row.get(name)) is not None:
                kinds.add(_kind(value))
    return {
        name: next(iter(kinds)) if len(kinds) == 1 else NUMBER if kinds == {INTEGER, NUMBER} else TEXT
        for name, kinds in found.items()
    }


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INTEGER if -(1 << 63) <= value < 1 << 63 else TEXT
    return NUMBER if isinstance(value, float) else TEXT


def _every_row(run: str, spec: Mapping[str, Any], cells: Sequence[Cell]) -> Iterator[Row]:
    """The rows of all tasks, each once; without those that cannot be read."""
    every = {(cell.rows_block, cell.task): cell for cell in cells} if spec.get("record_data", True) else {}
    for cell in every.values():
        with contextlib.suppress(*_UNREADABLE):
            yield from filter(None, (_row.decode(line.row) for line in rows_of(run, cell)))


def as_cell(value: Any) -> Any:
    """A value of a row in one cell of a table: lists and objects as JSON."""
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def value_text(value: Any) -> str | None:
    """A value of a row as text: a text as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def readable_input(question: Any) -> str:
    """The input of anything with `input` and `prompt`, for people: of a conversation only the last user message. Empty
    if it is not known.
    """
    if isinstance(question.input, list) and question.prompt:
        return str(question.prompt)
    return value_text(question.input) or ""


def readable_prompt(question: Any) -> str:
    """The rendered prompt of anything with `input` and `prompt`, if it says more than the input; else empty."""
    prompt = question.prompt or ""
    return "" if prompt.strip() == readable_input(question).strip() else prompt


def asked_texts(question: Any) -> Iterator[tuple[str, str]]:
    """What anything with `input`, `target`, `prompt` and `row` was asked, as labels and texts for people: question,
    target, and if they add something the prompt and the chosen columns of the row. What is not known is left out.
    """
    texts = [("question", readable_input(question)), ("target", value_text(question.target))]
    texts += [("prompt", readable_prompt(question))]
    texts += [(f"{_PREFIX}{name}", value_text(value)) for name, value in (question.row or {}).items()]
    yield from ((label, text) for label, text in texts if text or (text is not None and label == "target"))
