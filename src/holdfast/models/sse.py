"""Server-sent events, from the bytes of a whole stream. Pure.

An event that no empty line ends is not there: the stream was cut in the middle of it. Only where its data is whole by
itself, as JSON or as the word for the end, has the server left out the last line.
"""

import io
from collections.abc import Iterator

import msgspec

from holdfast.models.failures import ModelError

EVENTS_MAX = 1_000_000
"""Far more than an answer has pieces. A small compressed response can hold more events than memory does."""
END = "[DONE]"
"""The last data of a stream of OpenAI's kind."""


class Event(msgspec.Struct, frozen=True):
    """One event: its name, empty if it has none, and its data."""

    name: str
    data: str


def parse_events(body: bytes) -> Iterator[Event]:
    """Comments, ids and events without data are passed over. ModelError for more than EVENTS_MAX lines of data."""
    name, data = "", list[str]()
    text = body.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    count = 0
    for ended in io.StringIO(text, newline="\n"):
        line = ended.removesuffix("\n")
        if not line:
            if data:
                yield Event(name, "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            count += 1
            if count > EVENTS_MAX:
                raise ModelError("malformed", f"the stream has more than {EVENTS_MAX} events")
            data.append(value)
        elif field == "event":
            name = value
    if data and _is_whole("\n".join(data)):
        yield Event(name, "\n".join(data))


def _is_whole(data: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, RecursionError):
        return data.strip() == END
