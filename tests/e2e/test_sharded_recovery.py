"""Sharded runs whose machines are gone, or whose shards are damaged: `recover`, `doctor`, and lists of a mirror."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Lock
from holdfast.journal.ownership.lock import WAIT_SECONDS as LOCK_WAIT_SECONDS
from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, write_spec

KILLED_AT = Path(__file__).with_name("child_killed_at.py")
SHARDS = 5
ROWS = 60
CONNECTIONS = 2


def environment(folder: Path, machine: str) -> dict[str, str]:
    return {"HOLDFAST_EXPIRY_SECONDS": "2", "HOLDFAST_CACHE": str(folder / f"cache-{machine}")}


def call_on(machine: Path, *arguments: str | Path) -> Done:
    """A command on a machine, whose store is this folder."""
    return call(*arguments, "--store", machine, cwd=machine.parent, env=environment(machine.parent, machine.name))


def write_mirrored(folder: Path, server: ServerProcess) -> tuple[Path, str]:
    """A spec with a mirror, and the URL of its run `x` there."""
    mirror = {"url": (folder / "mirror").as_uri(), "seconds": 0.2}
    spec = write_spec(folder, ROWS, server.base_url, model={"max_connections": CONNECTIONS}, mirror=mirror)
    return spec, (folder / "mirror" / "sums" / "x").as_uri()


def lose_two_machines(folder: Path, spec: Path, server: ServerProcess) -> int:
    """Two workers with disks of their own. One is stopped by SIGTERM, one is killed; then both disks are gone.

    Returns how many requests the killed one has sent: all that can be lost on a machine that uploads slowly.
    """
    part = ("run", spec, "--id", "x", "--shards", str(SHARDS))
    for machine, number in (("one", signal.SIGTERM), ("two", signal.SIGKILL)):
        before = server.stats().requests
        process = start(*part, "--store", folder / machine, cwd=folder, env=environment(folder, machine))
        while server.stats().requests < before + 16:
            time.sleep(0.02)
        finish(process, number)
        shutil.rmtree(folder / machine)
    return server.stats().requests - before


def test_a_run_of_lost_machines_is_recovered_with_all_its_shards(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        spec, url = write_mirrored(tmp_path, server)
        sent_by_killed = lose_two_machines(tmp_path, spec, server)
        new = tmp_path / "new"
        done = call("recover", url, "--output", new, "--json", cwd=tmp_path, env=environment(tmp_path, "new"))
        assert done.code == 0, done.said
        found = done.json()
        assert found["planned"] == ROWS
        # The killed worker may have acknowledged records, or written a spec.yaml, that it had not mirrored.
        lost = [each for each in found["warnings"] if "were acknowledged and are lost" in each]
        assert (found["lost"] > 0) == bool(lost), found["warnings"]
        assert all(each in lost or "spec.yaml was missing" in each for each in found["warnings"]), found["warnings"]
        assert 0 < found["finished"] < ROWS
        summary = shown("x", new)
        assert (summary["status"], summary["finished"]) == ("interrupted", found["finished"])
        states = [each["status"] for each in summary["shards"]]
        assert len(states) == SHARDS
        assert states.count("completed") >= 1
        assert "running" not in states
        for command in (("verify", "x"), ("verify", url)):
            checked = call_on(new, *command)
            assert checked.code == 0, checked.said
            assert "in 1 segment:" not in checked.out, "the shards were checked too"
        assert call("recover", url, "--output", new, "--overwrite", cwd=tmp_path).code == 0  # again
        before = server.stats()
        resumed = call_on(new, "resume", "x")
        assert resumed.code == 0, resumed.said
        after = server.stats()
        # An answer that was mirrored without the end of its sample is not requested again.
        assert after.requests - before.requests <= ROWS - found["finished"]
        assert after.repeats <= sent_by_killed
    assert shown("x", new)["status"] == "completed"
    assert len({line["key"] for line in exported("x", new)}) == ROWS
    assert call_on(new, "verify", "x", "--scores").code == 0


def test_a_folder_is_recovered_with_its_shards_and_then_removed(tmp_path: Path) -> None:
    write_spec(tmp_path, 24)
    old, new = tmp_path / "old", tmp_path / "new"
    part = ("run", tmp_path / "eval.yaml", "--id", "x", "--shards", "3", "--this-host")
    assert call_on(old, *part).code == 0
    refused = call("recover", old / "sums" / "x", "--output", new, "--no-events", cwd=tmp_path)
    assert (refused.code, "has shards" in refused.err) == (2, True), refused.said
    done = call("recover", old / "sums" / "x", "--output", new, cwd=tmp_path)
    assert (done.code, "24 of 24 finished" in done.out) == (0, True), done.said
    assert not (old / "sums" / "x").exists()
    assert [each["status"] for each in shown("x", new)["shards"]] == ["completed"] * 3
    assert call_on(new, "verify", "x").code == 0
    assert "is complete: no request was sent" in call_on(new, "resume", "x").err


def test_lists_of_a_mirror_and_of_what_can_be_recovered_count_all_shards(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        spec, url = write_mirrored(tmp_path, server)
        lose_two_machines(tmp_path, spec, server)
        new = tmp_path / "new"
        (listed,) = call("recover", "--list", (tmp_path / "mirror").as_uri(), "--json", cwd=tmp_path).json()
        finished = call("show", url, "--json", cwd=tmp_path).json()["finished"]
        assert (listed["planned"], listed["finished"], listed["exact"]) == (ROWS, finished, True)
        (listed,) = call("ls", "--store", (tmp_path / "mirror").as_uri(), "--json", cwd=tmp_path).json()
        assert (listed["status"], listed["planned"]) == ("interrupted", ROWS)
        assert 0 < listed["finished"] <= finished
        assert call_on(new, "resume", url).code == 0
    assert call("recover", "--list", new, cwd=tmp_path).out == "Nothing to recover.\n"
    (listed,) = call("ls", "--store", (tmp_path / "mirror").as_uri(), "--json", cwd=tmp_path).json()
    assert (listed["status"], listed["finished"], listed["unfinished"]) == ("completed", ROWS, 0)


def kill_before_upload(folder: Path, spec: Path) -> None:
    """A worker on machine `one` answers everything, records the end, and is killed before it uploads the records. Its
    beat mentions the end, as those of version 0.2.0 could.
    """
    part = ("run", spec, "--id", "x", "--shards", "1", "--store", folder / "one")
    env = {**environment(folder, "one"), "HOLDFAST_EXPIRY_SECONDS": "60"}
    program = (sys.executable, KILLED_AT, "holdfast.journal.writer", "seal")
    killed = subprocess.run([*program, *part], cwd=folder, env={**os.environ, **env}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    lease = json.loads((folder / "one" / "sums" / "x" / "shards" / "1-of-1" / "lease.json").read_text())
    assert (lease["end"], lease["finished"]) == ("run.completed", ROWS)
    beats = folder / "mirror" / "sums" / "x" / "shards" / "1-of-1" / "lease"
    beat = {"count": 9, "mirrored": 1, "lease": {**lease, "mirrored": 1}}
    (beats / f"{lease['epoch']:06d}.beat").write_text(json.dumps(beat))


def write_slow_mirror(folder: Path, server: ServerProcess) -> Path:
    """A spec with a mirror that gets records only when a journal is opened or closed."""
    mirror = {"url": (folder / "mirror").as_uri(), "seconds": 3600}
    return write_spec(folder, ROWS, server.base_url, mirror=mirror)


def test_a_shard_whose_records_were_lost_before_their_upload_is_answered_again(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_slow_mirror(tmp_path, server)
        kill_before_upload(tmp_path, spec)
        shutil.rmtree(tmp_path / "one")
        (listed,) = call("ls", "--store", (tmp_path / "mirror").as_uri(), "--json", cwd=tmp_path).json()
        assert listed["status"] == "interrupted"
        done = call_on(tmp_path / "two", "run", spec, "--id", "x", "--shards", "1")
        assert done.code == 0, done.said
        assert shown("x", tmp_path / "two")["finished"] == ROWS
    (listed,) = call("ls", "--store", (tmp_path / "mirror").as_uri(), "--json", cwd=tmp_path).json()
    assert (listed["status"], listed["finished"]) == ("completed", ROWS)


@pytest.mark.parametrize("beat", ["of its worker", "of none", "of another worker that did nothing"])
def test_the_same_command_sends_records_that_a_killed_worker_did_not_upload(tmp_path: Path, beat: str) -> None:
    with start_server_process() as server:
        spec = write_slow_mirror(tmp_path, server)
        kill_before_upload(tmp_path, spec)
        beats = tmp_path / "mirror" / "sums" / "x" / "shards" / "1-of-1" / "lease"
        (written,) = beats.glob("*.beat")
        if beat != "of its worker":
            written.write_text(json.dumps({"count": 1}))
        if beat == "of another worker that did nothing":
            claim = json.loads(written.with_suffix("").read_text())
            epoch = f"{int(written.stem) + 1:06d}"
            (beats / epoch).write_text(json.dumps({**claim, "nonce": "0" * 32}))
            (beats / f"{epoch}.beat").write_text(json.dumps({"count": 1, "ended": True}))
        assert call_on(tmp_path / "one", "run", spec, "--id", "x", "--shards", "1").code == 0
        requests = server.stats().requests
        shutil.rmtree(tmp_path / "one")
        done = call_on(tmp_path / "two", "run", spec, "--id", "x", "--shards", "1")
        assert (done.code, server.stats().requests) == (0, requests), done.said
    assert "is complete: no request was sent" in done.err
    assert shown("x", tmp_path / "two")["finished"] == ROWS == requests


def test_a_worker_waits_for_another_that_fetches_the_run_from_its_mirror(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, mirror={"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2})
    words = ("run", spec, "--id", "x", "--store")
    assert call(*words, tmp_path / "one", "--shard", "1/2", cwd=tmp_path, env=environment(tmp_path, "one")).code == 0
    fetched = tmp_path / "two" / "sums" / ".x.recovering"
    fetched.mkdir(parents=True)
    other = Lock(str(fetched))
    worker = start(*words, tmp_path / "two", "--shards", "2", cwd=tmp_path, env=environment(tmp_path, "two"))
    time.sleep(LOCK_WAIT_SECONDS + 1)  # it gives up the lock, and takes it later
    other.release()
    done = finish(worker)
    assert done.code == 0, done.said
    assert [line["status"] for line in exported("x", tmp_path / "two")] == ["finished"] * 6


def findings(store: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    done = call_on(store, "doctor", "x", "--json", *options)
    return done.code, done.json()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the complete sharded run `x`."""
    write_spec(tmp_path, 24)
    part = ("run", tmp_path / "eval.yaml", "--id", "x", "--shards", "3", "--this-host")
    assert call_on(tmp_path / "runs", *part).code == 0
    assert findings(tmp_path / "runs") == (0, [])
    return tmp_path / "runs"


def test_doctor_repairs_what_is_derived_in_a_shard(store: Path) -> None:
    shard = store / "sums" / "x" / "shards" / "2-of-3"
    (shard / "spec.yaml").unlink()
    (shard / "plan.jsonl.zst.tmp").write_bytes(b"half")
    code, found = findings(store)
    assert code == 0
    assert [each["what"] for each in found] == [
        "shard 2/3: spec.yaml is missing or older than the journal",
        "shard 2/3: leftover files: plan.jsonl.zst.tmp",
    ]
    assert all(each["fixed"] for each in findings(store, "--fix")[1])
    assert findings(store) == (0, [])


@pytest.mark.parametrize("name", ["plan.jsonl.zst", "journal"])
def test_doctor_names_the_shard_that_is_damaged(store: Path, name: str) -> None:
    path = store / "sums" / "x" / "shards" / "2-of-3" / name
    path = next(path.glob("*.zst")) if path.is_dir() else path
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 20] = bytes(20)
    path.write_bytes(bytes(content))
    code, found = findings(store)
    assert code == 5
    assert any(each["what"].startswith("shard 2/3: ") and each["damage"] for each in found), found
    assert not any("shard 1/3" in each["what"] or "shard 3/3" in each["what"] for each in found), found
