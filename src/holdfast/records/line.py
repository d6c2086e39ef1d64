"""The bytes of one record: `{"n":…,"at":…,"t":…,"k":…,"d":{…},"x":"…"}` and a newline; and the types of records (`t`).

`x` is the xxh3-64 of every byte of the line before `,"x":"`, seeded with the run's uid. It has a fixed length at the
end of the line, so a line is checked before it is parsed. A flipped bit, two glued lines and a line of another run all
fail the same check.

An unknown type is an error on writing and on reading, because an older version must not ignore records of a newer one.
Names that start with `x-` are free for extensions. The data of records that the journal itself writes is here too.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import xxhash

from holdfast.errors import BadRecordError, RecordTooLargeError
from holdfast.records.samples import COUNT_MAX, Count, CountOrMinusOne

FORMAT = 1
"""The version of the bytes described in docs/format.md."""
FORMAT_MAX = 2
"""The newest version that is read. The root journal of a sharded run has it, so that older versions refuse the run."""

SEGMENT = "segment"
ANOMALY = "anomaly"
RUN_STARTED = "run.started"
START_RECORDS = frozenset({RUN_STARTED, "run.extended"})
"""The types that say what a run is. Without these records no other record can be understood."""

_KNOWN = frozenset(
    {
        SEGMENT,
        *START_RECORDS,
        "run.resumed",
        "run.replanned",
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.interrupted",
        "step.started",
        "step",
        "batch",
        "sample.finished",
        "sample.failed",
        "score",
        "score.started",
        "score.completed",
        ANOMALY,
        "totals",
        "note",
    }
)


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where a record is: its number, its segment and the offset of its first byte (of uncompressed bytes)."""

    n: int
    segment: int
    offset: int


class Fence(msgspec.Struct, frozen=True):
    """The last record of the previous segment that counts. Bytes of that segment behind `bytes` are void."""

    segment: Count
    bytes: Count
    n: Count
    x: str


class Segment(msgspec.Struct, frozen=True):
    """The header, the first record of every segment: its run, its epoch, and where the previous segment ends."""

    format: Count
    run: str
    segment: Count
    epoch: Count
    first: Count
    prev: Fence | None = None


class Anomaly(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loss, recorded once when it was found: which bytes, which record numbers, which keys if still readable."""

    kind: str
    segment: Count
    first: Count
    last: Count
    n_first: Count
    n_last: CountOrMinusOne
    keys: tuple[str, ...] = ()
    detail: str = ""
    quarantine: str = ""


def is_known(kind: str) -> bool:
    return kind in _KNOWN or kind.startswith("x-")


LINE_BYTES_MAX = 64 * 1024 * 1024
"""Longer lines are refused on writing and are damage on reading. This bounds the memory of readers."""

_CHECK_OPEN = b',"x":"'
_CHECK_CLOSE = b'"}'
_CHECK_BYTES = len(_CHECK_OPEN) + 16 + len(_CHECK_CLOSE)
_TAIL_BYTES = _CHECK_BYTES + len("\n")
_DATA = b',"d":'  # cannot occur inside a key, where quotes are escaped
_OF_FIRST = b'"of":0,'
_BRACE = ord("{")
_NEWLINE = ord("\n")
_HEAD_BYTES_MAX = 247  # `n`, `at`, the checksum and the punctuation; type and key are counted separately
_SLICE_BYTES_MAX = 256 * 1024
_DECODE_BYTES_MAX = 1500  # below this, one decoder call that skips the data is cheaper than cutting the data out
_COPY_BYTES_MAX = 4096  # below this, one copied piece is cheaper to hash and to write than several
_encode = msgspec.json.Encoder().encode
_checksum = xxhash.xxh3_64_hexdigest
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

    `head` is its type and key, up to its data `d`. `size` is an upper bound of its bytes in the journal.
    """

    head: bytes
    d: bytes
    size: int
    followers: tuple["Draft", ...] = ()
    """Records that are written right after it, in the same commit (`draft_group`)."""

    def numbered_followers(self, n: int) -> list["Draft"]:
        """The followers, with this record's number `n` in their data."""
        of = b'"of":%d,' % n
        return [Draft(each.head, each.d.replace(_OF_FIRST, of, 1), each.size) for each in self.followers]


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
        head = b'"t":%b,"d":' % encoded_kind if key is None else b'"t":%b,"k":%b,"d":' % (encoded_kind, _encode(key))
        if type(data) is msgspec.Raw:
            msgspec.json.decode(encoded)  # raw bytes were never validated
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecordError(f"a {kind!r} record{_about(key)} cannot be written as JSON: {error}") from error
    if encoded[0] != _BRACE or _NEWLINE in encoded:
        raise BadRecordError(f"a {kind} record{_about(key)} must be one JSON object without line breaks")
    size = len(encoded) + len(head) + _HEAD_BYTES_MAX
    if size > LINE_BYTES_MAX:
        raise RecordTooLargeError(
            f"a {kind} record{_about(key)} has {size / (1 << 20):.1f} MiB, and a record can have at most "
            f"{LINE_BYTES_MAX >> 20} MiB, so it was not saved; {_ADVICE.get(kind, 'store less in it')}"
        )
    return Draft(head, encoded, size)


def draft_group(first: Draft, followers: Sequence[Draft]) -> Draft:
    """Join records that are written one right after the other, in one commit; the first is acknowledged. `"of":0` in
    the data of a follower becomes the number of the first record, which is known only when it is written.
    """
    size = first.size
    for each in followers:
        size += each.size
    return Draft(first.head, first.d, size, tuple(followers))


def writable(text: str) -> str:
    """The text with `?` instead of lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def frame(batch: Iterable[Draft], tip: Fence, at: bytes, seed: int) -> tuple[list[bytes], list[Position], Fence]:
    """The lines of a batch behind `tip` as buffers, the position of each record, and the new tip.

    Small pieces are joined: that is cheaper than handing them to the kernel one by one. Large data is not copied.
    """
    number, offset, n, check = tip.segment, tip.bytes, tip.n, tip.x
    buffers: list[bytes] = []
    small: list[bytes] = []
    positions = []
    for record in batch:
        positions.append(Position(n + 1, number, offset))
        for each in (record, *record.numbered_followers(n + 1)) if record.followers else (record,):
            n += 1
            data = each.d
            if len(data) <= _COPY_BYTES_MAX:
                line = b'{"n":%d,"at":"%b",%b%b' % (n, at, each.head, data)
                check = _checksum(line, seed)
                small += (line, f',"x":"{check}"}}\n'.encode())
                offset += len(line) + _TAIL_BYTES
                continue
            head = b'{"n":%d,"at":"%b",%b' % (n, at, each.head)
            digest = xxhash.xxh3_64(head, seed)
            digest.update(data)
            check = digest.hexdigest()
            buffers += (b"".join((*small, head)), data)
            small = [f',"x":"{check}"}}\n'.encode()]
            offset += len(head) + len(data) + _TAIL_BYTES
    buffers.append(b"".join(small))
    return buffers, positions, Fence(number, offset, n, check)


def line_of(record: Draft, n: int, at: bytes, seed: int) -> bytes:
    """The line of one record, with its newline."""
    return b"".join(frame([record], Fence(0, 0, n - 1, ""), at, seed)[0])


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
