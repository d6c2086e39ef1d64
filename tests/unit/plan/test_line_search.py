"""One line of a plan or data file is found by its bytes, also at both ends, across frames, and beside similar lines."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import DamagedError
from holdfast.journal import SealedContent
from holdfast.journal.scan import Piece
from holdfast.plan.files import LineFile, find_line
from holdfast.plan.lookup import NumberedLines
from holdfast.report import find_planned, key_at
from tests.unit.engine.runs import Asked, folder, given, go, rows
from tests.unit.state.stories import fold_of


def find_numbered_line(path: str, offset: int, name: str, number: int) -> bytes | None:
    with contextlib.closing(NumberedLines(path, name, offset)) as lines:
        return lines.find(number)


def lines_of(count: int) -> list[bytes]:
    return [msgspec.json.encode({"r": n, "row": {"r": n + 1, "text": "x" * (n % 500)}}) for n in range(1, count + 1)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Several frames."""
    found = str(tmp_path_factory.mktemp("lines") / "data.jsonl.zst")
    LineFile(found).write(lines_of(2000))
    return found


@pytest.mark.parametrize("number", [1, 2, 3, 999, 1998, 2000])
def test_a_line_is_found_by_its_beginning(path: str, number: int) -> None:
    """The row inside the line before begins with the same bytes."""
    assert find_line(path, 0, b'\n{"r":%d,' % number) == lines_of(2000)[number - 1]


def test_a_line_that_is_missing_is_not_found(path: str) -> None:
    assert find_line(path, 0, b'\n{"r":2001,') is None
    assert find_line(path, 0, b'\n{"r":20010,') is None


def test_only_lines_from_the_offset_on_are_searched(path: str) -> None:
    lines = lines_of(2000)
    offset = sum(len(line) + 1 for line in lines[:500])
    assert find_line(path, offset, b'\n{"r":500,') is None
    assert find_line(path, offset, b'\n{"r":501,') == lines[500]


def test_damage_before_the_line_is_reported(path: str, tmp_path: Path) -> None:
    content = bytearray(Path(path).read_bytes())
    content[40] ^= 0xFF
    copy = tmp_path / "data.jsonl.zst"
    copy.write_bytes(content)
    with pytest.raises(DamagedError, match="is damaged"):
        find_line(str(copy), 0, b'\n{"r":2000,')
    copy.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedError):
        find_line(str(copy), 0, b'\n{"r":2000,')


@pytest.mark.parametrize("number", [1, 2, 3, 500, 999, 1001, 1998, 2000])
@pytest.mark.parametrize("skipped", [0, 500])
def test_a_line_is_found_by_its_number(path: str, number: int, skipped: int) -> None:
    lines = lines_of(2000)
    offset = sum(len(line) + 1 for line in lines[:skipped])
    expected = lines[number - 1] if number > skipped else None
    assert find_numbered_line(path, offset, "r", number) == expected
    assert find_numbered_line(path, offset, "r", 2001) is None
    with pytest.raises(DamagedError, match="does not begin with its number"):
        find_numbered_line(path, offset, "o", number)


def test_few_lines_are_read_to_find_one_by_its_number(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    plain = SealedContent.pieces

    def counting(content: SealedContent, offset: int, end: int | None = None) -> Iterator[Piece]:
        nonlocal read
        for piece in plain(content, offset, end):
            read += 1
            yield piece

    monkeypatch.setattr(SealedContent, "pieces", counting)
    find_line(path, 0, b'\n{"r":2000,')
    every, read = read, 0
    find_numbered_line(path, 0, "r", 2000)
    assert 0 < read <= 5 + every // 2


def test_a_line_of_a_file_that_is_not_in_order_is_still_found(tmp_path: Path) -> None:
    path, lines = str(tmp_path / "data.jsonl.zst"), lines_of(2000)[::-1]
    LineFile(path).write(lines)
    assert [find_numbered_line(path, 0, "r", number) for number in (1, 1000, 2000)] == [
        lines[-1],
        lines[1000],
        lines[0],
    ]


def test_every_ordinal_leads_to_its_key(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(12), fields={"repeats": 2})]))
    run = folder(tmp_path)
    cells = fold_of(run).story.cells
    keys = [key_at(run, cells, o) for o in range(24)]
    assert len(set(keys)) == 24
    assert [found.o for key in keys if (found := find_planned(run, cells, key))] == list(range(24))
    assert (key_at(run, cells, -1), key_at(run, cells, 24)) == ("", "")


def test_every_planned_key_is_found_with_its_row(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(12))]))
    run = folder(tmp_path)
    cells = fold_of(run).story.cells
    found = [find_planned(run, cells, f"task/mock/s{n}/1") for n in range(12)]
    assert [each.o for each in found if each is not None] == list(range(12))
    assert [each.row["id"] for each in found if each is not None and each.row] == [f"s{n}" for n in range(12)]
    assert find_planned(run, cells, "task/mock/s/1") is None
