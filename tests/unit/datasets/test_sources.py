"""Several files and patterns are one data set."""

from pathlib import Path

import pytest

from holdfast.datasets import FetchedFiles, JoinedSources, LocalFiles
from holdfast.errors import DataError


def put(folder: Path, name: str, *ids: str) -> str:
    (folder / name).write_text("".join(f'{{"id": "{id}"}}\n' for id in ids))
    return str(folder / name)


def ids(source: LocalFiles | FetchedFiles) -> list[str]:
    rows = source.open()
    found = [(number, row["id"]) for number, row in rows]
    assert list(rows.again()) == [(number, {"id": id}) for number, id in found]
    return [id for _, id in found]


def test_a_list_keeps_its_order_and_a_pattern_is_sorted(tmp_path: Path) -> None:
    second, first = put(tmp_path, "b.jsonl", "b1", "b2"), put(tmp_path, "a.jsonl", "a1")
    assert ids(LocalFiles([second, first])) == ["b1", "b2", "a1"]
    assert ids(LocalFiles([str(tmp_path / "*.jsonl")])) == ["a1", "b1", "b2"]
    assert [number for number, _ in LocalFiles([second, first]).open()] == [1, 2, 3]


def test_files_of_several_formats_can_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("id\nc1\n")
    assert ids(LocalFiles([put(tmp_path, "a.jsonl", "a1"), str(tmp_path / "c.csv")])) == ["a1", "c1"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    path = put(tmp_path, "x[1].jsonl", "x")
    put(tmp_path, "x1.jsonl", "other")
    assert ids(LocalFiles([path])) == ["x"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", "a1")
    with pytest.raises(DataError, match="no file matches this pattern"):
        LocalFiles([str(tmp_path / "*.csv")]).open()
    with pytest.raises(DataError, match=r"no such file; did you mean a.jsonl\?"):
        LocalFiles([path, str(tmp_path / "aa.jsonl")]).open()
    assert LocalFiles([str(tmp_path / "*.csv"), str(tmp_path / "aa.jsonl")]).is_missing()
    assert not LocalFiles([path, str(tmp_path / "aa.jsonl")]).is_missing()


def test_a_pattern_has_no_stamp_because_it_may_match_more_files_later(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", "a1")
    assert LocalFiles([path]).stamped_files() == [path]
    assert LocalFiles([str(tmp_path / "*.jsonl")]).stamped_files() == []


def test_files_are_fetched_once_and_only_when_they_are_opened(tmp_path: Path) -> None:
    calls = []

    def fetch() -> list[str]:
        calls.append(1)
        return [put(tmp_path, "a.jsonl", "a1")]

    source = FetchedFiles("somewhere", fetch)
    assert calls == []
    assert ids(source) == ["a1"]
    assert source.folder == str(tmp_path)
    assert calls == [1]


def test_joined_rows_have_the_name_of_their_source_and_their_number_in_it(tmp_path: Path) -> None:
    one, other = put(tmp_path, "a.jsonl", "a1", "a2"), put(tmp_path, "b.jsonl", "b1")
    joined = JoinedSources({"de": LocalFiles([one]), "en": LocalFiles([other])}, "config")
    rows = list(joined.open())
    assert [number for number, _ in rows] == [1, 2, 3]
    assert [(row["config"], row["config_row"]) for _, row in rows] == [("de", 1), ("de", 2), ("en", 1)]
