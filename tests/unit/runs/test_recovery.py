"""Recovering: what comes back, what is refused, what is cleaned up."""

import os
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import HeldError, StoreError, UsageError
from holdfast.journal import Lock, verify
from holdfast.journal.disk import OsDisk
from holdfast.journal.mirror.pieces import MirrorSource, SegmentPiece
from holdfast.journal.mirror.restore import Restored
from holdfast.journal.object_store import open_objects
from holdfast.journal.ownership.claims import Beat, Claim, read_beat, take_epoch, write_beat
from holdfast.journal.ownership.lease import Holder, Lease
from holdfast.runs.maintenance.recoverable import list_recoverable
from holdfast.runs.maintenance.recovery import Recovered, RecoveryOptions, recover
from holdfast.runs.mirror.claim import claim_run, hidden_folder, last_beat, restore_from_mirror, restore_whole
from holdfast.runs.store.lookup import RunLocation, find_run, hide_folder, run_location
from holdfast.spec import Mirror
from tests.e2e.commands import call, write_spec
from tests.journals import read_all, tree_of
from tests.mirrors import RUN, SAMPLES, Kept, finished_so_far, run_and_mirror
from tests.unit.engine.runs import cut_after

FINISHED = 10
ELSEWHERE = Holder(4711, "another-machine", "boot", "started")


@pytest.fixture
def cut(tmp_path: Path) -> Kept:
    """A run that was killed with two samples half done."""
    (tmp_path / "there").mkdir()
    return run_and_mirror(tmp_path / "there", keep=finished_so_far(FINISHED))


def counts(found: Recovered) -> tuple[int, int, int, int]:
    return found.planned, found.finished, found.in_flight, found.lost


def test_samples_that_had_begun_keep_their_steps(cut: Kept, tmp_path: Path) -> None:
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert counts(found) == (SAMPLES, FINISHED, SAMPLES - FINISHED, 0)
    assert found.warnings == []
    assert tree_of(os.path.join(found.place.folder, "journal")) == tree_of(str(cut.journal))


def test_a_mirror_given_as_a_folder_is_no_lost_run(cut: Kept, tmp_path: Path) -> None:
    folder = cut.url.removeprefix("file://")
    for mistaken, meant in (
        (lambda: recover(folder, RecoveryOptions(output=str(tmp_path / "new"))), cut.url),
        (lambda: find_run(str(cut.store), folder), cut.url),
        (lambda: list(list_recoverable(str(cut.mirror))), f"file://{cut.mirror}"),
    ):
        with pytest.raises(UsageError, match=f"is a mirror; write it as a URL: {meant}$"):
            mistaken()
    assert not (tmp_path / "new").exists()


def test_a_copy_that_is_fully_covered_is_removed_and_only_then(cut: Kept, tmp_path: Path) -> None:
    old = str(cut.journal.parent)
    kept = recover(old, RecoveryOptions(output=str(tmp_path / "a"), cleanup=False))
    assert not kept.cleaned
    assert os.path.isdir(old)
    gone = recover(old, RecoveryOptions(output=str(tmp_path / "b")))
    assert gone.cleaned
    assert not os.path.exists(old)
    assert gone.finished == FINISHED
    assert os.path.isdir(cut.mirror), "a mirror is a copy, and stays"


def test_a_copy_without_its_events_is_never_all_of_it(cut: Kept, tmp_path: Path) -> None:
    found = recover(str(cut.journal.parent), RecoveryOptions(output=str(tmp_path / "new"), events=False))
    assert not found.cleaned
    assert cut.journal.is_dir()


def test_a_copy_that_is_not_covered_stays(cut: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its files could not be brought over."""
    (cut.journal.parent / "blobs").mkdir()
    (cut.journal.parent / "blobs" / ("a" * 64)).write_text("a blob")
    monkeypatch.setattr("holdfast.journal.mirror.restore._fetch_files", lambda *given, **named: False)
    found = recover(str(cut.journal.parent), RecoveryOptions(output=str(tmp_path / "new")))
    assert not found.cleaned
    assert (cut.journal.parent / "blobs" / ("a" * 64)).exists()


def test_a_folder_under_another_name_is_not_removed_as_a_copy_of_itself(cut: Kept, tmp_path: Path) -> None:
    os.symlink(cut.store, tmp_path / "link")
    run = cut.journal.parent
    before = tree_of(str(cut.journal))
    for where, output in (
        (tmp_path / "link" / "sums" / RUN, cut.store),
        (run, tmp_path / "link"),
    ):
        found = recover(str(where), RecoveryOptions(output=str(output), overwrite=True))
        assert not found.cleaned
        assert tree_of(str(cut.journal)) == before


def test_a_run_is_not_recovered_into_its_own_folder(cut: Kept) -> None:
    run = str(cut.journal.parent)
    with pytest.raises(UsageError, match="inside the folder that is recovered"):
        recover(run, RecoveryOptions(output=os.path.join(run, "new")))
    assert verify(str(cut.journal)).records > 0


def test_a_link_to_a_run_is_recovered_from_and_what_it_means_removed(cut: Kept, tmp_path: Path) -> None:
    os.symlink(cut.journal.parent, tmp_path / "shortcut")
    found = recover(str(tmp_path / "shortcut"), RecoveryOptions(output=str(tmp_path / "new")))
    assert found.cleaned
    assert found.place.run_id == RUN
    assert not cut.journal.exists()


def test_a_copy_with_something_in_quarantine_stays(cut: Kept, tmp_path: Path) -> None:
    kept = cut.journal / "quarantine"
    kept.mkdir()
    (kept / "000001.jsonl.5-9").write_text("lost")
    assert not recover(str(cut.journal.parent), RecoveryOptions(output=str(tmp_path / "new"))).cleaned
    assert (kept / "000001.jsonl.5-9").exists()


def test_a_held_copy_stays(cut: Kept, tmp_path: Path) -> None:
    lock = Lock(str(cut.journal.parent))
    try:
        assert not recover(str(cut.journal.parent), RecoveryOptions(output=str(tmp_path / "new"))).cleaned
    finally:
        lock.release()
    assert cut.journal.is_dir()


def test_a_run_that_is_being_written_is_not_recovered_into(cut: Kept) -> None:
    lock = Lock(str(cut.journal.parent))
    try:
        with pytest.raises(HeldError):
            recover(cut.url, RecoveryOptions(output=str(cut.store), overwrite=True))
    finally:
        lock.release()


def last_number(kept: Kept) -> int:
    return verify(str(kept.journal)).last_n


def beat_of(kept: Kept, mirrored: int, acknowledged: int, lease_epoch: int = 1) -> None:
    objects = open_objects(kept.url)
    objects.create("lease/000001", msgspec.json.encode(Claim("n", ELSEWHERE)))
    lease = Lease(ELSEWHERE, lease_epoch, 3, time.time(), time.time(), 60.0, acknowledged=acknowledged)
    write_beat(objects, 1, Beat(3, mirrored=mirrored, lease=lease))


def test_records_that_were_acknowledged_and_never_got_there_are_reported(cut: Kept, tmp_path: Path) -> None:
    last = last_number(cut)
    beat_of(cut, mirrored=last - 5, acknowledged=last + 15)
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert found.lost == 15, "what came after the last beat is no loss"
    assert found.warnings == [
        f"records {last + 1} to {last + 15} were acknowledged and are lost; a resume requests them again"
    ]


def test_what_got_there_after_the_last_beat_is_not_lost(cut: Kept, tmp_path: Path) -> None:
    beat_of(cut, mirrored=3, acknowledged=20)
    assert recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"))).lost == 0


def test_a_last_chunk_that_is_missing_is_known_by_the_beat(cut: Kept, tmp_path: Path) -> None:
    beat_of(cut, mirrored=last_number(cut), acknowledged=last_number(cut))
    gone = cut.chunks()[-1].read_bytes().count(b"\n")
    cut.chunks()[-1].unlink()
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert found.lost == gone
    assert len(found.warnings) == 1


def test_the_word_of_a_lease_of_another_epoch_is_none_of_this(cut: Kept, tmp_path: Path) -> None:
    beat_of(cut, mirrored=20, acknowledged=4000, lease_epoch=7)
    assert recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"))).lost == 0


def test_damage_is_reported_also_where_the_events_are_left_out(cut: Kept, tmp_path: Path) -> None:
    cut.chunks()[2].unlink()
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"), events=False))
    assert found.lost > 0
    assert len(found.warnings) == 1


@pytest.mark.parametrize("name", ["plan.jsonl.zst", "data.jsonl.zst"])
def test_an_original_that_is_damaged_here_comes_back_from_where_it_is_whole(
    cut: Kept, tmp_path: Path, name: str
) -> None:
    here = cut.journal.parent
    whole = (here / name).read_bytes()
    (here / name).write_bytes(whole[: len(whole) // 2])
    found = recover(cut.url, RecoveryOptions(output=str(cut.store), overwrite=True))
    assert found.warnings == []
    assert (here / name).read_bytes() == whole
    assert not [each for each in os.listdir(here) if "recovering" in each]
    for place in (here, cut.objects):
        (place / name).write_bytes(b"x")
    assert len(recover(cut.url, RecoveryOptions(output=str(cut.store), overwrite=True)).warnings) == 1


def test_a_damaged_spec_file_is_reported_and_written_again_in_a_new_place(cut: Kept, tmp_path: Path) -> None:
    (cut.objects / "spec.yaml").write_bytes(b"experiment: another\n")
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert len(found.warnings) == 1
    assert "spec.yaml" in found.warnings[0]
    assert call("resume", RUN, "--store", tmp_path / "new", cwd=tmp_path).code == 0


def test_what_a_run_said_last_is_reported_also_behind_a_claim_that_said_nothing(cut: Kept) -> None:
    """A start that was refused, or killed before its first word, takes nothing from what is known."""
    beat_of(cut, mirrored=last_number(cut), acknowledged=last_number(cut))
    objects = open_objects(cut.url)
    for epoch, beat in ((2, None), (3, Beat(1, ended=True))):
        objects.create(f"lease/{epoch:06d}", msgspec.json.encode(Claim("n", ELSEWHERE)))
        if beat is not None:
            write_beat(objects, epoch, beat)
        found, beaten = last_beat(objects)
        assert found == 1
        assert beaten is not None
        assert beaten.lease is not None


def test_a_list_does_not_call_lost_what_got_there_after_the_last_beat(cut: Kept) -> None:
    last = last_number(cut)
    beat_of(cut, mirrored=3, acknowledged=last)
    assert [each.lost for each in list_recoverable(cut.url)] == [0]
    beat = read_beat(open_objects(cut.url), 1)
    assert beat is not None
    assert beat.lease is not None
    more = msgspec.structs.replace(beat.lease, acknowledged=last + 4)
    write_beat(open_objects(cut.url), 1, msgspec.structs.replace(beat, lease=more))
    assert [each.lost for each in list_recoverable(cut.url)] == [4]


def test_a_recovery_that_was_cut_off_is_continued(cut: Kept, tmp_path: Path) -> None:
    place = run_location(str(tmp_path / "new"), "sums", RUN)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.journal.disk.OsDisk.replace", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert not os.path.exists(place.folder), "a run appears whole, or not at all"
    assert os.path.isdir(hidden_folder(place))
    assert counts(recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"))))[:2] == (SAMPLES, FINISHED)
    assert not os.path.exists(hidden_folder(place))


def test_a_folder_that_is_half_removed_is_removed_by_the_same_call(
    cut: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, wanted = str(cut.journal.parent), RecoveryOptions(output=str(tmp_path / "new"))

    def hide_and_die(folder: str) -> str:
        hide_folder(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runs.maintenance.recovery.hide_folder", hide_and_die)
        with pytest.raises(KeyboardInterrupt):
            recover(old, wanted)
    assert len(os.listdir(os.path.dirname(old))) == 1
    found = recover(old, wanted)
    assert (counts(found), found.cleaned) == ((SAMPLES, FINISHED, SAMPLES - FINISHED, 0), True)
    assert os.listdir(os.path.dirname(old)) == []


def test_another_run_in_the_place_is_not_taken_for_the_recovered_one(cut: Kept, tmp_path: Path) -> None:
    new, there = tmp_path / "new", tmp_path / "there"
    old = str(cut.journal.parent)
    recover(cut.url, RecoveryOptions(output=str(new), events=False))
    recover(old, RecoveryOptions(output=str(new / "b")))
    for store in (new, new / "b"):
        shutil.rmtree(store / "sums" / RUN)
        assert call("run", there / "eval.yaml", "--id", RUN, "--store", store, cwd=there).code == 0
    with pytest.raises(UsageError, match="exists: recovering without events needs a new folder"):
        recover(cut.url, RecoveryOptions(output=str(new), events=False))
    with pytest.raises(UsageError, match="neither a folder of a run"):
        recover(old, RecoveryOptions(output=str(new / "b")))


@pytest.mark.parametrize("events", [True, False])
def test_one_without_events_that_was_cut_off_before_it_appeared_is_no_other_run(
    cut: Kept, tmp_path: Path, events: bool
) -> None:
    place = run_location(str(tmp_path / "new"), "sums", RUN)
    replace = OsDisk.replace

    def die_at_the_end(disk: OsDisk, old: str, new: str) -> None:
        if new == place.folder:
            raise KeyboardInterrupt
        replace(disk, old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.journal.disk.OsDisk.replace", die_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"), events=False))
    assert os.path.isdir(hidden_folder(place))
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"), events=events))
    assert counts(found) == (SAMPLES, FINISHED, SAMPLES - FINISHED, 0)
    assert (verify(place.journal).uid == verify(str(cut.journal)).uid) is events


def test_two_who_recover_at_once_do_not_meet(cut: Kept, tmp_path: Path) -> None:
    outcomes: list[object] = []
    barrier = threading.Barrier(3)

    def try_it() -> None:
        barrier.wait()
        try:
            outcomes.append(recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"))))
        except (HeldError, UsageError) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=try_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 3
    done = [each for each in outcomes if isinstance(each, Recovered)]
    assert done
    assert {counts(each)[:2] for each in done} == {(SAMPLES, FINISHED)}
    assert tree_of(find_run(str(tmp_path / "new"), RUN).journal) == tree_of(str(cut.journal))


@pytest.mark.parametrize("name", ["a b", "user@host", "100% sure", "Größe/日本", "..hidden"])
def test_names_that_need_escapes_come_back(cut: Kept, tmp_path: Path, name: str) -> None:
    place = run_location(str(tmp_path / "x"), name, name)
    folder = os.path.relpath(place.folder, tmp_path / "x")
    shutil.copytree(cut.objects, tmp_path / "m @ %41" / folder)
    url = f"file://{tmp_path}/m @ %41"
    listed = list(list_recoverable(url))
    assert [(each.experiment, each.run_id) for each in listed] == [(name, name)]
    for where in (url, listed[0].place):
        found = recover(where, RecoveryOptions(output=str(tmp_path / "new"), overwrite=True))
        assert (found.place.experiment, found.place.run_id) == (name, name)
        assert found.finished == FINISHED


def test_a_url_of_several_runs_is_refused_with_their_names(cut: Kept, tmp_path: Path) -> None:
    shutil.copytree(cut.objects, cut.mirror / "sums" / "y")
    with pytest.raises(UsageError, match=r"sums/x, sums/y"):
        recover(cut.mirror.as_uri(), RecoveryOptions(output=str(tmp_path / "new")))


def test_a_misspelt_run_is_refused_with_where_to_look(cut: Kept) -> None:
    for url, above in ((f"{cut.url}z", f"file://{cut.mirror}/sums"), (f"{cut.url}/y/z/", f"{cut.url}/y")):
        with pytest.raises(UsageError) as refused:
            recover(url)
        assert str(refused.value).endswith(f"holds no run; list them with: holdfast recover --list {above}")


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a folder of a run"):
        recover(str(tmp_path))


def place_here(tmp_path: Path) -> RunLocation:
    return run_location(str(tmp_path / "here"), "sums", RUN)


def test_bringing_home_claims_nothing_and_claiming_does(cut: Kept, tmp_path: Path) -> None:
    mirror, place = Mirror(url=cut.mirror.as_uri()), place_here(tmp_path)
    objects = open_objects(cut.url)
    assert restore_from_mirror(mirror, place, pytest.fail) is not None
    assert [each.name for each in objects.listed("lease")] == ["lease/000000.beat"]  # of whom wrote it, unclaimed
    claimed = claim_run(mirror, place)
    assert claimed.mirroring is not None
    assert claimed.mirroring.epoch == 2, "the journal has seen the first"
    claimed.release()
    assert take_epoch(objects, 1) == 3, "one that was let go of is over at once"


def test_an_epoch_is_greater_than_what_a_single_writer_left_there(cut: Kept, tmp_path: Path) -> None:
    """Records without claims: `exclusive: false` has written them, from a machine that is not this one."""
    older, newer = cut.objects / "journal" / "000001", cut.objects / "journal" / "000005"
    shutil.copytree(older, newer)
    place = place_here(tmp_path)
    os.makedirs(place.folder)
    claimed = claim_run(Mirror(url=cut.mirror.as_uri()), place)
    assert claimed.mirroring is not None
    assert claimed.mirroring.epoch == 6
    claimed.release()


def test_a_mirror_that_cannot_be_reached_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, prefix: str) -> None:
        raise StoreError("file:///x: cannot list: no route")

    monkeypatch.setattr("holdfast.journal.object_store.StoredObjects.listed", fail)
    with pytest.raises(UsageError, match="a start needs its mirror"):
        restore_from_mirror(Mirror(url="file:///x"), place_here(tmp_path), pytest.fail)
    assert not (tmp_path / "here").exists()


def test_a_folder_that_appeared_meanwhile_is_not_replaced(cut: Kept, tmp_path: Path) -> None:
    place = place_here(tmp_path)
    sources = [MirrorSource(open_objects(cut.url))]

    def begin(folder: str, restored: Restored) -> None:
        shutil.copytree(cut.journal.parent, place.folder)

    with pytest.raises((HeldError, OSError)):
        restore_whole(place, sources, pytest.fail, begin)
    assert tree_of(place.folder) == tree_of(str(cut.journal.parent))


@pytest.mark.parametrize("said", ["x", "0", "-1", "nan", "inf"])
def test_an_expiry_that_is_none_is_refused(
    cut: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("HOLDFAST_EXPIRY_SECONDS", said)
    place = place_here(tmp_path)
    os.makedirs(place.folder)
    with pytest.raises(UsageError, match="number of seconds"):
        claim_run(Mirror(url=cut.mirror.as_uri()), place)


def test_a_resume_records_what_the_lost_machine_knew_and_the_mirror_does_not_have(cut: Kept, tmp_path: Path) -> None:
    last = last_number(cut)
    beat_of(cut, mirrored=last, acknowledged=last + 15)
    write_beat(open_objects(cut.url), 1, ended(cut))
    store = tmp_path / "new"
    given = ("--id", RUN, "--store", store, "--set", f"mirror.url={cut.mirror.as_uri()}")
    done = call("run", tmp_path / "there" / "eval.yaml", *given, cwd=tmp_path / "there")
    assert done.code == 0, done.err
    shown = call("show", RUN, "--store", store, "--json", cwd=tmp_path).json()
    assert shown["finished"] == SAMPLES
    assert any("acknowledged" in str(each) for each in shown["anomalies"]), shown["anomalies"]
    assert call("verify", RUN, "--store", store, cwd=tmp_path).code == 0


def ended(kept: Kept) -> Beat:
    """The last beat, as if its holder had said goodbye: nobody waits for it."""
    beat = read_beat(open_objects(kept.url), 1)
    assert beat is not None
    return msgspec.structs.replace(beat, ended=True)


def test_a_machine_whose_run_went_on_elsewhere_sends_nothing_old(cut: Kept, tmp_path: Path) -> None:
    there = tmp_path / "there"
    given = ("--id", RUN, "--store", cut.store, "--set", f"mirror.url={cut.mirror.as_uri()}")
    assert call("run", there / "eval.yaml", *given, cwd=there).code == 0
    open_objects(cut.url).create("lease/000009", msgspec.json.encode(Claim("n", ELSEWHERE)))
    before = tree_of(str(cut.mirror))
    (cut.journal.parent / "spec.yaml").touch()
    again = call("run", there / "eval.yaml", *given, cwd=there)
    assert again.code == 0, again.err
    assert tree_of(str(cut.mirror)) == before


def test_a_complete_run_that_another_machine_took_over_is_what_that_machine_made_of_it(tmp_path: Path) -> None:
    """A process that was stopped, replaced and woken may come to its end here: what it wrote does not count."""
    mirror = tmp_path / "mirror"
    spec = write_spec(tmp_path, SAMPLES, mirror={"url": mirror.as_uri(), "seconds": 0.05})

    def run(store: Path) -> dict[int, bytes]:
        done = call("run", spec, "--id", RUN, "--store", store, cwd=tmp_path)
        assert done.code == 0, done.err
        return read_all(str(store / "sums" / RUN / "journal"), uid=None).lines

    woken, other = tmp_path / "woken", tmp_path / "other"
    written = run(woken)
    shutil.copytree(woken, other)
    cut_after(other, finished_so_far(FINISHED), RUN)
    os.unlink(other / "sums" / RUN / "lease.json")
    shutil.rmtree(mirror)
    counted = run(other)
    assert counted != written
    assert run(woken) == counted
    claims = sorted(path.name for path in (mirror / "sums" / RUN / "lease").iterdir())
    assert run(woken) == counted
    assert claims == sorted(path.name for path in (mirror / "sums" / RUN / "lease").iterdir()), "claimed for nothing"


def test_a_claim_that_came_to_nothing_lets_others_in_at_once(cut: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    place = run_location(str(cut.journal.parent.parent.parent), "sums", RUN)
    mirror = Mirror(url=cut.url.rsplit("/", 2)[0])

    def fail(*arguments: object, **named: object) -> None:
        raise StoreError("the store is away")

    monkeypatch.setattr("holdfast.runs.mirror.claim.restore", fail)
    with pytest.raises(UsageError, match="the store is away"):
        claim_run(mirror, place)
    beat = read_beat(open_objects(cut.url), 2)
    assert beat is not None
    assert beat.ended
    monkeypatch.undo()
    claimed = claim_run(mirror, place)
    assert claimed.mirroring is not None
    assert claimed.mirroring.epoch == 3
    claimed.release()


def test_a_claimed_run_that_is_brought_in_beats(cut: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    place = run_location(str(cut.journal.parent.parent.parent), "sums", RUN)
    monkeypatch.setenv("HOLDFAST_EXPIRY_SECONDS", "0.06")
    objects = open_objects(cut.url)
    seen: list[int] = []

    class Slow(MirrorSource):
        def pieces(self) -> list[SegmentPiece]:
            while len(set(seen)) < 3:
                beat = read_beat(objects, 2)
                seen.append(beat.count if beat is not None else 0)
                time.sleep(0.005)
            return super().pieces()

    monkeypatch.setattr("holdfast.runs.mirror.claim.MirrorSource", Slow)
    claim_run(Mirror(url=cut.url.rsplit("/", 2)[0]), place).release()
    assert max(seen) >= 2


def test_a_chunk_that_claims_to_lie_far_out_is_a_stranger(cut: Kept, tmp_path: Path) -> None:
    name = "journal/000001/000001/000000000000-999999999999"
    open_objects(cut.url).put(name, b"x" * 10)
    found = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new")))
    assert counts(found) == (SAMPLES, FINISHED, SAMPLES - FINISHED, 0)
    (warned,) = found.warnings
    assert f"{name} does not belong to this run and was left alone" in warned


def test_a_list_of_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuch is not a folder"):
        list(list_recoverable(str(tmp_path / "nosuch")))


def test_a_stored_spec_of_another_version_is_reported(
    cut: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise msgspec.ValidationError("Object contains unknown field `later`")

    monkeypatch.setattr("holdfast.runs.verification.stored_spec", refuse)
    (warned,) = recover(cut.url, RecoveryOptions(output=str(tmp_path / "new"))).warnings
    assert "not one that this version of Holdfast knows" in warned
