"""Server-sent events, from the bytes of a whole stream. Pure.

An event that no empty line ends is not there: the stream was cut in the middle of it.
"""

from collections.abc import Iterator

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One event: its name, empty if it has none, and its data."""

    name: str
    data: str


def parse_events(body: bytes) -> Iterator[Event]:
    """Comments, ids and events without data are passed over."""
    name, data = "", list[str]()
    text = body.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for line in text.split("\n")[:-1]:
        if not line:
            if data:
                yield Event(name, "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
