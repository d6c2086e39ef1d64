"""Files and lists become rows; what is broken is named with its line."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.datasets import open_rows, rows_in_memory
from holdfast.errors import DataError, HoldfastError
from holdfast.records.samples import Row

ROWS: list[Row] = [{"id": "a", "question": "2+2", "answer": "4"}, {"id": "b", "question": "ü\n,\"'", "answer": ""}]
JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def refusal(path: str, format: str = "") -> DataError:
    with pytest.raises(DataError) as caught:
        list(open_rows(path, format))
    assert isinstance(caught.value, HoldfastError)
    assert path in str(caught.value)
    return caught.value


def as_jsonl(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


CSV = 'id,question,answer\na,2+2,4\nb,"ü\n,""\'",\n'
WRITTEN: dict[str, bytes] = {
    "x.jsonl": as_jsonl(ROWS),
    "x.NDJSON": as_jsonl(ROWS),
    "no_newline_at_the_end.jsonl": as_jsonl(ROWS).rstrip(b"\n"),
    "x.jsonl.gz": gzip.compress(as_jsonl(ROWS)),
    "x.jsonl.zst": zstandard.compress(as_jsonl(ROWS)),
    "frames.jsonl.zst": b"".join(zstandard.compress(as_jsonl([row])) for row in ROWS),
    "x.json": json.dumps(ROWS).encode(),
    "data.json": json.dumps({"version": 1, "data": ROWS}).encode(),
    "x.csv": CSV.encode(),
    "bom.csv": CSV.encode("utf-8-sig"),
    "bom.jsonl": b"\xef\xbb\xbf" + as_jsonl(ROWS),
    "bom.json": b"\xef\xbb\xbf" + json.dumps(ROWS).encode(),
    "quoted_bom.csv": '"id","question","answer"\na,2+2,4\nb,"ü\n,""\'",\n'.encode("utf-8-sig"),
    "x.csv.gz": gzip.compress(CSV.encode()),
    "x.csv.zst": zstandard.compress(CSV.encode()),
    "x.tsv": CSV.replace(",", "\t").replace("\n\t", "\n,").encode(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    assert [row for _, row in open_rows(put(tmp_path, name, WRITTEN[name]))] == ROWS


def test_the_format_can_be_said(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.txt", as_jsonl(ROWS))
    assert [row for _, row in open_rows(path, "JSONL")] == ROWS


def test_numbers_are_lines_and_blank_lines_count(tmp_path: Path) -> None:
    jsonl = put(tmp_path, "x.jsonl", '\n{"a":1}\n \n\t\n{"a":2}\r\n')
    assert list(open_rows(jsonl)) == [(2, {"a": 1}), (5, {"a": 2})]
    csv = put(tmp_path, "x.csv", '\na\r\n\r\n"1\r\n2"\r\n3\r\n')
    assert list(open_rows(csv)) == [(4, {"a": "1\r\n2"}), (6, {"a": "3"})]


def test_rows_can_be_read_again_while_they_are_read(tmp_path: Path) -> None:
    rows = open_rows(put(tmp_path, "x.jsonl", as_jsonl(ROWS)))
    first = next(rows)
    assert list(rows.again()) == [first, *rows]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files cannot be listed")
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "x.csv"])
def test_a_file_is_closed_when_its_reader_is_given_up(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, name, WRITTEN[name])
    rows = open_rows(path)
    assert next(rows)[1] == ROWS[0]
    assert path in open_files()
    del rows
    assert path not in open_files()


def open_files() -> set[str]:
    links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if link.is_symlink()}


@given(st.lists(st.dictionaries(st.text(), JSON_VALUE, max_size=4), max_size=5))
def test_jsonl_reads_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    path = put(tmp_path_factory.mktemp("rows"), "x.jsonl", as_jsonl(rows))
    assert [row for _, row in open_rows(path)] == rows
    assert [row for _, row in rows_in_memory(rows)] == rows


# What is refused.


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    put(tmp_path, "sums.jsonl", "")
    with pytest.raises(DataError, match=r"sum\.jsonl: no such file; did you mean sums\.jsonl\?"):
        open_rows(str(tmp_path / "sum.jsonl"))
    with pytest.raises(DataError, match="no such file in"):
        open_rows(str(tmp_path / "quite_different.csv"))
    with pytest.raises(DataError, match=r"the folder .*nowhere cannot be read"):
        open_rows(str(tmp_path / "nowhere" / "x.csv"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        open_rows(str(tmp_path / "x.jsonl"))


def test_an_unknown_format_is_refused_at_once(tmp_path: Path) -> None:
    path = put(tmp_path, "x.xlsx", "")
    with pytest.raises(DataError, match=r"unknown format: the name ends in none of .*\.jsonl"):
        open_rows(path)
    with pytest.raises(DataError, match=r"unknown format 'jsonlines'; did you mean 'jsonl'\?"):
        open_rows(path, "jsonlines")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"a": 1', "not valid JSON"),
        ('{"a": 1} {"a": 2}', "not valid JSON"),
        ("nonsense", "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON; write null"),
        ('{"a": -Infinity}', "-Infinity is not JSON; write null"),
        ("[1, 2]", "expected an object with named columns, found list"),
        ("null", "found null"),
        ('"text"', "found str"),
        ("[" * 100_000, "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 0xff)"),
    ],
)
def test_a_bad_line_is_named(bad: str | bytes, said: str, tmp_path: Path) -> None:
    content = bad.encode() if isinstance(bad, str) else bad
    error = refusal(put(tmp_path, "x.jsonl", b'{"a": 0}\n\n' + content + b"\n"))
    assert said in str(error)
    assert error.line == 3
    assert "line 3" in str(error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"rows": []}', "expected a list of objects"),
        ('{"a": 1}\n{"a": 2}', "not valid JSON"),
        ("3", "expected a list"),
        ('[{"a": 1}, 2]', "row 2: expected an object"),
        ('[{"a": NaN}]', "NaN is not JSON"),
        (b'["\xff"]', "not UTF-8"),
    ],
)
def test_a_bad_json_file_is_refused(content: str | bytes, said: str, tmp_path: Path) -> None:
    assert said in str(refusal(put(tmp_path, "x.json", content)))


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("a,b\n1,2\n1\n", 3, "1 fields, but the header has 2"),
        ('a,b\n"1\n1",2\n1,2,3\n', 4, "3 fields, but the header has 2"),
        ("a,a\n1,2\n", 1, "names column 'a' twice"),
        ('a,b\n1,"2\n3,4\n', 2, "not well-formed"),
        ('a,b\n1,"2"x\n', 2, "not well-formed"),
        ("a,b\r1,2\r", 1, "not well-formed"),
        (b"a,b\n1,\xe4\n", 2, "not UTF-8 (byte 0xe4)"),
    ],
)
def test_a_bad_csv_row_is_named(content: str | bytes, line: int, said: str, tmp_path: Path) -> None:
    error = refusal(put(tmp_path, "x.csv", content))
    assert said in str(error)
    assert error.line == line


def test_a_long_field_is_read(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    assert list(open_rows(put(tmp_path, "x.csv", f"a,b\n{long},2\n"))) == [(2, {"a": long, "b": "2"})]


def test_utf16_is_recognised_by_its_byte_order_mark(tmp_path: Path) -> None:
    assert "is UTF-16; save the file as UTF-8" in str(refusal(put(tmp_path, "x.csv", "a,b\n1,2\n".encode("utf-16"))))


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "frames.jsonl.zst", "x.csv.gz", "x.csv.zst"])
def test_a_compressed_file_that_was_cut_is_never_a_shorter_data_set(name: str, tmp_path: Path) -> None:
    whole = WRITTEN[name]
    ends = {0, len(whole)} | ({len(zstandard.compress(as_jsonl(ROWS[:1])))} if name.startswith("frames") else set())
    for size in set(range(len(whole))) - ends:
        path = put(tmp_path, name, whole[:size])
        assert "damaged or cut short" in str(refusal(path)), size


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(name: str, tmp_path: Path) -> None:
    assert "damaged" in str(refusal(put(tmp_path, name, as_jsonl(ROWS))))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", "a\n1\n")
    os.chmod(path, 0)
    assert "cannot be read" in str(refusal(path))


# Rows that Python code made.


def test_rows_in_memory_are_as_they_will_be_stored() -> None:
    given: list[Row] = [{"b": (1, 2), "a": float("nan"), "c": {1: np.int64(3)}, "d": np.array([1.5])}]
    assert list(rows_in_memory(given)) == [(1, {"b": [1, 2], "a": None, "c": {"1": 3}, "d": [1.5]})]
    assert list(next(rows_in_memory(given))[1]) == ["b", "a", "c", "d"]


def test_a_row_that_is_changed_later_is_not_changed_in_the_run() -> None:
    given: Row = {"a": [1]}
    _, row = next(rows_in_memory([given]))
    given["a"].append(2)
    assert row == {"a": [1]}


@pytest.mark.parametrize("bad", [object(), "\ud800", {"x": {1, object()}}])
def test_a_row_that_json_cannot_hold_is_refused(bad: Any) -> None:
    with pytest.raises(DataError, match="task sums, row 2: cannot be stored as JSON"):
        list(rows_in_memory([{"a": 1}, {"a": bad}], "task sums"))


def test_rows_in_memory_must_be_objects() -> None:
    rows: Any = ["2+2"]
    with pytest.raises(DataError, match="data, row 1: expected an object with named columns, found str"):
        list(rows_in_memory(rows))


def test_an_error_survives_the_way_to_another_process() -> None:
    error = DataError("x.csv", "is bad", 7)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line) == ("x.csv, line 7: is bad", 7)
