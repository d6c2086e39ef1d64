"""A program that the `command` solver starts gets what it needs of the environment, and no key."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.solve import agents
from tests.e2e.commands import call, exported, write_spec

TELL = "import json, os; print(json.dumps(dict(os.environ)))"
ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "a key of the user",
    "AWS_SECRET_ACCESS_KEY": "another key",
    "HTTPS_PROXY": "http://user:password@proxy",
    "HOLDFAST_STORE": "",
    "SEARCH_KEY": "of the agent",
    "UNRELATED": "x",
    "LANG": "C.UTF-8",
    "LC_TIME": "C",
    "TZ": "UTC",
}


def environment_of_program(folder: Path, **arguments: Any) -> dict[str, str]:
    solver = {"command": {"run": ["python", "-c", TELL], **arguments}}
    spec = write_spec(folder, 1, task={"solver": solver, "scorers": []})
    done = call("run", spec, "--id", "x", "--store", folder / "runs", cwd=folder, env=ENVIRONMENT)
    assert done.code == 0, done.err
    found: dict[str, str] = json.loads(exported("x", folder / "runs")[0]["output"])
    return found


def test_a_program_gets_an_allow_list_of_variables(tmp_path: Path) -> None:
    found = environment_of_program(tmp_path)
    assert set(found) & set(ENVIRONMENT) == {"LANG", "LC_TIME", "TZ"}
    assert found["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert found["OPENAI_API_KEY"] == "holdfast"
    assert {"PATH", "NO_PROXY", "OPENAI_API_BASE"} <= set(found)


def test_variables_that_the_spec_names_are_passed_on(tmp_path: Path) -> None:
    found = environment_of_program(tmp_path, env=["SEARCH_KEY", "NOT_SET"])
    assert found["SEARCH_KEY"] == "of the agent"
    assert "NOT_SET" not in found
    assert "ANTHROPIC_API_KEY" not in found


def test_without_the_guard_a_program_reads_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_PASSED", {*os.environ, *ENVIRONMENT})
    assert environment_of_program(tmp_path)["ANTHROPIC_API_KEY"] == "a key of the user"


def test_a_value_in_the_list_of_names_is_refused_without_showing_it(tmp_path: Path) -> None:
    solver = {"command": {"run": ["true"], "env": ["SEARCH_KEY=sk-very-secret-0123456789"]}}
    done = call("run", write_spec(tmp_path, 1, task={"solver": solver}), cwd=tmp_path)
    assert done.code == 2
    assert "tasks[0].solver.command.env: list the names of environment variables" in done.err
    assert "sk-very-secret" not in done.err
