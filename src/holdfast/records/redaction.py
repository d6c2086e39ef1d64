"""Removing credentials from text: as they are, and in the encodings in which a server may repeat them. Pure.

A server that refuses a request may repeat parts of it: a header as it was sent, the base64 of `user:password`, a URL
with its query percent-encoded, JSON inside of JSON. Nothing that is recorded or shown may contain any of these.
"""

import base64
import functools
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

REDACTED = "[redacted]"
_CHARACTERS_MIN = 4
"""Shorter texts are not treated as secrets: redacting them would damage ordinary text."""
_BASE64_CHARACTERS_MIN = 8
_SURE_CHARACTERS_MIN = 8
_SURE_ALONE_MIN = 20
_CREDENTIAL = re.compile(
    r"KEY(?!BOARD|WORD)|TOKEN(?!S|I)|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTHORIZATION|COOKIE", re.IGNORECASE
)

KEY_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}|(?:hf|gsk|r8|fw|ghp|gho|ghs)_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{16,}|nvapi-[\w-]{20,}|xai-[A-Za-z0-9]{20,}"
    r"|pplx-[A-Za-z0-9]{20,}|AIza[\w-]{30,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*)"
)
"""Credentials that are recognised by their shape: keys of the usual services, tokens, private keys."""


def redact_credential_shapes(text: str) -> str:
    """The text without everything that has the shape of a credential. For texts whose secrets are not known."""
    return KEY_SHAPE.sub(REDACTED, text)


def is_credential_name(name: str) -> bool:
    """Whether a variable, header or option of this name most likely holds a credential."""
    return _CREDENTIAL.search(name) is not None


def is_unmistakable(secret: str) -> bool:
    """Whether a secret is so long or mixed that it cannot occur in ordinary text by chance. `EMPTY`, which many servers
    accept as a key, can.
    """
    mixed = any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))
    return len(secret) >= (_SURE_CHARACTERS_MIN if mixed else _SURE_ALONE_MIN)


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets. Call it before the text is shortened: half a key is not found."""
    return Redactor(secrets).text(text)


class Redactor:
    """Removes the same secrets from many values."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {spelling for secret in secrets for spelling in encodings_of(secret)}
        self._spellings = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._spellings)

    def text(self, text: str) -> str:
        for spelling in self._spellings:
            if spelling in text:
                text = text.replace(spelling, REDACTED)
        return text

    def json(self, value: Any) -> Any:
        """Like `value`, for large JSON values: they are searched as one text first, and copied only if needed."""
        text = msgspec.json.encode(value).decode()
        return self.value(value) if any(spelling in text for spelling in self._spellings) else value

    def value(self, value: Any) -> Any:
        """The value, or a copy with the secrets removed from all its texts, also from the keys of mappings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            made = {self.value(key): self.value(each) for key, each in value.items()}
            return value if made == value else made
        if isinstance(value, list):
            several = [self.value(each) for each in value]
            return value if several == value else several
        return value


@functools.lru_cache(maxsize=1024)
def encodings_of(secret: str) -> tuple[str, ...]:
    """A secret in every usual encoding. Most keys need no escaping; for them only base64 and hex differ."""
    if len(secret) < _CHARACTERS_MIN:
        return ()
    found = {secret, secret.strip(), *_escaped(secret), *_inside_base64(secret)}
    return tuple(each for each in found if len(each) >= _CHARACTERS_MIN)


def _escaped(secret: str) -> Iterator[str]:
    quoted = {urllib.parse.quote(secret, safe=safe) for safe in ("", "/", "/:@!$&'()*+,;=~-._")}
    quoted.add(urllib.parse.quote_plus(secret))
    quoted |= {urllib.parse.quote(each, safe="") for each in list(quoted)}  # a URL inside of a URL's query
    for each in quoted:
        yield each
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), each)
    for ascii_only in (True, False):
        inner = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield inner
        yield inner.replace("/", "\\/")
        yield re.sub("[<>&'+=]", lambda match: f"\\u{ord(match[0]):04x}", inner)
        yield json.dumps(inner, ensure_ascii=ascii_only)[1:-1]  # JSON inside of JSON
    yield html.escape(secret)
    yield repr(secret)[1:-1]
    yield secret.encode().hex()
    yield secret.encode().hex().upper()


def _inside_base64(secret: str) -> Iterator[str]:
    """The base64 of a secret at any position of an encoded text, as in `user:password` or `Bearer key`.

    There are three alignments. Characters at the edges depend on the neighbours and are left out. The encoding of the
    secret alone comes first, so that nothing of it is left.
    """
    data = secret.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        if len(whole.rstrip("=")) >= _BASE64_CHARACTERS_MIN:
            yield whole
            yield whole.rstrip("=")
        for before in range(3):
            shifted = encode(b"\0" * before + data).decode().rstrip("=")
            first = (0, 2, 3)[before]
            last = len(shifted) - (1 if (before + len(data)) % 3 else 0)
            if last - first >= _BASE64_CHARACTERS_MIN:
                yield shifted[first:last]


NO_CREDENTIALS = (
    "the URL holds a user, a password or a query; credentials belong into the environment, where your cloud's own "
    "commands look for them: leave only scheme://bucket/folder"
)


def holds_credentials(url: str) -> bool:
    """Whether a URL has a user before its host or a query: both would end up in files and error messages. In a file://
    URL a question mark is an ordinary character.
    """
    scheme, _, rest = url.partition("://")
    return "@" in rest.partition("/")[0] or ("?" in rest and scheme != "file")
