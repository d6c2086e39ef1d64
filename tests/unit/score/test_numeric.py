"""Numbers as models write them."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.samples import Score
from holdfast.score import last_quantity, numeric
from tests.unit.score.answers import answer, sample, score, value

READ: dict[str, str | None] = {
    "42": "42",
    "The answer is 42.": "42",
    "1,234.5": "1234.5",
    "1,234,567": "1234567",
    "1,23,456": "123456",
    "1'234.5": "1234.5",
    "1\u2019234": "1234",
    "1\u202f234": "1234",
    "1\u00a0234": "1234",
    "1_000": "1000",
    "1.234,5": "1234.5",
    "1.234.567,89": "1234567.89",
    "It is 1.234.567.": "1234567",
    "0.125,3": "3",
    "3,5": "5",
    "1, 2, 3": "3",
    "-3": "-3",
    "\u22123": "-3",
    "\uff0d3": "-3",
    "\u20133": "-3",
    "+3": "3",
    "x=-3": "-3",
    "5-3": "3",
    "pages 5\u201310": "10",
    "GPT-4": "4",
    "2024-05-17": "17",
    "(-3)": "-3",
    "答案是-3": "-3",
    "答案是42。": "42",
    "3e-4": "0.0003",
    "3E4": "30000",
    "3e\u22124": "0.0003",
    "3\u00d710\u207b\u2074": "0.0003",
    "3 x 10^4": "30000",
    "2*10**3": "2000",
    r"$3 \times 10^{-4}$": "0.0003",
    "1/2": "1/2",
    "-1/2": "-1/2",
    "1 / 2": "1/2",
    "1\u20442": "1/2",
    "1 1/2": "3/2",
    "\u00bd": "1/2",
    "1\u00bd": "3/2",
    "-1\u00bd": "-3/2",
    r"\frac{1}{2}": "1/2",
    r"\dfrac{3}{4}": "3/4",
    r"-2\frac{1}{2}": "-5/2",
    r"\frac{-1}{2}": "-1/2",
    r"\frac{1}{-2}": "-1/2",
    r"-\frac{ - 1 }{2}": "1/2",
    r"\frac{1.5}{2}": "3/4",
    r"\frac12": "1/2",
    "10^3": "1000",
    "2**10": "1024",
    r"$10^{-3}$": "1/1000",
    "-2^2": "-4",
    "x^2": "2",
    "7, not 0^-1": "7",
    "7, not 9^99999": "7",
    "**5** of 2**": "2",
    "No.5": "5",
    "Ans.42": "42",
    "is .5": "0.5",
    r"\boxed{-3}": "-3",
    r"1{,}234": "1234",
    r"1\,234": "1234",
    "3/4/2024": "2024",
    "$5": "5",
    "-$5.50": "-5.5",
    "$-5": "-5",
    "€ 1,000": "1000",
    ".5": "0.5",
    "5.": "5",
    "**7**": "7",
    "\u0663": "3",
    "\u0661\u0662\u066b\u0665": "12.5",
    "\uff11\uff12": "12",
    "\u0967\u0968": "12",
    "\u09e7\u09e8\u099f\u09bf": "12",  # Bengali, with a suffix
    "\u0e51\u0e52": "12",  # Thai
    "\u0c67\u0c68": "12",  # Telugu
    "\u09e7,\u09e8\u09e9\u09ea": "1234",
    "\uff12\uff0c\uff10\uff10\uff10": "2000",
    "1.234": "1.234",
    "1 234": "234",
    "m\u00b2": None,
    "1/0": None,
    "7, not 1/0": "7",
    "1e99999": None,
    "9" * 5000: None,
    "12345678901234567891": "12345678901234567891",
    "": None,
    "none": None,
    "-": None,
    "%": None,
    "NaN, inf": None,
}


@pytest.mark.parametrize("text", READ, ids=lambda text: ascii(text)[:30])
def test_the_last_number_is_read_as_a_person_would(text: str) -> None:
    found = last_quantity(text)
    wanted = READ[text]
    assert (found and found.value) == (None if wanted is None else Fraction(wanted))


@pytest.mark.parametrize(
    "text", ["50%", "50 %", "50 percent", "50 per cent", r"50\%", "50\uff05", "\u0665\u0660\u066a"]
)
def test_a_percentage_is_told(text: str) -> None:
    found = last_quantity(text)
    assert found is not None
    assert (found.value, found.percent) == (Fraction(50), True)


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        ("4", "It is 4.", True),
        (4, "4.0000005", True),
        (4, "4.00001", False),
        (0.1, "0.1", True),
        ("1,234.5", "1234.5", True),
        ("0.5", "1/2", True),
        ("1/3", "0.3333333333", True),
        ("50%", "50%", True),
        ("50%", "5000%", False),
        (0.5, "50%", True),
        (50, "50%", True),
        ("50%", "0.5", True),
        ("50%", "50", True),
        (5, "50%", False),
        ("-3", "\u22123", True),
        ("3", "-3", False),
        ("3e-4", "0.0003", True),
        (["1", "2"], "2", True),
        ([1, 2], "3", False),
        ("#### 42", "so 42", True),
        ("12345678901234567891", "12345678901234567890", False),
        (12345678901234567891, "12,345,678,901,234,567,891", True),
        ("4", "", False),
        ("4", "four", False),
        (None, "4", None),
    ],
)
def test_numeric(target: Any, text: str, wanted: bool | None) -> None:
    assert numeric(sample(target), answer(text)).value is wanted


def test_tolerances_are_inclusive_and_either_will_do() -> None:
    assert numeric(sample(1), answer("1.3"), tolerance=0.3).value is True
    assert numeric(sample(1), answer("1.3001"), tolerance=0.3).value is False
    assert numeric(sample(-200), answer("-202"), relative=0.01).value is True
    assert numeric(sample(-200), answer("-202.1"), relative=0.01).value is False
    assert numeric(sample(0), answer("0.05"), tolerance=0.1, relative=0.01).value is True


def test_numeric_says_what_it_read() -> None:
    assert numeric(sample("4"), answer("it is $1,000.")) == Score(False, "read $1,000")
    assert numeric(sample("4"), answer("none")) == Score(False, "no number in the answer", unreadable=True)


@pytest.mark.parametrize("bad", ["four", "", True, {"a": 1}, float("nan"), float("inf"), ["1", "x"]])
def test_a_target_that_is_no_number_raises(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        numeric(sample(bad), answer("4"))


@given(st.integers(-(10**30), 10**30))
def test_integers_are_read_as_python_writes_them(number: int) -> None:
    for text in (str(number), f"{number:,}", f"{number:_}", f"= {number}."):
        assert numeric(sample(number), answer(text), tolerance=0).value is True, text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_as_python_writes_them(number: float) -> None:
    assert numeric(sample(number), answer(f"The result: {number!r}"), tolerance=0).value is True


@given(st.text(st.characters() | st.sampled_from("0123456789.,/%-e$ \u00bd\u0663\u2074{}\\"), max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = last_quantity(text)
    assert found is None or isinstance(found.value, int | Fraction)


@pytest.mark.parametrize(
    "piece", ["9", "1,", "1,111", "1.111", ".111", "1/", "$ ", "\u0661", "\u00bd", "1 ", "1 1/", "\\frac{1}"]
)
def test_a_rambling_answer_does_not_take_for_ever(piece: str) -> None:
    assert numeric(sample("4"), answer(piece * 20_000 + " so 4")).value is True


WHOLE: dict[str, str | None] = {
    "Es sind 1.234.": "1234",
    "1 234 euros": "1234",
    "3 000": "3000",
    "12.345.678": "12345678",
    "1.234,5": "1234.5",
    "1 234,50": "1234.5",
    "1\u202f234,00 \u20ac": "1234",
    "Das sind 18,00 \u20ac.": "18",
    "18,0": "18",
    "2,50": "2.5",
    "1,2,3": "3",
    "12,34,567": "1234567",
    "1,234": "1234",
    "12.5": "12.5",
    "0.125": "0.125",
    "in 2024 100": "100",
    "1.234.5": "5",
    "5 100/3": "115/3",
    "\u09e7.\u09e8\u09e9\u09ea": "1234",
    "none": None,
}


@pytest.mark.parametrize("text", WHOLE, ids=lambda text: ascii(text)[:30])
def test_dots_and_spaces_group_the_digits_of_whole_numbers(text: str) -> None:
    found = last_quantity(text, whole=True)
    wanted = WHOLE[text]
    assert (found and found.value) == (None if wanted is None else Fraction(wanted))


def test_only_a_task_with_whole_numbers_reads_a_dot_as_a_separator() -> None:
    assert value({"numeric": {"whole": True}}, 1234, "Antwort: 1.234 Euro") is True
    assert value("numeric", 1234, "Antwort: 1.234 Euro") is False
    assert value("numeric", 1.234, "Antwort: 1.234 Euro") is True


STRICT = {
    "numeric": {
        "extract": {"regex": {"pattern": r"#### ?(-?\$?[0-9.,]*[0-9])"}},
        "extract_target": {"after": {"marker": "####"}},
    }
}
FLEXIBLE = {"numeric": {"extract_target": {"after": {"marker": "####"}}}}
GSM8K: list[tuple[str, str, bool, bool]] = [
    # the number of the target, an answer, right when read strictly, right when read flexibly
    ("1,000", "#### 1000", True, True),
    ("1000", "#### 1,000", True, True),
    ("18", "She makes $18.00.", False, True),
    ("18", "#### $18.00", True, True),
    ("18", "#### 18.", True, True),
    ("18", "It is 18.", False, True),
    ("-3", "#### -3", True, True),
    ("-3", "#### 3", False, False),
    ("0.5", "It is 1/2", False, True),
    ("50", "That is 50%.", False, True),
    ("1234.5", "#### 1,234.50", True, True),
    ("18", "#### 18\nSo 9 for each of 2.", True, False),
    ("18", "18", False, True),
    ("18", "none", False, False),
    ("18", "", False, False),
]


@pytest.mark.parametrize(("target", "text", "strict", "flexible"), GSM8K)
def test_gsm8k_is_read_strictly_and_flexibly(target: str, text: str, strict: bool, flexible: bool) -> None:
    gold = f"16-3-4=<<16-3-4=9>>9 eggs.\n#### {target}"
    assert (value(STRICT, gold, text), value(FLEXIBLE, gold, text)) == (strict, flexible)


def test_without_the_mark_there_is_no_number() -> None:
    assert score(STRICT, "#### 18", "It is 18") == Score(False, "no number in the answer", unreadable=True)


@pytest.mark.parametrize("entry", ["numeric", {"numeric": {"extract": "boxed"}}])
def test_leading_zeros_of_aime_do_not_count(entry: Any) -> None:
    assert value(entry, "25", r"So \boxed{025}.") is True
    assert value(entry, "025", r"\boxed{25}") is True
    assert value(entry, 25, r"\boxed{250}") is False
