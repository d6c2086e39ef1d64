"""Objects in a store (S3, GCS, Azure, a folder), behind the few calls that a mirror needs.

Names are taken as they are written: nothing in a URL or a name is decoded, so `a%20b` and `a b` are two places. What a
call raises is `StoreError`, in one line without credentials; whether to try again is the caller's business, because
only it knows what is at stake. Credentials come from where each cloud's own tools look for them.
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
from holdfast.records.redaction import NO_CREDENTIALS, holds_credentials, redact

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
"""Where a machine of a cloud gets its credentials, which is asked last."""
_SECRET_NAMES = re.compile(r"SECRET|TOKEN|PASSWORD|_KEY\b|ACCESS_KEY|ACCOUNT_KEY|SAS|CREDENTIAL")
_SECRET_CHARACTERS_MIN = 6
_CREDENTIALS = (
    "no credentials were found; set them in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY), or in the profile of your cloud's own command"
)


def told_by_store(error: Exception, environ: Mapping[str, str] | None = None) -> str:
    """The most telling part of an error: what the store answered, else what the system said, else its first line."""
    text = str(error).strip()
    told = _telling(text, type(error).__name__)
    if told == _CREDENTIALS:
        return told
    told = _without_secrets(told, os.environ if environ is None else environ)
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"


def _telling(text: str, name: str) -> str:
    if any(place in text for place in _METADATA):
        return _CREDENTIALS
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        said = message[1].strip() if message else ""
        return f"{said} ({code[1]})" if said else code[1]
    if status is not None:
        return f"{status[1].strip()}: {status[2].strip()}" if status[2] and status[2].strip() else status[1].strip()
    host, system = _HOST.search(text), _SYSTEM.findall(text)
    if host is not None and (system or "dns error" in text or "TimedOut" in text or "timed out" in text):
        why = system[-1] if system else "its name is not known" if "dns error" in text else "it does not answer in time"
        return f"{host[1]} cannot be reached: {why}"
    return _QUERY.sub("", _PREFIX.sub("", (text.splitlines() or [name])[0]))


def _without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """Whatever a store or a proxy repeats of what it was sent."""
    named = (value for name, value in environ.items() if _SECRET_NAMES.search(name.upper()))
    return redact(text, (value for value in named if len(value) >= _SECRET_CHARACTERS_MIN))


_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
SCHEMES = ("s3", "s3a", "gs", "az", "file")
_TIMEOUT = timedelta(seconds=30)
_CONNECT = timedelta(seconds=10)
_PIECE_BYTES = 1 << 20
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL",
    "s3a": "AWS_ENDPOINT_URL",
    "gs": "GOOGLE_BASE_URL",
    "az": "AZURE_STORAGE_ENDPOINT",
}
"""Who names another server without encryption, for tests or inside a cluster, means it."""
_AWS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


class Listed(msgspec.Struct, frozen=True):
    """An object, as a list tells of it."""

    name: str
    size: int


class Objects(Protocol):
    """Objects below one place. Every call may raise StoreError, and may have worked all the same."""

    @property
    def url(self) -> str: ...

    def put(self, name: str, data: bytes) -> None: ...

    def put_file(self, name: str, path: str) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """False if there is one of that name."""

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        """Bytes [first, last) of an object; None if there is none."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """An object's content, bit by bit. StoreError also if it is not there."""

    def listed(self, prefix: str) -> Iterator[Listed]:
        """What is below a folder (`a/b`, without a slash at the end), however deep."""

    def folders(self, prefix: str) -> list[str]:
        """The names right below a folder that have something below them."""

    def delete(self, name: str) -> None:
        """It is no error if it is not there."""


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def open_objects(url: str) -> "StoredObjects":
    """UsageError for a URL of a kind that is not known; nothing is asked of the store yet."""
    scheme, rest = split_url(url)
    if importlib.util.find_spec("obstore") is None:
        raise UsageError(f"{url}: mirrors need another package; install it with: pip install 'holdfast[mirror]'")
    if scheme == "file":
        return FolderObjects(url, os.path.abspath("/" + rest.strip("/")))
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise UsageError(f"{url!r} names no bucket; write {scheme}://bucket/folder")
    return StoredObjects(url, _remote(scheme, bucket, url), prefix.strip("/"))


def split_url(url: str) -> tuple[str, str]:
    """Its kind, and what it names. UsageError if no store has such a URL; a plain path is told how to be one."""
    if holds_credentials(url):
        raise UsageError(NO_CREDENTIALS)
    found = _URL.fullmatch(url)
    if found is None or found[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        folder = "" if ":" in url else f"; for a folder write file://{os.path.abspath(os.path.expanduser(url))}"
        raise UsageError(f"{url!r} is no URL of a store; it begins with one of {known}{folder}")
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

        with self._told("put", name):
            obstore.put(self._store, self._prefix + name, data)

    def put_file(self, name: str, path: str) -> None:
        import obstore

        with self._told("put", name), open(open_file(path), "rb") as file:
            obstore.put(self._store, self._prefix + name, file)

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._told("create", name):
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError):
                return False
            return True

    def get(self, name: str, first: int = 0, last: int | None = None) -> bytes | None:
        import obstore

        with self._told("get", name):
            try:
                if last is not None:
                    return bytes(obstore.get_range(self._store, self._prefix + name, start=first, end=last))
                return bytes(obstore.get(self._store, self._prefix + name).bytes())[first:]
            except FileNotFoundError:
                return None

    def pieces(self, name: str) -> Iterator[bytes]:
        import obstore

        with self._told("get", name):
            for piece in obstore.get(self._store, self._prefix + name).stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)

    def listed(self, prefix: str) -> Iterator[Listed]:
        import obstore

        with self._told("list", prefix):
            for batch in obstore.list(self._store, prefix=self._prefix + prefix):
                for each in batch:
                    yield Listed(each["path"][len(self._prefix) :], each["size"])

    def folders(self, prefix: str) -> list[str]:
        import obstore

        with self._told("list", prefix):
            found = obstore.list_with_delimiter(self._store, prefix=(self._prefix + prefix).rstrip("/"))
            return [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

    def delete(self, name: str) -> None:
        import obstore

        with self._told("delete", name), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, self._prefix + name)

    @contextlib.contextmanager
    def _told(self, verb: str, name: str) -> Iterator[None]:
        """What went wrong, in one line. obstore has no base of its own for all that it may raise."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{self._url}: cannot {verb} {name or 'what is there'}: {told_by_store(error)}") from error


class FolderObjects(StoredObjects):
    """Objects that are files of a folder. They are synced: "durable there" must hold there too."""

    def __init__(self, url: str, folder: str) -> None:
        from obstore.store import LocalStore

        self._folder = folder
        self._rooted = False  # whether the folders above it were synced
        super().__init__(url, LocalStore(), folder.strip("/"))  # from the root: a look makes no folder

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
        """The folders that become empty go too: object stores have no empty folders."""
        super().delete(name)
        above = os.path.dirname(os.path.join(self._folder, name))
        with contextlib.suppress(OSError):  # not empty
            while above != self._folder:
                os.rmdir(above)
                above = os.path.dirname(above)

    def _sync(self, name: str) -> None:
        """The file, and every folder down to it: any of them may be new. Those above ours are, at most once."""
        with self._told("sync", name):
            path = os.path.join(self._folder, name)
            while True:
                with contextlib.suppress(PermissionError):  # a folder that we may not open is none that we have made
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
        "retry_config": {"max_retries": 1, "retry_timeout": _TIMEOUT},  # whoever calls knows better when to try again
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
        raise UsageError(f"{url}: the store cannot be opened: {told_by_store(error)}") from error


def _aws_from_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """Keys and region of a profile, which the command line tools write to files: obstore itself reads only variables
    and what the machine offers.
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
