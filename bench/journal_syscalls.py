"""How many system calls does an append make, does the number grow with the journal, and does an append read anything?

A child process appends under strace, one record at a time (a commit each), after 1,000 and after 100,000 records; a
bare write+fdatasync through the same kind of thread is counted beside it. Counts do not depend on how busy the machine
is.

Targets: the same calls per commit at both lengths; no byte of a journal file is read by an append.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from bench.content import RUN_UID, key, payloads
from bench.measure import SEED, scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from bench.peers import GroupCommit, RawFile
from holdfast.journal import OpenRequest, open_writer
from holdfast.records import Draft, draft

FEW, MANY = 1_000, 100_000
COUNTED = 200
RECORD_BYTES = 1_000
_FILL_BATCH = 1_000
_ONE_SEGMENT_BYTES = 1 << 40  # no compression in the background: only appends touch the files
_MARK = "/holdfast-bench-mark/"
_CALL = re.compile(r"^\d+ +(\w+)\((.*)")
_READS = {"read", "pread64", "readv", "preadv", "preadv2", "mmap", "open", "openat", "lseek", "fstat"}
_CHECK = "newfstatat"
"""A few times a second, however many commits there are: whether the file is still at its path. Not counted."""


Append = Callable[[Draft], Awaitable[object]]


class Count(msgspec.Struct, frozen=True):
    """System calls of COUNTED commits: on the log's own files, and in the whole process."""

    on_files: dict[str, int]
    in_process: dict[str, int]

    @property
    def reads(self) -> int:
        return sum(number for name, number in self.on_files.items() if name in _READS)

    def per_commit(self) -> float:
        return sum(number for name, number in self.on_files.items() if name != _CHECK) / COUNTED


# The child: fills, marks, appends one by one, marks.


async def child(what: str, folder: str) -> None:
    data = payloads(SEED, 64, RECORD_BYTES)
    append = await (_start_journal(folder) if what == "journal" else _start_raw(folder))
    drafts = [draft("step", data[n % 64], key(n)) for n in range(_FILL_BATCH)]
    filled = 0
    for length in (FEW, MANY):
        while filled < length:
            await asyncio.gather(*map(append, drafts))
            filled += _FILL_BATCH
        _mark(str(length))
        for record in drafts[:COUNTED]:
            await append(record)
        _mark("end")
    os._exit(0)


async def _start_journal(folder: str) -> Append:
    writer = await open_writer(folder, OpenRequest(RUN_UID, segment_bytes=_ONE_SEGMENT_BYTES))
    return writer.append


async def _start_raw(folder: str) -> Append:
    group = GroupCommit(RawFile(os.path.join(folder, "raw.jsonl")))
    return lambda record: group.append(record.d)


def _mark(what: str) -> None:
    """A system call that stands out in the trace."""
    os.path.exists(_MARK + what)


# The parent: runs the child under strace and reads the trace.


def trace(strace: str, what: str, folder: str) -> Path:
    log = Path(folder) / f"{what}.trace"
    run = os.path.join(folder, what)
    os.mkdir(run)
    command = [strace, "-f", "-y", "-s", "0", "-o", str(log), sys.executable, "-m", "bench.journal_syscalls", what, run]
    subprocess.run(command, cwd=Path(__file__).resolve().parents[1], check=True)
    return log


def count(log: Path, folder: str) -> dict[int, Count]:
    """The calls between each mark and its end."""
    counts: dict[int, Count] = {}
    files: Counter[str] = Counter()
    process: Counter[str] = Counter()
    length = 0
    for name, arguments in _calls(log):
        if _MARK in arguments:
            if length:
                counts[length] = Count(dict(files), dict(process))
            files, process = Counter(), Counter()
            mark = arguments.split(_MARK)[1].split('"')[0]
            length = 0 if mark == "end" else int(mark)
        elif length:
            process[name] += 1
            files[name] += folder in arguments
    return {
        length: Count({k: v for k, v in each.on_files.items() if v}, each.in_process) for length, each in counts.items()
    }


def _calls(log: Path) -> Iterator[tuple[str, str]]:
    """Every call once: where strace shows it in two halves, the first has the arguments."""
    with log.open() as lines:
        for line in lines:
            match = _CALL.match(line)
            if match is not None:
                yield match[1], match[2]


def _rows(name: str, counts: dict[int, Count]) -> list[list[str]]:
    rows = []
    for length, counted in counts.items():
        files = ", ".join(f"{call} {number / COUNTED:g}" for call, number in sorted(counted.on_files.items()))
        process = sum(counted.in_process.values()) / COUNTED
        rows.append([name, f"{length:,}", f"{counted.per_commit():.2f}", str(counted.reads), f"{process:.1f}", files])
    return rows


def main() -> list[Verdict]:
    strace = shutil.which("strace")
    if strace is None:
        print("\n  strace is not installed: system calls are not counted. Install it and run again.")
        return []
    with scratch("syscalls") as folder:
        found = {what: count(trace(strace, what, folder), folder) for what in ("journal", "raw")}
    header = ["log", "records before", "calls on its files", "reads", "calls in all", "on its files, per commit"]
    rows = [row for what, counts in found.items() for row in _rows(what, counts)]
    print_table(f"System calls of one commit, mean of {COUNTED}", header, rows)
    journal, raw = found["journal"], found["raw"]
    verdicts = [
        at_most("syscalls: per commit, journal / raw", journal[MANY].per_commit() / raw[MANY].per_commit(), 1),
        at_most(
            "syscalls: per commit, after many / after few", journal[MANY].per_commit() / journal[FEW].per_commit(), 1
        ),
        at_most("syscalls: reads of journal files by appends", journal[FEW].reads + journal[MANY].reads, 0),
    ]
    print_verdicts(verdicts)
    save("journal_syscalls", found, verdicts)
    return verdicts


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(child(sys.argv[1], sys.argv[2]))
    else:
        main()
