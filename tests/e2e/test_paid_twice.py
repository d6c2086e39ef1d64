"""Answers that two workers, or two merged runs, paid for: `show` counts them where both are known."""

import shutil
import signal
from pathlib import Path
from typing import Any

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, wait_until, write_spec

PRICE = {"input": 1000, "output": 1000}
NONE = {"answers": 0, "usage": {}, "dollars": None}


def call_on(machine: Path, *arguments: str | Path) -> Done:
    env = {"HOLDFAST_EXPIRY_SECONDS": "2", "HOLDFAST_CACHE": str(machine.parent / f"cache-{machine.name}")}
    return call(*arguments, "--store", machine, cwd=machine.parent, env=env)


def paid_twice(machine: Path, run: str = "x") -> dict[str, Any]:
    found: dict[str, Any] = call_on(machine, "show", run, "--json").json()["paid_twice"]
    return found


def test_answers_that_two_merged_runs_paid_for_are_counted(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_spec(tmp_path, 12, server.base_url, model={"price": PRICE})
        for store in ("one", "two"):
            part = ("--shard", "1/2") if store == "two" else ()
            assert call_on(tmp_path / store, "run", spec, "--id", "x", *part).code == 0
        assert paid_twice(tmp_path / "one")["answers"] == 0
        assert "paid twice" not in call_on(tmp_path / "one", "show", "x").out
        parts = [tmp_path / store / "sums" / "x" for store in ("one", "two")]
        assert call_on(tmp_path / "one", "merge", *parts, "--id", "both").code == 0
        again = server.stats().repeats
    assert again > 0
    found = paid_twice(tmp_path / "one", "both")
    part = shown("x", tmp_path / "two")["cost"]["dollars"]
    assert (found["answers"], round(found["dollars"], 9)) == (again, round(part, 9))
    whole = shown("both", tmp_path / "one")
    assert whole["cost"]["dollars"] > shown("x", tmp_path / "one")["cost"]["dollars"], "both were paid for"
    assert f"paid twice: {again} answers (${part:.2f}" in call_on(tmp_path / "one", "show", "both").out


def test_answers_of_a_lost_worker_are_counted_on_the_machine_that_has_them(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        mirror = {"url": (tmp_path / "mirror").as_uri(), "seconds": 15}
        spec = write_spec(tmp_path, 40, server.base_url, model={"max_connections": 1, "price": PRICE}, mirror=mirror)
        one, two = tmp_path / "one", tmp_path / "two"
        # A long expiry: a worker uploads at least as often as it needs to for its heartbeat.
        env = {"HOLDFAST_EXPIRY_SECONDS": "60", "HOLDFAST_CACHE": str(tmp_path / "cache-one")}
        worker = start("run", spec, "--id", "x", "--shards", "1", "--store", one, cwd=tmp_path, env=env)
        assert wait_until(lambda: server.stats().answered >= 8, worker)
        finish(worker, signal.SIGKILL)  # nothing of its answers has reached the mirror
        done = call_on(two, "run", spec, "--id", "x", "--shards", "1")
        assert done.code == 0, done.said
        repeats = server.stats().repeats
    assert repeats >= 7
    found = paid_twice(one)
    assert repeats - 1 <= found["answers"] <= repeats, "one may have been in flight"
    assert found["dollars"] > 0
    assert f"paid twice: {found['answers']} answers ($" in call_on(one, "show", "x").out
    assert paid_twice(two)["answers"] == 0, "this machine cannot know of them"
    assert shown("x", two)["finished"] == 40
    for machine in (one, two):
        assert [bool(line["scores"]) for line in exported("x", machine)] == [True] * 40, machine
    # Now the root journal is newer in the mirror, and is read from there: without its cache this machine counts again.
    assert call_on(two, "resume", "x", "--set", "grace_seconds=7").code == 0
    shutil.rmtree(tmp_path / "cache-one")
    assert paid_twice(one) == found
