"""A completed run whose samples failed: people see it wherever the status is shown, and JSON keeps the plain status."""

from pathlib import Path

import pytest

from tests.e2e.commands import call, write_spec


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
