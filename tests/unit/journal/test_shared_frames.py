"""Unpacked frames that are shared between openings of a file: the same bytes, less work, bounded memory."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.journal import OS_DISK, cache_frames, open_content, scan
from holdfast.journal.frames import pack, unpack

LINES = b"".join(b'{"n": %d, "text": "%s"}\n' % (n, os.urandom(40).hex().encode()) for n in range(20_000))


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "000001.jsonl.zst"
    made.write_bytes(b"".join(pack([LINES])))
    return str(made)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of frames that were unpacked."""
    sizes: list[int] = []

    def count(packed: bytes, size: int) -> bytes | None:
        sizes.append(size)
        return unpack(packed, size)

    monkeypatch.setattr(scan, "unpack", count)
    return sizes


def read(path: str, offset: int, end: int) -> bytes:
    with closing(open_content(OS_DISK, path)) as content:
        return b"".join(piece.data for piece in content.pieces(offset, end))


def test_a_frame_is_unpacked_once_for_all_openings(path: str, unpacked: list[int]) -> None:
    with cache_frames():
        found = [read(path, 1000, 2000) for _ in range(5)]
    assert found == [LINES[1000:2000]] * 5
    assert len(unpacked) == 1
    assert read(path, 1000, 2000) == LINES[1000:2000]
    assert len(unpacked) == 2  # not shared any more


def test_memory_is_bounded(path: str, unpacked: list[int]) -> None:
    with cache_frames(bytes_max=200_000):
        assert read(path, 0, len(LINES)) == LINES
        count = len(unpacked)
        shared = scan._shared  # noqa: SLF001
        assert shared is not None
        assert sum(map(len, shared._frames.values())) <= 200_000  # noqa: SLF001
        assert read(path, 0, len(LINES)) == LINES
    assert count > 10
    assert len(unpacked) > count


def test_a_file_that_was_replaced_is_read_again(path: str) -> None:
    with cache_frames():
        assert read(path, 0, 100) == LINES[:100]
        other = LINES[::-1].replace(b"\n", b"") + b"\n"
        Path(f"{path}.new").write_bytes(b"".join(pack([other])))
        os.replace(f"{path}.new", path)
        assert read(path, 0, 100) == other[:100]
