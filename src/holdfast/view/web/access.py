"""Who may see the viewer: the token, the Host and Origin of requests, and the headers of every response.

A page that another site opens in the user's browser can send requests here, so the loopback interface alone protects
nothing. Every request needs the token. The Host must be a loopback name, or DNS rebinding would make this server part
of another site. A GET never writes; a write needs `--edit`, the own Origin and a token in its form.
"""

import contextlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Collection
from hashlib import sha256

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from holdfast.errors import UsageError
from holdfast.printable import clean

TOKEN = "token"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'self'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "holdfast",
}
_TOKEN_BYTES = 24
_TOKEN_LENGTH_MAX = 200
_COOKIE_SECONDS = 400 * 24 * 3600


def user_token() -> str:
    """The user's token: made once and kept in a private file, so that links work after a restart."""
    above = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = os.path.join(above, "holdfast", "view-token")
    found = _read_token(path)
    if found:
        return found
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    written = f"{path}.{secrets.token_hex(4)}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(token)
        try:
            os.link(written, path)  # fails if another server has made one in the meantime: that one counts
            os.unlink(written)
        except FileExistsError:
            found = _read_token(path)
            if found:
                os.unlink(written)
                return found
            os.replace(written, path)  # empty, or others can read it
    except OSError:  # if it cannot be kept, it lasts as long as this server
        with contextlib.suppress(OSError):
            os.unlink(written)
    return token


def _read_token(path: str) -> str:
    """Empty if there is none, or one that others can read."""
    try:
        with open(path, encoding="ascii") as file:
            found = file.read(_TOKEN_LENGTH_MAX).strip()
            return found if not os.fstat(file.fileno()).st_mode & 0o077 else ""
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; remove it, and a new token is made") from error


class Access:
    """The checks of one server."""

    def __init__(self, token: str, port: int, hosts: Collection[str] = (), *, exposed: bool = False) -> None:
        """`hosts`: names besides those of the loopback interface. `exposed`: it listens on other interfaces too, so
        addresses and the name of this machine are accepted; neither can be used for DNS rebinding.
        """
        self._token = token
        self._single_use = ""
        self._cookie = f"holdfast_{port}"
        self._hosts = frozenset(name.lower() for name in hosts)
        self._exposed = exposed
        self.form_token = hmac.new(token.encode(), b"form", sha256).hexdigest()
        """In every form that writes: other sites cannot read it."""

    def protect(self, app: web.Application) -> None:
        """Check every request of the application, and send the headers with every response."""
        app.middlewares.append(self._middleware())
        app.on_response_prepare.append(_add_headers)  # also for event streams, and for errors that no handler expects

    def single_use_token(self) -> str:
        """A token that lets one request in, for the browser that is started: other users see its arguments in the
        list of processes.
        """
        self._single_use = secrets.token_urlsafe(_TOKEN_BYTES)
        return self._single_use

    def allows_write(self, request: web.Request, form_token: str) -> bool:
        """Whether a form comes from a page of this server."""
        origin = request.headers.get("Origin", "").partition("://")[2]
        return origin == _host(request) and _is_same(form_token, self.form_token)

    def _middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            host = _host(request)
            if not self._is_known(_hostname(host)):
                name = clean(host)
                text = f"this server does not answer to the name {name!r}; start it with --allow-host NAME\n"
                return web.Response(status=421, text=text)
            in_address = self._is_token(request.query.get(TOKEN, ""))
            if not in_address and not self._is_sent(request):
                text = "this page needs the token: open the link that `holdfast view` has printed\n"
                return web.Response(status=401, text=text)
            response = _redirect(request) or await handler(request)
            if in_address and not response.prepared:  # only for a request with the right token, or anyone would get it
                response.set_cookie(
                    self._cookie, self._token, max_age=_COOKIE_SECONDS, httponly=True, samesite="Lax", path="/"
                )
            return response

        return check

    def _is_token(self, given: str) -> bool:
        """Whether a token in an address is right."""
        if self._single_use and _is_same(given, self._single_use):
            self._single_use = ""
            return True
        return _is_same(given, self._token)

    def _is_sent(self, request: web.Request) -> bool:
        """Whether a header has the token: the cookie, or `Authorization: Bearer`."""
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        given = (request.cookies.get(self._cookie, ""), bearer.strip() if scheme.lower() == "bearer" else "")
        return any(_is_same(each, self._token) for each in given)

    def _is_known(self, host: str) -> bool:
        if host == "localhost" or host in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return self._exposed and host == socket.gethostname().lower()
        return address.is_loopback or self._exposed


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _redirect(request: web.Request) -> web.Response | None:
    """Take the token out of the address of a page, which people copy and send."""
    if TOKEN not in request.query or request.method != "GET" or request.path.startswith("/api/"):
        return None
    rest = request.rel_url.without_query_params(TOKEN)
    # One slash: an address that begins with two, or with a backslash, is on another site.
    path = "/" + rest.raw_path.lstrip("/\\")
    query = f"?{rest.raw_query_string}" if rest.raw_query_string else ""
    return web.Response(status=303, headers={"Location": f"{path}{query}"})


def _is_same(given: str, secret: str) -> bool:
    """Compare in constant time: the time must not show how much of a guess is right."""
    return hmac.compare_digest(given.encode("utf-8", "backslashreplace"), secret.encode())


def _host(request: web.Request) -> str:
    """The Host header. Not `request.host`: without a header that looks up the name of this machine, which may take
    seconds.
    """
    return request.headers.get("Host", "")


def _hostname(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
