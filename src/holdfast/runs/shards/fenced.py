"""Answers of workers that had lost their shard: they were paid for, and do not count.

Another worker continues a shard from the records that it can see. What the first one recorded behind that point is
void: on a shared disk bytes behind the fence, and with a mirror the records on its own disk that never reached it. Only
the machine that has these bytes can count them.
"""

from collections.abc import Iterator

import msgspec

from holdfast.errors import JournalError, StaleCursorError
from holdfast.journal import OS_DISK, START, Cursor, Entry, Reader, list_chain, void_entries
from holdfast.records import Usage
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import step_gist


class FencedAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response that was paid for and does not count. It was requested again if its sample was answered later."""

    key: str
    role: str
    usage: Usage


def find_fenced(shard: RunLocation, here: RunLocation) -> Iterator[FencedAnswer]:
    """`shard`: where the records that count are read. `here`: its folder in this store, which may be older."""
    yield from _answers(void_entries(shard.journal))
    if here.folder != shard.folder and here.began:
        yield from _answers(_overtaken(shard, here))


def _overtaken(shard: RunLocation, here: RunLocation) -> Iterator[Entry]:
    """The records here that came too late: behind the point from which another machine continued."""
    own = list_chain(OS_DISK, here.journal).epoch
    headers = [file.header.segment for file in list_chain(OS_DISK, shard.journal).segments if file.header is not None]
    following = next((header for header in headers if header.epoch > own), None)
    if following is None:
        return
    fence = following.prev  # None: nothing of this machine had reached the mirror
    try:
        start = START if fence is None else Cursor(fence.segment, fence.bytes, fence.n, fence.x)
        reader = Reader(here.journal, cursor=start)
        yield from (each for each in reader.read(live=True) if isinstance(each, Entry) and not each.is_copy)
    except (StaleCursorError, JournalError):
        return  # this machine has not got so far


def _answers(entries: Iterator[Entry]) -> Iterator[FencedAnswer]:
    for entry in entries:
        if entry.line.t == "step" and entry.line.k is not None:
            step = step_gist.decode(entry.line)
            if step.answer is not None and step.asked is not None and not step.origin:
                usage = Usage().with_response(step.answer.usage, batched=step.batch != "")
                yield FencedAnswer(entry.line.k, step.asked.role, usage)
