"""Restoring: what several places hold of a run becomes one folder, and dying on the way costs nothing."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import JournalError, StoreError
from holdfast.journal import seal, verify
from holdfast.journal.disk import OsDisk
from holdfast.journal.mirror.pieces import FolderSource, MirrorSource, Source, parse_piece
from holdfast.journal.mirror.restore import mirror_has_more, restore, uid_of
from holdfast.journal.opening import open_to_write
from holdfast.records import line_of, seed_of
from tests.journals import (
    OTHER_UID,
    QUICK,
    UID,
    files_in,
    hooks,
    note,
    notes,
    plain_numbers,
    read_all,
    request,
    small_journal,
    tree_of,
    unpacked,
    write_session,
)
from tests.stores import Broken, Crash, MemoryObjects

CHANGES = ("create", "write", "sync", "truncate", "replace", "remove", "make_folder", "sync_folder")


def chunked(run: Path, size: int = 400, *, sealed: bool = True) -> MemoryObjects:
    """A mirror of a journal: sealed segments as they are, plain ones in chunks."""
    objects = MemoryObjects()
    for piece in FolderSource(str(run)).pieces():
        path = run / piece.name
        if piece.sealed and sealed:
            objects.put(f"journal/{piece.epoch:06d}/{piece.segment:06d}.jsonl.zst", path.read_bytes())
            continue
        data = unpacked(str(path))
        at = 0
        while at < len(data):
            end = data.rfind(b"\n", at, at + size) + 1 or data.index(b"\n", at) + 1
            objects.put(f"journal/{piece.epoch:06d}/{piece.segment:06d}/{at:012d}-{end:012d}", data[at:end])
            at = end
    for name in FolderSource(str(run)).files():
        objects.put(name, (run / name).read_bytes())
    objects.changes.clear()
    return objects


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three epochs, sealed segments and plain ones, and the files beside them."""
    place = tmp_path / "run"
    place.mkdir()
    small_journal(str(place / "journal"))
    for name in ("spec.yaml", "plan.jsonl.zst", "data.jsonl.zst"):
        (place / name).write_text(name)
    (place / "blobs").mkdir()
    (place / "blobs" / ("a" * 64)).write_text("blob")
    return place


def lines_of(run: Path) -> dict[int, bytes]:
    return read_all(str(run / "journal")).lines


def test_a_mirror_alone_makes_the_folder(run: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    done = restore(str(tmp_path / "new"), [MirrorSource(chunked(run))], warnings.append)
    assert (done.uid, done.changed, warnings) == (UID, True, [])
    assert lines_of(tmp_path / "new") == lines_of(run)
    assert {**tree_of(str(tmp_path / "new"))} == tree_of(str(run))


def test_doing_it_again_changes_nothing(run: Path, tmp_path: Path) -> None:
    source = MirrorSource(chunked(run))
    restore(str(tmp_path / "new"), [source], pytest.fail)
    before = tree_of(str(tmp_path / "new"))
    assert not restore(str(tmp_path / "new"), [source], pytest.fail).changed
    assert tree_of(str(tmp_path / "new")) == before


def test_what_a_folder_lacks_is_known_from_names_and_sizes(run: Path, tmp_path: Path) -> None:
    objects, new = chunked(run), tmp_path / "new"

    def refuse(verb: str, name: str) -> str:
        assert verb == "list", f"{verb} {name}"
        return "do"

    def is_lacking() -> bool:
        return mirror_has_more(str(new), MirrorSource(Broken(objects, refuse)))

    assert is_lacking()
    restore(str(new), [MirrorSource(objects)], pytest.fail)
    assert not is_lacking()
    last = max(name for name in objects.held if "-" in name)
    data = objects.get(last)
    assert data is not None
    end = int(last.rpartition("-")[2])
    objects.put(f"{last.rpartition('/')[0]}/{end:012d}-{end + len(data):012d}", data)
    assert is_lacking()


class Dying:
    """A disk whose process dies before the call number `left`, and never comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self.died = False
        for name in CHANGES:
            monkeypatch.setattr(OsDisk, name, self._dying(getattr(OsDisk, name)))
        monkeypatch.setattr(shutil, "rmtree", self._dying(shutil.rmtree))

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                self.died = True
                raise Crash
            return call(*arguments, **named)

        return wrapped


@pytest.mark.parametrize("start", ["nothing", "an older copy", "a damaged copy"])
def test_dying_after_any_step_loses_nothing_and_doing_it_again_completes_it(
    run: Path, tmp_path: Path, start: str
) -> None:
    objects = chunked(run, sealed=False) if start == "a damaged copy" else chunked(run)
    wanted = lines_of(run)
    before: dict[int, bytes] = {}
    steps = 0
    while True:
        new = tmp_path / f"new-{steps}"
        if start != "nothing":
            shutil.copytree(run, new)
            last = sorted(os.listdir(new / "journal"))[-1]
            (new / "journal" / last).write_bytes((new / "journal" / last).read_bytes()[:-200])
            (new / "plan.jsonl.zst").unlink()
            if start == "a damaged copy":
                for name in ("000001.jsonl.zst", "000003.jsonl.zst"):
                    data = (new / "journal" / name).read_bytes()
                    (new / "journal" / name).write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
            before = {n: line for n, line in lines_of(new).items() if wanted[n] == line}
        with pytest.MonkeyPatch.context() as patch:
            dying = Dying(patch, steps)
            with contextlib.suppress(Crash):
                restore(str(new), [MirrorSource(objects)], lambda text: None)
        if not dying.died:
            assert lines_of(new) == wanted
            break
        if (new / "journal").is_dir():
            left = lines_of(new)
            assert before.items() <= left.items(), f"killed at step {steps}: something is gone that was there"
            assert left.items() <= wanted.items(), f"killed at step {steps}: something was invented"
        restore(str(new), [MirrorSource(objects)], pytest.fail)
        assert lines_of(new) == wanted, f"killed at step {steps}"
        assert verify(str(new / "journal")).ok
        assert "incoming" not in os.listdir(new / "journal"), f"killed at step {steps}: something is left over"
        assert (new / "plan.jsonl.zst").read_text() == "plan.jsonl.zst"
        shutil.rmtree(new)
        steps += 1
    assert steps > 20


def zombie(run: Path, other: Path) -> tuple[Path, Path]:
    """`other` has taken over at the fourth record; `run` woke up and went on under its old epoch."""
    run.mkdir()
    opened, _ = write_session(str(run / "journal"), notes("both", 2), wanted=request(segment_bytes=900))
    shutil.copytree(run, other)
    write_session(str(other / "journal"), notes("new", 4), wanted=request(epoch=2))
    last = run / "journal" / "000001.jsonl"
    tip = opened.appender.tip
    assert tip is not None
    for index in range(8):
        record = note(f"zombie-{index}")
        with last.open("ab") as file:
            file.write(line_of(record, tip.n + 1 + index, b"2024-01-01T00:00:00.000000Z", seed_of(UID)))
    return run, other


@pytest.mark.parametrize("sources", ["mirror of both", "zombie is a copy", "zombie is the folder"])
def test_what_a_zombie_wrote_is_never_counted(tmp_path: Path, sources: str) -> None:
    mine, theirs = zombie(tmp_path / "zombie", tmp_path / "other")
    wanted = lines_of(theirs)
    place = tmp_path / "new"
    found: list[Source] = [FolderSource(str(theirs)), FolderSource(str(mine))]
    if sources == "mirror of both":
        objects = chunked(theirs)
        for name, data in chunked(mine).held.items():
            objects.held.setdefault(name, data)
        found = [MirrorSource(objects)]
    elif sources == "zombie is the folder":
        place, found = mine, [FolderSource(str(theirs))]
    restore(str(place), found, lambda text: None)
    assert lines_of(place) == wanted
    assert not any("zombie" in key for key in read_all(str(place / "journal")).keys)
    assert verify(str(place / "journal")).ok


def test_segments_that_a_zombie_began_are_kept_in_quarantine_and_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_session(str(run / "journal"), notes("both", 2))
    other = tmp_path / "other"
    shutil.copytree(run, other)
    write_session(str(run / "journal"), notes("zombie", 9), wanted=request(epoch=2))
    write_session(str(other / "journal"), notes("new", 2), wanted=request(epoch=3))
    warnings: list[str] = []
    done = restore(str(run), [FolderSource(str(other))], warnings.append)
    assert lines_of(run) == lines_of(other)
    assert done.choice.void
    assert os.listdir(run / "journal" / "quarantine")
    assert all("does not count" in text for text in warnings)
    assert verify(str(run / "journal")).ok


@pytest.mark.parametrize("longer", ["here", "there"])
@pytest.mark.parametrize("sealed", [True, False])
def test_two_who_went_on_under_the_same_epoch_are_not_mixed(tmp_path: Path, longer: str, sealed: bool) -> None:
    """One of them without its mirror, or with another one: there its epoch was never claimed."""
    here, there = tmp_path / "run", tmp_path / "there"
    here.mkdir()
    write_session(str(here / "journal"), notes("both", 2))
    shutil.copytree(here, there)
    counts = {"here": 3, "there": 3, longer: 9}
    write_session(str(here / "journal"), notes("here", counts["here"]), wanted=request(epoch=2))
    opened = open_to_write(QUICK, str(there / "journal"), request(epoch=2), hooks(lambda: 1.8e9))
    for record in notes("there", counts["there"]):
        opened.appender.commit([record])
    opened.appender.close()
    if sealed:
        seal(QUICK, str(there / "journal"), 2)
    objects, before = chunked(there), tree_of(str(here))
    with pytest.raises(JournalError, match="both continued under epoch 2"):
        restore(str(here), [MirrorSource(objects)], pytest.fail)
    assert tree_of(str(here)) == before


def test_of_two_copies_each_with_other_losses_comes_a_whole_run(run: Path, tmp_path: Path) -> None:
    wanted = lines_of(run)
    objects = chunked(run, sealed=False)
    names = sorted(objects.held)
    halves = [
        MemoryObjects(
            {name: data for index, (name, data) in enumerate(sorted(objects.held.items())) if index % 2 == odd}
        )
        for odd in (0, 1)
    ]
    assert len(names) > 8
    for half, url in zip(halves, ("memory://a", "memory://b"), strict=True):
        half.url = url
    restore(str(tmp_path / "new"), [MirrorSource(half) for half in halves], lambda text: None)
    assert lines_of(tmp_path / "new") == wanted
    assert verify(str(tmp_path / "new" / "journal")).ok


def test_another_run_under_the_same_name_is_refused_and_nothing_is_changed(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    small_journal(str(other / "journal"), OTHER_UID)
    before = tree_of(str(run))
    with pytest.raises(JournalError, match="another run"):
        restore(str(run), [FolderSource(str(other))], pytest.fail)
    assert tree_of(str(run)) == before


def test_a_foreign_object_does_not_take_the_run_over(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    small_journal(str(other / "journal"), OTHER_UID)
    objects, foreign = chunked(run), chunked(other)
    first = min(name for name in foreign.held if name.startswith("journal/"))
    objects.held[first] = foreign.held[first]
    assert uid_of(MirrorSource(objects)) == UID


def test_nothing_to_restore_is_said(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        restore(str(tmp_path / "new"), [MirrorSource(MemoryObjects())], pytest.fail)
    assert not (tmp_path / "new").exists()


def test_a_store_that_fails_for_a_moment_is_an_error_where_a_run_goes_on(run: Path, tmp_path: Path) -> None:
    """What cannot be read now must not be taken for lost: continuing would request it again, and seal the gap."""
    objects = chunked(run)
    chunk = sorted(name for name in objects.held if "-0000" in name)[-1]

    def before(verb: str, name: str) -> str:
        if verb == "get" and name == chunk:
            raise StoreError("memory://store: cannot get: timeout")
        return "do"

    with pytest.raises(StoreError, match="timeout"):
        restore(str(tmp_path / "a"), [MirrorSource(Broken(objects, before))], pytest.fail, lossy=False)
    warnings: list[str] = []
    restore(str(tmp_path / "b"), [MirrorSource(Broken(objects, before))], warnings.append)
    assert warnings == ["memory://store: cannot get: timeout"]
    assert not verify(str(tmp_path / "b" / "journal")).ok, "what was left out must be seen"
    for name in ("a", "b"):
        restore(str(tmp_path / name), [MirrorSource(objects)], pytest.fail)
        assert lines_of(tmp_path / name) == lines_of(run)


@pytest.mark.parametrize("lossy", [True, False])
def test_chunks_that_were_sealed_since_they_were_listed_are_not_lost(run: Path, tmp_path: Path, lossy: bool) -> None:
    """A reader of the mirror of a live run sees one moment of it."""
    objects, later = chunked(run, sealed=False), chunked(run)
    source = MirrorSource(objects)
    sealed = next(name for name in later.held if name.endswith(".jsonl.zst") and parse_piece(name, 0))
    objects.put(sealed, later.held[sealed])
    for name in [name for name in objects.held if name.startswith(sealed.removesuffix(".jsonl.zst") + "/")]:
        objects.delete(name)
    restore(str(tmp_path / "new"), [source], pytest.fail, lossy=lossy)
    assert lines_of(tmp_path / "new") == lines_of(run)


def test_the_beginning_of_a_segment_that_cannot_be_read_is_lost_and_not_the_run(run: Path, tmp_path: Path) -> None:
    objects = chunked(run)
    begins = sorted(name for name in objects.held if parse_piece(name, 0) and "/000000000000-" in name)
    assert len(begins) > 1

    def before(verb: str, name: str) -> str:
        if verb == "get" and name == begins[0]:
            raise StoreError("memory://store: cannot get: it is not there")
        return "do"

    warnings: list[str] = []
    restore(str(tmp_path / "new"), [MirrorSource(Broken(objects, before))], warnings.append)
    assert warnings == ["memory://store: cannot get: it is not there"]
    assert len(lines_of(tmp_path / "new")) > 3
    assert lines_of(tmp_path / "new").items() <= lines_of(run).items()
    with pytest.raises(StoreError):
        restore(str(tmp_path / "a"), [MirrorSource(Broken(objects, before))], pytest.fail, lossy=False)


def test_a_store_that_goes_away_is_not_asked_for_every_piece(run: Path, tmp_path: Path) -> None:
    asked = 0

    def before(verb: str, name: str) -> str:
        nonlocal asked
        asked += verb == "get"
        if verb == "get":
            raise StoreError("memory://store: no route to host")
        return "do"

    objects = MemoryObjects()
    for number in range(1, 200):
        objects.held[f"journal/000001/{number:06d}.jsonl.zst"] = b"x"
    with pytest.raises(StoreError, match="no route to host"):
        restore(str(tmp_path / "new"), [MirrorSource(Broken(objects, before))], pytest.fail)
    assert asked < 20


def test_an_unsealed_copy_of_a_sealed_segment_is_replaced_by_it(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    shutil.copytree(run, new)
    for number in plain_numbers(str(run / "journal"))[:-1]:
        seal(QUICK, str(run / "journal"), number)
    restore(str(new), [MirrorSource(chunked(run))], pytest.fail)
    assert files_in(str(new / "journal")) == files_in(str(run / "journal"))
