"""Single lines of plan and data files, found by number: the same as by reading all lines."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedError
from holdfast.journal.scan import Piece, SealedContent
from holdfast.plan.files import LineFile
from holdfast.plan.lookup import NumberedLines


def written(path: Path, sizes: list[int], first: int = 0, step: int = 1) -> list[bytes]:
    """A file with one line for each size."""
    lines = [b'{"r":%d,"row":"%s"}' % (first + step * i, b"x" * size) for i, size in enumerate(sizes)]
    LineFile(str(path)).write(lines)
    return lines


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(0, 10**12), st.integers(1, 3))
def test_every_line_is_found_by_its_number_and_no_other_is(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "data.jsonl.zst"
    lines = written(path, sizes, first, step)
    found = NumberedLines(str(path), "r")
    for number in range(first - 1, first + step * len(sizes) + 1):
        place, is_between = divmod(number - first, step)
        wanted = lines[place] if not is_between and 0 <= place < len(lines) else None
        assert found.find(number) == wanted
    found.close()


def test_a_line_longer_than_many_frames_is_found_and_so_are_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.zst"
    lines = written(path, [10, 1_000_000, 10, 300_000, 10])
    found = NumberedLines(str(path), "r")
    assert [found.find(number) for number in range(5)] == lines
    found.close()


def test_only_a_few_frames_of_a_long_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.jsonl.zst"
    lines = written(path, [60] * 50_000)
    begun: list[int] = []
    pieces = SealedContent.pieces

    def counted(self: SealedContent, offset: int, end: int | None = None) -> Iterator[Piece]:
        begun.append(offset)
        return pieces(self, offset, end)

    monkeypatch.setattr(SealedContent, "pieces", counted)
    found = NumberedLines(str(path), "r")
    assert found.find(43_210) == lines[43_210]
    assert len(begun) < 25
    found.close()


def test_a_file_of_other_lines_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.zst"
    LineFile(str(path)).write([b"not a row"])
    with pytest.raises(DamagedError, match="does not begin with its number"):
        NumberedLines(str(path), "r").find(1)
