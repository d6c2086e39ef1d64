"""Signals to processes that work on several shards: they stop, whether one of them is at work or none."""

import signal
from pathlib import Path

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import finish, shown, start, wait_until, write_spec

EXPIRY = {"HOLDFAST_EXPIRY_SECONDS": "2"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_waits_for_the_shards_of_others_stops(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "runs"
    with start_server_process(Behaviour(latency_seconds=0.5)) as server:
        spec = write_spec(tmp_path, 40, server.base_url)
        words = ("run", spec, "--id", "x", "--store", store, "--set")
        slow = start(*words, "models.arith.max_connections=1", "--shard", "1/2", cwd=tmp_path, env=EXPIRY)
        assert wait_until(lambda: server.stats().requests >= 1, slow)
        both = ("models.arith.max_connections=20", "--shards", "2", "--this-host")
        waiting = start(*words, *both, cwd=tmp_path, env=EXPIRY)
        assert wait_until(lambda: shown("x", store)["shards"][1]["status"] == "completed", waiting)
        done = finish(waiting, number)
        asked = server.stats().requests
        finish(slow, signal.SIGKILL)
    assert done.code == 130, done.said
    assert f"{number.name}: stopping" in done.err
    assert "Continue with: holdfast resume x" in done.err
    assert asked < 40, "it did not wait for the other worker, or continue its shard"
