"""Addresses of pages: every name survives the way into an address and back, whatever it contains."""

from urllib.parse import unquote, urlsplit

import pytest

from holdfast.records import Key
from holdfast.view.links import Links, path_part
from holdfast.view.sources import RunRef

NAMES = ["a", "a/b", "%2F", "..", ".", "", "~", "~..", "~x", "?q#f", "ü 空", "a\nb", "<b>", "&amp;"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_path_comes_back_as_it_was(name: str) -> None:
    address = Links().sample(RunRef("e", "r"), str(Key(name, name, name, 3)))
    parts = urlsplit(address).path.split("/")
    assert [path_part(unquote(part)) for part in parts[5:]] == [name, name, name, "3"]
    # A browser removes these from a path before it sends it.
    assert not {"", ".", ".."} & set(parts[1:])
    assert not {"%2e", "%2E"} & set(parts)


def test_a_link_to_a_step_names_the_window_that_has_it() -> None:
    address = Links().sample(RunRef("e", "r", at=9), "t/m/s/1", 7)
    assert address == "/runs/e/r/samples/t/m/s/1?at=9&step=7#step-7"
