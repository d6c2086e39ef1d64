"""Any OpenAI-compatible chat endpoint.

Whoever asks limits how many requests are under way, so that none waits here with its time-out running:
`timeout_seconds` begins when it is sent. It is sent once; redirects are not followed. No secret (the API key,
credentials in headers or in the URL) is ever in an error's text.
"""

import os
import time
from typing import Any, NoReturn

import msgspec
from multidict import CIMultiDict
from yarl import URL

from holdfast.errors import told
from holdfast.models.completion import parse_completion, parse_models
from holdfast.models.failures import BadConnectionError, Kind, ModelError, redact
from holdfast.models.provider import Connection, Request
from holdfast.models.statuses import detail_of, kind_of, retry_after_seconds, shorten
from holdfast.models.wire import BadResponseError, Response, Wire
from holdfast.records.exchange import Answer

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
"""Used only for the default URL: no other server is ever sent a key that it was not promised."""

_CREDENTIAL_NAMES = ("auth", "key", "token", "secret", "cookie")

_ADVICE: dict[Kind, str] = {
    "auth": "check the key in {variable} and what it may do",
    "unknown_model": "check the model's name and base_url",
    "connection": "check base_url, and that the server is up",
    "timeout": "raise timeout_seconds if the model needs longer",
}


class OpenAIProvider:
    """One model behind one URL. Belongs to the event loop that first asks; close it there."""

    def __init__(self, connection: Connection) -> None:
        _check_limits(connection)
        self._connection = connection
        self._base = base = _parse_url(connection.base_url or DEFAULT_URL)
        if connection.options:
            named = ", ".join(connection.options)
            raise BadConnectionError(f"openai has no options; what a request should hold ({named}) belongs in `params`")
        self._url = (base / "chat" / "completions").with_query(base.query)
        self._shown_url = str(self._url.with_query(None).with_user(None))
        self._key_variable = connection.api_key_env or ("" if connection.base_url else DEFAULT_KEY_VARIABLE)
        key = _read_key(self._key_variable)
        self._secrets = _secrets(connection, key, base)
        self._headers = _headers(connection, key)
        try:
            self._wire = Wire(self._url, self._headers, connection.timeout_seconds)
        except ValueError as error:
            raise BadConnectionError(f"model {connection.model!r}: {error}") from None

    async def generate(self, request: Request) -> Answer:
        """Ask once. Raises ModelError, and nothing else but a cancellation."""
        body = self._encode(request)
        try:
            response = await self._wire.send(body)
        except TimeoutError:
            self._fail("timeout", f"no answer within {self._connection.timeout_seconds:g} s")
        except (BadResponseError, OSError) as error:
            self._lose(error)
        return self._read(response)

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that the server has, asked for once; None if it is there and does not list them.
        Raises ModelError if it is not there, or refuses the key.
        """
        url = (self._base / "models").with_query(self._base.query)
        wire = Wire(url, self._headers, seconds, "GET")
        try:
            response = await wire.send()
        except TimeoutError:
            self._fail("connection", f"no answer within {seconds:g} s")
        except (BadResponseError, OSError) as error:
            self._lose(error)
        finally:
            await wire.close()
        if response.status in (401, 403) or response.status // 100 in (1, 3, 5):
            self._refuse(response, response.body.decode(errors="replace"))
        return parse_models(response.body) if response.status == 200 else None

    async def close(self) -> None:
        """Ends what is under way. Idempotent; a later request connects again."""
        await self._wire.close()

    def _encode(self, request: Request) -> bytes:
        body: dict[str, Any] = {"model": self._connection.model, "messages": request.messages, **request.params}
        if request.tools:
            body["tools"] = request.tools
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            self._fail("bad_request", f"the request cannot be written as JSON ({error}); nothing was sent")

    def _read(self, response: Response) -> Answer:
        content_type = response.header(b"content-type")
        if not 200 <= response.status < 300:
            self._refuse(response, response.body.decode(errors="replace"))
        if content_type and "json" not in content_type.lower():
            said = detail_of(response.body.decode(errors="replace"))
            self._fail("malformed", f"the answer is {content_type}, not JSON: {said}")
        try:
            return parse_completion(response.body)
        except ModelError as error:
            self._fail(error.kind, error.message, error.status)

    def _lose(self, error: Exception) -> NoReturn:
        if isinstance(error, BadResponseError):
            self._fail("malformed", str(error))
        self._fail("connection", f"the connection failed ({told(error)})")

    def _refuse(self, response: Response, text: str) -> NoReturn:
        status = response.status
        said = detail_of(text)
        if status < 400:
            said = f"redirected to {response.header(b'location') or 'nowhere'}: set base_url to where it leads"
        wait = retry_after_seconds(_mapping(response), time.time())
        self._fail(kind_of(status, text), f"HTTP {status}: {said}", status, wait)

    def _fail(self, kind: Kind, what: str, status: int | None = None, retry_after: float | None = None) -> NoReturn:
        """`from None`: what another library's error holds may be secret."""
        where = f" ({self._connection.model} at {self._shown_url})"
        advice = _ADVICE.get(kind, "").format(variable=self._key_variable or "api_key_env (none is set)")
        text = shorten(redact(what, self._secrets)) + redact(where, self._secrets)
        raise ModelError(kind, f"{text}; {advice}" if advice else text, retry_after, status) from None


def _check_limits(connection: Connection) -> None:
    if connection.max_connections < 1:
        raise BadConnectionError(f"model {connection.model!r}: max_connections must be at least 1")
    if not connection.timeout_seconds > 0:
        raise BadConnectionError(f"model {connection.model!r}: timeout_seconds must be greater than 0")


def _parse_url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        raise BadConnectionError(f"base_url cannot be read ({error}): give http://host:port/v1 or the like") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadConnectionError("base_url must begin with http:// or https:// and name a host")
    return url


def _read_key(variable: str) -> str:
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key.isascii() or not key.isprintable():
        raise BadConnectionError(f"the key in {variable} has characters that no HTTP header can hold: set it again")
    return key


def _headers(connection: Connection, key: str) -> CIMultiDict[str]:
    """The user's own headers win, however they are spelled."""
    headers = CIMultiDict({"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "holdfast"})
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(connection.headers)
    return headers


def _secrets(connection: Connection, key: str, base: URL) -> set[str]:
    secrets = {key, base.password or "", *connection.secrets}
    for name, value in (*connection.headers.items(), *base.query.items()):
        if any(word in name.lower() for word in _CREDENTIAL_NAMES):
            secrets |= {value, value.split(" ")[-1]}
    return secrets - {""}


def _mapping(response: Response) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers)
