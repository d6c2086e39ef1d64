"""Where commands print: people's output and JSON on standard output, news on standard error."""

import sys
from typing import Any

import msgspec
from rich.console import Console

console = Console(highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
