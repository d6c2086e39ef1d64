"""Columns of files: what a value may be, what it becomes, and what is refused."""

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.datasets import FileColumns, FileContent, ReferenceCache, rows_in_memory
from holdfast.datasets.files import ending_of, type_of_name
from holdfast.errors import DataError
from holdfast.records.keys import Reference, parse_reference

PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 100


def converted(value: Any, folder: Path, **options: Any) -> Any:
    rows = rows_in_memory([{"id": 1, "picture": value}], "task t", ["picture"])
    columns = FileColumns(["picture"], str(folder), ReferenceCache().reference, "task t", **options)
    return next(columns.apply(rows))[1]["picture"]


def reference(data: bytes, kind: str) -> str:
    return str(Reference(hashlib.sha256(data).hexdigest(), kind))


def test_a_path_becomes_a_reference_to_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert converted("a.png", tmp_path) == reference(PNG, "image/png")
    assert converted(str(tmp_path / "a.png"), tmp_path) == reference(PNG, "image/png")
    assert converted(str(tmp_path / "a.png"), Path("/nowhere"), root=str(tmp_path)) == reference(PNG, "image/png")


def test_the_name_of_a_file_does_not_matter_if_its_content_tells_what_it_is(tmp_path: Path) -> None:
    for name in ("a.png", "b.dat", "c"):
        (tmp_path / name).write_bytes(PNG)
    assert len({converted(name, tmp_path) for name in ("a.png", "b.dat", "c")}) == 1


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "x", "image/jpeg"),
        (b"GIF89a...", "x", "image/gif"),
        (b"RIFF1234WEBPVP8 ", "x", "image/webp"),
        (b"RIFF1234WAVEfmt ", "x.bin", "audio/wav"),
        (b"ID3\x04", "x", "audio/mpeg"),
        (b"%PDF-1.7", "x", "application/pdf"),
        (b"a,b", "x.csv", "text/csv"),
        (b"????", "x.mp3", "audio/mpeg"),
        (b"????", "x", "application/octet-stream"),
        (b"", "x.txt", "text/plain"),
    ],
)
def test_the_type_is_found_from_the_content_or_else_the_name(tmp_path: Path, data: bytes, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert converted(name, tmp_path) == reference(data, kind)


def test_a_url_stays_as_it_is(tmp_path: Path) -> None:
    assert converted("https://example.org/a.png", tmp_path) == "https://example.org/a.png"
    assert type_of_name("https://example.org/a.pdf?x=1") == "application/pdf"


@pytest.mark.parametrize("given", [PNG, bytearray(PNG), f"data:image/png;base64,{base64.b64encode(PNG).decode()}"])
def test_bytes_and_data_uris_become_references(tmp_path: Path, given: Any) -> None:
    assert converted(given, tmp_path) == reference(PNG, "image/png")


def test_a_data_uri_may_be_plain_text_and_declares_its_type(tmp_path: Path) -> None:
    assert converted("data:text/csv,a%2Cb", tmp_path) == reference(b"a,b", "text/csv")
    assert converted("data:,hello", tmp_path) == reference(b"hello", "text/plain")


@pytest.mark.parametrize("given", [None, "", b""])
def test_nothing_is_no_file(tmp_path: Path, given: Any) -> None:
    assert converted(given, tmp_path) is None


def test_a_list_holds_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert converted(["a.png", "https://x/y"], tmp_path) == [reference(PNG, "image/png"), "https://x/y"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gone.png", "no such file: .*gone.png; paths are relative to"),
        (".", "is a folder; name the file in it"),
        (7, "found int; write null for no file"),
        ("data:image/png;base64,???", "not base64"),
        ("data:image/png", "is not a data: URI"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_row_and_column(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"task t, row 1: column 'picture': .*{said}"):
        converted(given, tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        converted("pipe", tmp_path)


def test_a_missing_column_is_refused_unless_it_may_be_missing(tmp_path: Path) -> None:
    rows = rows_in_memory([{"id": 1}], "task t", ["picture"])
    strict = FileColumns(["picture"], "", ReferenceCache().reference, "task t")
    with pytest.raises(DataError, match=r"row 1: no column 'picture', which dataset.files names; the row has: id"):
        next(strict.apply(rows))
    lenient = FileColumns(["picture"], "", ReferenceCache().reference, "task t", optional=True)
    assert next(lenient.apply(rows)) == (1, {"id": 1})


def test_only_rows_of_a_run_hold_references(tmp_path: Path) -> None:
    given = reference(PNG, "image/png")
    assert converted(given, tmp_path, stored=True) == given
    with pytest.raises(DataError, match="no such file"):
        converted(given, tmp_path)


def test_bytes_in_another_column_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1: column 'picture' holds bytes; name it in dataset.files"):
        next(rows_in_memory([{"picture": PNG}], "task t"))


def test_a_file_that_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    digests = ReferenceCache()
    first = digests.reference(FileContent(path=str(path)))
    with monkeypatch.context() as patched:
        patched.setattr(FileContent, "pieces", lambda self: iter([b"other"]))
        assert digests.reference(FileContent(path=str(path))) == first
    assert digests.size(first) == len(PNG)
    path.write_bytes(PNG + b"!")
    assert digests.reference(FileContent(path=str(path))) != first


def test_endings_for_names_of_files() -> None:
    assert (ending_of("application/pdf"), ending_of("application/x-unheard-of")) == (".pdf", "")
    assert parse_reference(str(Reference("0" * 64, type_of_name("a.csv")))) is not None
