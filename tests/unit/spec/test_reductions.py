"""What `reduce` in a spec means, and what is no reducer."""

from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec.reductions import Reduction, reductions, stored_reductions


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("mean", "mean"),
        ({"median": {}}, "median"),
        ("majority", "majority"),
        ("pass@5", "pass@5"),
        ({"pass_at_k": {"k": 5}}, "pass@5"),
        ({"pass_power_k": {"k": 2}}, "pass^2"),
        ({"cons_at_k": {"k": 3, "answer": "final"}}, "cons@3 by final"),
        ({"at_least": {"k": 2, "threshold": 0.5}}, "at_least_2 of 0.5"),
        ("at_least_2", "at_least_2"),
    ],
)
def test_a_reducer_is_called_as_a_table_calls_it(said: Any, label: str) -> None:
    assert [each.label for each in reductions(said)] == [label]
    assert [each.label for each in reductions([said])] == [label]


def test_a_short_name_means_the_long_one() -> None:
    assert reductions("pass^3") == reductions({"pass_power_k": {"k": 3}}) == (Reduction("pass_power_k", 3),)


@pytest.mark.parametrize("said", ["pass@0", "pass@", "pass@-1", "at_least", "pass@1.5", {"max": {"k": 1}}, None, [[]]])
def test_what_is_no_reducer_is_refused_with_its_place(said: Any) -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\]\.reduce"):
        reductions(said, "tasks[0].reduce")


def test_a_run_that_is_older_than_the_field_has_the_mean() -> None:
    spec = {"tasks": [{"name": "old"}, {"name": "new", "reduce": ["median", "pass@2"]}]}
    assert stored_reductions(spec) == {
        "old": (Reduction(),),
        "new": (Reduction("median"), Reduction("pass_at_k", 2)),
    }
