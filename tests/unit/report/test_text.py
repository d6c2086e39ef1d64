"""Counts, numbers and amounts as text, and the beginning of what is long."""

import pytest

from holdfast.report.text import brief, counted, first_line, money, shortened, three_digits


@pytest.mark.parametrize(
    ("count", "several", "said"),
    [
        (0, "", "0 things"),
        (1, "", "1 thing"),
        (2, "", "2 things"),
        (1, "thingies", "1 thing"),
        (3, "thingies", "3 thingies"),
    ],
)
def test_one_is_one_and_everything_else_is_several(count: int, several: str, said: str) -> None:
    assert counted(count, "thing", several) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("\n \nsecond\nthird", "second"),
        ("\x1b[2J\rc", "\\u001b[2J…"),
        ("0123456789", "0123456789"),
        ("0123456789x", "012345678…"),
    ],
)
def test_a_first_line_is_short_and_safe_for_a_terminal(text: str, said: str) -> None:
    assert first_line(text, 10) == said


@pytest.mark.parametrize("width", [-1, 0, 1])
def test_a_terminal_without_a_width_is_no_error(width: int) -> None:
    assert shortened("long", width) == "…"


@pytest.mark.parametrize(
    ("dollars", "said"),
    [(0.0, "about $0.00"), (0.004, "less than $0.01"), (0.12, "about $0.12"), (1234.5, "about $1,234.50")],
)
def test_money_is_never_more_exact_than_an_estimate(dollars: float, said: str) -> None:
    assert money(dollars) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (86.94, "86.9"),
        (999.4, "999"),
        (999.6, "1000"),
        (1161.3, "1161"),
        (-4e4, "-40000"),
    ],
)
def test_a_large_number_has_no_exponent(value: float, said: str) -> None:
    assert three_digits(value) == said


def test_a_duration_of_many_hours_has_no_exponent() -> None:
    assert brief(999.7 * 3600) == "1000 h"
