"""A model that refuses every request stops its cells at once, with one message; the same command continues later."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, run, shown, write_spec

RUN = ("run", "eval.yaml", "--id", "x", "--store", "runs")
KEY = {"api_key_env": "ARITH_KEY"}


def go(folder: Path, key: str = "right") -> Done:
    return run(*RUN, cwd=folder, env={"ARITH_KEY": key})


def kinds(folder: Path) -> dict[str, int]:
    """How many keys there are of each status."""
    found = [line["status"] for line in exported("x", folder / "runs")]
    return {status: found.count(status) for status in dict.fromkeys(found)}


def restarted(server: ServerProcess, behaviour: Behaviour) -> ServerProcess:
    """Another one in its place."""
    port = int(server.base_url.split(":")[2].split("/")[0])
    server.close()
    return start_server_process(behaviour, port)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("401", "auth: HTTP 401"),
        pytest.param("402", "billing: HTTP 402", marks=pytest.mark.long),
        pytest.param("404", "unknown_model: HTTP 404", marks=pytest.mark.long),
    ],
)
def test_a_wrong_key_or_name_or_an_empty_account_costs_few_requests_and_the_same_command_continues(
    tmp_path: Path, fault: str, said: str
) -> None:
    server = start_server_process(Behaviour(faults=[Fault(fault)]))
    try:
        write_spec(tmp_path, 100, server.base_url, model=KEY)
        refused = go(tmp_path, "wrong")
        assert refused.code == 1
        assert refused.err.count(f"no more requests are sent to model arith: {said}") == 1
        assert "100 samples left unfinished" in refused.err
        assert server.stats().requests <= 64
        found = shown("x", tmp_path / "runs")
        assert (found["status"], found["failed"], found["unfinished"]) == ("failed", 0, 100)
        assert said in found["reason"]
        server = restarted(server, Behaviour())
        assert go(tmp_path).code == 0
        assert kinds(tmp_path) == {"finished": 100}
        assert server.stats().repeats == 0
    finally:
        server.close()


def test_a_wrong_name_is_answered_with_the_models_of_the_server(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("404")])) as server:
        write_spec(tmp_path, 10, server.base_url, model={"model": "test-modle"})
        assert "did you mean 'test-model'? The server lists test-model" in run(*RUN, cwd=tmp_path).err
    assert "did you mean 'test-model'?" in shown("x", tmp_path / "runs")["reason"]


def test_the_advice_after_a_wrong_name_continues_with_the_right_one(tmp_path: Path) -> None:
    """The name has a dot, as many have, and another model beside it is fine."""
    server = start_server_process(Behaviour(faults=[Fault("404")]))
    try:
        with start_server_process() as fine:
            model = {"provider": "openai"}
            wrong = {**model, "name": "gpt-4.1", "model": "test-modle", "base_url": server.base_url}
            write_spec(tmp_path, 6, models=[wrong, {**model, "name": "b", "model": "b", "base_url": fine.base_url}])
            refused = run(*RUN, cwd=tmp_path)
            assert refused.code == 1
            advised = "holdfast resume x --set models.gpt-4.1.model=test-model"
            advice = f"Continue with the right name: {advised}, or with a corrected spec: holdfast resume x SPEC"
            assert advice in refused.err
            assert f"Continue with: {advised}" in call("show", "x", cwd=tmp_path).out
            server = restarted(server, Behaviour())
            done = run(*shlex.split(advised)[1:], cwd=tmp_path)
            assert done.code == 0, done.said
        assert kinds(tmp_path) == {"finished": 12}
    finally:
        server.close()


def test_a_cell_beside_one_that_is_refused_continues(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("401")])) as bad, start_server_process() as good:
        model: dict[str, Any] = {"provider": "openai", "model": "m"}
        models = [{**model, "name": name, "base_url": at.base_url} for name, at in (("bad", bad), ("good", good))]
        write_spec(tmp_path, 50, models=models)
        done = run(*RUN, "--limit", "50", cwd=tmp_path)
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("continue with: holdfast resume x")
    assert "a part of the samples" not in done.out
    assert {(line["model"], line["status"]) for line in exported("x", tmp_path / "runs")} == {
        ("bad", "unfinished"),
        ("good", "finished"),
    }


def test_a_request_that_no_sample_can_make_stops_the_cell_after_a_few(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("422")])) as server:
        write_spec(tmp_path, 300, server.base_url)
        done = go(tmp_path)
        assert server.stats().requests <= 64
    assert done.code == 1
    assert "bad_request: HTTP 422" in done.out
    assert kinds(tmp_path)["unfinished"] >= 296


def test_a_request_that_few_samples_provoke_stops_nothing(tmp_path: Path) -> None:
    """Not on a resume either, which first retries what had failed."""
    with start_server_process(Behaviour(faults=[Fault("400", rate=0.1)], seed=5)) as server:
        write_spec(tmp_path, 100, server.base_url, model={"max_connections": 4})
        done = go(tmp_path)
    found = kinds(tmp_path)
    assert done.code == 1
    assert found["failed"] > 5
    assert found["failed"] + found["finished"] == 100
    again = start_server_process(Behaviour(faults=[Fault("400")]), int(server.base_url.split(":")[2].split("/")[0]))
    with again:
        assert go(tmp_path).code == 1
    assert kinds(tmp_path) == found
