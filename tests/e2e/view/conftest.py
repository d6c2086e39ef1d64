"""The browser and the server that tests of the viewer share."""

from collections.abc import Iterator

import pytest

from tests.e2e.view.browsers import Browser, launch


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one file. Tests that use it need the mark NEEDS_CHROMIUM."""
    with launch() as launched:
        yield launched
