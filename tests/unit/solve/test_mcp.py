"""MCP servers as a spec names them. What they do is tested with real ones, in tests/e2e/test_mcp.py."""

from typing import Any

import pytest

from holdfast.solve.mcp import servers_in


@pytest.mark.parametrize(
    ("solver", "found"),
    [
        ("chat", []),
        ({"react": {"tools": ["bash", {"mcp": {"url": "http://a"}}]}}, [{"url": "http://a"}]),
        (
            {
                "mine:f": {
                    "inner": {"chain": {"solvers": [{"react": {"tools": [{"mcp": {"command": ["x"]}}]}}, "chat"]}}
                }
            },
            [{"command": ["x"]}],
        ),
        (
            {
                "react": {
                    "tools": [{"mcp": {"url": "u", "env": {}, "tools": ["a"], "seconds": 3, "headers": {"h": "1"}}}]
                }
            },
            [{"url": "u", "headers": {"h": "1"}}],
        ),
    ],
    ids=["none", "an own argument", "in what only the user's code reads", "without what leads to no other server"],
)
def test_what_leads_to_a_solvers_servers_is_found_in_the_spec(solver: Any, found: list[dict[str, Any]]) -> None:
    assert servers_in(solver) == found
