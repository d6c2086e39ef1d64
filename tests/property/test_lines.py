"""One line: reads back as what was written, and no change to it ever reads as something else."""

from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.records import Draft, Fence, Line, Position, draft, frame, parse, seed_of
from tests.journals import bytes_of

AT = b"2024-01-01T00:00:00.000000Z"
SEED = seed_of("this run")

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), values, max_size=5)
keys = st.none() | st.text()
kinds = st.sampled_from(["note", "step", "sample.finished", "score"]) | st.text().map(lambda name: f"x-{name}")
drafts = st.builds(draft, kinds, objects, keys)


def line_of(record: Draft, n: int, seed: int = SEED) -> bytes:
    buffers, positions, tip = frame([record], Fence(1, 7, n - 1, ""), AT, seed)
    line = b"".join(buffers)
    assert positions == [Position(n, 1, 7)]
    assert tip == Fence(1, 7 + len(line), n, line[-19:-3].decode())
    return line


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    return line_of(draw(drafts), draw(st.integers(1, 10**12)))


@given(kinds, objects, keys, st.integers(1, 10**15))
def test_any_record_reads_back_as_what_was_written(kind: str, data: dict[str, Any], key: str | None, n: int) -> None:
    raw = line_of(draft(kind, data, key), n)
    assert raw.count(b"\n") == 1
    line = parse(raw[:-1], SEED)
    assert line is not None
    assert (line.n, line.t, line.k, line.at) == (n, kind, key, AT.decode())
    assert msgspec.json.decode(line.d) == data
    assert bytes_of(line) == raw


@given(drafts, st.integers(1, 10**15))
def test_a_draft_says_at_least_its_size(record: Draft, n: int) -> None:
    assert record.size >= len(line_of(record, n))


@given(lines(), st.data())
def test_a_flipped_byte_is_no_record(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 2))
    mask = data.draw(st.integers(1, 255))
    assert parse(raw[:at] + bytes([raw[at] ^ mask]) + raw[at + 1 : -1], SEED) is None


@given(lines(), st.data())
def test_a_cut_line_is_no_record(raw: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(raw) - 2))
    assert parse(raw[:end], SEED) is None
    assert parse(raw[end + 1 : -1], SEED) is None


@given(lines(), lines(), st.binary(max_size=20))
def test_glued_lines_are_no_record(one: bytes, other: bytes, between: bytes) -> None:
    assert parse(one[:-1] + between + other[:-1], SEED) is None


@given(lines(), st.binary(min_size=1, max_size=20), st.data())
def test_inserted_bytes_are_noticed(raw: bytes, inserted: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 1))
    assert parse(raw[:at] + inserted + raw[at:-1], SEED) is None


@given(lines(), lines(), st.data())
def test_a_line_with_a_piece_of_another_is_that_line_or_none(one: bytes, other: bytes, data: st.DataObject) -> None:
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(one) - 1), st.integers(0, len(one) - 1))))
    spliced = one[:first] + other[first:last] + one[last:-1]
    found = parse(spliced, SEED)
    assert found is None or bytes_of(found) in {one, other}


@given(drafts, st.integers(1, 10**12), st.text(), st.text())
def test_a_line_of_another_run_is_no_record(record: Draft, n: int, one: str, other: str) -> None:
    assume(one != other)
    raw = line_of(record, n, seed_of(one))[:-1]
    assert parse(raw, seed_of(one)) is not None
    assert parse(raw, seed_of(other)) is None


@given(st.binary(max_size=300))
def test_random_bytes_are_no_record(raw: bytes) -> None:
    found: Line | None = parse(raw, SEED)
    assert found is None
