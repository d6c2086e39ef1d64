"""The files of a sandbox as data: what changed, made again byte for byte, or an error that says what is missing."""

import os
import random
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engine.attachments import blobs_of
from holdfast.records.facts import FileChanges, KeptFile
from holdfast.sandbox.confinement import remove_folder
from holdfast.sandbox.snapshots import (
    Blobs,
    Capacity,
    FilesState,
    FolderSnapshot,
    LostFilesError,
    restore,
    take_snapshot,
)

BOUNDS = Capacity(1 << 20, 100)
NOTHING = FolderSnapshot(FilesState())


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return blobs_of(str(tmp_path / "run"))


def listed(folder: Path) -> dict[str, Any]:
    """Everything in a folder: kind, permissions and content."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (
            stat.S_IFMT(mode),
            None if path.is_symlink() else stat.S_IMODE(mode),
            content,
        )
    return found


def change_at_random(folder: Path, chance: random.Random) -> None:
    """What a command may do to its files."""
    path = folder / chance.choice("abc") / chance.choice("abc") / chance.choice("xyz")
    what = chance.randrange(6)
    if what == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.write_bytes(chance.randbytes(chance.randrange(4000)))
    elif what == 1 and path.is_file() and not path.is_symlink():
        path.chmod(chance.choice([0o600, 0o755, 0o444]))
    elif what == 2 and (path.exists() or path.is_symlink()):
        path.unlink()
    elif what == 3 and path.parent.is_dir():
        remove_folder(str(path.parent))
    elif what == 4 and path.parent.is_dir() and not path.exists() and not path.is_symlink():
        path.symlink_to(chance.choice(["../x", "nowhere", "/etc/passwd"]))
    elif what == 5 and path.parent.is_dir() and chance.random() < 0.5:
        path.parent.rename(folder / f"moved{chance.randrange(3)}{chance.randrange(1000)}")


@pytest.mark.parametrize("seed", range(8))
def test_the_changes_of_many_calls_together_are_the_folder(box: Path, blobs: Blobs, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    known, told = NOTHING, FilesState()
    for call in range(20):
        for _ in range(4):
            change_at_random(box, chance)
        files, known = take_snapshot(str(box), known, BOUNDS, blobs)
        if files is not None:
            told = told.after(files)
        assert told == known.state
        again = tmp_path / f"again{call}"
        restored = restore(str(again), told, blobs)
        assert listed(again) == listed(box), f"seed {seed}, call {call}"
        assert take_snapshot(str(again), restored, BOUNDS, blobs)[0] is None


def test_a_call_that_changes_nothing_says_nothing_and_reads_nothing(
    box: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box / "a").write_text("one")
    files, known = take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    assert files is not None
    assert {path: each.size for path, each in files.changed.items()} == {"a": 3}
    monkeypatch.setattr(os, "open", None)
    assert take_snapshot(str(box), known, BOUNDS, blobs) == (None, known)


def test_the_same_content_is_stored_once_and_durable_before_it_is_named(box: Path, tmp_path: Path) -> None:
    told: list[str] = []
    real = blobs_of(str(tmp_path / "run"))

    def keep(pieces: Iterable[bytes]) -> str:
        told.append("keep")
        return real.keep(pieces)

    blobs = msgspec.structs.replace(real, keep=keep, sync=lambda: told.append("sync"))
    for name in "abc":
        (box / name).write_text("same")
    take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    assert told == ["keep", "keep", "keep", "sync"]
    assert len(list((tmp_path / "run" / "blobs").iterdir())) == 1


def test_a_large_file_is_read_in_pieces(box: Path, tmp_path: Path, blobs: Blobs) -> None:
    (box / "large").write_bytes(os.urandom(5 << 20))
    files, known = take_snapshot(str(box), NOTHING, Capacity(10 << 20, 10), blobs)
    assert files is not None
    assert files.changed["large"].size == 5 << 20
    restore(str(tmp_path / "again"), known.state, blobs)
    assert listed(tmp_path / "again") == listed(box)


@pytest.mark.parametrize("what", ["bytes", "count", "socket", "fifo", "name"])
def test_what_cannot_be_kept_is_said_and_forgotten_when_it_is_gone(box: Path, blobs: Blobs, what: str) -> None:
    (box / "a").write_text("kept")
    first, known = take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    assert first is not None
    odd = box / ("b" if what != "name" else os.fsdecode(b"\xff"))
    if what == "bytes":
        odd.write_bytes(b"x" * (2 << 20))
    elif what == "count":
        odd.mkdir()
        for number in range(100):
            (odd / str(number)).touch()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.relpath(odd))
    elif what == "fifo":
        os.mkfifo(odd)
    else:
        odd.touch()
    lost, known = take_snapshot(str(box), known, BOUNDS, blobs)
    assert lost is not None
    said = {"bytes": "files_mb", "count": "files_max", "name": "no UTF-8"}.get(what, "neither file, folder nor link")
    assert said in lost.lost
    state = FilesState().after(first).after(lost)
    with pytest.raises(LostFilesError, match=r"cannot be restored"):
        restore(str(box / "again"), state, blobs)
    remove_folder(str(odd)) if odd.is_dir() else odd.unlink()
    found, known = take_snapshot(str(box), known, BOUNDS, blobs)
    assert found is not None
    assert state.after(found) == known.state == FilesState({"a": first.changed["a"]})


def test_changes_that_do_not_fit_are_not_applied(box: Path, blobs: Blobs) -> None:
    (box / "a").write_text("1")
    one, known = take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    (box / "a").write_text("22")
    two, _ = take_snapshot(str(box), known, BOUNDS, blobs)
    assert one is not None
    assert two is not None
    assert FilesState().after(one).after(two).lost == ""
    assert "one between them is missing" in FilesState().after(two).lost


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_content_that_is_not_what_it_was_is_never_restored(box: Path, tmp_path: Path, blobs: Blobs, harm: str) -> None:
    (box / "a").write_text("content")
    _, known = take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    (blob,) = (tmp_path / "run" / "blobs").iterdir()
    if harm == "remove":
        blob.unlink()
    else:
        blob.write_bytes(b"Content" if harm == "flip" else b"cont")
    with pytest.raises(LostFilesError, match=f"'a' cannot be restored: .*{blob.name}"):
        restore(str(tmp_path / "again"), known.state, blobs)


def test_damaged_content_is_replaced_when_it_is_kept_again(box: Path, tmp_path: Path, blobs: Blobs) -> None:
    (box / "a").write_text("content")
    take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    (blob,) = (tmp_path / "run" / "blobs").iterdir()
    blob.write_bytes(b"damage!")
    take_snapshot(str(box), NOTHING, BOUNDS, blobs_of(str(tmp_path / "run")))
    assert blob.read_bytes() == b"content"


@pytest.mark.parametrize("path", ["../a", "/a", "b/../../a"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, blobs: Blobs, path: str) -> None:
    digest = blobs.keep([b"x"])
    state = FilesState().after(FileChanges(FilesState().digest(), {path: KeptFile(0o644, digest, 1)}))
    with pytest.raises(LostFilesError, match="leads out"):
        restore(str(tmp_path / "again"), state, blobs)
    assert not (tmp_path / "a").exists()


CLOSED = """
import os, sys, tempfile
from holdfast.sandbox.confinement import remove_folder
from holdfast.engine.attachments import blobs_of
from holdfast.sandbox.snapshots import *
place = tempfile.mkdtemp()
if os.geteuid() == 0:  # root may read everything
    os.chown(place, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
blobs, box, again = blobs_of(f"{place}/run"), f"{place}/box", f"{place}/again"
os.makedirs(f"{box}/a/b")
open(f"{box}/a/b/c", "w").write("closed")
for path, mode in (("a/b/c", 0), ("a/b", 0o100), ("a", 0)):
    os.chmod(f"{box}/{path}", mode)
files, known = take_snapshot(box, FolderSnapshot(FilesState()), Capacity(1000, 100), blobs)
assert [each.mode for each in files.changed.values()] == [0, 0o100, 0], files
assert os.stat(f"{box}/a").st_mode & 0o777 == 0
restored = restore(again, known.state, blobs)
assert take_snapshot(again, restored, Capacity(1000, 100), blobs)[0] is None
os.chmod(box, 0)
for path in (box, again, f"{place}/run"):
    remove_folder(path)
os.rmdir(place)
print("done")
"""


def test_what_a_command_has_closed_to_itself_is_kept_and_removed_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_links_lead_nobody_out_of_the_folder(box: Path, tmp_path: Path, blobs: Blobs) -> None:
    (tmp_path / "secret").write_text("secret")
    (box / "a").symlink_to(tmp_path / "secret")
    (box / "d").symlink_to(tmp_path)
    files, _ = take_snapshot(str(box), NOTHING, BOUNDS, blobs)
    assert files is not None
    assert [each.link for each in files.changed.values()] == [str(tmp_path / "secret"), str(tmp_path)]
    remove_folder(str(box))
    assert (tmp_path / "secret").read_text() == "secret"
