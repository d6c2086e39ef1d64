"""A table fits its terminal, and nothing in it is cut off."""

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast.report.text import Grid, Sentence

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


def board(width: int) -> list[str]:
    columns = ("task", "scorer", "rank", "model", "mean", "95% interval", "n", "cost")
    rows = [
        (task, "exact_match", "1", model, "0.0333", "0.0059 .. 0.1667", "30", "$0.0004200 and more")
        for task in ("arithmetic", "geography", "history")
        for model in ("gpt-4o-mini", "claude-haiku", "llama-3.1-8b-instruct")
    ]
    grid = Grid(columns, rows, titles=4, right=("rank", *columns[4:]), whole=("scorer",))
    out = io.StringIO()
    Console(file=out, width=width).print(grid.with_optional(("cost", "n"), "add --all"), crop=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_optional_columns_are_left_out_before_rows_become_paragraphs() -> None:
    wide, usual, narrow = board(140), board(80), board(40)
    assert wide[0].endswith("cost")
    assert len(wide) == 1 + 9
    assert usual[0].split() == ["task", "scorer", "rank", "model", "mean", "95%", "interval", "n"]
    assert usual[-1] == "no room for cost: add --all"
    assert narrow[0] == "arithmetic / exact_match / 1 /", "each row is a paragraph, with all of its columns"
    assert any("cost $0.0004200" in line for line in narrow)


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_sentence_is_wrapped_on_a_terminal_and_one_line_elsewhere(width: int) -> None:
    text = "no difference can be seen between small and large (95%: large is up to 14.9 points lower)"
    for is_terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=is_terminal, color_system=None)
        console.print(Sentence(text), crop=False)
        lines = out.getvalue().splitlines()
        assert " ".join(map(str.strip, lines)) == text
        assert (max(map(len, lines)) <= width) is (is_terminal or width > len(text))
