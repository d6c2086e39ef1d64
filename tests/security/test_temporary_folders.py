"""Clean-up in a folder that every user can write to: what others planted there is neither changed nor followed."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import files
from holdfast.sandbox.orphans import clear
from holdfast.score.scorers.code_tests import new_folder
from tests.security.users import NOBODY, as_nobody, needs_root

UID = "0123456789abcdef"
NESTED = 1200
"""Deeper than Python's stack, and more folders than a process may have open."""


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR that is everybody's."""
    place = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    files.remove_own_folder(str(place))
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "private").write_text("mine")
    folder.chmod(0o500)
    return folder


def is_untouched(victim: Path) -> bool:
    mode = stat.S_IMODE(victim.stat().st_mode)
    return mode == 0o500 and os.listdir(victim) == ["private"] and (victim / "private").read_text() == "mine"


def age(path: Path) -> None:
    long_ago = time.time() - 10 * 86400
    os.utime(path, (long_ago, long_ago), follow_symlinks=False)


def clean_up(shared: Path) -> None:
    """What happens before the first `code_tests`, and at the start of a run with sandboxes."""
    os.rmdir(new_folder())
    clear(UID, str(shared))


@pytest.mark.parametrize("name", ["holdfast-code-planted", f"holdfast-{UID}-planted"])
def test_a_planted_link_is_not_followed(shared: Path, victim: Path, name: str) -> None:
    (shared / name).symlink_to(victim)
    age(shared / name)
    clean_up(shared)
    assert is_untouched(victim)


@pytest.mark.parametrize("name", ["holdfast-code-planted", f"holdfast-{UID}-planted"])
def test_without_the_guards_the_planted_link_is_followed(
    shared: Path, victim: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(files, "NO_FOLLOW", 0)
    monkeypatch.setattr(files, "is_own_folder", os.path.isdir)
    monkeypatch.setattr("holdfast.sandbox.orphans.is_own_folder", os.path.isdir)
    (shared / name).symlink_to(victim)
    age(shared / name)
    clean_up(shared)
    assert not is_untouched(victim)


@pytest.mark.parametrize("name", ["holdfast-code-left", f"holdfast-{UID}-left"])
def test_own_leftovers_are_removed_with_the_links_in_them(shared: Path, victim: Path, name: str) -> None:
    left = shared / name
    (left / "files" / "work" / "closed").mkdir(parents=True)
    (left / "files" / "work" / "way-out").symlink_to(victim)
    (left / "files" / "work" / "closed" / "file").write_text("x")
    (left / "files" / "work" / "closed").chmod(0)
    age(left)
    clean_up(shared)
    assert os.listdir(shared) == []
    assert is_untouched(victim)


@needs_root
@pytest.mark.parametrize("name", ["holdfast-code-planted", f"holdfast-{UID}-planted"])
def test_a_folder_of_another_user_stays(shared: Path, name: str) -> None:
    (shared / name).mkdir()
    (shared / name / "file").write_text("x")
    os.chown(shared / name, NOBODY, NOBODY)
    age(shared / name)
    clean_up(shared)
    assert (shared / name / "file").exists()


@needs_root
def test_a_user_without_privileges_removes_what_forbids_it(shared: Path) -> None:
    def make_and_remove() -> None:
        left = shared / "left"
        (left / "a" / "b").mkdir(parents=True)
        (left / "a" / "b" / "file").write_text("x")
        (left / "a" / "b").chmod(0)
        (left / "a").chmod(0)
        left.chmod(0o100)
        files.remove_own_folder(str(left))
        assert not left.exists()

    as_nobody(make_and_remove)


@needs_root
def test_a_user_without_privileges_changes_no_mode_through_a_link(shared: Path) -> None:
    def plant_and_remove() -> None:
        own = shared / "own"
        own.mkdir()
        own.chmod(0o500)
        (shared / "holdfast-code-planted").symlink_to(own)
        age(shared / "holdfast-code-planted")
        os.rmdir(new_folder())
        assert stat.S_IMODE(own.stat().st_mode) == 0o500

    as_nobody(plant_and_remove)


def test_a_tree_that_is_nested_very_deeply_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for _ in range(NESTED):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    files.remove_own_folder(str(top))
    assert not top.exists()
