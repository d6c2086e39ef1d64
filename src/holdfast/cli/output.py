"""Where commands print: people's output and JSON on standard output, news on standard error."""

import sys
from typing import Any

import msgspec
from rich.console import Console

console = Console(highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def say(line: str, style: str = "") -> None:
    """One line of text as it is: not wrapped, so that it can be copied and searched; brackets mean nothing in it."""
    console.print(line, style=style or None, markup=False, soft_wrap=True)
