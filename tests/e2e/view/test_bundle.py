"""Static copies as files: complete, described by their manifest, replaced in one step, never half written."""

import fcntl
import hashlib
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from tests.e2e.commands import call, finish, run, snapshot, start, wait_until, write_spec
from tests.e2e.view.bundles import make_bundle
from tests.e2e.view.hostile import make_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundles")
    spec = write_spec(made, 60, task={"repeats": 2})
    assert run("run", spec, "--id", "one", cwd=made).code == 0
    assert run("run", spec, "--id", "two", cwd=made).code == 0
    return made


def manifest(place: Path) -> Any:
    return json.loads((place / "manifest.json").read_text())


def files_in(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for each in place.rglob("*") if each.is_file()}


def test_the_manifest_names_every_file_and_the_state_of_each_run(folder: Path, tmp_path: Path) -> None:
    done = call("view", "one", "two", "--bundle", tmp_path / "copy", cwd=folder)
    assert (done.code, done.out) == (0, "")
    assert "240 samples" in done.err
    assert "index.html" in done.err
    found = manifest(tmp_path / "copy")
    assert (found["format"], found["version"]) == ("holdfast-bundle", 1)
    assert {*found["files"], "manifest.json"} == files_in(tmp_path / "copy")
    for name, described in found["files"].items():
        content = (tmp_path / "copy" / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (described["bytes"], described["sha256"])
    for each in found["runs"]:
        reader = Reader(str(folder / "runs" / "sums" / each["run_id"] / "journal"))
        last = [entry.line for entry in reader.read() if isinstance(entry, Entry)][-1]
        assert (each["uid"], each["last_record"], each["last_checksum"]) == (reader.uid, last.n, last.x)
        assert (each["status"], each["samples"]) == ("completed", 120)


def test_a_copy_of_the_same_run_is_the_same_and_the_run_is_not_touched(folder: Path, tmp_path: Path) -> None:
    before = snapshot(folder / "runs")
    for name in ("a", "b"):
        assert call("view", "one", "--bundle", tmp_path / name, cwd=folder).code == 0
    assert manifest(tmp_path / "a") == manifest(tmp_path / "b")
    assert snapshot(folder / "runs") == before


def test_a_folder_with_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"format": "something else", "runs": []}')
    os.symlink(tmp_path / "notes", tmp_path / "link")
    before = snapshot(tmp_path)
    for name in ("notes", "file", "other", "link"):
        done = call("view", "one", "--bundle", tmp_path / name, cwd=folder)
        assert (done.code, done.err.count("\n")) == (2, 1), name
        assert str(tmp_path / name) in done.err
    assert snapshot(tmp_path) == before


def test_an_empty_folder_and_an_older_copy_are_replaced(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "copy"
    place.mkdir(parents=True)
    assert call("view", "one", "--bundle", place, cwd=folder).code == 0
    (place / "left over").write_text("of an older copy")
    assert call("view", "two", "--bundle", place, cwd=folder).code == 0
    assert [each["run_id"] for each in manifest(place)["runs"]] == ["two"]
    assert {*manifest(place)["files"], "manifest.json"} == files_in(place)
    assert [each.name for each in place.parent.iterdir()] == ["copy"]


def test_what_cannot_be_copied_leaves_what_was_there(folder: Path, tmp_path: Path) -> None:
    assert call("view", "one", "--bundle", tmp_path / "copy", cwd=folder).code == 0
    before = snapshot(tmp_path)
    done = call("view", "no-such-run", "--bundle", tmp_path / "copy", cwd=folder)
    assert done.code == 2
    (tmp_path / "empty").mkdir()
    assert call("view", tmp_path / "empty", "--bundle", tmp_path / "copy", cwd=folder).code == 2
    (tmp_path / "empty").rmdir()
    assert snapshot(tmp_path) == before


def test_an_evaluation_is_chosen_for_copies_only(folder: Path, tmp_path: Path) -> None:
    done = call("view", "one", "--evaluation", "x", "--no-open", cwd=folder)
    assert (done.code, "--evaluation is for --bundle" in done.err) == (2, True)
    done = call("view", "one", "--bundle", tmp_path / "copy", "--evaluation", "x", cwd=folder)
    assert (done.code, "has no evaluation 'x'" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [12, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_kill_in_the_middle_leaves_no_half_copy_under_the_name(
    folder: Path, tmp_path: Path, replaced: bool, step: int
) -> None:
    place = tmp_path / "copy"
    if replaced:
        assert call("view", "one", "--bundle", place, cwd=folder).code == 0
    before = snapshot(tmp_path)
    kills = 0
    for written in range(1, 30, step):
        with start("view", "one", "--bundle", place, cwd=folder) as process:
            if wait_until(partial(has_written, tmp_path, written), process):
                process.send_signal(signal.SIGKILL)
                kills += 1
            finish(process)
        if place.exists() and not (replaced and snapshot(place) == snapshot_below(before, "copy")):
            assert {*manifest(place)["files"], "manifest.json"} == files_in(place)  # it was faster than the kill
            break
    assert kills
    assert call("view", "one", "--bundle", place, cwd=folder).code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["copy"]  # what the kills have left is gone


def has_written(folder: Path, count: int) -> bool:
    """Whether a copy in progress has so many files. The folder may be renamed or removed meanwhile."""
    hidden = [each for each in os.listdir(folder) if each.startswith(".copy.holdfast-")]
    return sum(len(files) for each in hidden for _, _, files in os.walk(folder / each)) >= count


def snapshot_below(found: dict[str, Any], name: str) -> dict[str, Any]:
    return {path.removeprefix(f"{name}/"): each for path, each in found.items() if path.startswith(f"{name}/")}


def test_another_copy_in_progress_is_not_removed(folder: Path, tmp_path: Path) -> None:
    left = tmp_path / ".copy.holdfast-00000000"
    left.mkdir()
    handle = os.open(left, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert call("view", "one", "--bundle", tmp_path / "copy", cwd=folder).code == 0
    assert left.exists()
    os.close(handle)
    assert call("view", "one", "--bundle", tmp_path / "copy", cwd=folder).code == 0
    assert not left.exists()


def test_a_live_run_is_copied_at_one_moment(folder: Path, tmp_path: Path) -> None:
    options = {"options": {"reply": "8", "latency_seconds": 0.05}}
    spec = write_spec(tmp_path, 200, model=options, concurrency={"samples": 2})
    with start("run", spec, "--id", "live", cwd=tmp_path) as process:
        assert wait_until(lambda: len(list(tmp_path.glob("runs/sums/live/journal/*"))) > 0, process)
        time.sleep(1)
        make_bundle(tmp_path / "runs", tmp_path / "copy")
        assert process.poll() is None
        finish(process, signal.SIGKILL)
    (each,) = manifest(tmp_path / "copy")["runs"]
    assert each["status"] == "running"
    page = (tmp_path / "copy" / each["folder"] / "index.html").read_text()
    assert f"record {each['last_record']:,}" in page
    assert "data-events" not in page


def test_every_page_of_a_copy_has_the_policy_and_only_relative_addresses(folder: Path, tmp_path: Path) -> None:
    make_bundle(folder / "runs", tmp_path / "copy")
    pages = list((tmp_path / "copy").rglob("*.html"))
    assert len(pages) > 8
    for page in pages:
        text = page.read_text()
        assert text.count("Content-Security-Policy") == 1
        assert "default-src &#x27;none&#x27;; script-src &#x27;self&#x27;" in text
        assert 'href="/' not in text
        assert 'src="/' not in text


def test_hostile_names_stay_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    make_store(tmp_path / "store", "http://localhost:9")
    made = make_bundle(tmp_path / "store" / "runs", tmp_path / "copy")
    assert made.samples == 16
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "store"]
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_./") for name in files_in(tmp_path / "copy"))


def test_a_damaged_run_says_so_in_the_copy(folder: Path, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        assert run("run", "eval.yaml", "--id", name, "--store", tmp_path / "runs", cwd=folder).code == 0
    for segment in (tmp_path / "runs" / "sums" / "bad" / "journal").iterdir():
        segment.write_bytes(b"damaged")
    make_bundle(tmp_path / "runs", tmp_path / "copy")
    assert {each["run_id"] for each in manifest(tmp_path / "copy")["runs"]} >= {"good"}
    assert "bad" in (tmp_path / "copy" / "index.html").read_text()
