"""Damaged journals for tests: how they are made, and what must hold for every one of them."""

import os
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.journal import frames, verify
from holdfast.journal.frames import read_table
from tests.journals import QUICK, UID, Snapshot, flipped, note, put_files, read_all, write_session

QUICK_CASES = 150


class Case(NamedTuple):
    """A damaged journal: its files, and the numbers of the records that were not hit."""

    name: str
    files: dict[str, bytes]
    kept: frozenset[int]
    visible: bool = True
    """False only for a cut exactly between two records of the tail."""
    recorded: bool = True
    """Whether damage to the last segment becomes an anomaly record: that of a whole foreign file does not."""


def assert_all_hold(cases: Iterable[Case], journal: Snapshot, tmp_path: os.PathLike[str]) -> None:
    checked = 0
    problems: list[str] = []
    for case in cases:
        folder = os.path.join(tmp_path, f"case-{checked}")
        checked += 1
        try:
            problems += (f"{case.name}: {problem}" for problem in problems_of(case, journal, folder))
        except BaseException as error:
            error.add_note(f"in the case: {case.name}")
            raise
        finally:
            remove_tree(folder)
    assert checked > 0
    assert not problems, f"{len(problems)} problems in {checked} cases:\n" + "\n".join(problems[:20])


def problems_of(case: Case, journal: Snapshot, folder: str) -> Iterator[str]:
    put_files(folder, case.files)
    yield from problems_of_reading(case, journal, folder)
    verification = verify(folder, UID, disk=QUICK)
    if case.visible and not (verification.errors or verification.warnings):
        yield "the damage is not found"
    torn = any(warning.startswith("torn") for warning in verification.warnings)
    yield from problems_of_going_on(case, journal, folder)
    if case.recorded and only_last_differs(case, journal):
        yield from problems_of_record_keeping(case, journal, folder, torn)


def problems_of_reading(case: Case, journal: Snapshot, folder: str) -> Iterator[str]:
    seen = read_all(folder)
    if len(seen.numbers) != len(set(seen.numbers)) or seen.numbers != sorted(seen.numbers):
        yield f"numbers are not in order: {seen.numbers}"
    for n, line in seen.lines.items():
        if journal.lines.get(n) != line:
            yield f"record {n} was never written: {line[:80]!r}"
    lost = case.kept - set(seen.numbers)
    if lost:
        yield f"records {sorted(lost)} were not hit and are not read"


def problems_of_going_on(case: Case, journal: Snapshot, folder: str) -> Iterator[str]:
    """Three openings in a row, each with a new record."""
    told = []
    for attempt in range(3):
        write_session(folder, [note(f"new-{attempt}")])
        seen = read_all(folder)
        told.append(len(seen.anomalies))
        original = {n for n, line in seen.lines.items() if journal.lines.get(n) == line}
        if case.kept - original:
            yield f"after opening {attempt + 1}, records {sorted(case.kept - original)} are gone"
        missing = {f"new-{index}" for index in range(attempt + 1)} - set(seen.keys)
        if missing:
            yield f"after opening {attempt + 1}, the new records {sorted(missing)} are not read"
    if len(set(told)) != 1:
        yield f"the same loss is recorded again by later openings: {told}"


def problems_of_record_keeping(case: Case, journal: Snapshot, folder: str, torn: bool) -> Iterator[str]:
    """Damage in the last plain segment: an anomaly tells of it, and quarantine has the bytes."""
    if journal.last.endswith(".zst"):
        return
    anomalies = read_all(folder).anomalies
    if not anomalies and case.visible and not torn:
        yield "no anomaly record tells of the loss"
    verification = verify(folder, disk=QUICK)
    if verification.errors:
        yield f"what was recorded is still called an error: {verification.errors[0]}"
    for anomaly in anomalies:
        if anomaly.last > anomaly.first:
            kept = read_file(os.path.join(folder, anomaly.quarantine))
            if kept != case.files[journal.last][anomaly.first : anomaly.last]:
                yield f"quarantine does not hold the damaged bytes: {anomaly.quarantine!r}"


def only_last_differs(case: Case, journal: Snapshot) -> bool:
    names = set(case.files) | set(journal.files)
    return {name for name in names if case.files.get(name) != journal.files.get(name)} == {journal.last}


# How the damaged journals are made.


def flips(journal: Snapshot, masks: Iterable[int | None]) -> Iterator[Case]:
    for mask in masks:
        for name in journal.names:
            for at in range(len(journal.files[name])):
                chosen = journal.files[name][at] ^ 0x0A if mask is None else mask  # None: becomes a newline
                if chosen:
                    yield flip(journal, name, at, chosen)


def flip(journal: Snapshot, name: str, at: int, mask: int) -> Case:
    files = {**journal.files, name: flipped(journal.files[name], at, mask)}
    return Case(f"{name} byte {at} ^ {mask:#x}", files, untouched(journal, hit_by_flip(journal, name, at)))


def hit_by_flip(journal: Snapshot, name: str, at: int) -> set[int]:
    """The line of the byte; for a newline also the next line; in a sealed file all lines of the frame."""
    spans = journal.spans(name)
    if not name.endswith(".zst"):
        return {span.n for span in spans if span.first <= at < span.last or (span.first > 0 and span.first - 1 == at)}
    for frame in frames_of(journal, name):
        if frame.at <= at < frame.at + frame.length:
            return {span.n for span in spans if frame.first <= span.first < frame.first + frame.size}
    return set()


def cuts(journal: Snapshot) -> Iterator[Case]:
    for name in journal.names:
        for end in range(len(journal.files[name])):
            yield cut(journal, name, end)


def cut(journal: Snapshot, name: str, end: int) -> Case:
    spans = journal.spans(name)
    if name.endswith(".zst"):
        whole = [frame for frame in frames_of(journal, name) if frame.at + frame.length <= end]
        reach = whole[-1].first + whole[-1].size if whole else 0
    else:
        reach = end + 1 if name == journal.last else end  # a tail that lacks only its newline is whole
    lost = {span.n for span in spans if span.last > reach}
    between = {at for span in spans for at in (span.last, span.last - 1)}
    visible = name != journal.last or name.endswith(".zst") or end not in between
    files = {**journal.files, name: journal.files[name][:end]}
    return Case(f"{name} cut at {end}", files, untouched(journal, lost), visible)


def emptied(journal: Snapshot, name: str) -> Case:
    return replaced(journal, name, "empty", b"")


def replaced(journal: Snapshot, name: str, how: str, data: bytes) -> Case:
    return Case(f"{name} {how}", {**journal.files, name: data}, untouched(journal, journal.numbers_in(name)))


def inside_fences(cases: Iterable[Case], journal: Snapshot) -> Iterator[Case]:
    """A closed segment counts only up to its successor's fence: what longer contents push beyond it is void."""
    for case in cases:
        lost: set[int] = set()
        for name in plain_names(journal):
            size = len(journal.files[name])
            if name != journal.last and len(case.files[name]) > size:
                lost |= {n for n in journal.numbers_in(name) if ends_beyond(case.files[name], journal.lines[n], size)}
        yield case._replace(kept=case.kept - lost)


def ends_beyond(data: bytes, line: bytes, size: int) -> bool:
    at = data.find(line)
    return at < 0 or at + len(line) > size


def plain_names(journal: Snapshot) -> list[str]:
    return [name for name in journal.names if name.endswith(".jsonl")]


def frames_of(journal: Snapshot, name: str) -> list[frames.Frame]:
    data = journal.files[name]
    table = read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert table
    return table


def untouched(journal: Snapshot, lost: set[int]) -> frozenset[int]:
    return frozenset(journal.lines) - lost


def sample(cases: Iterable[Case]) -> list[Case]:
    every = list(cases)
    return random.Random(20240611).sample(every, min(QUICK_CASES, len(every)))


def read_file(path: str) -> bytes:
    if not os.path.isfile(path):
        return b"(no such file)"
    with open(path, "rb") as file:
        return file.read()


def remove_tree(folder: str) -> None:
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.remove(os.path.join(place, name))
        for name in folders:
            os.rmdir(os.path.join(place, name))
    if os.path.isdir(folder):
        os.rmdir(folder)
