"""Data sets of the Hugging Face Hub: their commit, and the files of one split, through `huggingface_hub`.

Only files are downloaded; no code of a repository is run. Token, cache, gated data sets, HF_ENDPOINT and HF_HUB_OFFLINE
are those of the library. A branch is resolved to a commit once, and the run stores it as `main@COMMIT`. The list of a
commit's files never changes, so it is kept in the user's cache: with it and the library's cache no network is needed.
"""

import contextlib
import hashlib
import importlib
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.datasets.downloads import DownloadProgress
from holdfast.datasets.hub_layout import choose_split, find_splits, refuse_incomplete
from holdfast.errors import DataError

MAIN = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PINNED = re.compile(r"(?:(.*)@)?([0-9a-f]{40})")
_MISSING = "data sets of the Hub need huggingface_hub: pip install 'holdfast[hub,parquet]'"
_CARD = "README.md"
_CARD_BYTES_MAX = 8 << 20
_ATTEMPTS = 3
_SECONDS_MAX = 60.0
_PAUSE_SECONDS_MAX = 30.0
_PACKAGES = frozenset({"huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "hf_xet"})

T = TypeVar("T")


class _Listing(msgspec.Struct, frozen=True):
    """The files of a repository at one commit."""

    commit: str
    files: tuple[str, ...]


def split_revision(revision: str) -> tuple[str, str]:
    """Return the name and the commit in a revision: `main@COMMIT`, a branch or tag, or a commit (which is both)."""
    match = _PINNED.fullmatch(revision)
    if match is None:
        return revision or MAIN, ""
    return match[1] or match[2], match[2]


def is_same_revision(given: str, stored: str) -> bool:
    """Whether a given revision means the stored one: it has the same commit, or the name that the commit had."""
    name, commit = split_revision(given)
    return split_revision(stored)[1] == commit if commit else split_revision(stored)[0] == name


def pinned_revision(hub: str, revision: str, cache: str) -> str:
    """Return the revision with its commit: `main@COMMIT`. DataError if there is no such data set or revision."""
    name, commit = split_revision(revision)
    if commit:
        return revision
    return f"{name}@{_list_files(hub, name, '', cache).commit}"


def fetch_hub_files(hub: str, config: str, split: str, revision: str, cache: str) -> list[str]:
    """Return the local paths of the files of a split, downloaded unless they are in the library's cache."""
    name, commit = split_revision(revision)
    listing = _list_files(hub, name, commit, cache)
    card = _read_card(hub, listing)
    found = choose_split(find_splits(listing.files, card, split), config, split, f"hub {hub}", listing.files)
    refuse_incomplete(found, f"hub {hub}")
    return [_fetch(hub, file, listing.commit) for file in found.files]


def _list_files(hub: str, name: str, commit: str, cache: str) -> _Listing:
    """The files at a commit, or at the commit that a name has now."""
    kept = _read_listing(cache, hub, commit) if commit else None
    if kept is not None:
        return kept
    library = _import_library()
    try:
        info = _ask(hub, lambda: library.HfApi().dataset_info(hub, revision=commit or name, timeout=_SECONDS_MAX))
    except _OfflineError as error:
        found = _read_listing(cache, hub, commit or name) or _list_cached(library, hub, commit or name)
        if found is None:
            asked = f"{hub}@{commit or name}"
            raise DataError(
                f"hub {hub}", f"HF_HUB_OFFLINE is set, and {asked} is not in the cache; unset it once to download it"
            ) from error
        return found
    listing = _Listing(str(info.sha), tuple(sorted(each.rfilename for each in info.siblings or ())))
    for key in (listing.commit, name):
        _keep_listing(cache, hub, key, listing)
    return listing


def _list_cached(library: Any, hub: str, revision: str) -> _Listing | None:
    """The files that the library's cache has of a revision: perhaps not all, which the caller checks."""
    with contextlib.suppress(OSError, ValueError, library.errors.LocalEntryNotFoundError):
        folder = library.snapshot_download(hub, repo_type="dataset", revision=revision, local_files_only=True)
        commit = os.path.basename(folder)
        if _COMMIT.fullmatch(commit):
            paths = (os.path.join(above, name) for above, _, names in os.walk(folder) for name in names)
            return _Listing(commit, tuple(sorted(os.path.relpath(path, folder).replace(os.sep, "/") for path in paths)))
    return None


def _read_card(hub: str, listing: _Listing) -> Mapping[str, Any]:
    """The front matter of the card; empty if there is none."""
    if _CARD not in listing.files:
        return {}
    import yaml

    with open(_fetch(hub, _CARD, listing.commit), encoding="utf-8", errors="replace") as file:
        text = file.read(_CARD_BYTES_MAX)
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    if match is None:
        return {}
    try:
        found = yaml.load(match[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return {}  # the files show the layout too
    return found if isinstance(found, Mapping) else {}


def _fetch(hub: str, file: str, commit: str) -> str:
    library = _import_library()
    try:
        path = str(
            _ask(
                hub,
                lambda: library.hf_hub_download(
                    hub, file, repo_type="dataset", revision=commit, tqdm_class=progress_class()
                ),
            )
        )
    except _OfflineError as error:
        problem = f"HF_HUB_OFFLINE is set, and {file} is not in the cache; unset it once to download it"
        raise DataError(f"hub {hub}", problem) from error
    _verify(hub, file, path)
    return path


def _verify(hub: str, file: str, path: str) -> None:
    """DataError if a file is not what the Hub says. The cache names large files by their SHA-256; the library checks
    only their size.
    """
    content = os.path.realpath(path)
    expected = os.path.basename(content)
    if not _SHA256.fullmatch(expected):
        return
    with open(content, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        for each in (content, path):
            with contextlib.suppress(OSError):
                os.unlink(each)
        raise DataError(
            f"hub {hub}", f"{file} arrived damaged: its SHA-256 is {found}, not {expected}; it was removed, run again"
        )


class _OfflineError(Exception):
    """HF_HUB_OFFLINE is set, and what was asked for needs the network."""


def _import_library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise DataError("dataset.hub", _MISSING) from error
    return huggingface_hub


def _ask(hub: str, call: Callable[[], T]) -> T:
    """Call the library. Waits a little if the Hub has too many requests; other failures are a DataError."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            status, wait = _status_of(error)
            if status == 429 and attempt < _ATTEMPTS and wait <= _PAUSE_SECONDS_MAX:
                time.sleep(wait)
                continue
            problem = _explain(error, status)
            if not problem:
                raise
            raise DataError(f"hub {hub}", problem) from error
    raise AssertionError("the last attempt returns or raises")


def _status_of(error: Exception) -> tuple[int, float]:
    """The status code of an HTTP error, and how long the server wants the client to wait."""
    response = getattr(error, "response", None)
    after = str(getattr(response, "headers", {}).get("Retry-After", "1"))
    return int(getattr(response, "status_code", 0) or 0), float(after) if after.isdecimal() else 1.0


_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_BY_KIND = {
    "GatedRepoError": f"the data set is gated: accept its terms on its page, and {_LOG_IN}",
    "RevisionNotFoundError": "there is no such revision; check dataset.revision",
    "RepositoryNotFoundError": f"there is no such data set, or it is private: check the name, or {_LOG_IN}",
    "EntryNotFoundError": "a file is missing at this revision; check dataset.revision",
    "HFValidationError": "this is not the name of a data set; write OWNER/NAME",
}
"""What an error of the library means. A class is listed before the classes it inherits from."""
_REFUSED = f"the Hub refuses access: accept the terms on the page of the data set, and {_LOG_IN}"
_BY_STATUS = {
    401: _REFUSED,
    403: _REFUSED,
    429: "the Hub answers 429: too many requests; wait a few minutes, or set HF_TOKEN for a higher limit",
}


def _explain(error: Exception, status: int) -> str:
    """A sentence about a failure; empty if it is none of the network, the Hub or the cache."""
    errors = _import_library().errors
    if isinstance(error, errors.OfflineModeIsEnabled) or (
        isinstance(error, errors.LocalEntryNotFoundError) and _is_offline()
    ):
        raise _OfflineError from error
    if isinstance(error, errors.LocalEntryNotFoundError):  # it cannot be downloaded either, and the cause says why
        cause = error.__cause__
        return (_explain(cause, _status_of(cause)[0]) if isinstance(cause, Exception) else "") or _failed(error)
    kinds = (sentence for name, sentence in _BY_KIND.items() if isinstance(error, getattr(errors, name)))
    found = next(kinds, "") or _BY_STATUS.get(status, "")
    if found or status:
        return found or f"the Hub answers {status}; run the command again later"
    is_network = type(error).__module__.partition(".")[0] in _PACKAGES or isinstance(error, OSError)
    return _failed(error) if is_network else ""


def _failed(error: Exception) -> str:
    return f"the download failed ({_first_line(error)}); check the network, and run the command again: it continues"


def _is_offline() -> bool:
    return bool(_import_library().constants.HF_HUB_OFFLINE)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]


def progress_class() -> Any:
    """A class for the library's progress bars that shows what `DownloadProgress` shows."""
    silent: Any = importlib.import_module("huggingface_hub.utils").tqdm

    class Bar(silent):  # type: ignore[misc]  # it has no types
        def __init__(self, *args: Any, **settings: Any) -> None:
            total, done = settings.get("total"), settings.get("initial")
            self._progress = DownloadProgress(str(settings.get("desc", "a file")), int(total or 0), int(done or 0))
            super().__init__(*args, **{**settings, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._progress.add(int(n or 0))

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the way. A class with this method gets no second bar for them, and they are not shown."""

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            """Their speed is not shown either."""

        def close(self) -> None:
            self._progress.end()
            super().close()

    return Bar


def _path_of(cache: str, hub: str, key: str) -> str:
    name = hashlib.sha256(f"{_endpoint()}\n{hub}\n{key}".encode()).hexdigest()
    return os.path.join(cache, f"hub-{name}.json")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "")


def _read_listing(cache: str, hub: str, key: str) -> _Listing | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError), open(_path_of(cache, hub, key), "rb") as file:
        return msgspec.json.decode(file.read(), type=_Listing)
    return None


def _keep_listing(cache: str, hub: str, key: str, listing: _Listing) -> None:
    """A cache that cannot be written costs one request the next time."""
    path = _path_of(cache, hub, key)
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(listing))
        os.replace(temporary, path)
