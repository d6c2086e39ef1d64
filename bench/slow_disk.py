"""A disk on which every call takes its time, as a network file system under load does. `time.sleep` lets go of the
interpreter's lock, just as a slow system call does.
"""

import time
from collections.abc import Sequence

from holdfast.journal.disk import OsDisk


class SlowDisk(OsDisk):
    """The operating system's files, each call `pause_seconds` late."""

    def __init__(self, pause_seconds: float) -> None:
        self._pause_seconds = pause_seconds
        self.calls = 0

    def names(self, folder: str) -> list[str]:
        self._pause()
        return super().names(folder)

    def make_folder(self, path: str, *, private: bool = False) -> None:
        self._pause()
        super().make_folder(path, private=private)

    def create(self, path: str) -> int:
        self._pause()
        return super().create(path)

    def open(self, path: str, *, write: bool = False) -> int:
        self._pause()
        return super().open(path, write=write)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        self._pause()
        return super().read(handle, offset, size)

    def size(self, handle: int) -> int:
        self._pause()
        return super().size(handle)

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        self._pause()
        return super().write(handle, buffers)

    def truncate(self, handle: int, size: int) -> None:
        self._pause()
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._pause()
        super().sync(handle)

    def close(self, handle: int) -> None:
        self._pause()
        super().close(handle)

    def publish(self, temporary: str, path: str) -> None:
        self._pause()
        super().publish(temporary, path)

    def replace(self, temporary: str, path: str) -> None:
        self._pause()
        super().replace(temporary, path)

    def remove(self, path: str) -> None:
        self._pause()
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self._pause()
        super().sync_folder(path)

    def _pause(self) -> None:
        self.calls += 1
        time.sleep(self._pause_seconds)
