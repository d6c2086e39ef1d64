"""Finding things: exports of what is chosen, colours where they are wanted, and hints for every slip."""

import json
import os
from pathlib import Path

import pytest

from tests.e2e.commands import call, on_terminal, run, write_spec

ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `first`: two models over six sums; one says 8, the other fails now and then."""
    made = tmp_path_factory.mktemp("finding")
    failing = {"provider": "mock", "options": {"reply": "8", "failures": [{"kind": "content_filter", "every": 2}]}}
    models = [{"name": "eight", "provider": "mock", "options": {"reply": "8"}}, {"name": "shaky", **failing}]
    spec = write_spec(made, models=models, task={"sample_retries": 0}, fail_on_error=9)
    assert call("run", spec, "--id", "first", cwd=made).code == 0
    return made


def keys(folder: Path, *options: str) -> list[str]:
    done = call("export", "first", *options, cwd=folder)
    assert done.code == 0, done.err
    return [json.loads(line)["key"] for line in done.out.splitlines()]


def test_info_describes_a_name_and_refuses_an_unknown_one_with_the_nearest(tmp_path: Path) -> None:
    done = call("info", "numeric", cwd=tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (0, "numeric: scorer")
    done = call("info", "--json", cwd=tmp_path, env={"HOLDFAST_STORE": "elsewhere"})
    assert json.loads(done.out)["places"]["runs"] == str(tmp_path / "elsewhere")
    done = call("info", "numreic", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "nothing is called 'numreic'; did you mean 'numeric'?" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_export_holds_what_is_chosen(folder: Path) -> None:
    every = dict.fromkeys(keys(folder))
    failed = keys(folder, "--failed")
    assert len(every) == 12
    assert failed == keys(folder, "--kind", "content_filter") == keys(folder, "--failed", "--model", "shaky")
    assert {key.split("/")[1] for key in failed} == {"shaky"}
    assert keys(folder, "--failed", "--model", "eight") == []
    assert keys(folder, "--model", "eight", "--task", "sums") == [key for key in every if "/eight/" in key]
    assert keys(folder, "--wrong", "--model", "eight") == [f"sums/eight/s000{i}/1" for i in (2, 3, 4, 5, 6)]
    assert keys(folder, "--grep", "EIGHT/s000[12]/") == ["sums/eight/s0001/1", "sums/eight/s0002/1"]
    assert keys(folder, "--failed", "--wrong") == []


def test_csv_is_chosen_from_too(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    done = run("export", "first", "--format", "csv", "--model", "eight", "--output", path, cwd=folder)
    assert (done.code, done.out, done.err) == (0, "", f"wrote {path}\n")
    assert len(path.read_text().splitlines()) == 7


def test_show_lists_the_samples_of_a_task_and_a_model(folder: Path) -> None:
    told = call("show", "first", "--model", "eight", "--task", "sums", "--json", cwd=folder).json()
    assert [line["model"] for line in told] == ["eight"] * 6


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["export", "first", "--model", "eigt"], "--model eigt: first has none; did you mean 'eight'?"),
        (["export", "first", "--task", "sms"], "did you mean 'sums'?"),
        (["export", "first", "--kind", "timeout"], "valid are content_filter"),
        (["show", "first", "--kind", "timeout"], "valid are content_filter"),
        (["export", "first", "--grep", "("], "--grep: '(' is not a pattern"),
        (["export", "first", "--format", "jsnl"], "did you mean 'jsonl'?"),
        (["show", "frist"], "did you mean 'first'?"),
        (["runn"], "Did you mean 'run'?"),
        (["list"], "you want: holdfast ls"),
        (["help"], "you want: holdfast --help"),
        (["run", "eval.yaml", "--limti", "3"], "--limit"),
        (["ls", "--status", "complete"], "did you mean 'completed'?"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_slip_is_answered_with_what_was_meant(folder: Path, arguments: list[str], named: str) -> None:
    done = run(*arguments, cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "Traceback" not in done.err


def test_a_list_of_nothing_says_that_there_are_others(folder: Path) -> None:
    done = call("ls", "--experiment", "nobody", cwd=folder)
    assert (done.code, done.out) == (0, "No such run; the store has 1 other: holdfast ls\n")


@pytest.mark.parametrize("arguments", [["-h"], ["run", "-h"], ["show", "--help"]])
def test_help_is_where_people_look_for_it(folder: Path, arguments: list[str]) -> None:
    done = call(*arguments, cwd=folder)
    assert done.code == 0
    assert done.out.startswith("Usage: holdfast")
    assert "[[" not in done.out


def test_no_file_is_made_for_an_export_of_nothing_that_there_is(folder: Path, tmp_path: Path) -> None:
    done = call("export", "first", "--model", "eigt", "--output", tmp_path / "out.jsonl", cwd=folder)
    assert (done.code, os.listdir(tmp_path)) == (2, [])


@pytest.mark.parametrize(
    ("options", "env", "coloured"),
    [
        (["ls"], {}, False),
        (["ls", "--color"], {}, True),
        (["--color", "ls"], {}, True),
        (["ls", "--color"], {"NO_COLOR": "1"}, True),
        (["ls"], {"FORCE_COLOR": "1"}, True),
        (["ls", "--no-color"], {"FORCE_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_colours_in_a_pipe_are_asked_for(folder: Path, options: list[str], env: dict[str, str], coloured: bool) -> None:
    done = run(*options, cwd=folder, env=env)
    assert done.code == 0, done.err
    assert (ESCAPE in done.out) is coloured


@pytest.mark.parametrize(
    ("options", "env", "coloured"),
    [([], {}, True), ([], {"NO_COLOR": "1"}, False), (["--no-color"], {}, False)],
    ids=str,
)
def test_a_terminal_has_colours_unless_they_are_not_wanted(
    folder: Path, options: list[str], env: dict[str, str], coloured: bool
) -> None:
    said = on_terminal(folder, 80, "report", "first", *options, env=env)
    assert ("\x1b[33m" in said) is coloured  # completed with failed samples, in yellow


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", [("ls",), ("report", "first")])
def test_tables_fit_the_terminal(folder: Path, width: int, command: tuple[str, ...]) -> None:
    said = on_terminal(folder, width, *command, env={"NO_COLOR": "1"})
    bold = ("\x1b[1m", "\x1b[0m", "\x1b[2m", "\x1b[1;", "\x1b[31m")
    for each in bold:
        said = said.replace(each, "")
    table = said.partition("steps:")[0]
    assert "first" in table
    sentences = ("sums, numeric: ", "to see whether ")  # one line each, which the terminal wraps
    assert max(len(line.rstrip()) for line in table.splitlines() if not line.startswith(sentences)) <= width
