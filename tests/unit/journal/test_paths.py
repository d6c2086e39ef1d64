"""Names of runs and experiments become folders: one component each, never shared, never outside the store."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadNameError
from holdfast.journal import folder_name, run_folder
from holdfast.journal.paths import SegmentName, parse_segment_name

HOSTILE = [
    "..",
    ".",
    "...",
    "../../etc/passwd",
    "a/b",
    "/",
    "/etc",
    "a\\b",
    "@",
    "%",
    "%2e%2e",
    "%2E",
    "a b",
    " a",
    "a ",
    "a.",
    ".hidden",
    "~",
    "~root",
    "-rf",
    "CON",
    "nul.txt",
    "$HOME",
    "`id`",
    "a;b",
    "a|b",
    "*",
    "?",
    "a:b",
    "<>",
    "\u0430",  # a Cyrillic letter that looks like an a
    "a\u0301",  # decomposed
    "\u00e1",  # the same, composed
    "\uff0e\uff0e",  # full-width dots
    "\u2215",  # a slash that is none
    "\u202e",  # right-to-left override
    "\u200b",  # invisible
    "💥",
]
REFUSED = ["", " ", "\t", "a\0b", "\0", "a\nb", "\r", "\x1b[31m", "\x7f", "a\u2028b", "\ud800", "a" * 10_000, "ü" * 100]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_becomes_exactly_one_visible_component(name: str, tmp_path: os.PathLike[str]) -> None:
    folder = folder_name(name)
    assert_is_one_component(folder)
    os.mkdir(os.path.join(tmp_path, folder))
    assert os.listdir(tmp_path) == [folder]


@pytest.mark.parametrize("name", REFUSED, ids=range(len(REFUSED)))
def test_a_name_that_no_one_means_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        folder_name(name)


def test_hostile_names_never_share_a_folder() -> None:
    assert len({folder_name(name) for name in HOSTILE}) == len(HOSTILE)


@given(st.text(max_size=60))
def test_any_name_is_refused_or_one_component(name: str) -> None:
    try:
        folder = folder_name(name)
    except BadNameError:
        return
    assert_is_one_component(folder)


@given(st.text("a%2E5. /~@Aä", max_size=8), st.text("a%2E5. /~@Aä", max_size=8))
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    try:
        same = folder_name(one) == folder_name(other)
    except BadNameError:
        return
    assert same == (one == other)


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_run_is_always_two_levels_below_the_store(experiment: str, run: str) -> None:
    try:
        folder = run_folder("/store", experiment, run)
    except BadNameError:
        return
    assert os.path.normpath(folder) == folder
    assert os.path.dirname(os.path.dirname(folder)) == "/store"


@pytest.mark.parametrize(
    "name",
    [
        "1.jsonl",
        "0000001.jsonl",
        "000000.jsonl",
        "000001.jsonl.gz",
        "000001.jsonl.zst.tmp",
        "000001.json",
        "\u0660" * 5 + "\u0661.jsonl",  # digits, but not ours
    ],
)
def test_a_file_that_is_no_segment_is_none(name: str) -> None:
    assert parse_segment_name(name) is None


@given(st.integers(1, 10**12 - 1), st.booleans())
def test_a_segment_name_reads_back(number: int, sealed: bool) -> None:
    name = SegmentName(number, sealed)
    assert parse_segment_name(str(name)) == name


def assert_is_one_component(folder: str) -> None:
    assert folder not in {"", ".", ".."}
    assert "/" not in folder
    assert "\0" not in folder
    assert folder[0] not in ". "
    assert folder[-1] not in ". "
    assert folder.isascii()
    assert len(folder) <= 200
