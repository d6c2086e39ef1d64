"""The list of samples: whatever is filtered, sorted and changed, it says what the export says."""

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.report import ExportLine
from holdfast.runs.maintenance.retention import remove_stale_entries
from holdfast.score import as_number
from holdfast.state import AnswerRow, make_room
from holdfast.view.links import Links
from holdfast.view.page import PageRequest
from holdfast.view.pages import errors
from holdfast.view.pages.samples import SampleList, UnreadableTableError
from holdfast.view.sources import RunRef, Sources
from holdfast.view.table import SampleLine, file, filters, queries, rows, upkeep
from holdfast.view.table.writer import PageWriter
from tests.unit.view.listed_runs import MODELS, SPEC, ListedRun, exported, page

SAMPLES = 60
ALL = SAMPLES * 2 * len(MODELS)
Found = list[tuple[Any, int]]


@pytest.fixture
def run(tmp_path: Path) -> ListedRun:
    made = ListedRun(tmp_path, SAMPLES)
    made.fill(1, range(0, ALL, 1))
    return made


@pytest.fixture
def sources(run: ListedRun) -> Iterator[Sources]:
    opened = Sources([], str(run.store))
    yield opened
    opened.close()


def read_all(sources: Sources, limit: int = 7, **query: Any) -> list[SampleLine]:
    """Every page, from the first to the last."""
    found = page(sources, limit=limit, **query)
    lines = list(found.samples)
    while found.next is not None:
        found = page(sources, limit=limit, **query, after=found.next)
        lines += found.samples
    return lines


def read_backwards(sources: Sources, limit: int = 7, **query: Any) -> list[SampleLine]:
    found = page(sources, limit=limit, **query)
    while found.next is not None:
        found = page(sources, limit=limit, **query, after=found.next)
    lines = list(found.samples)
    while found.prev is not None:
        found = page(sources, limit=limit, **query, before=found.prev)
        lines = [*found.samples, *lines]
    return lines


CONDITIONS: dict[str, tuple[list[dict[str, Any]], Callable[[ExportLine, dict[str, Any]], bool]]] = {
    "status": (
        [{"status": each} for each in ("finished", "failed", "unfinished")],
        lambda line, given: line.status == given["status"],
    ),
    "model": ([{"model": each} for each in MODELS], lambda line, given: line.model == given["model"]),
    "kind": ([{"kind": "server"}], lambda line, given: line.error is not None and line.error.kind == given["kind"]),
    "anomaly": (
        [{"anomaly": each} for each in ("truncated", "empty", "refusal", "slow")],
        lambda line, given: given["anomaly"] in (*line.marks, *line.anomalies),
    ),
    "wrong": ([{"wrong": 1}], lambda line, given: any(as_number(each) == 0 for each in line.values.values())),
    "score": (
        [{"scorer": "right", "score": "right"}, {"scorer": "right", "wrong": 1}],
        lambda line, given: as_number(line.values.get("right")) == (1 if given.get("score") else 0),
    ),
    "broken": ([{"scorer": "length", "score": "failed"}], lambda line, given: "length" in line.broken),
    "none": (
        [{"scorer": "length", "score": "none"}],
        lambda line, given: "length" in line.values and line.values["length"] is None,
    ),
    "range": (
        [{"scorer": "length", "score_min": 0.5, "score_max": 2}, {"scorer": "length", "score_max": 1}],
        lambda line, given: (
            (number := as_number(line.values.get("length"))) is not None
            and given.get("score_min", -9) <= number <= given["score_max"]
        ),
    ),
    "seconds": ([{"seconds_min": 0.2}], lambda line, given: line.attempt > 0 and line.seconds >= given["seconds_min"]),
    "tokens": (
        [{"tokens_max": 20}],
        lambda line, given: line.attempt > 0 and line.input_tokens + line.output_tokens <= given["tokens_max"],
    ),
    "cost": ([{"cost_min": 0.00005}], lambda line, given: (line.cost_usd or -1) >= given["cost_min"]),
    "row": ([{"row__level": 3}], lambda line, given: (line.row or {})["level"] == 3),
    "flag": ([{"row__odd": "true"}], lambda line, given: (line.row or {})["odd"] is True),
    "search": (
        [{"q": "gamma delta"}, {"q": "q1*"}, {"q": "日"}],
        lambda line, given: has_words(line, given["q"]),
    ),
}
SORTS: dict[str, Callable[[ExportLine], Any]] = {
    "seconds": lambda line: line.seconds if line.attempt else -1.0,
    "tokens": lambda line: line.input_tokens + line.output_tokens if line.attempt else -1,
    "output_tokens": lambda line: line.output_tokens if line.attempt else -1,
    "cost": lambda line: -1.0 if line.cost_usd is None or not line.attempt else line.cost_usd,
    "attempts": lambda line: line.attempt,
    "status": lambda line: ("unfinished", "finished", "failed").index(line.status),
    "score:length": lambda line: as_number(line.values.get("length")),
}


def has_words(line: ExportLine, text: str) -> bool:
    message = line.error.message if line.error is not None else ""
    texts = " ".join((line.sample_id, str(line.input), str(line.target), line.output or "", message)).lower()
    if not text.isascii():
        return text in texts
    words = "".join(sign if sign.isalnum() else " " for sign in texts).split()
    return all(
        any(word.startswith(part[:-1]) if part.endswith("*") else word == part for word in words)
        for part in text.split()
    )


def expected(lines: list[ExportLine], chosen: list[tuple[str, dict[str, Any]]], sort: str) -> list[str]:
    """The keys that a filter selects, in order."""
    found = [
        (o, line) for o, line in enumerate(lines) if all(CONDITIONS[name][1](line, given) for name, given in chosen)
    ]
    if sort:
        value = SORTS[sort.removeprefix("-")]
        found = [(o, line) for o, line in found if value(line) is not None]
        found.sort(key=lambda each: (value(each[1]), each[0]), reverse=sort.startswith("-"))
    return [line.key for _, line in found]


def test_any_filter_and_order_gives_what_the_export_has_on_pages_that_join(run: ListedRun, sources: Sources) -> None:
    run.append([run.failed(0, "server", "again")])  # an answer that is there stays
    lines = exported(sources)
    unfinished_kinds = {line.key for line in lines if line.status == "unfinished"}
    draw = random.Random(5)
    page(sources, index="odd")
    for _ in range(60):
        names = draw.sample(sorted(CONDITIONS), draw.choice((0, 1, 1, 2, 3)))
        chosen = [(name, draw.choice(CONDITIONS[name][0])) for name in names]
        given: dict[str, Any] = {}
        if any(given.keys() & each.keys() or given.update(each) for _, each in chosen):
            continue  # two conditions on one field
        if "wrong" in given and given.get("scorer") not in (None, "right"):
            continue  # wrong for this scorer, not for any
        sort = draw.choice(("", "", *(f"{sign}{name}" for name in SORTS for sign in ("", "-"))))
        keys = expected(lines, chosen, sort)
        if "kind" in given:  # the list also has the last failure of samples that are still to be tried again
            given["status"], keys = "failed", [key for key in keys if key not in unfinished_kinds]
            if any(name == "status" for name in names):
                continue
        limit = draw.choice((1, 7, 50)) if len(keys) < 60 else 50
        found = read_all(sources, limit, sort=sort, **given)
        assert [line.key for line in found] == keys, (given, sort)
        assert [line.key for line in read_backwards(sources, limit, sort=sort, **given)] == keys, (given, sort)
        first = page(sources, limit=limit, sort=sort, **given)
        assert (first.total, first.exact) in {(len(keys), True), (None, False)}, (given, sort)


def test_lines_say_what_the_export_says(run: ListedRun, sources: Sources) -> None:
    lines = exported(sources)
    found = read_all(sources, 100, columns="row.level")
    assert [line.key for line in found] == [line.key for line in lines]
    for line, told in zip(found, lines, strict=True):
        assert (line.status, line.attempts, line.marks) == (told.status, told.attempt, list(told.marks))
        assert set(line.anomalies) == set(told.anomalies)
        assert line.cost_usd == (told.cost_usd if told.attempt else None)
        assert line.row == {"level": (told.row or {})["level"]}
        if told.error is not None:
            assert (line.kind, line.message) == (told.error.kind, told.error.message)
        if told.status == "finished":
            assert (line.input_tokens, line.output_tokens) == (told.input_tokens, told.output_tokens)
            assert line.scores == {
                name: {"failure": value["failure"]["message"]} if isinstance(value, dict) else value
                for name, value in told.scores.items()
            }
            assert line.answer == " ".join(str(told.output).split())
        assert (line.input, line.target) == (" ".join(str(told.input).split()), told.target)


def dump(sources: Sources) -> dict[str, list[Any]]:
    """Everything in the table that requests read, with names instead of numbers."""
    found = page(sources)
    assert not found.progress.building
    with sources.open(RunRef("e", "r")) as run:
        table = sources.tables.of(run)
    connection = table.file.connect()
    names = dict(connection.execute("SELECT id, name FROM names"))
    try:
        return {
            "samples": [
                (*row[:3], names.get(row[3]), *row[4:12]) for row in connection.execute("SELECT * FROM samples")
            ],
            "texts": list(connection.execute("SELECT * FROM questions LEFT JOIN answers USING (o)")),
            "scores": sorted(
                (names[row[0]], *row[1:7]) for row in connection.execute("SELECT * FROM scores")
            ),
        }  # fmt: skip
    finally:
        connection.close()


def test_a_table_that_was_kept_up_to_date_is_the_one_that_is_made_anew(
    run: ListedRun, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = rows.SampleReader.answer_text

    def note_and_read(self: rows.SampleReader, row: AnswerRow) -> str | None:
        reads.append(row.o)
        return read(self, row)

    monkeypatch.setattr(rows.SampleReader, "answer_text", note_and_read)
    page(sources)
    assert len(reads) == sum(line.status == "finished" for line in exported(sources))
    for seed in range(2, 6):
        reads.clear()
        open_ones = {line.key for line in exported(sources) if line.status != "finished"}
        run.append([run.resumed()])  # failed samples are unfinished again
        run.fill(seed, random.Random(seed).sample(range(ALL), 40))
        kept = dump(sources)
        done = {line.key for line in exported(sources) if line.status == "finished"}
        assert {run.keys[o] for o in reads} == open_ones & done, "only new answers are read from the journal"
        with sources.open(RunRef("e", "r")) as viewed:
            sources.tables.of(viewed).file.discard()
        assert dump(sources) == kept


def test_a_page_that_shows_nothing_new_writes_nothing(run: ListedRun, sources: Sources) -> None:
    def changes() -> int:
        with sources.open(RunRef("e", "r")) as viewed:
            connection = sources.tables.of(viewed).file.connect()
        found: int = connection.execute("SELECT value FROM about WHERE name = 'changes'").fetchone()[0]
        connection.close()
        return found

    page(sources)
    before = changes()
    page(sources, sort="-seconds")
    assert changes() == before
    o = next(o for o, line in enumerate(exported(sources)) if line.status == "unfinished")
    run.append([run.finished(o, "new")])
    page(sources)
    assert changes() == before + 1, "one of two pages has changed"


def test_rows_that_change_between_pages_move_no_other_row(run: ListedRun, sources: Sources) -> None:
    for sort in ("", "-seconds", "tokens", "-score:length"):
        stable = {line.key for line in exported(sources) if line.status == "finished"}
        lines = exported(sources)
        keys = [key for key in expected(lines, [], sort) if key in stable]
        seed = itertools.count(100)
        found = page(sources, limit=25, sort=sort)
        seen = list(found.samples)
        while found.next is not None:
            run.fill(next(seed), random.Random(len(seen)).sample(range(ALL), 3))
            found = page(sources, limit=25, sort=sort, after=found.next)
            seen += found.samples
        assert [line.key for line in seen if line.key in stable] == keys, sort
        if not sort:
            assert [line.key for line in seen] == run.keys, "in plan order every sample is listed once"


def test_a_changed_answer_is_not_found_by_its_old_words(run: ListedRun, sources: Sources) -> None:
    o = next(o for o, line in enumerate(exported(sources)) if line.status == "failed")
    run.append([run.resumed(), run.failed(o, "server", "zebra")])
    assert [line.key for line in page(sources, q="zebra").samples] == [run.keys[o]]
    run.append([run.finished(o, "giraffe")])
    assert page(sources, q="zebra").samples == []
    assert [line.key for line in page(sources, q="giraffe").samples] == [run.keys[o]]
    assert page(sources, q="giraffe").total == 1


def test_another_evaluation_replaces_the_scores(run: ListedRun, sources: Sources) -> None:
    assert page(sources, scorer="length", score_min=0).total
    o = next(o for o, line in enumerate(exported(sources)) if line.status == "finished")
    run.append([run.scoring("evaluation-2")])
    run.append([run.score(o, "grade", 7, "evaluation-2", last=True)])
    found = page(sources)
    assert found.choices.scorers == ["grade"]
    assert [line.scores for line in found.samples if line.scores] == [{"grade": 7}]
    assert page(sources, wrong=1).samples == []


def test_a_score_that_comes_later_or_is_set_by_hand_is_shown(run: ListedRun, sources: Sources) -> None:
    o = next(o for o, line in enumerate(exported(sources)) if line.status == "unfinished")
    run.append([run.finished(o, "new")])

    def shown() -> SampleLine:
        return next(line for line in read_all(sources, 100) if line.key == run.keys[o])

    assert shown().scores == {}
    run.append([run.score(o, "right", False, last=True)])
    assert shown().scores == {"right": False}
    assert run.keys[o] in {line.key for line in read_all(sources, wrong=1)}
    run.append([run.score(o, "right", True, author="me", at="2026-01-01T00:00:00Z")])
    assert (shown().scores, shown().edited) == ({"right": True}, ["right"])
    assert run.keys[o] not in {line.key for line in read_all(sources, wrong=1)}


def test_prices_that_a_resume_changes_change_the_cost(tmp_path: Path) -> None:
    run = ListedRun(tmp_path, 5)
    run.append([run.finished(o, "answer") for o in range(run.count)])  # a resume changes no row of finished samples
    opened = Sources([], str(run.store))
    try:
        assert {line.model: line.cost_usd for line in page(opened).samples}["large"] is None
        models = [{**model, "price": {"input": 10.0, "output": 20.0}} for model in SPEC["models"]]
        run.append([run.resumed({**SPEC, "models": models})])
        assert {line.key: line.cost_usd for line in page(opened).samples} == {
            line.key: line.cost_usd for line in exported(opened)
        }
    finally:
        opened.close()


def test_the_list_shows_the_run_as_it_was_after_a_record(run: ListedRun, sources: Sources) -> None:
    with sources.open(RunRef("e", "r")) as viewed:
        last = viewed.index.last_n
    before = [line.status for line in read_all(sources, 100)]
    run.fill(7, range(ALL))
    assert [line.status for line in read_all(sources, 100)] != before
    assert [line.status for line in read_all(sources, 100, at=last)] == before
    assert page(sources, at=3).total == ALL
    assert page(sources, at=3, status="finished").total == 0
    assert page(sources, at=last, q="gamma", sort="-seconds").samples


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sort", "size"),
        ("sort", "score:none"),
        ("status", "done"),
        ("after", "!"),
        ("after", "W251bGwsLTVd"),
        ("seconds_min", "long"),
        ("cost_max", "nan"),
        ("score", "right"),
        ("cause", "x"),
        ("columns", "nothing"),
        ("anomaly", "weird"),
        ("limit", "many"),
        ("q", "\ud800"),
        ("row__level", "\ud800"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(sources: Sources, name: str, value: str) -> None:
    with pytest.raises(UsageError):
        page(sources, **{name: value})


def test_a_cursor_of_another_order_shows_the_first_page(sources: Sources) -> None:
    cursor = page(sources, limit=5).next
    assert page(sources, sort="-seconds", after=cursor).samples == page(sources, sort="-seconds").samples


# Requests that must not cost the table.


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"q": "under_score"}, 1),
        ({"q": "score _"}, 1),
        ({"q": "_"}, None),
        ({"q": "\U0001e900dlam"}, None),
        ({"anomaly": "identical"}, 0),
        ({"anomaly": "slow"}, 0),
        ({"anomaly": "identical", "sort": "-score:length"}, 0),
        ({"anomaly": "identical", "model": "none"}, 0),
    ],
)
def test_no_filter_makes_the_table_be_thrown_away(
    tmp_path: Path, discards: list[str], query: dict[str, str], count: int | None
) -> None:
    run = ListedRun(tmp_path, 5)
    run.append([run.finished(0, "an under_score")])
    run.append([run.score(0, "length", 1, last=True)])
    opened = Sources([], str(run.store))
    try:
        page(opened, q="word")
        found = page(opened, **query)
        assert count is None or len(found.samples) == count
        assert discards == []
    finally:
        opened.close()


def test_a_statement_that_fails_is_reported_and_the_table_is_kept(
    sources: Sources, discards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page(sources)
    monkeypatch.setattr(filters, "_NEVER", "no_such_column")
    with pytest.raises(UnreadableTableError, match="no such column"):
        page(sources, model="none", sort="-seconds")
    assert discards == []


def test_a_schema_that_was_changed_is_made_again(sources: Sources, discards: list[str]) -> None:
    truth = read_all(sources, 100)
    for change in ("DROP INDEX by_wrong", "ALTER TABLE answers RENAME COLUMN message TO text", "CREATE TABLE more (a)"):
        with contextlib.closing(sqlite3.connect(database(sources))) as connection, connection:
            connection.execute(change)
        assert read_all(sources, 100) == truth
    assert len(discards) == 3


@pytest.mark.long
def test_conditions_on_thousands_of_cells_stay_within_the_limits_of_sqlite() -> None:
    parts = [f"(o >= {2 * n} AND o < {2 * n + 1})" for n in range(20_000)]
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (o)")
        connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(100)])
        query = f"SELECT count(*) FROM t WHERE {filters.any_of(parts)}"
        assert connection.execute(query).fetchone() == (50,)


def test_only_the_tables_that_were_used_last_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_OPEN_MAX", 2)
    run = ListedRun(tmp_path, 2)
    run.append([run.finished(0, "a"), run.scoring("second"), run.scoring("third")])
    opened = Sources([], str(run.store))
    try:
        with opened.open(RunRef("e", "r")) as viewed:
            first = opened.tables.of(viewed, "evaluation-1")
            second = opened.tables.of(viewed, "second")
            assert opened.tables.of(viewed, "evaluation-1") is first
            opened.tables.of(viewed)
            assert opened.tables.of(viewed, "evaluation-1") is first
            assert opened.tables.of(viewed, "second") is not second
        assert page(opened, evaluation="evaluation-1").total == run.count
    finally:
        opened.close()


# Files that cannot be used.


def database(sources: Sources) -> str:
    with sources.open(RunRef("e", "r")) as viewed:
        return sources.tables.of(viewed).file.path


@pytest.fixture
def discards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of tables that were thrown away."""
    found: list[str] = []
    discard = file.TableFile.discard

    def note_and_discard(self: file.TableFile) -> None:
        found.append(self.folder)
        discard(self)

    monkeypatch.setattr(file.TableFile, "discard", note_and_discard)
    return found


def test_flipped_bytes_are_never_shown(run: ListedRun, sources: Sources, discards: list[str]) -> None:
    truth = {line.key: line for line in read_all(sources, 100)}
    path = database(sources)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole, draw = Path(path).read_bytes(), random.Random(3)
    for _ in range(40):
        broken = bytearray(whole)
        for at in draw.sample(range(len(whole)), 40):
            broken[at] ^= 1 << draw.randrange(8)
        Path(path).write_bytes(broken)
        for extra in ("-wal", "-shm"):
            Path(path + extra).unlink(missing_ok=True)
        for line in (*page(sources, limit=100).samples, *page(sources, limit=100, sort="-tokens").samples):
            assert line == truth[line.key]
    assert len(discards) > 10


@pytest.mark.parametrize("content", [b"", b"not a database" * 999, None])
def test_a_file_that_is_no_table_is_made_again(sources: Sources, content: bytes | None) -> None:
    truth = read_all(sources, 100)
    path = Path(database(sources))
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    for extra in ("-wal", "-shm"):
        Path(f"{path}{extra}").unlink(missing_ok=True)
    assert read_all(sources, 100) == truth


def test_a_table_of_another_version_or_run_is_made_again(
    run: ListedRun, sources: Sources, discards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = read_all(sources, 100)
    monkeypatch.setattr(file, "VERSION", file.VERSION + 1)
    assert read_all(sources, 100) == truth
    assert len(discards) == 1
    connection = sqlite3.connect(database(sources))
    with connection:
        connection.execute("UPDATE about SET value = '{}' WHERE name = 'identity'")
        connection.execute("UPDATE questions SET input = 'of another run'")
    connection.close()
    assert read_all(sources, 100) == truth
    assert len(discards) == 2


def test_a_table_that_is_removed_while_the_server_runs_is_made_again(sources: Sources) -> None:
    truth = read_all(sources, 100)
    shutil.rmtree(os.path.dirname(database(sources)))
    assert read_all(sources, 100) == truth


def test_a_run_whose_rows_cannot_be_read_is_listed_without_questions(tmp_path: Path) -> None:
    run = ListedRun(tmp_path, 5)
    run.fill(1, range(10))
    Path(run.folder, "data.jsonl.zst").write_bytes(b"nothing")
    opened = Sources([], str(run.store))
    try:
        found = page(opened, columns="input,answer,row.level")
        assert [line.key for line in found.samples] == run.keys
        assert {(line.input, line.row["level"]) for line in found.samples} == {("", None)}
        assert any(line.answer for line in found.samples)
        assert page(opened, row__level=1).samples == []
    finally:
        opened.close()


# Tables that are made in the background.


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ListedRun:
    """More than one request brings up to date."""
    monkeypatch.setattr(upkeep, "SMALL", 100)
    monkeypatch.setattr(upkeep, "_SORTED_SMALL", 100)
    made = ListedRun(tmp_path, 1100)
    made.fill(1, range(0, made.count, 7))
    return made


def wait(sources: Sources, **query: Any) -> SampleList:
    end = time.monotonic() + 60
    while (found := page(sources, **query)).progress.building:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_large_run_is_listed_in_the_background_and_pages_say_how_far(
    large: ListedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, write = threading.Event(), PageWriter.write
    written: list[int] = []

    def slow_write(self: Any, content: Any) -> None:
        if written:
            assert go.wait(60)
        write(self, content)
        written.append(content.page.first)

    monkeypatch.setattr(PageWriter, "write", slow_write)
    opened = Sources([], str(large.store))
    try:
        assert page(opened).progress.building
        end = time.monotonic() + 60
        while not written and time.monotonic() < end:
            time.sleep(0.01)
        found = page(opened)
        assert (found.progress.listed, found.total, found.progress.building) == (1000, 1000, True)
        assert 0.2 < found.coverage < 0.3
        assert [line.key for line in found.samples] == large.keys[:100]
        go.set()
        found = wait(opened)
        assert (found.progress.listed, found.coverage, found.total) == (large.count, 1.0, large.count)
        assert written == sorted(written), "in plan order"
        assert page(opened, sort="-seconds").notes, "the order is not there yet"
        lines = exported(opened)
        wait(opened, sort="-seconds")
        keys = [line.key for line in page(opened, sort="-seconds", limit=50).samples]
        assert keys == expected(lines, [], "-seconds")[:50]
        assert page(opened, q="gamma").notes
        assert [line.key for line in wait(opened, q="gamma", limit=1000).samples] == [
            line.key for line in lines if has_words(line, "gamma")
        ][:1000]
    finally:
        go.set()
        opened.close()


def test_a_server_that_ends_while_it_builds_continues_where_it_was(
    large: ListedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PageWriter.write
    written: list[int] = []

    def stop_after_two(self: Any, content: Any) -> None:
        if len(written) == 2:
            raise OSError("killed")
        write(self, content)
        written.append(content.page.first)

    def note_and_write(self: Any, content: Any) -> None:
        write(self, content)
        written.append(content.page.first)

    monkeypatch.setattr(PageWriter, "write", stop_after_two)
    opened = Sources([], str(large.store))
    found = wait(opened)
    assert (found.progress.listed, found.progress.problem) == (2000, "killed")
    opened.close()
    monkeypatch.setattr(PageWriter, "write", note_and_write)
    opened = Sources([], str(large.store))
    try:
        found = wait(opened)
        assert found.progress.listed == large.count
        assert len(written) == len(set(written)), "no page is written twice"
        assert [line.key for line in read_all(opened, 1000)] == large.keys
    finally:
        opened.close()


def wait_for_thread(sources: Sources) -> upkeep.TableProgress:
    """What the table says once its thread has ended."""
    with sources.open(RunRef("e", "r")) as viewed:
        table, planned = sources.tables.of(viewed), viewed.index.story.planned
    end = time.monotonic() + 60
    while table.is_busy and time.monotonic() < end:
        time.sleep(0.01)
    with contextlib.closing(table.file.connect()) as connection:
        return table.progress(connection, planned)


def test_only_one_process_writes_and_the_other_shows_what_is_there(large: ListedRun) -> None:
    one, other = Sources([], str(large.store)), Sources([], str(large.store))
    try:
        with one.open(RunRef("e", "r")) as viewed:
            table = one.tables.of(viewed)
        with table.file.writer() as is_mine:
            assert is_mine
            page(other)
            progress = wait_for_thread(other)
            assert (progress.listed, progress.building) == (0, True)
        assert wait(other).progress.listed == large.count
        assert page(one).progress.listed == large.count
    finally:
        one.close()
        other.close()


def test_a_table_that_another_process_has_completed_is_complete_here_too(large: ListedRun) -> None:
    one, other = Sources([], str(large.store)), Sources([], str(large.store))
    try:
        with one.open(RunRef("e", "r")) as viewed:
            table = one.tables.of(viewed)
        with table.file.writer():
            page(other)
            assert not wait_for_thread(other).listed
        assert wait(one).progress.listed == large.count
        found = page(other)
        assert (found.progress.listed, found.progress.building) == (large.count, False)
    finally:
        one.close()
        other.close()


def test_a_table_in_use_is_not_evicted_and_gc_removes_that_of_a_removed_run(run: ListedRun, tmp_path: Path) -> None:
    opened = Sources([], str(run.store))
    page(opened)
    folder = Path(database(opened)).parent
    make_room(str(folder.parents[1]), bytes_max=0)
    assert folder.is_dir()
    opened.close()
    remove_stale_entries()
    assert folder.is_dir()
    shutil.rmtree(run.folder)
    remove_stale_entries()
    assert not folder.exists()


def test_what_no_index_answers_is_looked_for_in_part_and_then_further(
    large: ListedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LOOKED_MAX", 1000)
    opened = Sources([], str(large.store))
    try:
        wait(opened)
        found = page(opened, row__level=3, row__odd="true", limit=1000)
        assert found.notes
        assert found.total is None
        keys = [line.key for line in read_all(opened, 1000, row__level=3, row__odd="true")]
        lines = exported(opened)
        assert keys == [line.key for line in lines if (line.row or {})["level"] == 3 and (line.row or {})["odd"]]
        wait(opened, index="level")
        found = wait(opened, index="odd", row__level=3, row__odd="true", limit=1000)
        assert (found.notes, found.exact, found.total) == ([], True, len(keys))
        assert [line.key for line in found.samples] == keys[:1000]
    finally:
        opened.close()


# Errors.


def error_page(sources: Sources, **query: str) -> errors.ErrorList:
    return errors.load(PageRequest(sources, {"experiment": "e", "run": "r"}, query))


def test_examples_of_errors_have_their_questions(run: ListedRun, sources: Sources) -> None:
    asked = {line.key: line.input for line in exported(sources)}
    causes = [cause for group in error_page(sources).groups for cause in group.causes if cause.key]
    assert {group.name for group in error_page(sources).groups} >= {"failed", "scorer-length", "marks", "anomalies"}
    for cause in causes:
        assert cause.question.startswith(f"What is {asked[cause.key].split()[2]}"), cause.key
    body = errors.render(error_page(sources), Links())
    assert "Question: </span>What is " in str(body.content)


def test_errors_are_of_the_chosen_evaluation(run: ListedRun, sources: Sources) -> None:
    before = {group.name: group.count for group in error_page(sources).groups}
    run.append([run.scoring("evaluation-2")])
    now, chosen = error_page(sources), error_page(sources, evaluation="evaluation-1")
    assert "scorer-length" not in {group.name for group in now.groups}
    assert {group.name: group.count for group in chosen.groups} == before
    (group,) = [each for each in chosen.groups if each.name == "scorer-length"]
    assert all(cause.text.startswith("cannot rate") for cause in group.causes if cause.key)
    page = str(errors.render(chosen, Links()).content)
    assert "/runs/e/r/errors?evaluation=evaluation-2" in page
    assert "score=failed&amp;cause=" in page
    assert "&amp;evaluation=evaluation-1" in page


def test_causes_add_up_and_lead_to_their_samples(run: ListedRun, sources: Sources) -> None:
    lines = exported(sources)
    found = {group.name: group for group in error_page(sources).groups}
    failed = found["failed"]
    assert failed.count == sum(line.status == "failed" for line in lines)
    assert {(cause.title, cause.message) for cause in failed.causes} == {
        (kind, message) for kind in ("server", "timeout") for message in ("status #", "no answer")
    }
    assert found["scorer-length"].count == sum("length" in line.broken for line in lines)
    assert found["marks"].count == sum(len(line.marks) for line in lines)
    assert found["anomalies"].count == sum(len(line.anomalies) for line in lines)
    for group in found.values():
        assert sum(cause.count for cause in group.causes) + group.others == group.count
        for cause in group.causes:
            listed = read_all(sources, 100, **cause.query)
            assert len(listed) == cause.count, (group.name, cause.query)
            assert not cause.key or cause.key in {line.key for line in listed}


def test_a_long_message_is_cut_to_one_screen(run: ListedRun, sources: Sources) -> None:
    o = next(o for o, line in enumerate(exported(sources)) if line.status == "failed")
    run.append([run.resumed(), run.failed(o, "solver", "Traceback\n" + "  line\n" * 9999)])
    cause = next(each for group in error_page(sources).groups for each in group.causes if each.title == "solver")
    assert len(cause.text.splitlines()) < 30


def test_messages_that_are_all_different_do_not_make_endless_causes(tmp_path: Path) -> None:
    run = ListedRun(tmp_path, 20)
    draw = random.Random(1)
    run.append([run.failed(o, "solver", "".join(draw.choices("abcdefgh", k=9))) for o in range(60)])
    opened = Sources([], str(run.store))
    try:
        (group,) = error_page(opened).groups
        assert group.count == 60
        assert len(group.causes) == 20
        assert group.others == 40
    finally:
        opened.close()
