"""The bytes of one record: `{"n":…,"at":…,"t":…,"k":…,"d":{…},"x":"…"}` and a newline.

`x` is the xxh3-64 of every byte of the line before `,"x":"`, seeded with the run's uid. It has a fixed length at the
end of the line, so a line is checked before it is parsed. A flipped bit, two glued lines and a line of another run all
fail the same check.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
import xxhash

from holdfast.errors import BadRecordError, RecordTooLargeError
from holdfast.records.record_types import is_known
from holdfast.records.samples import COUNT_MAX

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Longer lines are refused on writing and are damage on reading. This bounds the memory of readers."""

_CHECK_OPEN = b',"x":"'
_CHECK_CLOSE = b'"}'
_CHECK_BYTES = len(_CHECK_OPEN) + 16 + len(_CHECK_CLOSE)
_DATA = b',"d":'  # cannot occur inside a key, where quotes are escaped
_OF_FIRST = b'"of":0,'
_BRACE = ord("{")
_NEWLINE = ord("\n")
_HEAD_BYTES_MAX = 256  # `n`, `at` and the punctuation; type and key are counted separately
_SLICE_BYTES_MAX = 256 * 1024
_DECODE_BYTES_MAX = 1500  # below this, one decoder call that skips the data is cheaper than cutting the data out
_COPY_BYTES_MAX = 4096  # below this, hashing one joined piece is cheaper than hashing two
_encode = msgspec.json.Encoder().encode
_ADVICE = {
    "step": "limit the length of the response with max_tokens, or pass large data between steps as files",
    "sample.finished": "limit the length of answers with max_tokens, or return less text from the solver",
    "score": "return a shorter reason or less metadata from the scorer",
}


class Line(msgspec.Struct, frozen=True, gc=False):
    """A verified record. `d` is still JSON; `decoder` decodes it."""

    n: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    at: str
    t: str
    d: msgspec.Raw
    x: str
    k: str | None = None


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A serialised record without a number. The appender numbers it when it writes it.

    `size` is an upper bound of its bytes in the journal.
    """

    t: bytes
    k: bytes
    d: bytes
    size: int
    followers: tuple["Draft", ...] = ()
    """Records that are written right after it, in the same commit (`draft_group`)."""


class _Head(msgspec.Struct, gc=False):
    n: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    at: str
    t: str
    k: str | None = None


_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z", re.ASCII)
_FIRST_YEAR = 1900  # a wrong clock may write a time before 1970
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_head_decoder = msgspec.json.Decoder(_Head)
_line_decoder = msgspec.json.Decoder(Line)
_encoded_kinds: dict[str, bytes] = {}


def seed_of(uid: str) -> int:
    """The checksum's seed for a run. Because of it, a line of another run never has a right checksum."""
    return xxhash.xxh3_64_intdigest(uid.encode())


def draft(kind: str, data: object, key: str | None = None) -> Draft:
    """Serialise a record. BadRecordError if it cannot be saved.

    The producer calls this, so that bad data fails there and not in the writer's thread.
    """
    try:
        encoded_kind = _encoded_kinds.get(kind) or _encoded(kind)
        encoded = _encode(data)
        encoded_key = b"" if key is None else b'"k":%b,' % _encode(key)
        if type(data) is msgspec.Raw:
            msgspec.json.decode(encoded)  # raw bytes were never validated
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecordError(f"a {kind!r} record{_about(key)} cannot be written as JSON: {error}") from error
    if encoded[0] != _BRACE or _NEWLINE in encoded:
        raise BadRecordError(f"a {kind} record{_about(key)} must be one JSON object without line breaks")
    size = len(encoded) + len(encoded_key) + len(encoded_kind) + _HEAD_BYTES_MAX
    if size > LINE_BYTES_MAX:
        raise RecordTooLargeError(
            f"a {kind} record{_about(key)} has {size / (1 << 20):.1f} MiB, and a record can have at most "
            f"{LINE_BYTES_MAX >> 20} MiB, so it was not saved; {_ADVICE.get(kind, 'store less in it')}"
        )
    return Draft(encoded_kind, encoded_key, encoded, size)


def draft_group(first: Draft, followers: Sequence[Draft]) -> Draft:
    """Join records that are written one right after the other, in one commit; the first is acknowledged. `"of":0` in
    the data of a follower becomes the number of the first record, which is known only when it is written.
    """
    return Draft(first.t, first.k, first.d, first.size + sum(each.size for each in followers), tuple(followers))


def numbered(batch: Iterable[Draft], n: int) -> Iterator[tuple[int, Draft, bool]]:
    """Yield the records of a batch, and after each its followers: the number, the record, and whether it follows.

    `n`: the number before the first.
    """
    for record in batch:
        n += 1
        yield n, record, False
        of = b'"of":%d,' % n
        for each in record.followers:
            n += 1
            yield n, Draft(each.t, each.k, each.d.replace(_OF_FIRST, of, 1), 0), True


def writable(text: str) -> str:
    """The text with `?` instead of lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def frame(record: Draft, n: int, at: bytes, seed: int) -> tuple[bytes, bytes, str]:
    """The bytes before and after `d`, and the checksum. Does not copy a large `d`."""
    head = b'{"n":%d,"at":"%b","t":%b,%b"d":' % (n, at, record.t, record.k)
    if len(record.d) <= _COPY_BYTES_MAX:
        check = xxhash.xxh3_64_hexdigest(head + record.d, seed)
    else:
        digest = xxhash.xxh3_64(head, seed)
        digest.update(record.d)
        check = digest.hexdigest()
    return head, b',"x":"%b"}\n' % check.encode(), check


def parse(raw: bytes, seed: int) -> Line | None:
    """The record in a line without its newline; None if it is not, bit for bit, what this run wrote."""
    cut = len(raw) - _CHECK_BYTES
    if cut <= 0:
        return None
    # Below this size a copy is cheaper than a view.
    check = xxhash.xxh3_64_hexdigest(raw[:cut] if cut <= _COPY_BYTES_MAX else memoryview(raw)[:cut], seed)
    if raw[cut:] != b',"x":"%b"}' % check.encode():
        return None
    try:
        line = _line_decoder.decode(raw) if cut <= _DECODE_BYTES_MAX else _parse_long(raw, cut, check)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return line if is_time(line.at) else None


def _parse_long(raw: bytes, cut: int, check: str) -> Line:
    """Cut out the data without parsing it, because the right checksum shows that it is what was written."""
    data = raw.find(_DATA)
    head = _head_decoder.decode(raw[:data] + b"}")
    start = data + len(_DATA)
    # A view keeps the whole line in memory, a slice makes a copy. For large records the copy costs more.
    found = raw[start:cut] if cut <= _SLICE_BYTES_MAX else memoryview(raw)[start:cut]
    return Line(head.n, head.at, head.t, msgspec.Raw(found), check, head.k)


@functools.lru_cache(64)  # all records of a batch have the same time
def is_time(text: str) -> bool:
    """Whether it is a valid UTC time of a record. Readers compute with these times, so they must be valid."""
    found = _TIME.fullmatch(text)
    if found is None:
        return False
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if not (year >= _FIRST_YEAR and 1 <= month <= 12 and 1 <= day <= _DAYS[month - 1]):
        return False
    is_leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (month, day) != (2, 29) or is_leap_year


def _encoded(kind: str) -> bytes:
    if not is_known(kind):
        raise BadRecordError(
            f"record type {kind!r} is not one that Holdfast writes; use a known type or the prefix 'x-'"
        )
    encoded = _encode(kind)
    if not kind.startswith("x-"):
        _encoded_kinds[kind] = encoded
    return encoded


def _about(key: str | None) -> str:
    return "" if key is None else f" of {key}"
