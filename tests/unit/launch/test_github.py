"""The workflow of GitHub Actions: parsed, and its steps run by bash as a runner would."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.errors import UsageError
from holdfast.launch import LAUNCHERS, LaunchJob
from tests.e2e.commands import environment, shown
from tests.unit.launch.jobs import HOSTILE, job_in


def workflow_of(job: LaunchJob) -> dict[str, Any]:
    write = LAUNCHERS["github"].write
    assert write is not None
    found: dict[str, Any] = yaml.safe_load(write(job))
    return found


def expand(text: str, values: dict[str, str]) -> str:
    """Evaluate expressions: a literal text, or a known name."""

    def value_of(match: re.Match[str]) -> str:
        inner = match[1].strip()
        return inner[1:-1] if inner.startswith("'") else values[inner]

    return re.sub(r"\$\{\{(.*?)\}\}", value_of, text)


def run_step(text: str, folder: Path, temp: Path, commands: Path) -> None:
    variables = {
        "RUNNER_TEMP": str(temp),
        "GITHUB_STEP_SUMMARY": str(temp / "summary"),
        "PATH": f"{commands}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=folder,
        env=environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


def step_of(job: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in job["steps"] if each.get("name") == name)
    return found


def test_every_shard_is_a_job_and_its_store_is_always_kept(tmp_path: Path) -> None:
    found = workflow_of(job_in(tmp_path))
    shard = found["jobs"]["shard"]
    assert shard["strategy"] == {"fail-fast": False, "max-parallel": 2, "matrix": {"shard": [1, 2, 3, 4]}}
    assert "--shard ${{ matrix.shard }}/4" in step_of(shard, "Run the shard")["run"]
    kept = step_of(shard, "Keep the store")
    assert (kept["if"], kept["uses"], kept["with"]["overwrite"]) == ("always()", "actions/upload-artifact@v4", True)
    assert step_of(shard, "Pack the store")["if"] == "always()"
    merge = found["jobs"]["merge"]
    assert (merge["needs"], merge["if"]) == ("shard", "always()")
    assert found["on"] == {"workflow_dispatch": {}}


def test_keys_are_secrets_of_the_repository(tmp_path: Path) -> None:
    model = {"provider": "openai", "model": "m", "api_key_env": "MY_KEY", "options": {}}
    shard = workflow_of(job_in(tmp_path, model=model))["jobs"]["shard"]
    assert shard["env"] == {"MY_KEY": "${{ secrets.MY_KEY }}"}
    assert 'unset "$name"' in step_of(shard, "Run the shard")["run"]


def test_its_steps_answer_every_shard_and_join_them(tmp_path: Path) -> None:
    """Every step with a command is run; artefacts are copied here."""
    job = job_in(tmp_path / "repository", HOSTILE)
    found = workflow_of(job)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (commands / "holdfast").chmod(0o755)
    last = tmp_path / "last"
    for number in range(1, 5):
        machine, temp = tmp_path / f"machine-{number}", tmp_path / f"temp-{number}"
        temp.mkdir()
        job_in(machine, HOSTILE)  # a clone of the repository
        for name in ("Unpack it", "Run the shard", "Pack the store"):
            text = step_of(found["jobs"]["shard"], name)["run"]
            run_step(expand(text, {"matrix.shard": str(number)}), machine, temp, commands)
        assert shown(HOSTILE, machine / "runs")["finished"] < 6
        (last / "shards" / f"x-{number}").mkdir(parents=True)
        (temp / f"shard-{number}.tar").rename(last / "shards" / f"x-{number}" / f"shard-{number}.tar")
    for name in ("Unpack them", "Join them"):
        run_step(expand(step_of(found["jobs"]["merge"], name)["run"], {}), tmp_path, last, commands)
    joined = shown(HOSTILE, tmp_path / "runs")
    assert (joined["status"], joined["finished"]) == ("completed", 6)
    assert "sums" in (last / "summary").read_text()
    assert not list(tmp_path.rglob("pwned"))


def test_a_second_attempt_continues_what_the_first_has_saved(tmp_path: Path) -> None:
    text = step_of(workflow_of(job_in(tmp_path))["jobs"]["shard"], "Unpack it")["run"]
    (tmp_path / "earlier").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "x").write_text("kept")
    subprocess.run(["tar", "-cf", tmp_path / "earlier" / "shard-3.tar", "-C", tmp_path / "saved", "."], check=True)
    run_step(expand(text, {"matrix.shard": "3"}), tmp_path, tmp_path, tmp_path)
    assert (tmp_path / "runs" / "x").read_text() == "kept"


def test_the_spec_is_named_from_the_folder_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    found = workflow_of(job_in(tmp_path / "evals"))
    assert found["defaults"]["run"]["working-directory"] == "evals"
    assert "holdfast run eval.yaml " in step_of(found["jobs"]["shard"], "Run the shard")["run"]


def test_a_spec_outside_of_the_repository_is_refused(tmp_path: Path) -> None:
    job = job_in(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="outside of the repository"):
        workflow_of(msgspec.structs.replace(job, folder=str(tmp_path / "b")))


def test_more_shards_than_a_matrix_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 256 jobs"):
        workflow_of(msgspec.structs.replace(job_in(tmp_path), shards=257))
