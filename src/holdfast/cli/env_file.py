"""Warnings about a `.env` file in the current folder, before any command runs."""

import os
import sys


def warn_of_refused_variables() -> None:
    """A `.env` file provides variables that the spec mentions; what it may never set is not ignored silently."""
    if os.path.exists(".env") and "_HOLDFAST_COMPLETE" not in os.environ:
        from holdfast.spec.env_file import refused_variables

        if names := refused_variables():
            is_are = "is" if len(names) == 1 else "are"
            sys.stderr.write(
                f"warning: .env: {', '.join(names)} {is_are} ignored: a .env file only provides keys and other values "
                "for the spec; export it in your shell if you want it\n"
            )
