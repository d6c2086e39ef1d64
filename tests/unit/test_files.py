"""Files of a run are opened, created, replaced and removed without following links, whatever lies at their paths."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import files
from holdfast.errors import DamagedError

OPEN: dict[str, Callable[[str], object]] = {
    "read": files.open_file,
    "append": lambda path: files.open_file(path, write=True),
    "lock": files.open_or_create,
    "overwrite": files.open_to_overwrite,
    "read small": files.read_file,
    "read own": files.read_own_file,
}
TRAPS = ("link to a file", "link to nothing", "folder", "pipe")


def plant(path: Path, trap: str) -> Path:
    """Where a link leads to."""
    target = path.parent.parent / "target"
    if trap == "link to a file":
        target.write_text("mine")
    if trap == "folder":
        path.mkdir()
    elif trap == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    return target


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("way", OPEN)
def test_what_is_no_file_is_not_opened(tmp_path: Path, way: str, trap: str) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "file"
    target = plant(path, trap)
    with pytest.raises(files.NotAFileError) as refused:
        OPEN[way](str(path))
    assert isinstance(refused.value, DamagedError)
    assert str(refused.value).startswith(f"{path} is a link, a folder, a pipe or a device instead of a file; ")
    assert target.exists() == (trap == "link to a file")


@pytest.mark.parametrize("trap", ["link to a file", "link to nothing", "pipe"])
def test_a_file_that_is_replaced_takes_the_place_of_what_lay_there(tmp_path: Path, trap: str) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "file"
    target = plant(path, trap)
    plant(tmp_path / "run" / f"file.{os.getpid()}.tmp", "pipe")
    files.replace_file(str(path), b"new")
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path / "run") == ["file"]
    assert not target.exists() or target.read_text() == "mine"


@pytest.mark.parametrize("inner", ["journal", "blobs", "control", "lease", "journal/quarantine"])
def test_nothing_is_reached_through_a_folder_of_a_run_that_is_a_link(tmp_path: Path, inner: str) -> None:
    folder, target = tmp_path / "run" / inner, tmp_path / "target"
    folder.parent.mkdir(parents=True)
    target.mkdir()
    (target / "file").write_text("mine")
    folder.symlink_to(target)
    path = str(folder / "file")
    calls: list[Callable[[], object]] = [
        lambda: files.open_file(path),
        lambda: files.create_file(str(folder / "new")),
        lambda: files.replace_file(path, b"x"),
        lambda: files.remove(path),
        lambda: files.rename(path, str(tmp_path / "away")),
        lambda: files.link(path, str(tmp_path / "away")),
        lambda: files.list_names(str(folder)),
        lambda: files.make_folder(str(folder)),
        lambda: files.sync_folder(str(folder)),
    ]
    for each in calls:
        with pytest.raises(files.NotAFolderError, match="is a link or a file instead of a folder"):
            each()
    assert not files.is_folder(str(folder))
    assert files.status_of(path) is None
    assert os.listdir(target) == ["file"]
    assert (target / "file").read_text() == "mine"


def test_the_path_to_a_run_may_contain_links(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run" / "journal").mkdir(parents=True)
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    path = str(tmp_path / "store" / "run" / "journal" / "file")
    files.replace_file(path, b"here")
    assert files.read_file(path) == b"here"
    assert files.list_names(os.path.dirname(path)) == ["file"]


def test_an_error_names_the_whole_path(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(FileNotFoundError) as missing:
        files.open_file(str(tmp_path / "journal" / "file"))
    assert missing.value.filename == str(tmp_path / "journal" / "file")


def test_a_file_that_is_too_long_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, files.SMALL_BYTES_MAX + 1)
    with pytest.raises(OSError, match="too large"):
        files.read_file(str(path))


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    files.replace_file(str(tmp_path / "file"), b"old")
    monkeypatch.setattr(files, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        files.replace_file(str(tmp_path / "file"), b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_derived_file_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    os.chown(path, 65534, 65534)
    assert files.read_file(str(path)) == b"theirs"
    with pytest.raises(PermissionError):
        files.read_own_file(str(path))
