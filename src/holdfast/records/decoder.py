"""Decoding the data of records. All readers of journals use this module instead of msgspec.

A right checksum does not prove that Holdfast wrote a record: anybody who has the run knows its uid, which is the seed.
Data that Holdfast cannot have written (a wrong type, a number out of range, an invalid key) raises DamagedError, and
no result of that run is reported.
"""

from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import DamagedError
from holdfast.records.facts import FACTS
from holdfast.records.keys import is_key
from holdfast.records.line import Line

_OF_KEYS = frozenset({"step", "step.started", "sample.finished", "sample.failed", "score"})
_REASON_CHARACTERS = 200
Fact = TypeVar("Fact", bound=msgspec.Struct)


class FactDecoder(Generic[Fact]):
    """Decodes the data of records into one struct, which may have only some of their fields."""

    def __init__(self, kind: type[Fact]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, line: Line) -> Fact:
        """The record's data. DamagedError, which names the record, if Holdfast cannot have written it."""
        if line.t in _OF_KEYS and (line.k is None or not is_key(line.k)):
            raise _damaged(line, "it has no valid key of a sample")
        try:
            return self._decode(line.d)
        except (ValueError, RecursionError, OverflowError) as error:  # msgspec's errors are ValueErrors
            raise _damaged(line, str(error)) from error


_decoders: dict[type[msgspec.Struct], FactDecoder[Any]] = {}


def decode(line: Line, kind: type[Fact]) -> Fact:
    """The data of a record. For records that are read rarely; a loop uses a FactDecoder."""
    if kind not in _decoders:
        _decoders[kind] = FactDecoder(kind)
    found: Fact = _decoders[kind].decode(line)
    return found


def check_fact(line: Line) -> None:
    """DamagedError if Holdfast cannot have written this record: decodes all fields of its data."""
    kind = "anomaly of a key" if line.t == "anomaly" and line.k is not None else line.t
    if kind in FACTS:
        decode(line, FACTS[kind])


def _damaged(line: Line, why: str) -> DamagedError:
    return DamagedError(
        f"record {line.n} ({line.t}) was not written by Holdfast: {why[:_REASON_CHARACTERS]}; somebody has changed "
        "this journal, and no number of this run can be trusted"
    )
