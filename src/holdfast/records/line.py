"""The bytes of one record: `{"n":…,"at":…,"t":…,"k":…,"d":{…},"x":"…"}` and a newline.

`x` is the xxh3-64 of every byte of the line before `,"x":"`, seeded with the run's uid. The tail that holds it has a
fixed length, so a line is checked without parsing it: a flipped bit, two glued lines or a line of another run all
fail the same test.
"""

from typing import NamedTuple

import msgspec
import xxhash

from holdfast.errors import BadRecordError
from holdfast.records.kinds import is_known

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Longer lines are refused when written and are damage when read: a reader's memory is bounded by this."""

_CHECK_OPEN = b',"x":"'
_CHECK_CLOSE = b'"}'
_CHECK_BYTES = len(_CHECK_OPEN) + 16 + len(_CHECK_CLOSE)
_HEAD_BYTES_MAX = 256  # n, at, t and the punctuation; the key is counted by itself
_BRACKETS_MAX = 150  # with no more than so many brackets, data is not nested too deeply to be read
_FRAMES = 500
_encode = msgspec.json.Encoder(order=None).encode


class Line(msgspec.Struct, frozen=True, gc=False):
    """A verified record. `d` is still JSON: the room that knows the type decodes it."""

    n: int
    at: str
    t: str
    d: msgspec.Raw
    x: str
    k: str | None = None


class Draft(NamedTuple):
    """A record that has no number yet: the writer gives it one when it is about to be written."""

    t: bytes
    k: bytes
    d: bytes

    @property
    def size(self) -> int:
        """About the bytes that it will take in the journal; never less."""
        return len(self.d) + len(self.k) + len(self.t) + _HEAD_BYTES_MAX


_line_decoder = msgspec.json.Decoder(Line)


def seed_of(uid: str) -> int:
    """The checksum's seed for a run, so that a line of another run is never taken for one of this run."""
    return xxhash.xxh3_64_intdigest(uid.encode())


def draft(kind: str, data: object, key: str | None = None) -> Draft:
    """Serialise a record where it was made, so that bad data fails there and not in the writer thread."""
    if not is_known(kind):
        raise BadRecordError(
            f"record type {kind!r} is not one that Holdfast writes; use a known type or the prefix 'x-'"
        )
    try:
        encoded = _encode(data)
        encoded_kind = _encode(kind)
        encoded_key = b"" if key is None else b'"k":%b,' % _encode(key)
        if isinstance(data, msgspec.Raw):
            msgspec.json.decode(encoded)  # nobody has looked at it yet
        if encoded.count(b"{") + encoded.count(b"[") > _BRACKETS_MAX:
            _decode_deep_down(encoded, _FRAMES)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecordError(f"a {kind} record{_about(key)} cannot be written as JSON: {error}") from error
    if encoded[:1] != b"{" or b"\n" in encoded:
        raise BadRecordError(f"a {kind} record{_about(key)} must be one JSON object without line breaks")
    made = Draft(encoded_kind, encoded_key, encoded)
    if made.size > LINE_BYTES_MAX:
        limit = LINE_BYTES_MAX >> 20
        raise BadRecordError(
            f"a {kind} record{_about(key)} has {made.size >> 20} MiB; at most {limit} MiB can be saved"
        )
    return made


def frame(record: Draft, n: int, at: bytes, seed: int) -> tuple[bytes, bytes, str]:
    """The bytes before and after `d`, and the checksum: `d` itself is not copied, since it may be large."""
    head = b'{"n":%d,"at":"%b","t":%b,%b"d":' % (n, at, record.t, record.k)
    digest = xxhash.xxh3_64(head, seed=seed)
    digest.update(record.d)
    check = digest.hexdigest()
    return head, b"%b%b%b\n" % (_CHECK_OPEN, check.encode(), _CHECK_CLOSE), check


def parse(raw: bytes, seed: int) -> Line | None:
    """The record in a line without its newline, or None if it is not, bit for bit, what this run wrote."""
    cut = len(raw) - _CHECK_BYTES
    if cut <= 0 or raw[cut : cut + 6] != _CHECK_OPEN or raw[-2:] != _CHECK_CLOSE:
        return None
    if raw[cut + 6 : -2] != xxhash.xxh3_64_hexdigest(memoryview(raw)[:cut], seed=seed).encode():
        return None
    try:
        return _line_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _decode_deep_down(encoded: bytes, frames: int) -> None:
    """RecursionError if the data is nested so deeply that a reader deep inside other calls could not read it."""
    if frames:
        _decode_deep_down(encoded, frames - 1)
    else:
        msgspec.json.decode(encoded, type=msgspec.Raw)


def _about(key: str | None) -> str:
    return "" if key is None else f" of {key}"
