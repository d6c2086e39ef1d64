"""`python -m holdfast`: the same as the command `holdfast`."""

import os
import sys


def _forget_current_folder() -> None:
    """Python puts the current folder first on the path, where a file `scipy.py` would take the place of the package."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing is imported from it
        return
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and sys.path[0] in ("", here) and here != own:
        del sys.path[0]


_forget_current_folder()  # before the next import, which imports packages

from holdfast.cli.main import main  # noqa: E402

main()
