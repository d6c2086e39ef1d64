"""A run is read where it is mirrored, by every command that only reads, and resumed by its URL."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.journal.object_store import StoredObjects, open_objects
from holdfast.runs.maintenance.recoverable import list_recoverable
from tests.e2e.commands import call, exported, finish, run, shown, snapshot, start, wait_until, write_spec
from tests.journals import flipped, frames_of
from tests.stores import Bucket

WRITING = [
    ("score", ()),
    ("retry", ()),
    ("extend", ("--limit", "9")),
    ("fork", ("--id", "y")),
    ("tag", ("nightly",)),
    ("note", ("a word",)),
    ("cancel", ()),
    ("tune", ("--set", "concurrency.samples=2")),
    ("replay", ("sums/arith/s0001/1",)),
    ("doctor", ()),
    ("gc", ()),
]


S3_FIRST = pytest.mark.parametrize("kind_of_store", ["s3", pytest.param("folder", marks=pytest.mark.long)])
"""For tests that use most of what a store can do. The others see one kind of store, here a folder."""


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def kind_of_store(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own: each test is another machine."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def completed(folder: Path, bucket: Bucket, run_id: str = "x", rows: int = 6, **changes: Any) -> str:
    """A run that has ended, and its URL."""
    spec = write_spec(folder, rows, mirror={"url": bucket.url, "seconds": 0.2}, **changes)
    done = call("run", spec, "--id", run_id, "--store", folder / "runs", cwd=folder)
    assert done.code == 0, done.err
    return f"{bucket.url}/sums/{run_id}"


def cut_off(folder: Path, bucket: Bucket, finished: int = 4) -> str:
    """A run that was killed when its mirror had so many answers, and its URL."""
    slow = {"options": {"reply": "8", "latency_seconds": 0.15}}
    mirror = {"url": bucket.url, "seconds": 0.1}
    spec = write_spec(folder, 30, mirror=mirror, model=slow, concurrency={"samples": 2})
    url = f"{bucket.url}/sums/x"

    def is_there() -> bool:
        return sum(content.count(b'"sample.finished"') for content in chunks(url)) >= finished

    with start("run", spec, "--id", "x", "--store", folder / "runs", cwd=folder) as process:
        reached = wait_until(is_there, process)
        ended = finish(process, signal.SIGKILL)
    assert reached, ended.err
    return url


def chunks(url: str) -> list[bytes]:
    objects = open_objects(url)
    names = [each.name for each in objects.listed("journal") if not each.name.endswith(".zst")]
    return [found for name in names if (found := objects.get(name)) is not None]


def read(*arguments: str | Path, cwd: Path) -> str:
    done = call(*arguments, cwd=cwd)
    assert (done.code, done.err) == (0, ""), done.said
    return done.out


@S3_FIRST
def test_every_reading_command_says_of_a_mirrored_run_what_it_says_of_the_run(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    here = ("--store", tmp_path / "runs")
    for name, store in ((url, ()), ("x", ("--store", bucket.url)), ("sums/x", ("--store", bucket.url))):
        for command in (("export",), ("report", "--json"), ("show", "--failed"), ("show", "--wrong", "--json")):
            verb, *options = command
            mine = read(verb, "x", *options, *here, cwd=tmp_path)
            assert read(verb, name, *options, *store, cwd=tmp_path) == mine, command
    key = ("show", "x", "sums/arith/s0001/1", *here)
    assert read("show", url, "sums/arith/s0001/1", cwd=tmp_path) == read(*key, cwd=tmp_path)
    there = json.loads(read("show", url, "--json", cwd=tmp_path))
    assert there["folder"] == url
    own = shown("x", tmp_path / "runs")
    assert {**there, "folder": "", "bytes": 0, "mirror": 0} == {**own, "folder": "", "bytes": 0, "mirror": 0}
    assert "no damage" in read("verify", url, cwd=tmp_path)
    assert "+0.0000" in read("compare", url, "x", *here, cwd=tmp_path)


def test_a_run_of_a_mirror_is_found_by_its_beginning_and_as_the_latest(tmp_path: Path, bucket: Bucket) -> None:
    completed(tmp_path, bucket, "first")
    completed(tmp_path, bucket, "second")
    for wanted, found in (("fi", "first"), ("latest", "second"), ("sums/first", "first")):
        assert json.loads(read("show", wanted, "--store", bucket.url, "--json", cwd=tmp_path))["run_id"] == found
    several = call("show", bucket.url, cwd=tmp_path)
    assert several.code == 2
    assert "sums/first, sums/second" in several.err
    unknown = call("show", "secnod", "--store", bucket.url, cwd=tmp_path)
    assert unknown.code == 2
    assert f"did you mean 'second'? List them with: holdfast ls --store {bucket.url}" in unknown.err


def test_a_list_of_a_mirror_is_made_of_heartbeats_alone(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    completed(tmp_path, bucket, "y", rows=3)
    objects = open_objects(url)
    for each in list(objects.listed("journal")):
        objects.put(each.name, b"nobody looks here")
    listed = json.loads(read("ls", "--store", bucket.url, "--json", cwd=tmp_path))
    told = {(each["run_id"], each["status"], each["finished"], each["planned"]) for each in listed}
    assert told == {("x", "completed", 6, 6), ("y", "completed", 3, 3)}
    table = read("ls", "--store", bucket.url, cwd=tmp_path)
    assert url in table
    assert "6/6" in table
    assert not (tmp_path / "cache" / "holdfast" / "copies").exists()
    none = read("ls", "--store", bucket.url, "--status", "running", cwd=tmp_path)
    assert none.startswith("No such run; the store has 2")
    tagged = call("ls", "--store", bucket.url, "--tag", "nightly", cwd=tmp_path)
    assert (tagged.code, tagged.out) == (2, "")
    assert "have no tags" in tagged.err


def test_a_run_that_was_interrupted_says_so_in_the_list_of_its_mirror(tmp_path: Path, bucket: Bucket) -> None:
    slow = {"options": {"reply": "8", "latency_seconds": 0.2}}
    mirror = {"url": bucket.url, "seconds": 0.2}
    spec = write_spec(tmp_path, 40, mirror=mirror, model=slow, concurrency={"samples": 2})
    with start("run", spec, "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path) as process:
        wait_until(lambda: bool(chunks(f"{bucket.url}/sums/x")), process)
        live = json.loads(read("ls", "--store", bucket.url, "--json", cwd=tmp_path))
        shown_live = json.loads(read("show", f"{bucket.url}/sums/x", "--json", cwd=tmp_path))
        done = finish(process, signal.SIGINT)
    assert done.code == 130, done.err
    assert [each["status"] for each in live] in (["running"], ["interrupted"])  # its first lease may come any moment
    assert shown_live["planned"] == 40
    listed = json.loads(read("ls", "--store", bucket.url, "--json", cwd=tmp_path))
    assert [each["status"] for each in listed] == ["interrupted"]
    assert json.loads(read("show", "x", "--store", bucket.url, "--json", cwd=tmp_path))["reason"].startswith(
        "stopped by"
    )


def test_a_run_that_was_killed_is_interrupted_and_says_when_it_was_last_heard_of(
    tmp_path: Path, bucket: Bucket
) -> None:
    url = cut_off(tmp_path, bucket)
    told = json.loads(read("show", url, "--json", cwd=tmp_path))
    assert told["status"] == "interrupted"
    assert told["reason"].startswith("last heartbeat at ")
    assert f"holdfast resume {url}" in read("show", url, cwd=tmp_path)
    assert json.loads(read("ls", "--store", bucket.url, "--json", cwd=tmp_path))[0]["status"] == "interrupted"


@S3_FIRST
def test_a_list_counts_the_records_of_a_run_that_was_killed_and_fetches_its_journal_only(
    tmp_path: Path, bucket: Bucket
) -> None:
    url = cut_off(tmp_path, bucket)
    truth = call("recover", url, "--output", tmp_path / "back", "--json", cwd=tmp_path).json()
    objects = open_objects(url)
    for each in list(objects.listed("lease")):  # as if it had been killed at its first heartbeat
        if each.name.endswith(".beat"):
            beat = msgspec.json.decode(objects.get(each.name) or b"")
            objects.put(each.name, msgspec.json.encode({**beat, "lease": {**beat["lease"], "finished": 0}}))
    (listed,) = json.loads(read("ls", "--store", bucket.url, "--json", cwd=tmp_path))
    (found,) = list_recoverable(bucket.url)
    for name in ("planned", "finished", "failed"):
        assert listed[name] == getattr(found, name) == truth[name], name
    assert listed["finished"] > 0
    assert f"{truth['finished']}/30" in read("ls", "--store", bucket.url, cwd=tmp_path)
    copies = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert "plan.jsonl.zst" not in copies
    assert json.loads(read("show", url, "--json", cwd=tmp_path))["finished"] == truth["finished"]
    for status, count in (("interrupted", 1), ("completed", 0)):
        options = ("--status", status, "--json")
        assert len(json.loads(read("ls", "--store", bucket.url, *options, cwd=tmp_path))) == count
    for each in list(objects.listed("journal")):
        objects.put(each.name, b"unreadable")
    shutil.rmtree(tmp_path / "cache")
    done = call("ls", "--store", bucket.url, cwd=tmp_path)
    assert (done.code, "0*/30" in done.out, "at least" in done.out) == (0, True, True), done.said


def test_a_second_look_fetches_only_what_is_new(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = cut_off(tmp_path, bucket)
    objects = open_objects(url)
    names = sorted(each.name for each in objects.listed("journal"))
    last = objects.get(names[-1])
    assert last is not None
    objects.delete(names[-1])
    before = json.loads(read("show", url, "--json", cwd=tmp_path))
    objects.put(names[-1], last)
    asked: list[str] = []
    pieces = StoredObjects.pieces

    def counted(self: StoredObjects, name: str) -> Iterator[bytes]:
        asked.append(name)
        return pieces(self, name)

    monkeypatch.setattr(StoredObjects, "pieces", counted)
    after = json.loads(read("show", url, "--json", cwd=tmp_path))
    assert set(asked) == {names[0], names[-1]}  # whose journal it is, and what is new
    assert after["mirror"]["mirrored"] > before["mirror"]["mirrored"]
    assert after["planned"] == before["planned"] == 30
    assert after["finished"] >= before["finished"]  # a slow store may have got all answers in the last object
    assert after["finished"] > 0
    asked.clear()
    assert json.loads(read("show", url, "--json", cwd=tmp_path))["finished"] == after["finished"]
    assert set(asked) == {names[0]}


def test_another_run_under_the_same_name_takes_the_place_of_the_copy(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    assert json.loads(read("show", url, "--json", cwd=tmp_path))["planned"] == 6
    objects = open_objects(url)
    for each in list(objects.listed("")):
        objects.delete(each.name)
    shutil.rmtree(tmp_path / "runs")
    completed(tmp_path, bucket, rows=3)
    assert json.loads(read("show", url, "--json", cwd=tmp_path))["planned"] == 3


def test_verify_reads_every_object_whatever_was_copied_before(tmp_path: Path, bucket: Bucket, cache: Path) -> None:
    url = completed(tmp_path, bucket)
    before = read("export", url, cwd=tmp_path)
    objects = open_objects(url)
    name = next(each.name for each in objects.listed("journal") if each.name.endswith(".zst"))
    data = objects.get(name) or b""
    objects.put(name, flipped(data, frames_of(data)[1]))
    assert read("export", url, cwd=tmp_path) == before
    done = call("verify", url, cwd=tmp_path)
    assert done.code == 5, done.said
    assert "record 2 lost" in done.out
    assert sorted(path.name for path in cache.glob("copies/*/*")) == ["in-use", "lock", "run"]


@S3_FIRST
def test_a_resume_by_url_on_a_machine_that_has_nothing(tmp_path: Path, bucket: Bucket) -> None:
    url = cut_off(tmp_path, bucket)
    kept = json.loads(read("show", url, "--json", cwd=tmp_path))["finished"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = call("resume", url, "--store", elsewhere / "runs", cwd=elsewhere)
    assert done.code == 0, done.err
    assert "answers are saved" in done.err
    told = shown("x", elsewhere / "runs")
    assert (told["status"], told["finished"], told["planned"]) == ("completed", 30, 30)
    assert kept <= 30 - (told["steps"]["live"] - kept) + 4
    assert len(exported("x", elsewhere / "runs")) == 30
    there = json.loads(read("show", url, "--json", cwd=tmp_path))
    assert (there["status"], there["finished"]) == ("completed", 30)
    again = call("resume", url, "--store", elsewhere / "runs", cwd=elsewhere)
    assert (again.code, "no request was sent" in again.err) == (0, True)


def test_a_resume_by_url_needs_the_run_to_stay_in_that_mirror(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    for change in ("mirror=null", f"mirror.url={bucket.url}/other"):
        done = call("resume", url, "--store", tmp_path / "new", "--set", change, cwd=tmp_path)
        assert done.code == 2
        assert f"--set mirror.url={bucket.url}" in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(("command", "more"), WRITING)
def test_what_writes_refuses_a_mirror_and_says_what_to_do(command: str, more: tuple[str, ...], tmp_path: Path) -> None:
    url = (tmp_path / "mirror").as_uri()
    completed(tmp_path, Bucket(url, {}), rows=2)
    before = snapshot(tmp_path / "mirror")
    done = call(command, f"{url}/sums/x", *more, cwd=tmp_path)
    assert (done.code, done.out) == (2, ""), done.said
    assert done.err.count("\n") == 1
    hints = (f"holdfast recover {url}/sums/x", "on the machine that runs it", "add --mirror")
    assert any(hint in done.err for hint in hints)
    assert snapshot(tmp_path / "mirror") == before
    if command != "replay":
        in_store = call(command, *([] if command == "gc" else ["x"]), *more, "--store", url, cwd=tmp_path)
        assert (in_store.code, in_store.out) == (2, ""), in_store.said
    assert not (tmp_path / "file:").exists()


def test_a_run_is_not_started_in_an_object_store(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = call("run", spec, cwd=tmp_path, env={"HOLDFAST_STORE": "s3://bucket/evals"})
    assert done.code == 2
    assert "only be read" in done.err
    assert not (tmp_path / "s3:").exists()


def test_a_run_of_a_mirror_is_opened_from_python(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    with holdfast.open_run(url) as run:
        assert run.status() == ("completed", "")
        assert len(run.samples()) == 6
    with holdfast.open_run("x", store=bucket.url) as run:
        assert run.summary().folder == url


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, bucket: Bucket) -> None:
    url = completed(tmp_path, bucket)
    (tmp_path / "file").write_text("")
    done = call(
        "show", url, cwd=tmp_path, env={"HOLDFAST_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "file")}
    )
    assert done.code == 2
    assert "set HOLDFAST_CACHE" in done.err


def test_copies_that_nobody_looks_at_any_more_are_removed(tmp_path: Path, bucket: Bucket, cache: Path) -> None:
    first = completed(tmp_path, bucket)
    second = completed(tmp_path, bucket, "y")
    assert run("show", first, cwd=tmp_path).code == 0  # a process that still lives keeps its copies
    (old,) = cache.glob("copies/*")
    os.utime(old, (0, 0))
    read("show", second, cwd=tmp_path)
    assert not old.exists()
    assert len(list(cache.glob("copies/*"))) == 1
