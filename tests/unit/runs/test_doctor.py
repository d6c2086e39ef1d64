"""What is wrong is found, said and, where that is safe, fixed; what is not wrong is left alone."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import time
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest

from holdfast.journal import verify
from holdfast.journal.ownership.lease import Holder, this_process
from holdfast.journal.start_copy import START_FILE
from holdfast.runs import Run, RunLocation, execute, extend, find_run, list_recoverable, new_run_location, recover
from holdfast.runs.fork import remove_leftovers
from holdfast.runs.maintenance.doctor import examine, fix
from holdfast.state import Index
from tests.caches import index_file
from tests.e2e.commands import call
from tests.journals import tree_of
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.journal.test_verification import flip_last_frame
from tests.unit.runs.advice import fork
from tests.unit.runs.stores import (
    ROWS,
    completed,
    damage,
    findings,
    fixed_findings,
    held,
    interrupted,
    listed,
    of_newer_format,
    stopped,
    while_live,
    with_failures,
)

Usage = namedtuple("Usage", "total used free")


def originals(store: Path) -> dict[str, bytes]:
    return dict(tree_of(str(store)).items())


def test_a_store_with_nothing_wrong_has_no_findings(tmp_path: Path) -> None:
    completed(tmp_path)
    with_failures(tmp_path)
    assert findings(tmp_path) == []


def test_a_store_that_is_empty_or_not_there_has_no_findings(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    assert [findings(tmp_path), findings(tmp_path / "none"), findings(tmp_path / "a file")] == [[], [], []]


def test_an_interrupted_run_is_reported_with_what_is_kept_and_how_to_continue(tmp_path: Path) -> None:
    interrupted(tmp_path, finished=2)
    (found,) = findings(tmp_path)
    assert (found.run, found.safe) == ("cut", False)
    assert found.what.startswith("interrupted")
    assert f"2 of {ROWS} answers kept" in found.what
    assert found.command.startswith("holdfast resume cut")


def test_cancelled_and_stopped_runs_are_reported_with_their_reason(tmp_path: Path) -> None:
    stopped(tmp_path, "one", cancelled=True)
    stopped(tmp_path, "two")
    told = {found.run: found.what for found in findings(tmp_path)}
    assert told == {
        "one": f"cancelled: by the test, 0 of {ROWS} answers kept",
        "two": f"interrupted: by the test, 0 of {ROWS} answers kept",
    }


def test_a_failed_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("holdfast.engine.engine.Tickets.at_hand", broken)
    with pytest.raises(RuntimeError):
        completed(tmp_path, "bad")
    (found,) = findings(tmp_path)
    assert found.what == f"failed: RuntimeError: a mistake of ours, 0 of {ROWS} answers kept"


def test_every_command_that_is_offered_can_be_copied(tmp_path: Path) -> None:
    """From any folder, for a store that is not the default one, and for a run whose name has a space in it."""
    interrupted(tmp_path, "two words")
    (found,) = findings(tmp_path)
    assert f"--store {tmp_path}" in found.command
    assert "'two words'" in found.command


def test_a_damaged_run_is_reported_until_a_resume_has_repaired_it(tmp_path: Path) -> None:
    place = completed(tmp_path)
    damage(place, "sample.finished")
    assert "lost to damage" in " ".join(found.what for found in findings(tmp_path))
    go(tmp_path, given([Asked(rows=rows(ROWS))]), run_id="done")
    assert findings(tmp_path) == []


def test_damage_at_the_end_of_a_journal_is_one_loss_with_the_true_count(tmp_path: Path) -> None:
    place = completed(tmp_path)
    last = verify(place.journal).last_n
    flip_last_frame(os.path.join(place.journal, "000001.jsonl.zst"))
    kept = verify(place.journal).last_n
    with Run(place, quiet=True) as run:
        (sentence,) = run.damage
    assert f"{last - kept} records lost" in sentence
    assert f"records {kept + 1} to {last} lost" in sentence
    assert "recover" not in sentence, "the run has no mirror"
    loss = next(found for found in findings(tmp_path) if found.damage)
    assert (loss.run, loss.what.startswith("its journal is damaged")) == ("done", True)
    recovered = recover(place.folder)
    assert (recovered.lost, recovered.lost_is_exact, recovered.merged) == (last - kept, True, False)
    (listed_run,) = list_recoverable(str(tmp_path))
    assert listed_run.lost == last - kept
    Path(place.folder, "lease.json").unlink()
    with Run(place, quiet=True) as run:
        assert "at least 1 record lost" in run.damage[0]


def test_what_is_not_fixed_is_said(tmp_path: Path) -> None:
    interrupted(tmp_path)
    text = call("doctor", "--fix", "--store", str(tmp_path), cwd=tmp_path).out
    assert "not fixed" in text
    assert "holdfast resume cut" in text


def test_recover_without_another_copy_restores_nothing_and_says_so(tmp_path: Path) -> None:
    place = completed(tmp_path)
    damage(place, "sample.finished")
    done = call("recover", place.folder, cwd=tmp_path)
    assert (done.code, "nothing was restored" in done.out, "recovered" in done.out) == (5, True, False)
    assert "1 record lost: a resume" in done.out


def test_damage_that_no_record_tells_of_is_found_though_no_answer_is_lost(tmp_path: Path) -> None:
    place = completed(tmp_path)
    damage(place, "step")
    assert verify(place.journal).errors
    assert listed(tmp_path)["done"].status == "completed"
    assert [found.run for found in findings(tmp_path)] == ["done"]


@pytest.mark.parametrize("name", ["plan.jsonl.zst", "data.jsonl.zst"])
def test_an_original_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    place = interrupted(tmp_path)
    os.unlink(os.path.join(place.folder, name))
    told = findings(tmp_path)
    assert len(told) == 2, told
    assert told[1].what == f"{os.path.join(place.folder, name)} is missing"
    assert told[1].damage
    assert not told[1].safe


@pytest.mark.parametrize("name", ["plan.jsonl.zst", "data.jsonl.zst"])
def test_an_original_that_a_resume_would_refuse_is_named(tmp_path: Path, name: str) -> None:
    place = interrupted(tmp_path)
    Path(place.folder, name).write_bytes(b"not what was written")
    told = " ".join(found.what for found in findings(tmp_path))
    assert name in told


def test_leftovers_of_a_run_at_rest_go_and_nothing_else(tmp_path: Path) -> None:
    place = completed(tmp_path)
    control = Path(place.folder, "control")
    control.mkdir()
    leftovers = [
        Path(place.folder, "spec.yaml.tmp"),
        Path(place.folder, "lease.json.4711.tmp"),
        Path(place.folder, "plan-2.jsonl.zst"),
        Path(place.folder, "data-2.jsonl.zst"),
        Path(place.folder, "plan-2.jsonl.zst.tmp"),
        Path(place.journal, "000001.jsonl.zst.tmp"),
        control / "aa.wish",
        control / "aa.wish.done",
        control / "bb.wish.tmp",
        control / "cc.wish.done.tmp",
    ]
    findings(tmp_path)
    before = originals(tmp_path)
    for path in leftovers:
        path.write_bytes(b"left over")
    (found,) = findings(tmp_path)
    assert found.safe
    assert all(path.name in found.what for path in leftovers)
    assert [each.fixed for each in fixed_findings(tmp_path)] == [True]
    assert originals(tmp_path) == before
    assert (findings(tmp_path), fixed_findings(tmp_path)) == ([], [])


def test_files_of_the_user_are_no_leftovers(tmp_path: Path) -> None:
    place = completed(tmp_path)
    mine = [Path(place.folder, name) for name in ("notes.txt", "plan-of-mine.txt", "data-2.csv", "spec.yaml.old")]
    for path in mine:
        path.write_text("mine")
    assert fixed_findings(tmp_path) == []
    assert [path for path in mine if not path.exists()] == []


def test_blocks_of_an_extended_run_are_no_leftovers(tmp_path: Path) -> None:
    completed(tmp_path)
    extend_by_one(tmp_path)
    before = originals(tmp_path)
    assert fixed_findings(tmp_path) == []
    assert originals(tmp_path) == before


def test_a_block_whose_record_is_damaged_is_not_taken_for_a_leftover(tmp_path: Path) -> None:
    """The journal may be restored from a copy; the block cannot."""
    place = completed(tmp_path)
    extend_by_one(tmp_path)
    damage(place, "run.extended")
    fixed_findings(tmp_path)
    assert os.path.exists(os.path.join(place.folder, "plan-2.jsonl.zst"))
    assert os.path.exists(os.path.join(place.folder, "data-2.jsonl.zst"))


def test_what_became_of_a_leftover_since_the_look_is_seen_before_it_is_removed(tmp_path: Path) -> None:
    place = completed(tmp_path)
    Path(place.folder, "plan-2.jsonl.zst").write_bytes(b"a block that nobody has recorded")
    troubles = list(examine(str(tmp_path)))
    extend_by_one(tmp_path)
    for diagnosis in troubles:
        fix(diagnosis)
    assert os.path.exists(os.path.join(place.folder, "plan-2.jsonl.zst"))
    assert findings(tmp_path) == []


def extend_by_one(store: Path) -> None:
    wanted = given([Asked(rows=rows(ROWS + 1))])
    asyncio.run(extend(wanted, new_run_location(wanted, str(store), "done")))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "missing"),
        (b"", "never had"),
        (b"experiment: tests\nseed: 99\n", "never had"),
        (b"[", "never had"),
        (b"\xff\xfe", "never had"),
        (b"just a text", "never had"),
    ],
)
def test_a_spec_file_that_is_gone_or_tampered_with_is_restored_and_the_old_one_kept(
    tmp_path: Path, content: bytes | None, word: str
) -> None:
    place = interrupted(tmp_path)
    path = Path(place.folder, "spec.yaml")
    before = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    (found,) = [each for each in findings(tmp_path) if "spec.yaml" in each.what]
    assert (word in found.what, found.safe) == (True, True)
    assert (path.read_bytes() if path.exists() else None) == content, "looking changes nothing"
    assert [each.fixed for each in fixed_findings(tmp_path) if "spec.yaml" in each.what] == [True]
    assert path.read_bytes() == before
    old = Path(place.folder, "spec.yaml.old")
    assert (old.read_bytes() if old.exists() else None) == content
    assert [each for each in findings(tmp_path) if "spec.yaml" in each.what] == []
    assert go(tmp_path, given([Asked(rows=rows(ROWS))]), run_id="cut").finished == ROWS


def test_a_truncated_spec_file_is_restored(tmp_path: Path) -> None:
    path = Path(completed(tmp_path).folder, "spec.yaml")
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert [each.fixed for each in fixed_findings(tmp_path)] == [True], size
        assert path.read_bytes() == whole


def test_a_folder_where_the_spec_file_belongs_is_repaired_or_reported_without_a_traceback(tmp_path: Path) -> None:
    path = Path(completed(tmp_path).folder, "spec.yaml")
    whole = path.read_bytes()
    path.with_name("spec.yaml.old").write_text("of an earlier mending")
    path.unlink()
    path.mkdir()
    (found,) = fixed_findings(tmp_path)
    assert found.fixed == path.is_file()
    assert not found.fixed or path.read_bytes() == whole


def test_an_older_spec_file_kept_before_is_not_lost_to_a_second_repair(tmp_path: Path) -> None:
    path = Path(completed(tmp_path).folder, "spec.yaml")
    for text in ("experiment: first edit\n", "experiment: second edit\n"):
        path.write_text(text)
        fixed_findings(tmp_path)
    kept = {each.read_text() for each in path.parent.glob("spec.yaml.old*")}
    assert kept >= {"experiment: second edit\n"}


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_index_is_no_obstacle_and_is_made_again(tmp_path: Path, content: bytes) -> None:
    place = completed(tmp_path)
    findings(tmp_path)
    index_file(place.folder).write_bytes(content)
    fixed_findings(tmp_path)
    assert findings(tmp_path) == []
    kept = index_file(place.folder).stat()
    with contextlib.closing(Index(place.folder)) as index:
        assert index.finished == ROWS
    assert index_file(place.folder).stat().st_ino == kept.st_ino, "it is used as it is"


def test_a_run_of_a_newer_version_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    place = completed(tmp_path, "newer")
    interrupted(tmp_path)
    of_newer_format(place)
    Path(place.folder, "plan-2.jsonl.zst").write_bytes(b"of the newer version")
    before = originals(tmp_path)
    told = {found.run: found for found in fixed_findings(tmp_path)}
    assert sorted(told) == ["cut", "newer"]
    assert "99" in told["newer"].what
    assert not told["newer"].fixed
    assert originals(tmp_path) == before


@pytest.mark.parametrize("share", [0.001, 0.02])
def test_a_nearly_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    total = 100 << 30
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total, total, int(total * share)))
    (found,) = findings(tmp_path)
    assert "GiB are free" in found.what
    assert (found.safe, found.run) == (False, "")


def test_what_is_offered_for_a_full_disk_is_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
    (found,) = findings(tmp_path)
    words = found.command.split()
    assert words[:2] == ["holdfast", "gc"]
    done = call(*words[1:], *([] if "--store" in words else ["--store", str(tmp_path)]), cwd=tmp_path)
    assert done.code == 0, done.err


def test_folders_of_dead_forks_and_removals_are_found_and_removed(tmp_path: Path) -> None:
    above = Path(completed(tmp_path).folder).parent
    dead = above / ".fork-1"
    dead.mkdir()
    gone = msgspec.structs.replace(this_process(), pid=2**22 + 1, started="1")
    (dead / "owner.json").write_bytes(msgspec.json.encode(gone))
    doomed = above / ".gone-2"
    doomed.mkdir()
    (doomed / "lock").touch()
    told = findings(tmp_path)
    assert [os.path.basename(found.what.split()[-1]) for found in told] == [".fork-1", ".gone-2"]
    assert [found.fixed for found in fixed_findings(tmp_path)] == [True, True]
    assert (dead.exists(), doomed.exists(), findings(tmp_path)) == (False, False, [])


def owned(folder: Path, owner: Holder) -> Path:
    folder.mkdir()
    (folder / "owner.json").write_bytes(msgspec.json.encode(owner))
    return folder


def test_the_folder_of_a_live_fork_is_neither_removed_nor_called_repaired(tmp_path: Path) -> None:
    above = Path(completed(tmp_path).folder).parent
    live = owned(above / ".fork-1", this_process())
    told = fixed_findings(tmp_path)
    assert live.exists()
    assert [found for found in told if found.fixed] == []
    assert told == [], "a fork that is being made is nothing wrong"


def test_the_folder_of_a_fork_on_another_machine_is_neither_removed_nor_called_repaired(tmp_path: Path) -> None:
    above = Path(completed(tmp_path).folder).parent
    live = owned(above / ".fork-1", Holder(1, "elsewhere"))
    told = fixed_findings(tmp_path)
    assert live.exists()
    assert [found for found in told if found.fixed] == []


def test_a_fork_folder_that_has_no_owner_yet_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    above = Path(completed(tmp_path).folder).parent
    young = above / ".fork-1"
    young.mkdir()
    assert [found for found in fixed_findings(tmp_path) if found.fixed] == []
    assert young.exists()
    os.utime(young, (time.time() - 7200, time.time() - 7200))
    assert [found.fixed for found in fixed_findings(tmp_path)] == [True]
    assert remove_leftovers(str(above)) == []


def test_looking_at_a_live_run_changes_nothing_and_finds_nothing(tmp_path: Path) -> None:
    async def look(place: RunLocation) -> None:
        await asyncio.to_thread(Path(place.folder, "other.tmp").write_text, "of the live process")
        before = {name: data for name, data in originals(tmp_path).items() if "lease.json" not in name}
        assert [found.fixed for found in fixed_findings(tmp_path)] == []
        after = {name: data for name, data in originals(tmp_path).items() if "lease.json" not in name}
        assert after == before

    assert while_live(tmp_path, "live", look).run_id == "live"


def test_a_run_that_is_taken_between_diagnosis_and_repair_is_not_repaired_and_the_others_are(tmp_path: Path) -> None:
    one, two = completed(tmp_path, "one"), completed(tmp_path, "two")
    for place in (one, two):
        Path(place.folder, "old.tmp").write_text("")
    with contextlib.ExitStack() as stack:
        told = []
        for diagnosis in examine(str(tmp_path)):
            if diagnosis.finding.run == "one":
                stack.enter_context(held(one))
            told.append(fix(diagnosis))
    assert [(found.run, found.fixed) for found in told] == [("one", False), ("two", True)]


def test_one_run_can_be_looked_at_alone(tmp_path: Path) -> None:
    interrupted(tmp_path, "one")
    place = interrupted(tmp_path, "two")
    assert [found.run for found in findings(tmp_path, place)] == ["two"]


@pytest.mark.parametrize("what", ["empty journal", "empty segment", "segment is a folder", "lock is a folder"])
def test_unusual_runs_are_reported_and_hide_no_other(tmp_path: Path, what: str) -> None:
    place = completed(tmp_path, "a")
    interrupted(tmp_path, "b")
    (segment,) = [each for each in Path(place.journal).iterdir() if each.is_file()]
    segment.unlink()
    if what == "empty segment":
        (segment.parent / "000001.jsonl").touch()
    elif what == "segment is a folder":
        (segment.parent / "000001.jsonl").mkdir()
    elif what == "lock is a folder":
        Path(place.folder, "lock").unlink()
        Path(place.folder, "lock").mkdir()
    assert {found.run for found in findings(tmp_path)} == {"a", "b"}
    assert {found.run for found in fixed_findings(tmp_path)} == {"a", "b"}


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_a_run_whose_journal_is_gone_is_reported_with_a_command_that_works(tmp_path: Path, left: str) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"id": "a", "input": "one", "target": "one"}\n')
    spec = tmp_path / "eval.yaml"
    task = {"name": "echo", "dataset": {"path": str(data)}, "prompt": "{input}"}
    spec.write_text(json.dumps({"experiment": "e", "models": [{"name": "m", "provider": "mock"}], "tasks": [task]}))
    assert call("run", spec, "--id", "lost run", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    (folder,) = (tmp_path / "runs" / "e").iterdir()
    shutil.rmtree(folder / "journal")
    if left == "an empty folder":
        (folder / "journal").mkdir()
    before = originals(folder)
    (found,) = findings(tmp_path / "runs")
    assert found.run == "lost run"
    assert found.what == ("its journal is empty" if left == "an empty folder" else "its journal is missing")
    assert "restore journal/ from a copy" in found.means
    told = call("doctor", "lost run", "--store", tmp_path / "runs", cwd=tmp_path)
    assert found.command in told.out
    assert call(*shlex.split(found.command)[1:], cwd=tmp_path).code == 0  # a new run; the folder stays as it was
    assert originals(folder) == before
    assert len(listed(tmp_path / "runs")) == 2


def test_a_run_that_was_planned_and_not_begun_is_reported(tmp_path: Path) -> None:
    place = completed(tmp_path, "new")
    for path in Path(place.folder).iterdir():
        if path.name not in {"plan.jsonl.zst", "data.jsonl.zst", "lock", "journal"}:
            path.unlink()
    shutil.rmtree(place.journal)
    (found,) = findings(tmp_path)
    assert (found.run, found.what) == ("new", "planned, and not begun")
    assert "nothing was sent" in found.means
    assert found.command == f"holdfast run SPEC --id new --store {tmp_path}"
    os.mkdir(place.journal)
    assert findings(tmp_path) == [found]
    with held(place):
        assert findings(tmp_path) == []  # it is just beginning
    completed(tmp_path, "new")
    assert findings(tmp_path) == []


def test_a_run_whose_first_record_is_damaged_gets_no_advice_to_continue(tmp_path: Path) -> None:
    place = interrupted(tmp_path, "cut")
    damage(place, "run.started")
    Path(place.folder, START_FILE).unlink()  # the second copy of that record
    (found,) = findings(tmp_path)
    assert found.what == "its first record (run.started) is damaged"
    assert found.command == place.command("verify")


def test_a_folder_of_the_user_in_a_store_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "mine" / "notes").mkdir(parents=True)
    (tmp_path / "mine" / "notes" / "todo.txt").write_text("")
    assert findings(tmp_path) == []


def test_two_runs_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    completed(tmp_path, "same", "one")
    place = interrupted_in(tmp_path, "same", "two")
    commands = [found.command for found in findings(tmp_path)]
    assert commands
    assert all("two/same" in command for command in commands), "a bare name would be refused: it means two runs"
    assert find_run(str(tmp_path), "two/same") == place


def interrupted_in(store: Path, run_id: str, experiment: str) -> RunLocation:
    place = completed(store, run_id, experiment)
    for name in os.listdir(place.journal):
        path = Path(place.journal, name)
        if path.is_file():
            path.unlink()
    Path(place.journal, "000001.jsonl").touch()
    return place


def test_a_fork_leaves_nothing_to_repair(tmp_path: Path) -> None:
    interrupted(tmp_path, "run-1")
    wanted = given([Asked(rows=rows(ROWS))])
    assert fork(tmp_path, wanted).ended.finished == ROWS
    assert asyncio.run(execute(wanted, new_run_location(wanted, str(tmp_path), "run-1"))).finished == ROWS
    assert findings(tmp_path) == []
