"""The list that a reader of a sample comes from: its filters and order, as one value in the address of the sample."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

_SHOWN_ONLY = ("columns", "limit")
"""How a list looks. A list that differs from all samples in plan order only in this need not be remembered."""


def encode_list(state: Mapping[str, str]) -> str:
    """The state of a list; empty for all samples in plan order."""
    given = {name: value for name, value in state.items() if value and name != "evaluation"}
    return urlencode(given) if given.keys() - set(_SHOWN_ONLY) else ""


def decode_list(text: str) -> dict[str, str]:
    return dict(parse_qsl(text))
