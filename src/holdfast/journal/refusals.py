"""What an object store said when it failed, in one line that a person can use, without any secret.

The library's own texts run over forty lines and repeat requests and answers. Owns nothing; never raises.
"""

import os
import re
from collections.abc import Mapping

from holdfast.records.redaction import redact

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
