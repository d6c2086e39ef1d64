"""Workers of a sharded run that are killed and stopped: every key once, nothing bought twice but what was in flight."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FencedError
from holdfast.runs.execution import execute, workers
from holdfast.state import standing_of
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, wait_until, write_spec
from tests.e2e.sharded_runs import (
    CONNECTIONS,
    EXPIRY,
    SAMPLES,
    SHARDS,
    Storm,
    check_whole,
    without_times,
    write_run,
)
from tests.e2e.view.served import serving


def worker(folder: Path, spec: Path, *more: str) -> "subprocess.Popen[str]":
    part = ("--shards", str(SHARDS), "--this-host", *more)
    return start("run", spec, "--id", "x", "--store", folder / "runs", *part, cwd=folder, env=EXPIRY)


def is_complete(store: Path) -> bool:
    return bool(shown("x", store)["status"] == "completed")


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.long) for each in range(2, 8))])
def test_workers_that_are_killed_and_stopped_answer_every_key_once(
    tmp_path: Path, calm: list[dict[str, Any]], seed: int
) -> None:
    chance = random.Random(seed)
    with start_server_process(Behaviour(wrong_rate=0.2, latency_seconds=0.15)) as server:
        spec = write_run(tmp_path, server)
        storm = Storm(lambda machine: worker(tmp_path, spec), chance)
        try:
            for _ in range(8):
                time.sleep(chance.uniform(0.3, 1.5))
                storm.strike()
        finally:
            storm.end()
        for _ in range(3):  # workers that found others in their way may have left shards
            if is_complete(tmp_path / "runs"):
                break
            assert finish(worker(tmp_path, spec)).code == 0
        repeats = server.stats().repeats
    assert storm.kills
    assert storm.stops
    check_whole(tmp_path, calm)
    assert repeats <= (storm.kills + storm.stops) * CONNECTIONS


def call_in(folder: Path, *arguments: str | Path) -> Done:
    return call(*arguments, "--store", folder / "runs", cwd=folder, env=EXPIRY)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with a spec of 24 samples for an offline model."""
    rows = 24
    write_spec(tmp_path, rows, models=[{"name": "m", "provider": "mock", "options": {"reply": "8"}}])
    return tmp_path


def start_small(folder: Path, *more: str) -> Done:
    return call_in(folder, "run", folder / "eval.yaml", "--id", "x", "--shards", "5", "--this-host", *more)


def test_a_sharded_run_is_one_run_for_every_reader(small: Path) -> None:
    assert start_small(small).code == 0
    assert call_in(small, "run", small / "eval.yaml", "--id", "y").code == 0
    assert without_times(exported("x", small / "runs")) == without_times(exported("y", small / "runs"))
    summary = call_in(small, "show", "x", "--json").json()
    assert (summary["status"], summary["planned"], summary["finished"]) == ("completed", 24, 24)
    assert [each["status"] for each in summary["shards"]] == ["completed"] * 5
    assert sum(each["finished"] for each in summary["shards"]) == 24
    assert "shards: 5 completed" in call_in(small, "show", "x").out
    for command in (
        ("report", "x"),
        ("compare", "x", "y"),
        ("verify", "x", "--scores"),
        ("show", "x", "sums/m/s0001/1"),
    ):
        done = call_in(small, *command)
        assert done.code == 0, done.said
    listed = call_in(small, "ls", "--json").json()
    assert {each["run_id"]: each["finished"] for each in listed} == {"x": 24, "y": 24}


def test_one_shard_is_run_alone_and_the_others_stay_unfinished(small: Path) -> None:
    one = call_in(small, "run", small / "eval.yaml", "--id", "x", "--shard", "2/5")
    assert one.code == 0, one.said
    summary = call_in(small, "show", "x", "--json").json()
    assert summary["status"] == "interrupted"
    assert 0 < summary["finished"] < 24
    assert summary["finished"] + summary["unfinished"] == 24
    assert [each["status"] for each in summary["shards"]].count("not begun") == 4
    done = call_in(small, "resume", "x")
    assert done.code == 0, done.said
    assert call_in(small, "show", "x", "--json").json()["finished"] == 24


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--shards", "4", "--this-host"), 3, "has 5 shards"),
        (("--shards", "5"), 2, "is on a disk of this machine"),
        (("--shards", "5", "--this-host", "--set", "seed=4"), 3, "seed (result)"),
        (("--shards", "5", "--this-host", "--set", "tasks.sums.scorers=[includes]"), 3, "scorers"),
        (("--shard", "6/5"), 2, "is not a shard"),
        (("--shard", "1/5", "--shards", "5"), 2, "cannot be combined"),
    ],
)
def test_workers_that_do_not_agree_are_refused(small: Path, options: tuple[str, ...], code: int, said: str) -> None:
    assert call_in(small, "run", small / "eval.yaml", "--id", "x", "--shard", "1/5").code == 0
    before = call_in(small, "show", "x", "--json").json()["steps"]
    refused = call_in(small, "run", small / "eval.yaml", "--id", "x", *options)
    assert (refused.code, said in refused.err) == (code, True), refused.err
    assert call_in(small, "show", "x", "--json").json()["steps"] == before


def test_a_mirror_without_claims_is_not_shared_by_workers(small: Path) -> None:
    mirror = json.dumps({"url": (small / "mirror").as_uri(), "exclusive": False})
    words = ("run", small / "eval.yaml", "--id", "x", "--shards", "2", "--set", f"mirror={mirror}")
    refused = call_in(small, *words)
    assert (refused.code, refused.out) == (2, "")
    assert "nobody claims shards in a mirror with exclusive: false" in refused.err
    assert "set mirror.exclusive: true" in refused.err
    assert call_in(small, *words, "--this-host").code == 0


def test_a_run_without_shards_does_not_get_any(small: Path) -> None:
    assert call_in(small, "run", small / "eval.yaml", "--id", "x").code == 0
    refused = start_small(small)
    assert (refused.code, "was begun without shards" in refused.err) == (3, True), refused.err


def test_an_extension_reaches_every_shard(small: Path) -> None:
    assert start_small(small, "--limit", "7").code == 0
    for options in (("--limit", "15"), ("--set", "tasks.sums.repeats=2"), ("--set", "limit=null")):
        done = call_in(small, "extend", "x", *options)
        assert done.code == 0, done.said
    lines = exported("x", small / "runs")
    assert len({line["key"] for line in lines}) == len(lines) == 48
    assert {line["status"] for line in lines} == {"finished"}
    assert call_in(small, "verify", "x").code == 0
    root = (small / "runs" / "sums" / "x" / "journal").glob("*.jsonl*")
    assert all(b'"t":"step"' not in path.read_bytes() for path in root if path.suffix == ".jsonl")
    assert shown("x", small / "runs")["steps"]["live"] == 48


def test_other_scorers_score_every_shard(small: Path) -> None:
    assert start_small(small).code == 0
    done = call_in(small, "score", "x", "--scorers", "includes")
    assert done.code == 0, done.said
    assert {tuple(line["scores"]) for line in exported("x", small / "runs")} == {("includes",)}
    key = "sums/m/s0003/1"
    edited = call_in(small, "score", "x", "--set", key, "includes=true", "--reason", "looked at it", "--by", "ann")
    assert edited.code == 0, edited.said
    (line,) = (line for line in exported("x", small / "runs") if line["key"] == key)
    assert line["scores"]["includes"] is True
    assert "includes" in line["scores_edited"]


def test_a_lost_record_of_a_shard_is_reported_by_every_reader(small: Path) -> None:
    assert start_small(small).code == 0
    assert call_in(small, "show", "x").code == 0  # its copy has all records now
    journals = sorted((small / "runs" / "sums" / "x" / "shards").glob("*/journal/*.zst"))
    path = max(journals, key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(bytes(content))
    for command in (("show", "x"), ("report", "x"), ("verify", "x"), ("export", "x")):
        done = call_in(small, *command)
        assert done.code == 5, (command, done.said)


def test_a_cancelled_run_is_left_alone_until_it_is_resumed(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        spec = write_run(tmp_path, server)
        process = worker(tmp_path, spec)
        while server.stats().requests < 5:
            time.sleep(0.05)
        done = call_in(tmp_path, "cancel", "x")
        assert (done.code, "1 of 1 workers" in done.out) == (0, True), done.said
        assert finish(process).code == 130
        refused = finish(worker(tmp_path, spec))
        assert (refused.code, "was cancelled" in refused.err) == (2, True), refused.err
        assert shown("x", tmp_path / "runs")["status"] == "cancelled"
        assert call_in(tmp_path, "resume", "x").code == 0
    assert shown("x", tmp_path / "runs")["status"] == "completed"


def test_a_worker_that_was_paused_when_the_run_was_cancelled_stops_when_it_continues(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        process = worker(tmp_path, write_run(tmp_path, server), "--shards", "2")
        assert wait_until(lambda: server.stats().requests >= 3 * CONNECTIONS, process)
        process.send_signal(signal.SIGSTOP)
        shards = list((tmp_path / "runs" / "sums" / "x" / "shards").iterdir())
        assert wait_until(lambda: not any(standing_of(str(each)).held for each in shards), process)
        done = call_in(tmp_path, "cancel", "x")
        assert (done.code, "no worker is running now" in done.out) == (0, True), done.said
        sent = server.stats().requests
        process.send_signal(signal.SIGCONT)
        assert finish(process).code == 130
        assert shown("x", tmp_path / "runs")["status"] == "cancelled"
        # Its other shard was not claimed, and most of this one was not requested.
        assert server.stats().requests < sent + SAMPLES / 2


def test_limits_that_were_tuned_hold_for_workers_that_begin_later(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        spec = write_run(tmp_path, server)
        process = worker(tmp_path, spec)
        assert wait_until(lambda: server.stats().requests >= 5, process)
        tuned = call_in(tmp_path, "tune", "x", "--set", "limits.run.requests=40")
        assert (tuned.code, "1 of 1 workers" in tuned.out) == (0, True), tuned.said
        finish(process, signal.SIGKILL)
        # A scheduler starts the same command again: it has no limit of its own.
        assert finish(worker(tmp_path, spec)).code == 6
        assert server.stats().requests <= 40 + CONNECTIONS
        assert 0 < shown("x", tmp_path / "runs")["unfinished"] < SAMPLES
        refused = call_in(tmp_path, "tune", "x", "--set", "limits.run.requests=80")
        assert (refused.code, "is not running" in refused.err) == (2, True), refused.said
        more = call_in(tmp_path, "resume", "x", "--set", "limits.run.requests=80")
        assert (more.code, server.stats().requests <= 80 + CONNECTIONS) == (6, True), more.said


def test_the_viewer_shows_a_sharded_run_while_it_grows(small: Path) -> None:
    assert call_in(small, "run", small / "eval.yaml", "--id", "x", "--shard", "1/5").code == 0
    with serving(small / "runs") as viewer:
        before = viewer.json("/runs/sums/x")["summary"]
        assert 0 < before["finished"] < 24
        assert before["reason"] == "4 of 5 shards: not begun"
        assert viewer.json("/runs/sums/x/lineage")["lineage"]["lives"][0]["shard"] == "1/5"
        assert start_small(small).code == 0
        after = viewer.json("/runs/sums/x")["summary"]
        assert (after["status"], after["finished"]) == ("completed", 24)
        assert "mirrored" not in viewer.html("/runs/sums/x"), "the run has no mirror"
        assert len(viewer.json("/runs/sums/x/samples?limit=100")["samples"]) == 24
        assert viewer.json("/runs/sums/x/samples/sums/m/s0003/1")["story"]["status"] == "finished"
        (listed,) = viewer.json("/runs")["runs"]
        assert listed["summary"]["finished"] == 24


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_shards_that_were_run_apart_are_merged_into_one_run(small: Path, order: tuple[int, ...]) -> None:
    for number in (1, 2, 3):
        part = ("--id", "x", "--shard", f"{number}/3", "--store", small / f"machine-{number}")
        assert call("run", small / "eval.yaml", *part, cwd=small).code == 0
    parts = [small / f"machine-{number}" / "sums" / "x" for number in order]
    done = call_in(small, "merge", *parts, "--id", "whole")
    assert done.code == 0, done.said
    assert call_in(small, "run", small / "eval.yaml", "--id", "y").code == 0
    assert without_times(exported("whole", small / "runs")) == without_times(exported("y", small / "runs"))
    for command in (("verify", "whole", "--scores"), ("resume", "whole"), ("fork", "whole", "--id", "forked")):
        checked = call_in(small, *command)
        assert checked.code == 0, checked.said
    assert shown("whole", small / "runs")["steps"]["live"] == 24
    # Part 1 again: its answers are known already, and what they cost is counted twice.
    again = call_in(small, "merge", "whole", small / "machine-1" / "sums" / "x", "--id", "again")
    assert (again.code, "answered by several runs: " in again.err) == (0, True), again.said


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x"), ("x", "y", "x2")])
def test_runs_that_answered_the_same_keys_are_merged_with_the_scores_of_the_first(
    small: Path, order: tuple[str, ...]
) -> None:
    for name in order:
        with start_server_process(Behaviour(wrong_rate=1.0 if name == "y" else 0.0)) as server:
            write_spec(small, 24, server.base_url)
            assert call_in(small, "run", small / "eval.yaml", "--id", name).code == 0
    done = call_in(small, "merge", *order, "--id", "whole")
    assert done.code == 0, done.said
    first, merged = exported(order[0], small / "runs"), exported("whole", small / "runs")
    assert without_times(merged) == without_times(first)
    assert all(line["scores"] for line in merged)
    report = call_in(small, "report", "whole", "--json").json()
    assert report["cells"] == call_in(small, "report", order[0], "--json").json()["cells"]
    named = sorted(line["key"] for line in first)[:10]
    assert f"24 samples answered by several runs: {', '.join(named)} and 14 more" in done.err
    assert call_in(small, "verify", "whole", "--scores").code == 0


def test_a_merged_run_is_synced_before_it_gets_its_name(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        part = ("--id", "x", "--shard", f"{number}/2", "--store", small / f"machine-{number}")
        assert call("run", small / "eval.yaml", *part, cwd=small).code == 0
        blobs = small / f"machine-{number}" / "sums" / "x" / "blobs"
        blobs.mkdir(exist_ok=True)
        (blobs / f"blob-{number}").write_bytes(b"content")
    synced: set[int] = set()

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            real(handle)
            synced.add(os.fstat(handle).st_ino)

        return sync

    unsynced: list[str] = []
    rename = os.rename

    def look_and_rename(old: str, new: str, **options: Any) -> None:
        if os.path.basename(new) == "whole":
            below = (Path(above, name) for above, folders, names in os.walk(old) for name in folders + names)
            unsynced.extend(str(each) for each in (Path(old), *below) if each.stat().st_ino not in synced)
            synced.add(-1)
        rename(old, new, **options)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    monkeypatch.setattr(os, "rename", look_and_rename)
    parts = [small / f"machine-{number}" / "sums" / "x" for number in (1, 2)]
    done = call_in(small, "merge", *parts, "--id", "whole")
    assert done.code == 0, done.said
    assert -1 in synced, "it was renamed"
    assert unsynced == []
    assert (small / "runs" / "sums" / "whole" / "blobs" / "blob-2").read_bytes() == b"content"


def test_a_worker_that_is_fenced_while_it_begins_the_run_joins_the_others(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, and another worker has begun the run."""
    begun = execute.begin_journal
    fenced: list[int] = []

    async def begin_journal(*given: Any) -> Any:
        if fenced:
            return await begun(*given)
        fenced.append(1)
        raise FencedError("sums/x was taken over by another process: this one stops")

    monkeypatch.setattr(workers, "begin_journal", begin_journal)
    done = call_in(small, "run", small / "eval.yaml", "--id", "x", "--shards", "2", "--this-host")
    assert (fenced, done.code) == ([1], 0), done.said


def test_runs_of_two_plans_are_not_merged(small: Path) -> None:
    assert call_in(small, "run", small / "eval.yaml", "--id", "x").code == 0
    assert call_in(small, "run", small / "eval.yaml", "--id", "y", "--limit", "3").code == 0
    refused = call_in(small, "merge", "x", "y", "--id", "z")
    assert (refused.code, "are not parts of one run" in refused.err) == (3, True), refused.err
    assert not (small / "runs" / "sums" / "z").exists()


def test_a_sharded_run_is_removed_with_its_mirror_but_not_while_a_worker_is_live(tmp_path: Path) -> None:
    mirror = ("--set", f"mirror={{url: '{(tmp_path / 'mirror').as_uri()}', seconds: 0.3}}")
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        spec = write_run(tmp_path, server)
        process = worker(tmp_path, spec, *mirror)
        while server.stats().requests < 5:
            time.sleep(0.05)
        refused = call_in(tmp_path, "gc", "x", "--mirror", "--yes")
        assert (refused.code, "live process" in refused.err) == (4, True), refused.err
        finish(process, signal.SIGTERM)
    done = call_in(tmp_path, "gc", "x", "--mirror", "--yes")
    assert done.code == 0, done.said
    assert not (tmp_path / "runs" / "sums" / "x").exists()
    left = [path for path in (tmp_path / "mirror").rglob("*") if path.is_file() and "removed" not in path.parts]
    assert left == []


def test_a_fork_and_a_replay_use_the_steps_of_all_shards(small: Path) -> None:
    assert start_small(small).code == 0
    forked = call_in(small, "fork", "x", "--id", "y", "--set", "tasks.sums.repeats=2")
    assert forked.code == 0, forked.said
    steps = shown("y", small / "runs")["steps"]
    assert (steps["taken_over"], steps["live"]) == (24, 24)
    replayed = call_in(small, "replay", "x", "sums/m/s0003/1")
    assert replayed.code == 0, replayed.said
