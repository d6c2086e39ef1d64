"""The command that a refusal suggests can be copied, and does what was refused."""

import shlex
from pathlib import Path

import pytest

from tests.e2e.commands import Done, call, sums, write_rows, write_spec

ADHOC = ("--model", "mock", "--data", "sums.jsonl", "--scorer", "numeric", "--id", "x")


def offered(done: Done, verb: str) -> list[str]:
    assert done.code == 3, done.said
    commands = [line.strip() for line in done.err.splitlines() if line.startswith(f"  holdfast {verb} ")]
    assert len(commands) == 1, done.err
    return shlex.split(commands[0])[1:]


@pytest.mark.parametrize("before", [(), ("--color",)])
def test_a_spec_with_changes_in_another_store_is_reported_with_all_of_them(
    tmp_path: Path, before: tuple[str, ...]
) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "x", "--store", "kept", cwd=tmp_path)
    changes = ("--set", "seed=7", "--set", "tasks.sums.prompt=Say: {question}")
    fork = offered(call(*before, "run", spec, "--id=x", "--store", "kept", *changes, cwd=tmp_path), "fork")
    assert fork == ["fork", "x", str(spec), *changes, "--id", "x-2", "--store", str(tmp_path / "kept")]
    done = call(*fork, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "Say: " in call("show", "x-2", "sums/arith/s0001/1", "--store", "kept", cwd=tmp_path).out


def test_of_a_run_without_a_spec_every_field_that_differs_is_reported(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(4))
    call("run", *ADHOC, "--prompt", "Compute: {question}", cwd=tmp_path)
    asked = ("--prompt", "It's {question}?", "--param", "temperature=0.5")
    fork = offered(call("run", *ADHOC, *asked, cwd=tmp_path), "fork")
    assert call(*fork, cwd=tmp_path).code in (0, 1)
    told = call("show", "x-2", "sums/mock/s0001/1", cwd=tmp_path).out
    assert "It's " in told


def test_of_a_run_without_a_spec_another_model_is_offered_as_an_extension(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(4))
    call("run", *ADHOC, cwd=tmp_path)
    extend = offered(call("run", *ADHOC, "--model", "mock/second", cwd=tmp_path), "extend")
    done = call(*extend, cwd=tmp_path)
    assert done.code in (0, 1), done.err
    assert call("show", "x", "--json", cwd=tmp_path).json()["planned"] == 8


def test_a_part_of_a_spec_is_reported_without_its_file(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, models=[{"name": name, "provider": "mock"} for name in ("one", "two")])
    call("run", spec, "--id", "x", "--model", "one", "--limit", "2", cwd=tmp_path)
    extend = offered(call("run", spec, "--id", "x", "--model", "one", "--limit", "3", cwd=tmp_path), "extend")
    assert extend == ["extend", "x", "--set", "limit=3"]
    assert call(*extend, cwd=tmp_path).code in (0, 1)
    assert call("show", "x", "--json", cwd=tmp_path).json()["planned"] == 3


def test_a_limit_is_kept_in_the_suggested_command(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "x", "--limit", "2", cwd=tmp_path)
    extend = offered(call("run", spec, "--id", "x", "--limit", "3", cwd=tmp_path), "extend")
    assert extend == ["extend", "x", str(spec), "--set", "limit=3"]
    assert call(*extend, cwd=tmp_path).code in (0, 1)
    assert call("show", "x", "--json", cwd=tmp_path).json()["planned"] == 3
