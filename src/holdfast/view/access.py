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
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from holdfast.errors import UsageError

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
}
_TOKEN_BYTES = 24
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_COOKIE_SECONDS = 400 * 24 * 3600


def user_token() -> str:
    """The user's token: made once and kept in a private file, so that links work after a restart."""
    above = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = os.path.join(above, "holdfast", "view-token")
    try:
        with open(path, encoding="ascii") as file:
            found = file.read().strip()
        if found and not os.stat(path).st_mode & 0o077:
            return found
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; remove it, and a new token is made") from error
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with contextlib.suppress(OSError):  # if it cannot be kept, it lasts as long as this server
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # empty after a crash, or readable by others
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(token)
    return token


class Access:
    """The checks of one server."""

    def __init__(self, token: str, port: int, hosts: Collection[str] = (), *, exposed: bool = False) -> None:
        """`hosts`: names besides those of the loopback interface. `exposed`: it listens on other interfaces too, so
        addresses and the name of this machine are accepted; neither can be used for DNS rebinding.
        """
        self._token = token
        self._cookie = f"holdfast_{port}"
        self._hosts = frozenset(name.lower() for name in hosts)
        self._exposed = exposed
        self.form_token = hmac.new(token.encode(), b"form", sha256).hexdigest()
        """In every form that writes: other sites cannot read it."""

    def middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                response = self._refuse(request) or self._redirect(request) or await handler(request)
            except web.HTTPException as error:
                error.headers.update(_HEADERS)
                raise
            if not response.prepared:
                response.headers.update(_HEADERS)
                if TOKEN in request.query:
                    response.set_cookie(
                        self._cookie, self._token, max_age=_COOKIE_SECONDS, httponly=True, samesite="Lax", path="/"
                    )
            return response

        return check

    def headers(self) -> dict[str, str]:
        """For a response that a handler prepares itself."""
        return dict(_HEADERS)

    def allows_write(self, request: web.Request, form_token: str) -> bool:
        """Whether a form comes from a page of this server."""
        origin = request.headers.get("Origin", "")
        return urlsplit(origin).netloc == request.host and hmac.compare_digest(
            form_token.encode(), self.form_token.encode()
        )

    def _refuse(self, request: web.Request) -> web.Response | None:
        if not self._is_known(_hostname(request.host)):
            text = f"this server does not answer to the name {request.host!r}; start it with --allow-host NAME\n"
            return web.Response(status=421, text=text)
        if not self._has_token(request):
            text = "this page needs the token: open the link that `holdfast view` has printed\n"
            return web.Response(status=401, text=text)
        return None

    def _redirect(self, request: web.Request) -> web.Response | None:
        """Take the token out of the address of a page, which people copy and send."""
        if TOKEN not in request.query or request.method != "GET" or request.path.startswith("/api/"):
            return None
        return web.Response(status=303, headers={"Location": str(request.rel_url.without_query_params(TOKEN))})

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        given = (
            request.query.get(TOKEN, ""),
            request.cookies.get(self._cookie, ""),
            bearer.strip() if scheme.lower() == "bearer" else "",
        )
        return any(hmac.compare_digest(each.encode(), self._token.encode()) for each in given)

    def _is_known(self, host: str) -> bool:
        if host in _LOOPBACK_NAMES or host in self._hosts:
            return True
        return self._exposed and (_is_address(host) or host == socket.gethostname().lower())


def _hostname(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
