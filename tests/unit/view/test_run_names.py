"""Runs in the query of a page about several runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.view.links import Links, parse_run_name, run_name
from holdfast.view.sources import NotFoundError, RunRef

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(NAMES, NAMES, st.sampled_from(["", "a1b2"]), st.none() | st.integers(0, 10**12))
def test_a_name_means_the_run_that_it_was_made_of(experiment: str, run_id: str, uid: str, at: int | None) -> None:
    ref = RunRef(experiment, run_id, uid, at)
    assert parse_run_name(run_name(ref)) == ref


def test_people_can_write_it() -> None:
    assert parse_run_name("sums/first") == RunRef("sums", "first")


@pytest.mark.parametrize("text", ["", "sums", "/x", "x/", "x/y::z", "x/y::-1", f"x/y::{'9' * 20}"])
def test_other_texts_name_no_run(text: str) -> None:
    with pytest.raises(NotFoundError, match="does not name a run"):
        parse_run_name(text)


def test_a_page_of_several_runs_has_each_of_them_in_its_address() -> None:
    address = Links().page("compare", run=["a/b", "c/d&e"], row="1", change="")
    assert address == "/compare?run=a%2Fb&run=c%2Fd%26e&row=1"
