"""A completed run whose samples failed: people see it wherever the status is shown, and JSON keeps the plain status."""

import os
import re
from pathlib import Path

import pytest

from tests.e2e.commands import call, on_terminal, write_spec


@pytest.mark.parametrize("every", [1, 2])
def test_completed_with_failed_samples_is_not_shown_as_a_success(tmp_path: Path, every: int) -> None:
    failures = {"failures": [{"kind": "bad_request", "every": every}], "seed": 1}
    write_spec(tmp_path, 4, model={"options": failures})
    assert call("run", "eval.yaml", "--id", "r", cwd=tmp_path).code == 1
    failed = call("show", "r", "--json", cwd=tmp_path).json()["failed"]
    assert failed == (4 if every == 1 else 3)
    words = "completed, all 4 failed" if every == 1 else f"completed, {failed} failed"
    colour = "status failed" if every == 1 else "status interrupted"
    for command in (["ls"], ["show", "r"], ["report", "r"]):
        assert words in call(*command, cwd=tmp_path).out, command
    page = call("report", "r", "--format", "html", cwd=tmp_path).out
    assert f'<span class="{colour}">{words}</span>' in page
    assert call("ls", "--json", cwd=tmp_path).json()[0]["status"] == "completed"
    assert call("show", "r", "--json", cwd=tmp_path).json()["status"] == "completed"


COLOURS = {"all": "31", "some": "33", "none": "32", "stopped": "33", "damaged": "31"}
"""Red, yellow, green."""


@pytest.mark.parametrize("width", [250, 40], ids=["a table", "paragraphs"])
def test_the_status_has_a_colour_on_a_terminal_only(tmp_path: Path, width: int) -> None:
    for name, every in (("all", 1), ("some", 2), ("none", 0), ("stopped", 0), ("damaged", 0)):
        options = {"failures": [{"kind": "bad_request", "every": every}], "seed": 1} if every else {"reply": "8"}
        limits = {"run": {"requests": 2}} if name == "stopped" else {}
        write_spec(tmp_path, 4, model={"options": options}, concurrency={"samples": 1}, limits=limits)
        call("run", "eval.yaml", "--id", name, cwd=tmp_path)
    os.unlink(tmp_path / "runs" / "sums" / "damaged" / "plan.jsonl.zst")
    found = on_terminal(tmp_path, width, "ls", env={}, code=5)
    coloured = re.findall(r"\x1b\[(\d+)m(?:status )?(completed|interrupted)", found)
    assert [colour for colour, _ in coloured] == list(COLOURS.values()), found
    plain = on_terminal(tmp_path, width, "ls", env={"NO_COLOR": "1"}, code=5)
    assert not re.search(r"\x1b\[3\dm", plain), "bold headers may stay"
    assert "\x1b" not in call("ls", cwd=tmp_path).out
