"""A row of the data names files below one folder only: a downloaded data set cannot send your files to a model."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.datasets import FileColumns, ReferenceCache, files, rows_in_memory
from holdfast.errors import DataError
from tests.e2e.commands import Done, call, files_in, write_rows
from tests.e2e.test_secrets import echo

PRIVATE = "the private key of the user"


def lay_out(folder: Path) -> Path:
    """A file of the user's, and beside it a folder that was downloaded."""
    (folder / "id_rsa").write_text(PRIVATE)
    data = folder / "downloaded"
    (data / "inside").mkdir(parents=True)
    (data / "inside" / "a.txt").write_text("a picture")
    return data


def run_row(data: Path, value: Any, base_url: str, shot: Any = None, **dataset: Any) -> Done:
    """Run a spec whose second row names a file."""
    write_rows(data / "rows.jsonl", [{"q": "1", "picture": None}, {"q": "2", "picture": value}])
    write_rows(data / "shots.jsonl", [{"q": "3", "target": "x", "picture": shot}])
    task = {
        "name": "t",
        "dataset": {"path": "rows.jsonl", "input": "q", "files": ["picture"], **dataset},
        "prompt": "{q}",
        "fewshot": {"path": "shots.jsonl", "n": 1},
        "sample_retries": 0,
    }
    model = {"name": "m", "provider": "openai", "model": "m", "base_url": f"http://{base_url}", "request_retries": 0}
    (data / "eval.yaml").write_text(yaml.safe_dump({"models": [model], "tasks": [task]}))
    return call("run", "eval.yaml", "--id", "x", cwd=data)


def has_copied(data: Path) -> bool:
    return any(PRIVATE.encode() in path.read_bytes() for path in files_in(data / "runs"))


OUTSIDE: dict[str, Callable[[Path], Any]] = {
    "an absolute path": lambda data: str(data.parent / "id_rsa"),
    "a path upwards": lambda data: "inside/../../id_rsa",
    "a link": lambda data: link(data / "link", data.parent / "id_rsa"),
    "a relative link": lambda data: link(data / "link", Path("../id_rsa")),
    "a link to a folder": lambda data: f"{link(data / 'up', data.parent)}/id_rsa",
    "a link to a link": lambda data: link(data / "second", Path(link(data / "first", data.parent / "id_rsa"))),
    "one of several": lambda data: ["inside/a.txt", str(data.parent / "id_rsa")],
    "a file of the kernel": lambda data: "/proc/self/environ",
}


def link(path: Path, target: Path) -> str:
    path.symlink_to(target)
    return path.name


@pytest.mark.parametrize("attack", OUTSIDE)
def test_a_file_outside_of_the_data_folder_is_refused_before_anything_is_sent(tmp_path: Path, attack: str) -> None:
    data = lay_out(tmp_path)
    with echo(401) as (address, seen):
        done = run_row(data, OUTSIDE[attack](data), address)
    assert done.code == 2, done.err
    assert "rows.jsonl, line 2: column 'picture'" in done.err
    assert "is outside " in done.err
    assert "files_root" in done.err
    assert len(done.err.splitlines()) == 1
    assert seen == []
    assert not has_copied(data)


def test_without_the_guard_such_a_file_is_copied_and_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "is_below", lambda root, path: True)
    monkeypatch.setattr(files, "_open_below", lambda root, path: os.open(path, os.O_RDONLY))
    data = lay_out(tmp_path)
    with echo(401) as (address, seen):
        assert run_row(data, "../id_rsa", address).code == 1
    assert seen
    assert has_copied(data)


def test_an_example_cannot_name_a_file_outside_either(tmp_path: Path) -> None:
    data = lay_out(tmp_path)
    with echo(401) as (address, seen):
        done = run_row(data, None, address, shot="../id_rsa")
    assert done.code == 2
    assert "shots.jsonl, line 1: column 'picture'" in done.err
    assert seen == []


@pytest.mark.parametrize("root", ["..", "absolute"])
def test_files_root_allows_another_folder(tmp_path: Path, root: str) -> None:
    data = lay_out(tmp_path)
    allowed = str(tmp_path) if root == "absolute" else root
    with echo(401) as (address, _):
        assert run_row(data, str(tmp_path / "id_rsa"), address, files_root=allowed).code == 1
    assert has_copied(data)


def test_files_root_is_a_bound_as_well(tmp_path: Path) -> None:
    data = lay_out(tmp_path)
    with echo(401) as (address, _):
        done = run_row(data, "rows.jsonl", address, files_root="inside")
    assert done.code == 2
    assert "dataset.files_root" in done.err


@pytest.mark.parametrize("value", ["inside/a.txt", "inside/../inside/a.txt", "absolute", "link"])
def test_files_inside_the_data_folder_need_no_permission(tmp_path: Path, value: str) -> None:
    data = lay_out(tmp_path)
    (data / "link").symlink_to("inside/a.txt")
    with echo(401) as (address, seen):
        done = run_row(data, str(data / "inside" / "a.txt") if value == "absolute" else value, address)
    assert done.code == 1
    assert seen


def test_a_change_of_files_root_is_no_drift(tmp_path: Path) -> None:
    data = lay_out(tmp_path)
    with echo(401) as (address, _):
        run_row(data, "inside/a.txt", address)
        again = run_row(data, "inside/a.txt", address, files_root="inside")
    assert again.code == 1, again.err


def test_a_link_that_is_swapped_in_after_the_check_is_not_followed(tmp_path: Path) -> None:
    data = lay_out(tmp_path)
    content = files.FileContent(path=str(data / "inside" / "a.txt"), root=str(data))
    assert b"".join(content.pieces()) == b"a picture"
    (data / "inside" / "a.txt").unlink()
    (data / "inside" / "a.txt").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(files.BadFileError, match="now leads outside"):
        list(content.pieces())


def test_a_link_that_is_swapped_in_while_the_file_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is resolved to the old file; then a folder on the way becomes a link."""
    data = lay_out(tmp_path)
    resolved = str(data / "inside" / "a.txt")
    monkeypatch.setattr(os.path, "realpath", lambda path: resolved)
    (data / "inside").rename(data / "old")
    (tmp_path / "a.txt").write_text(PRIVATE)
    (data / "inside").symlink_to(tmp_path)
    with pytest.raises(files.BadFileError, match="cannot be read"):
        list(files.FileContent(path=resolved, root=str(data)).pieces())


def test_a_stored_row_of_a_run_cannot_name_a_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text(PRIVATE)
    columns = FileColumns(["p"], "", ReferenceCache().reference, "the run", stored=True)
    for value in (str(tmp_path / "id_rsa"), "id_rsa", json.dumps({})):
        with pytest.raises(DataError, match="is not a file of the run"):
            next(columns.apply(rows_in_memory([{"p": value}], "the run", ["p"])))
