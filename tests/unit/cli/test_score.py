"""`score` as a command: what it comes to."""

from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands.score import score_run
from holdfast.runs import Overrides, ScoreRequest

BREAKS = """
import holdfast

@holdfast.scorer
def odd(sample, answer):
    return 1 / int(sample.id)
"""


@pytest.mark.parametrize(("allowed", "code"), [(0.0, 1), (0.5, 0)])
def test_a_scorer_that_breaks_fails_the_command_where_it_would_fail_the_run(
    tmp_path: Path, allowed: float, code: int
) -> None:
    task = holdfast.Task("t", [{"id": "0", "q": "?"}, {"id": "1", "q": "?"}], "{q}")
    run = holdfast.run(task, models=["mock/m"], id="r", store=str(tmp_path), fail_on_error=allowed)
    run.close()
    (tmp_path / "mine.py").write_text(BREAKS)
    for _ in range(2):  # it is no better for being asked again
        request = ScoreRequest([str(tmp_path / "mine.py")])
        assert score_run("r", request, str(tmp_path), Overrides()) == code
