"""Rows as they are stored: what Python code gives becomes what JSON can hold.

Refuses values that JSON cannot hold: a row has to be stored beside the journal exactly as it was used.
"""

from typing import Any

import msgspec

from holdfast.datasets.errors import DataError
from holdfast.records.exchange import Row

_BYTES = (bytes, bytearray, memoryview)


def as_stored(row: Row) -> Row:
    """The row as it reads after it was stored: tuples are lists, NaN and infinity are None, keys are text."""
    for column, value in row.items():
        if isinstance(value, _BYTES):  # as text it would be another value
            raise DataError("a data row", f"column {column!r} holds bytes; name it in dataset.files")
    try:
        stored: Row = msgspec.json.decode(_encoder.encode(row))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError("a data row", f"cannot be stored as JSON ({error}); use plain values only") from error
    return stored


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays mean plain numbers and lists."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
