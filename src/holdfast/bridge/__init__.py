"""The bridge: an OpenAI-compatible endpoint on the loopback interface, to evaluate existing agents unchanged."""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.bridge.openai import BadBodyError, parse_response_request
    from holdfast.bridge.server import Bridge
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "openai": "BadBodyError parse_response_request",
            "server": "Bridge",
        },
    )

__all__ = [
    "BadBodyError",
    "Bridge",
    "parse_response_request",
]
