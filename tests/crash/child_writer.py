"""A process that writes a journal, rotates, seals, closes and opens again, and says what was acknowledged.

Arguments: run folder, `threads` or `alone` (the same work in one thread, so that a tracer counts every call of it),
rounds, records a round, highest descriptor number (0: as it is). It prints `ready`, waits for a line, then prints
`ack ID` for each acknowledged record, `event NAME` for what the writer tells, and `stopped MESSAGE` if the writer
gave up.
"""

import asyncio
import contextlib
import os
import resource
import sys
import time

from holdfast.errors import HoldfastError
from holdfast.journal import OS_DISK, OpenRequest, Writer, WriterOptions, journal_folder, open_writer, seal
from holdfast.journal.appender import Hooks
from holdfast.journal.opening import open_to_write
from holdfast.records import Draft, draft

SEGMENT_BYTES = 900
BATCH = 3


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def record(identity: str) -> Draft:
    return draft("note", {"id": identity, "pad": "x" * 150}, f"k/{identity}")


def batches(number: int, records: int) -> list[list[str]]:
    names = [f"{os.getpid()}-{number}-{i}" for i in range(records)]
    return [names[start : start + BATCH] for start in range(0, records, BATCH)]


async def save(writer: Writer, identity: str) -> None:
    await writer.append(record(identity))
    say(f"ack {identity}")


async def write(run: str, rounds: int, records: int, nofile: int) -> None:
    options = WriterOptions(tell=lambda event, detail: say(f"event {event}"))
    for number in range(rounds):
        writer = await open_writer(run, OpenRequest("run-1", segment_bytes=SEGMENT_BYTES), options)
        if nofile:
            resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
        for batch in batches(number, records):
            await asyncio.gather(*(save(writer, identity) for identity in batch))
        await writer.close(seal_last=number % 2 == 1)


def write_alone(run: str, rounds: int, records: int) -> None:
    folder = journal_folder(run)

    def finish(segment: int) -> None:
        with contextlib.suppress(OSError):  # as the background sealer does: the plain segment stays
            seal(OS_DISK, folder, segment)

    hooks = Hooks(time.time, finish, lambda segment, error: say("event journal.poisoned"))
    for number in range(rounds):
        opened = open_to_write(OS_DISK, folder, OpenRequest("run-1", segment_bytes=SEGMENT_BYTES), hooks)
        for segment in opened.unsealed:
            finish(segment)
        for batch in batches(number, records):
            opened.appender.commit([record(identity) for identity in batch])
            for identity in batch:
                say(f"ack {identity}")
        opened.appender.close()


def main() -> None:
    run, way, rounds, records, nofile = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    say("ready")
    sys.stdin.readline()
    try:
        if way == "alone":
            write_alone(run, rounds, records)
        else:
            asyncio.run(write(run, rounds, records, nofile))
    except HoldfastError as error:
        say(f"stopped {error}")
    else:
        say("done")


if __name__ == "__main__":
    main()
