"""Every public name exists, and numpy is imported only by the first method that needs it."""

import subprocess
import sys

import pytest

import holdfast.stats


@pytest.mark.parametrize("name", holdfast.stats.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(holdfast.stats, name)
    assert callable(found) or isinstance(found, holdfast.stats.Scale) or found == 0.95


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'bootstrp'"):
        _ = holdfast.stats.bootstrp  # type: ignore[attr-defined]  # that is the point


def test_means_and_their_reducers_need_no_numpy() -> None:
    program = "import sys, holdfast.stats; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert printed.stdout == "[]\n", printed.stderr
