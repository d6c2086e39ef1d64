"""Downloads of data files: kept in a cache by their SHA-256, resumed after a cut, verified before use.

A file is written as `<sha256>.part` and renamed when its hash is right. A crash leaves the part, and the next download
continues it with a Range request. A wrong hash leaves nothing.

Progress: a download that takes longer than 2 seconds is shown on standard error, as plain lines; a command with a live
line shows it there instead (`showing_progress`).
"""

import contextlib
import contextvars
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from holdfast.errors import DataError
from holdfast.printable import one_line

SECONDS_UNSHOWN = 2.0
_SECONDS_BETWEEN = 5.0
_TIMEOUT_SECONDS = 60.0
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_PIECE_BYTES = 1 << 18
_HUB_ADDRESS = re.compile(r"hf://(?:datasets/)?([^/@\s]+/[^/@\s]+)", re.IGNORECASE)

Show = Callable[[str], None]
"""Shows one line about a download; an empty one removes it."""

_ended_by: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("holdfast_ended", default=None)
_shown_by: contextvars.ContextVar[Show | None] = contextvars.ContextVar("holdfast_downloads", default=None)


def is_url(path: str) -> bool:
    return path[:8].lower().startswith(("http://", "https://"))


def hub_address(path: str) -> str:
    """What to write instead of an `hf://` address, as other tools name data sets of the Hub; empty for other paths."""
    if not path.lower().startswith("hf://"):
        return ""
    found = _HUB_ADDRESS.match(path)
    return f"dataset: {{hub: {found[1] if found else 'OWNER/NAME'}, split: …}}"


@contextlib.contextmanager
def showing_progress(show: Show) -> Iterator[None]:
    """Within the block, and in threads started from it, show downloads with this function, as soon as they begin."""
    token = _shown_by.set(show)
    try:
        yield
    finally:
        _shown_by.reset(token)


@contextlib.contextmanager
def ending_downloads() -> Iterator[None]:
    """Downloads that threads begin in the block end with it: a thread cannot be cancelled, and an interrupt must not
    wait for it.
    """
    ended = threading.Event()
    token = _ended_by.set(ended)
    try:
        yield
    finally:
        ended.set()
        _ended_by.reset(token)


class DownloadProgress:
    """Shows how much of one file has arrived. `total`: 0 if unknown."""

    def __init__(self, name: str, total: int = 0, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._total = total
        self._done = done
        self._clock = clock
        self._next = clock() + SECONDS_UNSHOWN
        self._show = _shown_by.get()
        self._ended = _ended_by.get()

    def set(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self.add(0)

    def add(self, count: int) -> None:
        """DataError if the download has to end."""
        if self._ended is not None and self._ended.is_set():
            raise DataError(self._name, "the download was interrupted; run the command again: it continues")
        self._done += count
        if self._clock() < self._next:
            return
        self._next = self._clock() + (_SECONDS_BETWEEN if self._show is None else 0.25)
        of = f" of {_megabytes(self._total)}" if self._total else ""
        line = f"downloading {one_line(self._name)}: {_megabytes(self._done)}{of} MB"
        if self._show is not None:
            self._show(line)
        elif sys.stderr is not None:
            sys.stderr.write(f"{line}\n")

    def end(self) -> None:
        if self._show is not None:
            self._show("")


def download(url: str, sha256: str, folder: str) -> str:
    """Return the path of the file at a URL, downloaded unless the folder has it. DataError if it cannot be had."""
    # The ending of the name shows the format.
    ending = re.search(r"(\.[A-Za-z0-9]{1,10}){0,2}$", urlsplit(url).path)
    path = os.path.join(folder, sha256.lower() + (ending[0] if ending else ""))
    if os.path.exists(path):
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of last use
        return path
    try:
        with _open_part(f"{path}.part") as part:
            if os.path.exists(path):  # another process has finished it meanwhile
                os.unlink(part.name)
                return path
            is_continued = part.seek(0, os.SEEK_END) > 0
            _fetch(url, part)
            found = _digest(part)
            if found != sha256.lower() and is_continued:  # the part may be of an earlier version of the file
                part.truncate(0)
                _fetch(url, part)
                found = _digest(part)
            if found != sha256.lower():
                os.unlink(part.name)
                problem = f"its SHA-256 is {found}, not {sha256.lower()}; nothing was kept"
                raise DataError(url, f"{problem}. The file has changed: check the address and dataset.sha256")
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, path)
    except OSError as error:
        raise DataError(url, f"cannot be stored in {folder} ({error.strerror or error})") from error
    return path


@contextlib.contextmanager
def _open_part(path: str) -> Iterator[IO[bytes]]:
    """Open the unfinished file, alone: a second process waits until the first one has finished."""
    import fcntl

    while True:
        with open(path, "a+b") as part:
            with contextlib.suppress(OSError):  # not every file system can lock
                fcntl.flock(part, fcntl.LOCK_EX)
            try:
                is_current = os.path.samestat(os.fstat(part.fileno()), os.stat(path))
            except FileNotFoundError:  # the first process has renamed or removed it
                is_current = False
            if is_current:
                yield part
                return


def _fetch(url: str, part: IO[bytes]) -> None:
    """Download the rest of a file. A cut connection is continued where it broke, as long as bytes arrive."""
    left = _ATTEMPTS
    progress = DownloadProgress(url.rpartition("/")[2] or url)
    try:
        while True:
            before = part.seek(0, os.SEEK_END)
            problem = _fetch_once(url, part, progress)
            if not problem:
                return
            left = _ATTEMPTS if part.seek(0, os.SEEK_END) > before else left - 1
            if not left:
                advice = "run the command again: it continues where the download broke off"
                raise DataError(url, f"the download was cut off again and again ({problem}); {advice}")
            time.sleep(_PAUSE_SECONDS)
    finally:
        progress.end()


def _fetch_once(url: str, part: IO[bytes], progress: DownloadProgress) -> str:
    """Return what went wrong, if trying again may help; empty at the end of the file."""
    import http.client
    import urllib.error
    import urllib.request

    have = part.seek(0, os.SEEK_END)
    headers = {"User-Agent": "holdfast", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            if have and response.status != 206:  # the server sends the whole file
                part.truncate(0)
                have = 0
            length = response.headers.get("Content-Length")
            expected = have + int(length) if length and length.isdecimal() else 0
            progress.set(have, expected)
            _copy(response, part, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send
            return ""
        if error.code in (408, 429) or error.code >= 500:
            return f"HTTP {error.code}"
        raise DataError(url, f"the server answers {error.code} {error.reason}; check the address") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        return str(error) or type(error).__name__
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionResetError | TimeoutError):
            return str(error.reason)
        raise DataError(url, f"the server cannot be reached ({error.reason}); check the address and network") from error
    return "the connection ended early" if part.tell() < expected else ""


def _copy(response: Any, part: IO[bytes], progress: DownloadProgress) -> None:
    while piece := response.read(_PIECE_BYTES):
        part.write(piece)
        progress.add(len(piece))


def _digest(part: IO[bytes]) -> str:
    part.seek(0)
    return hashlib.file_digest(part, "sha256").hexdigest()  # type: ignore[arg-type]  # it is a buffered reader


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}"
