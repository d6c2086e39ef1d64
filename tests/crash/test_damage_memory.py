"""Files that would fill the memory if their word were taken: endless lines, bombs, tables that lie.

Each is read in a process of its own that may not take more memory than a few of the longest lines.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash
import zstandard

from holdfast.journal.frames import pack, read_table
from tests.journals import Snapshot, flipped, put_files, read_all, sealed_journal, small_journal, spans_of

MEMORY_BYTES = 1 << 30
GIGABYTE = 1 << 30
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> Iterator[str]:
    """A journal folder to be; large files in it are removed, whatever happens."""
    place = os.path.join(tmp_path, "journal")
    yield place
    for path, _, names in os.walk(place):
        for name in names:
            if os.path.getsize(os.path.join(path, name)) > 1_000_000:
                os.remove(os.path.join(path, name))


def child(action: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.crash.child_damage", action, folder, str(MEMORY_BYTES)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


# A line that does not end.


def with_endless_line(folder: str) -> tuple[Snapshot, set[int]]:
    """Two gigabytes of NULs before the last record of the hot segment, glued to nothing."""
    journal = small_journal(folder)
    last = journal.spans(journal.last)[-1]
    with open(os.path.join(folder, journal.last), "r+b") as file:
        file.truncate(last.first)
        file.seek(last.first + 2 * GIGABYTE)
        file.write(b"\n" + journal.lines[last.n])
    return journal, set(journal.lines)


@pytest.mark.long
def test_a_line_of_two_gigabytes_is_read_over_in_bounded_memory(folder: str) -> None:
    _, written = with_endless_line(folder)
    assert set(child("read", folder)["numbers"]) == written
    assert child("verify", folder)["errors"]


@pytest.mark.long
def test_a_line_of_two_gigabytes_is_opened_over_in_bounded_memory(folder: str) -> None:
    """All of it goes to quarantine, so this writes two gigabytes."""
    _, written = with_endless_line(folder)
    seen = child("open", folder)
    assert set(seen["numbers"]) > written
    assert "new" in seen["keys"]
    assert seen["anomalies"] == 1


@pytest.mark.long
def test_a_first_line_of_two_gigabytes_is_read_over_in_bounded_memory(folder: str) -> None:
    journal = small_journal(folder)
    header = journal.spans(journal.last)[0]
    data = journal.files[journal.last]
    with open(os.path.join(folder, journal.last), "r+b") as file:
        file.truncate(0)
        file.seek(2 * GIGABYTE)
        file.write(b"\n" + data[header.last :])
    assert set(child("read", folder)["numbers"]) == set(journal.lines) - {header.n}


@pytest.mark.long
def test_two_gigabytes_of_nuls_in_the_place_of_a_sealed_segment(folder: str) -> None:
    journal = small_journal(folder)
    with open(os.path.join(folder, "000002.jsonl.zst"), "wb") as file:
        file.truncate(2 * GIGABYTE)
    assert set(child("read", folder)["numbers"]) == set(journal.lines) - journal.numbers_in("000002.jsonl.zst")


# Frames that lie.


def bomb(size: int, declared: int | None = None) -> bytes:
    """A frame of run-length blocks: four bytes of it unpack to 128 KiB."""
    block = 128 * 1024
    count = size // block
    blocks = b"".join(
        ((block << 3) | (1 << 1) | (index == count - 1)).to_bytes(3, "little") + b"a" for index in range(count)
    )
    claimed = size if declared is None else declared
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + struct.pack("<Q", claimed)
    return header + blocks


def as_sealed(frames: list[tuple[bytes, int]]) -> bytes:
    """A sealed file with a valid table over any frames, each said to have any size."""
    entries = b"".join(struct.pack("<II", len(frame), size) for frame, size in frames)
    foot = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    table = struct.pack("<II", 0x184D2A5E, len(entries) + len(foot)) + entries + foot
    digest = struct.pack("<II", 0x184D2A50, 16) + xxhash.xxh3_64_digest(table) + bytes(8)
    return b"".join(frame for frame, _ in frames) + digest + table


def test_the_bomb_is_one() -> None:
    frame = bomb(GIGABYTE)
    assert len(frame) < 40_000
    assert zstandard.get_frame_parameters(frame).content_size == GIGABYTE
    small = bomb(1024 * 1024)
    assert zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(small) == b"a" * 1024 * 1024


@pytest.mark.parametrize("claimed", [100, 60 << 20, 4 * GIGABYTE - 1])
@pytest.mark.parametrize("declared", [60 << 20, 4 * GIGABYTE])
def test_a_frame_that_unpacks_to_gigabytes_is_not_unpacked(folder: str, claimed: int, declared: int) -> None:
    """Whatever its own header and the seek table say of its size."""
    journal = small_journal(folder)
    name = "000002.jsonl.zst"
    data = journal.files[name]
    table = read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert table
    good = [(data[frame.at : frame.at + frame.length], frame.size) for frame in table]
    replace_file(folder, name, as_sealed([*good, (bomb(4 * GIGABYTE, declared), claimed)]))
    assert set(child("read", folder)["numbers"]) == set(journal.lines)
    assert child("verify", folder)["errors"]


def test_a_file_of_many_frames_that_each_claim_a_lot_is_read_in_bounded_memory(folder: str) -> None:
    """Without a seek table, so that the frames' own words are all there is."""
    journal = small_journal(folder)
    name = "000002.jsonl.zst"
    replace_file(folder, name, bomb(32 << 20) * 40)
    assert set(child("read", folder)["numbers"]) == set(journal.lines) - journal.numbers_in(name)


@pytest.mark.long
def test_a_table_that_lies_about_the_length_of_a_frame_is_not_believed(folder: str) -> None:
    """Two sparse gigabytes that are said to be one frame of a thousand bytes."""
    journal = small_journal(folder)
    name = "000002.jsonl.zst"
    tail = as_sealed([(b"", 1000)])
    tail = tail.replace(struct.pack("<II", 0, 1000), struct.pack("<II", 2 * GIGABYTE, 1000))
    with open(os.path.join(folder, name), "wb") as file:
        file.truncate(2 * GIGABYTE)
        file.seek(2 * GIGABYTE)
        file.write(tail)
    assert set(child("read", folder)["numbers"]) == set(journal.lines) - journal.numbers_in(name)


def test_a_frame_that_lies_about_its_size_costs_only_its_records(folder: str) -> None:
    journal = sealed_journal(folder)
    name = "000001.jsonl.zst"
    data = journal.files[name]
    table = read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert table
    frames = [(data[frame.at : frame.at + frame.length], frame.size) for frame in table]
    for claimed in (1, frames[1][1] - 1, frames[1][1] + 1, 60 << 20):
        lying = as_sealed([frames[0], (frames[1][0], claimed), *frames[2:]])
        place = put_files(f"{folder}-{claimed}", {**journal.files, name: lying})
        spans = [span for span in spans_of(journal.contents[name]) if span.first >= frames[0][1]]
        assert set(journal.lines) - {span.n for span in spans} <= set(read_all(place).numbers)


def test_a_sealed_file_is_what_the_bombs_are_modelled_on() -> None:
    """The builder of this file makes tables that the journal believes, or the tests above would prove nothing."""
    content = b'{"n":1}\n' * 10
    data = b"".join(pack([content]))
    frames = read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert frames
    rebuilt = as_sealed([(data[frame.at : frame.at + frame.length], frame.size) for frame in frames])
    assert read_table(lambda offset, size: rebuilt[offset : offset + size], len(rebuilt)) == frames
    assert flipped(rebuilt, 0) != rebuilt


def replace_file(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)
