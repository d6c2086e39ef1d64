"""A folder, link or pipe in the place of a segment is a lost segment: never followed, never written behind."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import DamagedError
from holdfast.journal import verify
from tests.journals import OTHER_UID, QUICK, UID, Snapshot, note, read_all, small_journal, write_session

Replace = Callable[[Path, Path], None]


def link_nowhere(path: Path, _: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def link_to_its_own(path: Path, moved: Path) -> None:
    path.symlink_to(moved)


def become_folder(path: Path, _: Path) -> None:
    path.mkdir()


def become_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


WAYS = [link_nowhere, link_to_its_own, become_folder, become_pipe]


@pytest.fixture
def journal(tmp_path: Path) -> Snapshot:
    return small_journal(str(tmp_path / "journal"))


@pytest.mark.parametrize("replace", WAYS)
def test_it_is_reported_by_readers_and_refused_by_the_writer(
    journal: Snapshot, tmp_path: Path, replace: Replace
) -> None:
    for name in (journal.names[0], journal.names[1], journal.last):
        path, moved = tmp_path / "journal" / name, tmp_path / "moved"
        path.rename(moved)
        replace(path, moved)
        seen = read_all(str(path.parent))
        assert seen.damage
        assert set(seen.numbers) == set(journal.lines) - journal.numbers_in(name)
        assert verify(str(path.parent), UID, disk=QUICK).errors
        before = sorted(os.listdir(path.parent))
        with pytest.raises(DamagedError, match=name):
            write_session(str(path.parent), [note("new")])
        assert sorted(os.listdir(path.parent)) == before
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        moved.rename(path)
    assert set(read_all(str(tmp_path / "journal")).numbers) == set(journal.lines)


def test_the_segment_of_another_run_is_not_read_through_a_link(journal: Snapshot, tmp_path: Path) -> None:
    small_journal(str(tmp_path / "other"), OTHER_UID)
    path = tmp_path / "journal" / journal.last
    path.unlink()
    path.symlink_to(tmp_path / "other" / journal.last)
    seen = read_all(str(path.parent), uid=None)
    assert set(seen.numbers) == set(journal.lines) - journal.numbers_in(journal.last)
    assert seen.damage
