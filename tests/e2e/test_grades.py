"""Grades as in SimpleQA: the report has the shares of correct answers and their F1."""

from pathlib import Path

import pytest

from tests.e2e.commands import call, write_rows


def test_a_report_of_grades_has_shares_and_f1(tmp_path: Path) -> None:
    grades = ["correct"] * 6 + ["incorrect"] * 2 + ["not_attempted"] * 2
    write_rows(tmp_path / "rows.jsonl", [{"id": f"s{i}", "question": each} for i, each in enumerate(grades)])
    (tmp_path / "mine.py").write_text(
        "from holdfast import scorer\n\n"
        '@scorer(scale={"": "label", "correct": "bool"})\ndef graded(sample, answer):\n'
        '    return sample.row["question"]\n'
    )
    task = "{name: t, dataset: {path: rows.jsonl}, scorers: ['mine:graded']}"
    (tmp_path / "eval.yaml").write_text(f"models: [{{name: m, provider: mock}}]\ntasks: [{task}]\n")
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    for format in ("table", "markdown"):
        text = " ".join(call("report", "x", "--format", format, cwd=tmp_path).out.split())
        assert "60.0% of all answers are correct, 75.0% of those attempted; F1 0.6667 (95%: 0." in text
        assert "m has 60.0% right (95%: 31.3 to 83.2, 10 samples)" in text
    found = call("report", "x", "--json", cwd=tmp_path).json()["cells"][0]["scorers"]
    assert [(each["scorer"], each["of"], each["summary"]["mean"]) for each in found] == [
        ("graded", "", None),
        ("graded correct", "graded", 0.6),
    ]
    assert found[0]["grades"]["f1"]["mean"] == pytest.approx(2 / 3)
    board = call("leaderboard", "x", "--json", cwd=tmp_path).json()["boards"][0]
    assert (board["scorer"], board["ranked"][0]["summary"]["mean"]) == ("graded correct", 0.6)
    assert call("gate", "x", "--at-least", "0.2", cwd=tmp_path).code == 0
    assert call("gate", "x", "--at-least", "0.2", "--scorer", "graded", cwd=tmp_path).code == 0
    assert call("gate", "x", "--at-least", "0.9", "--scorer", "graded correct", cwd=tmp_path).code == 7
