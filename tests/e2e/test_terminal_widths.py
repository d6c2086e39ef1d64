"""What `report`, `compare`, `gate` and `leaderboard` print on terminals of several widths."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.commands import call, environment
from tests.screens import watch

TASKS = ("arithmetic", "geography", "history")
MODELS = {"gpt-4o-mini": 1, "claude-haiku": 2, "llama-3.1-8b-instruct": 3}
COMMANDS = {
    "report": ("report", "one"),
    "compare": ("compare", "one", "two", "--limit", "0"),
    "gate": ("gate", "one", "--at-least", "0.5"),
    "leaderboard": ("leaderboard", "one"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three tasks and three models."""
    made = tmp_path_factory.mktemp("widths")
    rows = [{"id": f"s{number}", "question": f"1 + {number}", "answer": str(number)} for number in range(12)]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for run, seed in (("one", 0), ("two", 10)):
        spec = {
            "experiment": "widths",
            "models": [
                {"name": name, "provider": "mock", "options": {"reply": ["1", "2", "3"], "seed": seed + number}}
                | {"price": {"input": 1.0, "output": 2.0}}
                for name, number in MODELS.items()
            ],
            "tasks": [
                {"name": name, "dataset": {"path": "rows.jsonl", "target": "answer"}, "prompt": "{question}"}
                | {"scorers": ["exact_match"]}
                for name in TASKS
            ],
        }
        (made / "spec.yaml").write_text(yaml.safe_dump(spec))
        assert call("run", "spec.yaml", "--id", run, cwd=made).code == 0
    return made


def printed(folder: Path, name: str, width: int) -> list[str]:
    """The lines as the command ended them, without colours."""
    command = [sys.executable, "-m", "holdfast", *COMMANDS[name]]
    env = environment({"TERM": "xterm-256color", "CI": "", "PYTHONPATH": str(Path.cwd())})
    raw = watch(command, folder, env, (width, 60)).raw
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", raw).replace("\r\n", "\n").splitlines()]


@pytest.mark.parametrize(("name", "width"), [("report", 40), ("compare", 80), ("gate", 40), ("gate", 140)])
def test_no_sentence_is_cut_inside_a_word(folder: Path, name: str, width: int) -> None:
    lines = printed(folder, name, width)
    long = [line for line in lines if len(line) > width]
    assert [line for line in long if not line.lstrip().startswith("holdfast ")] == [], "the terminal would cut these"
    words = set(" ".join(lines).split())
    said = call(*COMMANDS[name], cwd=folder).out
    sentences = [line for line in said.splitlines() if ": " in line and "0 ms" not in line and " ms (p" not in line]
    assert sentences
    assert {word for line in sentences for word in line.split() if not re.search(r"\d", word)} <= words


def test_a_leaderboard_of_a_usual_size_is_a_table_at_80_columns(folder: Path) -> None:
    lines = printed(folder, "leaderboard", 80)
    assert lines[0].split() == ["rank", "model", "mean", "±", "s.e.", *TASKS]
    lines = lines[lines.index("") + 1 :]
    assert lines[0].split() == ["task", "scorer", "rank", "model", "mean", "95%", "interval", "n"]
    table = lines[1 : lines.index("")]
    assert [line.split()[0] for line in table if "exact_match" in line] == [task for task in TASKS for _ in MODELS]
    assert "no room for cost: add --format md" in lines
