"""Object stores (S3, GCS, Azure, a folder), behind the few calls that a mirror needs.

Names are used as they are written: nothing in a URL or a name is decoded, so `a%20b` and `a b` are different. Every
call raises `StoreError` on failure, with one line of text without credentials. The caller decides about retries.
Credentials come from the environment and the profiles of each cloud's own tools.
"""

import configparser
import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.errors import StoreError, UsageError
from holdfast.files import open_file
from holdfast.records import NO_CREDENTIALS, holds_credentials, redact

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_SHOWN = 200
_STATUS = re.compile(r"status code: (\d{3}[^:\n<]*)(?::\s*([^<\n]*))?")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_SYSTEM = re.compile(r'message: "([^"]*)"')
_HOST = re.compile(r"https?://([^/\s?]+)")
_QUERY = re.compile(r"\?\S+")
_PREFIX = re.compile(r"^Generic \w+ error: ")
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2", "/msi/token", "login.microsoftonline.com")
"""Metadata servers that give a cloud machine its credentials. obstore tries them last, so an error that names one means
that no other credentials were found."""
_SECRET_NAMES = re.compile(r"SECRET|TOKEN|PASSWORD|_KEY\b|ACCESS_KEY|ACCOUNT_KEY|SAS|CREDENTIAL")
_SECRET_CHARACTERS_MIN = 6
_CREDENTIALS = (
    "no credentials were found; set them in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY), or in the profile of your cloud's own command"
)


def describe_store_error(error: Exception, environ: Mapping[str, str] | None = None) -> str:
    """One line about an error, without secrets: the store's own message, else the system's, else its first line."""
    message = _extract_message(str(error).strip(), type(error).__name__)
    if message == _CREDENTIALS:
        return message
    # Redact secrets of the environment: a store or a proxy may repeat parts of the request in its error.
    variables = os.environ if environ is None else environ
    named = (value for name, value in variables.items() if _SECRET_NAMES.search(name.upper()))
    message = redact(message, (value for value in named if len(value) >= _SECRET_CHARACTERS_MIN))
    return message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"


def _extract_message(text: str, name: str) -> str:
    """The most useful part of an error text of obstore, which may be a long chain of nested errors."""
    if any(host in text for host in _METADATA):
        return _CREDENTIALS
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        detail = message[1].strip() if message else ""
        return f"{detail} ({code[1]})" if detail else code[1]
    if status is not None:
        return f"{status[1].strip()}: {status[2].strip()}" if status[2] and status[2].strip() else status[1].strip()
    host, system = _HOST.search(text), _SYSTEM.findall(text)
    if host is not None and (system or "dns error" in text or "TimedOut" in text or "timed out" in text):
        why = system[-1] if system else "its name is not known" if "dns error" in text else "it does not answer in time"
        return f"{host[1]} cannot be reached: {why}"
    return _QUERY.sub("", _PREFIX.sub("", (text.splitlines() or [name])[0]))


_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
SCHEMES = ("s3", "s3a", "gs", "az", "file")
_TIMEOUT = timedelta(seconds=30)
_CONNECT = timedelta(seconds=10)
_PIECE_BYTES = 1 << 20
_TRIES = 5
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL",
    "s3a": "AWS_ENDPOINT_URL",
    "gs": "GOOGLE_BASE_URL",
    "az": "AZURE_STORAGE_ENDPOINT",
}
"""Variables that name another server. If one has an http:// URL, unencrypted connections are allowed."""
_AWS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object in a listing."""

    name: str
    size: int


class Objects(Protocol):
    """The objects below one URL. Every call may raise StoreError, and may have succeeded nevertheless."""

    @property
    def url(self) -> str: ...

    def put(self, name: str, data: bytes) -> None: ...

    def put_file(self, name: str, path: str) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """Create an object. False if one with that name exists."""

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        """Bytes [first, last) of an object; None if it does not exist."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """An object's content, in pieces. StoreError if it does not exist."""

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects below a folder (`a/b`, without a trailing slash), at any depth."""

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly below a folder."""

    def delete(self, name: str) -> None:
        """Delete an object. It is no error if it does not exist."""


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def open_objects(url: str) -> "StoredObjects":
    """The objects at a URL. Sends no request yet. UsageError if the URL has an unknown scheme or names no bucket."""
    scheme, rest = split_url(url)
    if importlib.util.find_spec("obstore") is None:
        raise UsageError(f"{url}: mirrors need another package; install it with: pip install 'holdfast[mirror]'")
    if scheme == "file":
        return FolderObjects(url, os.path.abspath("/" + rest.strip("/")))
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise UsageError(f"{url!r} names no bucket; write {scheme}://bucket/folder")
    return StoredObjects(url, _remote(scheme, bucket, url), prefix.strip("/"))


def create_own(objects: Objects, name: str, data: bytes) -> bool:
    """Create an object. True if it is ours; `data` must be unique to the caller.

    The request may have succeeded even if its response was lost, so an unknown result is resolved by reading back.
    """
    last_error: StoreError | None = None
    for _ in range(_TRIES):
        try:
            if objects.create(name, data):
                return True
        except StoreError as error:
            last_error = error
        with contextlib.suppress(StoreError):
            found = objects.get(name)
            if found is not None:
                return found == data
    raise last_error or StoreError(f"{objects.url}: creating {name!r} fails with 'exists', but there is no such object")


def split_url(url: str) -> tuple[str, str]:
    """The scheme of a store URL, and the rest. UsageError if it is no such URL; for a plain path the error shows the
    file:// URL to use.
    """
    if holds_credentials(url):
        raise UsageError(NO_CREDENTIALS)
    found = _URL.fullmatch(url)
    if found is None or found[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        folder = "" if ":" in url else f"; for a folder write file://{os.path.abspath(os.path.expanduser(url))}"
        raise UsageError(f"{url!r} is no URL of a store; such a URL begins with one of {known}{folder}")
    return found[1], found[2]


class StoredObjects:
    """Objects of an object store."""

    def __init__(self, url: str, store: "ObjectStore", prefix: str) -> None:
        self._url = url
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def url(self) -> str:
        return self._url

    def below(self, folder: str) -> "StoredObjects":
        return StoredObjects(f"{self._url.rstrip('/')}/{folder}", self._store, f"{self._prefix}{folder}")

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with self._store_errors("put", name):
            obstore.put(self._store, self._prefix + name, data)

    def put_file(self, name: str, path: str) -> None:
        import obstore

        with self._store_errors("put", name), open(open_file(path), "rb") as file:
            obstore.put(self._store, self._prefix + name, file)

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._store_errors("create", name):
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError):
                return False
            return True

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        import obstore

        with self._store_errors("get", name):
            try:
                if last is not None:
                    return bytes(obstore.get_range(self._store, self._prefix + name, start=first, end=last))
                return bytes(obstore.get(self._store, self._prefix + name).bytes())[first:]
            except FileNotFoundError:
                return None

    def pieces(self, name: str) -> Iterator[bytes]:
        import obstore

        with self._store_errors("get", name):
            for piece in obstore.get(self._store, self._prefix + name).stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        import obstore

        with self._store_errors("list", prefix):
            for batch in obstore.list(self._store, prefix=self._prefix + prefix):
                for each in batch:
                    yield ObjectInfo(each["path"][len(self._prefix) :], each["size"])

    def folders(self, prefix: str) -> list[str]:
        import obstore

        with self._store_errors("list", prefix):
            found = obstore.list_with_delimiter(self._store, prefix=(self._prefix + prefix).rstrip("/"))
            return [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

    def delete(self, name: str) -> None:
        import obstore

        with self._store_errors("delete", name), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, self._prefix + name)

    @contextlib.contextmanager
    def _store_errors(self, verb: str, name: str) -> Iterator[None]:
        """Turn any exception into StoreError. obstore's exceptions have no common base class."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"{self._url}: cannot {verb} {name or 'objects'}: {describe_store_error(error)}"
            ) from error


class FolderObjects(StoredObjects):
    """Objects that are files of a folder. They are synced, because "durable in the mirror" must hold here too."""

    def __init__(self, url: str, folder: str) -> None:
        from obstore.store import LocalStore

        self._folder = folder
        self._rooted = False  # whether the folders above it were synced
        # The store is rooted at `/`, because LocalStore would create its root folder, and reading must create nothing.
        super().__init__(url, LocalStore(), folder.strip("/"))

    def below(self, folder: str) -> "FolderObjects":
        return FolderObjects(f"{self._url.rstrip('/')}/{folder}", os.path.join(self._folder, folder))

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self._sync(name)

    def put_file(self, name: str, path: str) -> None:
        super().put_file(name, path)
        self._sync(name)

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        self._sync(name)
        return created

    def delete(self, name: str) -> None:
        """Delete a file, and the folders that become empty: object stores have no empty folders."""
        super().delete(name)
        above = os.path.dirname(os.path.join(self._folder, name))
        with contextlib.suppress(OSError):  # not empty
            while above != self._folder:
                os.rmdir(above)
                above = os.path.dirname(above)

    def _sync(self, name: str) -> None:
        """Sync a file and every folder above it: any of them may be new. Folders above our own are synced only once."""
        with self._store_errors("sync", name):
            path = os.path.join(self._folder, name)
            while True:
                with contextlib.suppress(PermissionError):  # a folder that we may not open is not one that we created
                    _sync_path(path)
                if path == "/" or (self._rooted and path == self._folder):
                    break
                path = os.path.dirname(path)
            self._rooted = True


def _sync_path(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remote(scheme: str, bucket: str, url: str) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    options: dict[str, Any] = {
        "client_options": {"timeout": _TIMEOUT, "connect_timeout": _CONNECT},
        "retry_config": {"max_retries": 1, "retry_timeout": _TIMEOUT},  # the caller retries
    }
    if os.environ.get(_ENDPOINTS[scheme], "").startswith("http://"):
        options["client_options"]["allow_http"] = True
    try:
        if scheme == "gs":
            return GCSStore(bucket, **options)
        if scheme == "az":
            return AzureStore(bucket, **options)
        return S3Store(bucket, **_aws_from_files(os.environ), **options)
    except Exception as error:
        raise UsageError(f"{url}: the store cannot be opened: {describe_store_error(error)}") from error


def _aws_from_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """Keys and region of an AWS profile, from the files that the aws command writes. obstore itself reads only
    environment variables and the metadata server.
    """
    if "AWS_ACCESS_KEY_ID" in environ:
        return {}
    profile = environ.get("AWS_PROFILE") or "default"
    home = os.path.expanduser("~/.aws")
    config = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(OSError, configparser.Error):
        config.read(
            [
                environ.get("AWS_CONFIG_FILE") or os.path.join(home, "config"),
                environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, "credentials"),
            ]
        )
    found: dict[str, Any] = {}
    for section in (profile, f"profile {profile}"):
        for name, key in _AWS.items():
            if config.has_option(section, name):
                found.setdefault(key, config.get(section, name))
    if "AWS_REGION" in environ or "AWS_DEFAULT_REGION" in environ:
        found.pop("region", None)
    return found
