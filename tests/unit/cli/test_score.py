"""`score` as a command: what it comes to."""

from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands.score import score_run
from holdfast.errors import UsageError
from holdfast.runs import Overrides, ScoreRequest
from holdfast.runs.execution.answer_selection import AnswerSelection

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


REASONS = """
import holdfast

@holdfast.scorer
def fair(sample, answer):
    return holdfast.Score(sample.id == "0", "because " + "of this " * 100)
"""


def test_a_judge_that_is_tried_shows_a_few_questions_answers_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(number), "q": f"question {number}?", "a": f"target {number}"} for number in range(9)]
    task = holdfast.Task("t", rows, "{q}", dataset={"target": "a"})
    holdfast.run(task, models=["mock/m"], id="r", store=str(tmp_path)).close()
    (tmp_path / "mine.py").write_text(REASONS)
    request = ScoreRequest([str(tmp_path / "mine.py")], selection=AnswerSelection(limit=7))
    assert score_run("r", request, str(tmp_path), Overrides()) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("t/m/0/1")
    assert lines[at + 1 : at + 4] == ["  question: question 0?", "  target: target 0", "  answer: question 0?"]
    assert lines[at + 4].startswith("  fair: True, because of this ")
    assert lines[at + 4].endswith("…")
    assert len(lines[at + 4]) < 300
    assert sum(line.startswith("  question: ") for line in lines) == 5
    assert "… and 2 more answers" in lines


def test_a_file_of_scorers_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    holdfast.run(holdfast.Task("t", [{"q": "?"}], "{q}"), models=["mock/m"], id="r", store=str(tmp_path)).close()
    (tmp_path / "judge.yaml").write_text("scorers: [numeric]")
    with pytest.raises(UsageError, match=r"judge\.yml: no such file; did you mean .*judge\.yaml\?"):
        score_run("r", ScoreRequest([str(tmp_path / "judge.yml")]), str(tmp_path), Overrides())
