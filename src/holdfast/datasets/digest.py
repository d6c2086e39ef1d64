"""The identity of a row: equal content, equal digest, whatever the order of its columns or the file it came from.

Refuses values that JSON cannot hold: a row has to be stored beside the journal exactly as it was used.
"""

from typing import Any

import msgspec
import xxhash

from holdfast.datasets.errors import DataError
from holdfast.records.exchange import Row

_BYTES = (bytes, bytearray, memoryview)


def digest_row(row: Row) -> bytes:
    """16 bytes: xxh3-128 of the row as JSON with sorted keys."""
    return xxhash.xxh3_128_digest(_encoded(_sorted, row))


def as_stored(row: Row) -> Row:
    """The row as it reads after it was stored: tuples are lists, NaN and infinity are None, keys are text."""
    for column, value in row.items():
        if isinstance(value, _BYTES):  # as text it would be another value
            raise DataError("a data row", f"column {column!r} holds bytes; name it in dataset.files")
    stored: Row = msgspec.json.decode(_encoded(_as_given, row))
    return stored


def _encoded(encoder: msgspec.json.Encoder, row: Row) -> bytes:
    try:
        return encoder.encode(row)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError("a data row", f"cannot be stored as JSON ({error}); use plain values only") from error


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays mean plain numbers and lists."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


_as_given = msgspec.json.Encoder(enc_hook=_plain)
_sorted = msgspec.json.Encoder(enc_hook=_plain, order="deterministic")
