"""A record is refused where it is made: what a draft accepts can be written and read back."""

import datetime

import msgspec
import pytest

from holdfast import records
from holdfast.errors import BadRecordError
from holdfast.records import LINE_BYTES_MAX, Draft, Line, draft, draft_group, is_known, parse, seed_of

SEED = seed_of("run")
AT = b"2024-01-01T00:00:00.000000Z"


def line_of(record: Draft, n: int = 1) -> bytes:
    return records.line_of(record, n, AT, SEED)


def read_back(record: Draft) -> Line | None:
    return parse(line_of(record).removesuffix(b"\n"), SEED)


def test_a_draft_reads_back_as_what_was_given() -> None:
    line = read_back(draft("note", {"text": "a\nb\u2028c", "more": [1, None, 2.5]}, 'key "1"/ü'))
    assert line is not None
    assert (line.n, line.t, line.k) == (1, "note", 'key "1"/ü')
    assert msgspec.json.decode(line.d) == {"text": "a\nb\u2028c", "more": [1, None, 2.5]}


@pytest.mark.parametrize("data", [object(), {"a": object()}, {"a": {1, "x", object()}}, {("a", "b"): 1}, lambda: None])
def test_data_that_is_not_json_is_refused(data: object) -> None:
    with pytest.raises(BadRecordError, match="note"):
        draft("note", data)


@pytest.mark.parametrize("data", [None, 1, "text", [], [{}], True, datetime.datetime.now(datetime.UTC)])
def test_data_that_is_not_an_object_is_refused(data: object) -> None:
    with pytest.raises(BadRecordError, match="one JSON object"):
        draft("note", data)


@pytest.mark.parametrize("kind", ["", "Note", "note ", "step.unknown", "x", "segments", "note\n"])
def test_an_unknown_type_is_refused(kind: str) -> None:
    assert not is_known(kind)
    with pytest.raises(BadRecordError, match="type"):
        draft(kind, {})


def test_a_free_type_is_accepted() -> None:
    line = read_back(draft("x-my tool", {}))
    assert line is not None
    assert line.t == "x-my tool"


@pytest.mark.parametrize("broken", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_refused_wherever_they_are(broken: str) -> None:
    for kind, data, key in (
        ("note", {"text": broken}, None),
        ("note", {broken: 1}, None),
        ("note", {}, broken),
        ("x-" + broken, {}, None),
    ):
        with pytest.raises(BadRecordError):
            draft(kind, data, key)


def test_a_record_that_is_too_large_is_refused_and_the_greatest_is_readable() -> None:
    room = LINE_BYTES_MAX - 256 - len('"note"') - len('{"v":""}')
    with pytest.raises(BadRecordError, match="MiB"):
        draft("note", {"v": "a" * (room + 1)})
    greatest = draft("note", {"v": "a" * room})
    assert len(line_of(greatest, n=10**18)) <= LINE_BYTES_MAX


def test_a_long_type_or_key_counts_towards_the_size() -> None:
    """What is accepted must fit into the longest line that is read, or an acknowledged record is lost."""
    room = LINE_BYTES_MAX - 256 - len('{"v":""}')
    for kind, key in (("x-" + "t" * 1000, None), ("note", "k" * 1000)):
        with pytest.raises(BadRecordError, match="MiB"):
            draft(kind, {"v": "a" * room}, key)


def test_the_size_of_a_draft_is_never_less_than_its_line() -> None:
    for kind, data, key in (
        ("note", {}, None),
        ("note", {"a": "ü" * 500}, "k" * 500),
        ("x-" + "t" * 500, {}, None),
        ("x-" + '"' * 300, {}, '"' * 300),
    ):
        made = draft(kind, data, key)
        assert made.size >= len(line_of(made, n=10**15))


def test_raw_json_that_is_broken_is_refused() -> None:
    """A line with a right checksum that cannot be parsed would be acknowledged and then lost."""
    for raw in (b"{", b'{"a":}', b'{"a":1}}', b'{"a":1},"n":7,"z":{}', b"{\x00}", b'{"a":"\xff"}'):
        with pytest.raises(BadRecordError):
            draft("note", msgspec.Raw(raw))


@pytest.mark.parametrize("depth", [10, 200, 400, 600, 800, 900, 950, 990, 5000, 100_000])
def test_deep_data_is_refused_or_readable_also_by_a_caller_that_is_deeper(depth: int) -> None:
    data: dict[str, object] = {}
    for _ in range(depth):
        data = {"a": data}
    try:
        made = draft("note", data)
    except BadRecordError:
        assert depth > 100
        return
    assert deeper(300, made) is not None


def deeper(calls: int, made: Draft) -> Line | None:
    return read_back(made) if calls == 0 else deeper(calls - 1, made)


def test_followers_name_the_number_of_their_first_record() -> None:
    scores = [draft("score", {"o": 0, "of": 0, "scorer": each, "reason": '"of":0,'}, "k") for each in ("a", "b")]
    group = draft_group(draft("sample.finished", {"o": 0}, "k"), scores)
    read = [msgspec.json.decode(each.d) for each in group.numbered_followers(8)]
    assert read == [{"o": 0, "of": 8, "scorer": each, "reason": '"of":0,'} for each in ("a", "b")]
    assert group.size >= sum(each.size for each in scores)
