"""`${VAR}` in the options and parameters of a model is stored as it is written; the value reaches only the server."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.spec.source import loader
from tests.e2e.commands import call, files_in, write_spec
from tests.e2e.test_secrets import files_with
from tests.security.test_echoed_credentials import KEY, repeating

TELLS_OPTIONS = """\
import json, os

def make(connection):
    class Provider:
        async def generate(self, request):
            from holdfast import Answer
            with open("sent.jsonl", "a") as file:
                file.write(json.dumps([connection.options, request.params]) + "\\n")
            return Answer("8", {"role": "assistant", "content": "8"}, finish_reason="stop")
        async def close(self):
            pass
    return Provider()
"""
MODEL: dict[str, Any] = {
    "provider": "teller:make",
    "options": {"api_key": "${MY_KEY}", "deep": [{"token": "a ${MY_KEY}"}]},
    "params": {"temperature": "${HEAT}", "user": "${MY_KEY}", "escaped": "$${MY_KEY}", "thinking": {"n": "${HEAT}"}},
}
SENT = [
    {"api_key": KEY, "deep": [{"token": f"a {KEY}"}]},
    {"temperature": 0.5, "user": KEY, "escaped": "${MY_KEY}", "thinking": {"n": 0.5}},
]
ENV = {"MY_KEY": KEY, "HEAT": "0.5"}


def stage(folder: Path, **changes: Any) -> Path:
    (folder / "teller.py").write_text(TELLS_OPTIONS)
    return write_spec(folder, 2, model={**MODEL, **changes})


def sent(folder: Path) -> list[Any]:
    path = folder / "sent.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def be_earlier_version(patch: pytest.MonkeyPatch) -> None:
    """One that stored what variables held."""
    patch.setattr(loader, "is_late", lambda place: False)
    patch.setattr(loader, "refuse_literals", lambda mapping, where, environ: None)


def test_values_are_sent_and_stored_nowhere(tmp_path: Path) -> None:
    done = call("run", stage(tmp_path), "--id", "x", cwd=tmp_path, env=ENV)
    assert done.code == 0, done.err
    assert sent(tmp_path) == [SENT, SENT]
    assert files_with(tmp_path / "runs", KEY) == []
    stored = yaml.safe_load(next(path for path in files_in(tmp_path / "runs") if path.name == "spec.yaml").read_text())
    assert stored["models"][0]["options"] == MODEL["options"]
    assert stored["models"][0]["params"] == {**MODEL["params"], "temperature": 0.5, "thinking": {"n": 0.5}}


def test_without_late_filling_the_key_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_earlier_version(monkeypatch)
    assert call("run", stage(tmp_path), "--id", "x", cwd=tmp_path, env=ENV).code == 0
    assert files_with(tmp_path / "runs", KEY)


def test_another_key_is_no_drift_and_another_temperature_is(tmp_path: Path) -> None:
    spec = stage(tmp_path)
    assert call("run", spec, "--id", "x", cwd=tmp_path, env=ENV).code == 0
    assert call("run", spec, "--id", "x", cwd=tmp_path, env={**ENV, "MY_KEY": "another-key-0123"}).code == 0
    refused = call("run", spec, "--id", "x", cwd=tmp_path, env={**ENV, "HEAT": "0.7"})
    assert refused.code == 3
    assert "models.arith.params" in refused.err
    assert KEY not in refused.err


@pytest.mark.parametrize(
    "command", ["run eval.yaml --id x", "resume x", "resume x eval.yaml", "fork x eval.yaml --id y"]
)
def test_a_run_of_an_earlier_version_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """It stored what the variables held. Nothing that it has answered is asked again."""
    stage(tmp_path, params={"temperature": "${HEAT}", "user": "${MY_KEY}"})
    with monkeypatch.context() as earlier:
        be_earlier_version(earlier)
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env=ENV).code == 0
    done = call(*command.split(), cwd=tmp_path, env=ENV)
    assert done.code == 0, done.err
    assert len(sent(tmp_path)) == 2


def test_a_variable_that_is_not_set_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    done = call("run", stage(tmp_path), "--id", "x", cwd=tmp_path, env={"HEAT": "0"})
    assert done.code == 2
    assert "models[0].options.api_key: the environment variable MY_KEY is not set" in done.err
    assert call("run", stage(tmp_path), "--id", "x", cwd=tmp_path, env=ENV).code == 0
    count = len(sent(tmp_path))
    again = call("extend", "x", "--set", "tasks.sums.repeats=2", cwd=tmp_path, env={"HEAT": "0"})
    assert again.code == 2
    assert "MY_KEY is not set" in again.err
    assert len(sent(tmp_path)) == count


def test_set_takes_the_same_spelling(tmp_path: Path) -> None:
    spec = stage(tmp_path, options={}, params={})
    changes = ("--set", "models.arith.options.api_key=${MY_KEY}", "--set", "models.arith.params.user=${MY_KEY}")
    assert call("run", spec, "--id", "x", *changes, cwd=tmp_path, env=ENV).code == 0
    assert sent(tmp_path)[0] == [{"api_key": KEY}, {"user": KEY}]
    assert files_with(tmp_path / "runs", KEY) == []


def test_a_solver_or_an_agent_cannot_read_the_environment_with_a_parameter(tmp_path: Path) -> None:
    code = 'async def ask(sample, ctx):\n    return await ctx.generate(user="${MY_KEY}", other="${MY_KEY}")\n'
    (tmp_path / "mine.py").write_text(code)
    with repeating() as (address, seen):
        model = {"params": {"stop": "x", "user": "someone"}}
        write_spec(tmp_path, 1, f"http://{address}", model=model, task={"solver": "mine:ask"})
        done = call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MY_KEY": "a-key-that-nobody-sends-7"})
    assert done.code == 0, done.err
    assert "'user': '${MY_KEY}'" in seen[0]
    assert "a-key-that-nobody-sends-7" not in seen[0]
