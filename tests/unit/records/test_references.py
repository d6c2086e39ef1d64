"""References to files: exactly one text for one content, and nothing else is taken for one."""

import pytest

from holdfast.records.keys import Reference, parse_reference, references_in, with_strings
from holdfast.records.samples import Answer, NotJsonError

PICTURE = Reference("ab" * 32, "image/png")


def test_a_reference_reads_as_it_was_written() -> None:
    assert str(PICTURE) == f"blob:sha256-{'ab' * 32};image/png"
    assert parse_reference(str(PICTURE)) == PICTURE


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        7,
        f"See {PICTURE}",
        f"{PICTURE} ",
        f"{PICTURE}\n",
        str(PICTURE).upper(),
        f"blob:sha256-{'ab' * 31};image/png",
        f"blob:sha256-{'ab' * 32};image",
        f"blob:sha256-{'ab' * 32};text/plain;charset=utf-8",
    ],
)
def test_anything_else_is_none(text: object) -> None:
    assert parse_reference(text) is None


def test_references_are_found_wherever_they_are_in_plain_data() -> None:
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": str(PICTURE)}}, None, 3]
    assert list(references_in(content)) == [str(PICTURE)]


def test_texts_are_changed_by_name_and_everything_else_stays() -> None:
    made = with_strings([{"a": "x", "b": ["y", 1, None]}], lambda text, name: f"{name}={text}")
    assert made == [{"a": "a=x", "b": ["b=y", 1, None]}]


def test_an_answer_is_read_as_json() -> None:
    assert Answer('{"value": [4]}').json() == {"value": [4]}


def test_an_answer_that_is_not_json_says_so_with_its_beginning() -> None:
    with pytest.raises(NotJsonError, match=r"not JSON.*cut off: raise max_tokens.*'\{\"value\": 4'"):
        Answer('{"value": 4', finish_reason="length").json()
