"""Sealing: the same bytes, compressed, readable with everyday tools; the plain file goes only when that is proven."""

import io
import os
import shutil
import subprocess

import pytest
import zstandard

from holdfast.errors import JournalError
from holdfast.journal import frames, seal, verify
from tests.journals import QUICK, QuickDisk, flipped, note, notes, read_all, request, write_session

WIDE = request(segment_bytes=1_000_000)
PLAIN, SEALED = "000001.jsonl", "000001.jsonl.zst"


@pytest.fixture
def folder(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A journal of one long segment, closed by another, with frames of a few records."""
    monkeypatch.setattr(frames, "FRAME_BYTES", 500)
    place = os.path.join(tmp_path, "journal")
    write_session(place, notes("a", 30), wanted=WIDE)
    write_session(place, notes("b", 2), wanted=WIDE)
    return place


def content(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def put(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def test_a_sealed_segment_replaces_the_plain_one_and_reads_the_same(folder: str) -> None:
    before = read_all(folder)
    seal(QUICK, folder, 1)
    assert sorted(os.listdir(folder)) == [SEALED, "000002.jsonl"]
    assert read_all(folder) == before
    assert verify(folder, disk=QUICK).ok


def test_other_readers_of_zstd_get_the_plain_bytes(folder: str) -> None:
    plain = content(folder, PLAIN)
    seal(QUICK, folder, 1)
    stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content(folder, SEALED)), read_across_frames=True)
    assert stream.read() == plain


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd command is not installed")
def test_the_zstd_command_gets_the_plain_bytes(folder: str) -> None:
    plain = content(folder, PLAIN)
    seal(QUICK, folder, 1)
    ended = subprocess.run(["zstd", "-dc", os.path.join(folder, SEALED)], capture_output=True, check=True)
    assert ended.stdout == plain


def test_a_record_is_never_split_over_two_frames_and_the_header_has_its_own(folder: str) -> None:
    plain = content(folder, PLAIN)
    seal(QUICK, folder, 1)
    data = content(folder, SEALED)
    table = frames.read_table(lambda offset, size: data[offset : offset + size], len(data))
    assert table
    assert len(table) > 5
    assert table[0].size == plain.index(b"\n") + 1
    assert all(plain[frame.first + frame.size - 1] == ord("\n") for frame in table)


def test_of_two_files_a_whole_sealed_one_wins_and_the_plain_one_goes_at_the_next_opening(folder: str) -> None:
    before = read_all(folder)
    plain = content(folder, PLAIN)
    seal(QUICK, folder, 1)
    put(folder, PLAIN, plain)
    assert read_all(folder) == before
    write_session(folder, [])
    assert PLAIN not in os.listdir(folder)
    assert read_all(folder).keys == before.keys


@pytest.mark.parametrize("broken", [b"", b"garbage", None])
def test_of_two_files_a_plain_one_wins_over_a_broken_sealed_one(folder: str, broken: bytes | None) -> None:
    before = read_all(folder)
    plain = content(folder, PLAIN)
    seal(QUICK, folder, 1)
    sealed = content(folder, SEALED)
    put(folder, PLAIN, plain)
    put(folder, SEALED, flipped(sealed, len(sealed) // 2) if broken is None else broken)
    assert read_all(folder) == before
    write_session(folder, [])
    assert content(folder, PLAIN) == plain
    assert SEALED not in os.listdir(folder)
    assert read_all(folder).keys == before.keys


class Corrupting(QuickDisk):
    """Writes one wrong byte into every compressed file."""

    def create(self, path: str) -> int:
        handle = super().create(path)
        if ".zst" in path:
            os.write(handle, b"?")
        return handle


def test_a_copy_that_reads_back_differently_is_refused_and_the_plain_one_stays(folder: str) -> None:
    before = read_all(folder)
    with pytest.raises(JournalError, match="differently"):
        seal(Corrupting(), folder, 1)
    assert sorted(os.listdir(folder)) == [PLAIN, "000002.jsonl"]
    assert read_all(folder) == before


def test_a_segment_with_damaged_bytes_seals_them_as_they_are(folder: str) -> None:
    data = flipped(content(folder, PLAIN), 700) + b"\0" * 5000 + b"no newline"
    put(folder, PLAIN, data)
    before = read_all(folder)
    seal(QUICK, folder, 1)
    stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content(folder, SEALED)), read_across_frames=True)
    assert stream.read() == data
    assert read_all(folder).lines == before.lines


@pytest.mark.parametrize("data", [b"", b"\n", b"x", b"\n\n\n", b"a" * 200_000, b"a" * 70_000 + b"\n" + b"b" * 100])
def test_any_bytes_can_be_sealed(folder: str, data: bytes) -> None:
    put(folder, PLAIN, data)
    seal(QUICK, folder, 1)
    stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content(folder, SEALED)), read_across_frames=True)
    assert stream.read() == data


def test_large_records_of_several_frames_are_read_back(tmp_path: os.PathLike[str]) -> None:
    place = os.path.join(tmp_path, "large")
    write_session(place, [note(f"k{index}", os.urandom(700_000).hex()) for index in range(4)], wanted=WIDE)
    before = read_all(place)
    for number in (1, 2, 3):
        if os.path.exists(os.path.join(place, f"{number:06d}.jsonl")):
            seal(QUICK, place, number)
    assert read_all(place) == before
    assert before.keys == ["k0", "k1", "k2", "k3"]
