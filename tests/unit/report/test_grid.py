"""A table fits its terminal, and nothing in it is cut off."""

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast.report.text import Grid

ROWS = [
    ("20260101-120000-brisk-otter", "an-experiment-with-a-long-name", "completed", "12/12", ""),
    ("short", "x", "interrupted", "3/1000000", "nightly 表"),
]


def shown(width: int, rows: Sequence[tuple[str, ...]] = ROWS) -> list[str]:
    grid = Grid(("run", "experiment", "status", "done", "tags"), rows, right=("done",), whole=("run",))
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(grid, crop=False)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [200, 100, 80, 72, 60, 40, 30, 28])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(cell_len(line.rstrip()) for line in shown(width)) <= width


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 28])
def test_a_name_that_is_to_be_copied_stays_whole(width: int) -> None:
    assert any("20260101-120000-brisk-otter" in line for line in shown(width))


@pytest.mark.parametrize("width", range(8, 120))
def test_nothing_is_lost_at_any_width(width: int) -> None:
    said = "".join("".join(shown(width)).split())
    letters = sorted(said)
    for row in ROWS:
        for letter in "".join(row).replace(" ", ""):
            assert letter in letters
            letters.remove(letter)


def test_a_column_that_is_empty_throughout_is_left_out() -> None:
    assert "tags" in shown(200)[0]
    assert "tags" not in shown(200, ROWS[:1])[0]


def test_where_it_is_narrow_each_row_is_a_paragraph() -> None:
    assert [line.rstrip() for line in shown(30, ROWS[1:])] == [
        "short",
        "  experiment x",
        "  status interrupted",
        "  done 3/1000000",
        "  tags nightly 表",
    ]


def test_numbers_are_aligned_to_the_right() -> None:
    head, first, second = shown(200)
    end = head.index("done") + len("done")
    assert [line[:end].split()[-1] for line in (first, second)] == ["12/12", "3/1000000"]
