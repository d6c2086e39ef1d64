"""`where`: what it accepts, what it refuses, and what missing values mean."""

from typing import Any

import pytest

from holdfast.datasets import FilterError, RowFilter
from holdfast.errors import DataError

ROW: dict[str, Any] = {
    "level": 4,
    "subject": "Algebra",
    "tags": ["a", "b"],
    "meta": {"year": 2024, "parts": [1, 2]},
    "text": "4",
    "none": None,
    "right": True,
    "High-level domain": "Physics",
}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("level >= 4", True),
        ("level > 4", False),
        ("3 < level <= 4", True),
        ("level >= 4 and subject in ['Algebra', 'Geometry']", True),
        ("level == 5 or not subject == 'Algebra'", False),
        ("subject not in ['Algebra']", False),
        ("lower(subject) == 'algebra'", True),
        ("subject.lower().startswith('alg')", True),
        ("startswith(subject, 'Geo')", False),
        ("len(tags) == 2 and 'a' in tags", True),
        ("level * 2 - 1 == 7 and level / 2 == 2 and -level == 0 - 4", True),
        ("meta['year'] + 1 == 2025 and meta['parts'][1] == 2", True),
        ("meta['nothing']['deeper'] == null", True),
        ("row['High-level domain'] == 'Physics'", True),
        ("float(text) >= 4 and int(text) == 4", True),
        ("none >= 1", False),
        ("none == null and none is None", True),
        ("none + 1 == null and len(none) == 0 and lower(none) == null", True),
        ("absent_but_fine == null", True),
        ("right == true", True),
        ("level == true", False),
        ("level / 0 == null", True),
        ("'Alg' in subject", True),
    ],
)
def test_an_expression_keeps_a_row(text: str, kept: bool) -> None:
    assert RowFilter(text).keeps(ROW) is kept


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "level.__class__",
        "open('x')",
        "[x for x in tags]",
        "(lambda: level)()",
        "level ** 99",
        "f'{level}'",
        "level if level else 1",
        "tags[level]",
        "(x := level)",
        "len(level, 2)",
        "lower(subject=level)",
        "level >=",
        "level = 4",
        "1 == 1",
        "",
        "b'x' == subject",
        "not " * 20_000 + "level",
        "(" * 5_000 + "level" + ")" * 5_000,
        "x" * 20_000,
    ],
)
def test_anything_else_is_refused_and_never_evaluated(text: str) -> None:
    with pytest.raises(FilterError):
        RowFilter(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("text >= 4", "convert it with float()"),
        ("subject * 1000000000 == ''", "arithmetic needs numbers"),
        ("level in 5", "`in` needs a list"),
        ("lower(level) == 'x'", "needs a text"),
        ("float(subject) > 1", "cannot read"),
    ],
)
def test_a_value_that_does_not_fit_is_explained(text: str, words: str) -> None:
    with pytest.raises(FilterError, match=words.replace("(", r"\(").replace(")", r"\)")):
        RowFilter(text).keeps(ROW)


def test_a_column_that_no_row_has_is_an_error_with_the_nearest_name() -> None:
    condition = RowFilter("levle >= 4")
    assert not condition.keeps(ROW)
    with pytest.raises(DataError, match=r"no row has a column 'levle'; did you mean 'level'\?"):
        condition.check_names("x.jsonl")


def test_a_column_that_some_rows_have_is_fine() -> None:
    condition = RowFilter("extra == 1")
    assert [condition.keeps(row) for row in ({"a": 1}, {"extra": 1})] == [False, True]
    condition.check_names("x.jsonl")
