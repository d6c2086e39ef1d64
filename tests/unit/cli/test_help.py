"""`holdfast --help` lists every command once, in its group, with a whole summary on one line."""

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import COMMANDS, app


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    return done.output.splitlines()


def test_the_groups_have_the_order_of_the_design(lines: list[str]) -> None:
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", *COMMANDS]
    assert list(COMMANDS) == ["Every day", "Continue", "Scores", "Data in and out", "Keep safe", "Elsewhere"]


@pytest.mark.parametrize("group", COMMANDS)
def test_a_group_lists_its_commands_each_on_one_line_of_80_columns(lines: list[str], group: str) -> None:
    start = lines.index(f"{group}:") + 1
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    expected = []
    for command in COMMANDS[group]:
        summary = (command.__doc__ or "").strip().splitlines()[0]
        assert summary.endswith(".")
        expected.append(f"  {command.__name__:11}  {summary}")
    assert lines[start:end] == expected
    assert max(map(len, expected)) <= 80


def test_every_command_of_the_application_is_in_the_table() -> None:
    named = [command.__name__ for commands in COMMANDS.values() for command in commands]
    registered = [each.callback.__name__ for each in app.registered_commands if each.callback is not None]
    assert registered == named
    assert len(set(named)) == len(named)
