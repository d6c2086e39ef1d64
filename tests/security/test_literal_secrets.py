"""A literal secret in a spec is refused, because a run stores its spec; the spelling that the message gives works."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec import build_spec
from holdfast.spec.source import loader
from tests.e2e.commands import call, write_spec
from tests.e2e.test_secrets import echo, files_with
from tests.security.test_stored_variables import TELLS_OPTIONS

KEY = "sk-proj-abcdefgh0123456789XYZ"
PASSWORD = "correct-horse-battery"

LITERALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a header": ({"headers": {"Authorization": f"Bearer {KEY}"}}, "headers.Authorization", "Bearer ${ARITH_KEY}"),
    "a password": ({"headers": {"Authorization": PASSWORD}}, "headers.Authorization", "${ARITH_KEY}"),
    "a key header": ({"headers": {"x-api-key": PASSWORD}}, "headers.x-api-key", "${ARITH_KEY}"),
    "a cookie": ({"headers": {"Cookie": f"session={PASSWORD}"}}, "headers.Cookie", "${ARITH_KEY}"),
    "any header": ({"headers": {"X-Custom": f"a {KEY} b"}}, "headers.X-Custom", "a ${ARITH_KEY} b"),
    "a default": ({"headers": {"X-Token": "${MINE:-" + PASSWORD + "}"}}, "headers.X-Token", "${MINE}"),
    "an option": ({"options": {"api_key": PASSWORD}}, "options.api_key", "${ARITH_KEY}"),
    "a deep option": ({"options": {"a": [{"b": f"x{'='}{KEY}"}]}}, "options.a[0].b", "x=${ARITH_KEY}"),
    "a parameter": ({"params": {"extra_body": {"password": PASSWORD}}}, "params.extra_body.password", "${ARITH_KEY}"),
    "a URL's password": (
        {"base_url": f"http://me:{PASSWORD}@host/v1"},
        "base_url",
        "http://me:${ARITH_KEY}@host/v1",
    ),
    "a URL's user": ({"base_url": f"https://{PASSWORD}@host/v1"}, "base_url", "https://${ARITH_KEY}@host/v1"),
    "a URL's query": (
        {"base_url": ["http://a/v1", f"http://b/v1?x=1&api_key={PASSWORD}"]},
        "base_url",
        "http://b/v1?x=1&api_key=${ARITH_KEY}",
    ),
    "a URL's path": ({"base_url": f"http://host/{KEY}/v1"}, "base_url", "http://host/${ARITH_KEY}/v1"),
    "the name of a variable": ({"api_key_env": KEY}, "api_key_env", "name here: ARITH_KEY"),
    "a token of a hub": ({"options": {"x": "hf_" + "a1" * 16}}, "options.x", "${ARITH_KEY}"),
}


@pytest.mark.parametrize("name", LITERALS)
def test_a_literal_secret_is_refused_with_the_spelling_that_works(tmp_path: Path, name: str) -> None:
    model, place, spelling = LITERALS[name]
    write_spec(tmp_path, 1, "http://127.0.0.1:9/v1", model=model)
    done = call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 2
    assert f"models[0].{place}: this secret would be stored with the run" in done.err
    assert spelling in done.err
    assert KEY not in done.said
    assert PASSWORD not in done.said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in LITERALS if name != "the name of a variable"])
def test_what_the_message_says_is_accepted(name: str) -> None:
    model, place, spelling = LITERALS[name]
    with pytest.raises(SpecError) as refused:
        build_spec({"models": [{"name": "arith", "provider": "openai", **model}], "tasks": [{"name": "t"}]}, "")
    assert f"write {spelling}" in str(refused.value)
    value: Any = spelling
    for name in reversed(re.split(r"\[0\]\.|\.", place)):
        value = {name: value}
    spec = {"models": [{"name": "arith", "provider": "openai", **value}], "tasks": [{"name": "t"}]}
    assert build_spec(spec, "", (), {"ARITH_KEY": KEY, "MINE": KEY}).models[0].name == "arith"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("models.arith.headers.Authorization", f"Bearer {KEY}"),
        ("models.arith.headers", json.dumps({"X-Api-Key": PASSWORD})),
        ("models.arith.options.api_key", PASSWORD),
        ("models[0].base_url", f"http://me:{PASSWORD}@host/v1"),
        ("models.arith.api_key_env", KEY),
        ("tasks.sums.system", f"the key is {KEY}"),
    ],
)
@pytest.mark.parametrize("command", ["run eval.yaml --id x", "resume x"])
def test_a_literal_secret_in_a_set_is_refused(tmp_path: Path, path: str, value: str, command: str) -> None:
    write_spec(tmp_path, 1)
    if command.startswith("resume"):
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    done = call(*command.split(), "--set", f"{path}={value}", cwd=tmp_path)
    assert done.code == 2
    assert f"--set {path}" in done.err
    assert "in single quotes" in done.err
    assert KEY not in done.said
    assert PASSWORD not in done.said
    assert not files_with(tmp_path / "runs", KEY)


def test_a_mistake_in_a_set_or_in_yaml_does_not_show_a_key(tmp_path: Path) -> None:
    write_spec(tmp_path, 1)
    done = call("run", "eval.yaml", "--set", f"models.nobody.headers.x={KEY[:3]}", "--set", KEY, cwd=tmp_path)
    assert done.code == 2
    assert KEY not in done.said
    (tmp_path / "eval.yaml").write_text(f"models:\n  - {{headers: {{x: {KEY}}}\n")
    done = call("run", "eval.yaml", cwd=tmp_path)
    assert done.code == 2
    assert KEY not in done.said


def test_a_value_that_a_credential_variable_holds_is_recognised(tmp_path: Path) -> None:
    """`--set …=$MY_SECRET` without quotes: the shell has filled it in."""
    write_spec(tmp_path, 1)
    secret = "no-shape-at-all-4711"
    done = call(
        "run", "eval.yaml", "--set", f"models.arith.options.x={secret}", cwd=tmp_path, env={"MY_SECRET": secret}
    )
    assert done.code == 2
    assert "write ${MY_SECRET}" in done.err
    assert secret not in done.said


def test_without_the_guard_a_literal_secret_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "refuse_literals", lambda mapping, where, environ: None)
    write_spec(tmp_path, 1, model={"headers": {"Authorization": f"Bearer {KEY}"}})
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    assert files_with(tmp_path / "runs", KEY)


@pytest.mark.parametrize(
    "model",
    [
        {
            "headers": {
                "Authorization": "Bearer EMPTY",
                "X-Kind": "test",
                "anthropic-beta": "token-efficient-2025-02-19",
            }
        },
        {"headers": {"Authorization": "Bearer ${MINE}", "Cookie": "a=b; c=${MINE}", "X-Token-Limit": "100000"}},
        {"options": {"tokenizer": "hf-internal-testing/llama-tokenizer", "stop_token": "<|end_of_text|>"}},
        {"params": {"prompt_cache_key": "my-experiment-2024", "max_tokens": 12345678, "user": "someone"}},
        {"base_url": "http://${MINE}:${MINE}@host/v1?api_key=${MINE}&version=2024-10-21&key="},
        {"base_url": "http://[::1]:8000/v1"},
    ],
)
def test_what_is_no_secret_is_accepted(model: dict[str, Any]) -> None:
    spec = {"models": [{"name": "m", "provider": "openai", **model}], "tasks": [{"name": "t"}]}
    assert build_spec(spec, "", (), {"MINE": "x"}).models[0].name == "m"


def test_a_run_of_an_earlier_version_with_a_literal_secret_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with echo(401) as (address, seen):
        write_spec(tmp_path, 1, f"http://{address}", model={"headers": {"Authorization": f"Bearer {KEY}"}})
        with monkeypatch.context() as earlier:
            earlier.setattr(loader, "refuse_literals", lambda mapping, where, environ: None)
            assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 1
        assert call("resume", "x", cwd=tmp_path).code == 1
        assert len(seen) == 2
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 2
        write_spec(tmp_path, 1, f"http://{address}", model={"headers": {"Authorization": "Bearer ${MINE}"}})
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MINE": KEY}).code == 1
    assert len(seen) == 3


def test_options_of_an_earlier_run_are_recognised_behind_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teller.py").write_text(TELLS_OPTIONS)
    write_spec(tmp_path, 1, model={"provider": "teller:make", "options": {"api_key": KEY}})
    with monkeypatch.context() as earlier:
        earlier.setattr(loader, "refuse_literals", lambda mapping, where, environ: None)
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    write_spec(tmp_path, 1, model={"provider": "teller:make", "options": {"api_key": "${MINE}"}})
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MINE": KEY}).code == 0
    other = call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"MINE": "another"})
    assert other.code == 3
    assert KEY not in other.said


def test_a_secret_of_an_mcp_server_is_refused() -> None:
    server = {"mcp": {"url": f"http://host/mcp?token={PASSWORD}", "headers": {"X-Api-Key": PASSWORD}}}
    task = {"name": "t", "solver": {"react": {"tools": [server]}}}
    with pytest.raises(SpecError) as refused:
        build_spec({"models": [{"name": "m", "provider": "mock"}], "tasks": [task]}, "e.yaml")
    assert "e.yaml: tasks[0].solver.react.tools[0].mcp.url: this secret" in str(refused.value)
    assert "tasks[0].solver.react.tools[0].mcp.headers.X-Api-Key: this secret" in str(refused.value)
    assert PASSWORD not in str(refused.value)
