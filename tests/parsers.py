"""Builds the command's parser once for each process: that takes 14 ms, much more than most commands do, and tests call
thousands of them.
"""

import functools

import typer.main

from holdfast.cli.main import app


def build_parser_once() -> None:
    """Every later call of the command in this process, or in a fork of it, uses the same parser."""
    if not hasattr(typer.main.get_command, "cache_info"):
        setattr(typer.main, "get_command", functools.cache(typer.main.get_command))  # noqa: B010 - a function of others
    typer.main.get_command(app)
