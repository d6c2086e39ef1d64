"""What the bodies of all dialects have in common: they are JSON, may be none, and may tell of a failure. Pure."""

from typing import Any

import msgspec

from holdfast.models.failures import ModelError
from holdfast.models.statuses import detail_of, kind_of, shorten, status_in


def decode(body: bytes) -> Any:
    """ModelError if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = body.decode(errors="replace")
        raise ModelError("malformed", f"the body is not JSON ({error}): {shorten(detail_of(text))}") from None


def failure_in_success(error: Any) -> ModelError:
    """Gateways answer 200 and tell in the body what went wrong; streams that have begun can do no other."""
    status = status_in(error)
    text = msgspec.json.encode({"error": error}).decode()
    detail = f"status 200, but the body says: {shorten(detail_of(text))}"
    if status is not None:
        return ModelError(kind_of(status, text), detail, status=status)
    return ModelError("malformed", detail)


def malformed(what: str, body: Any) -> ModelError:
    return ModelError("malformed", f"{what}: {shorten(msgspec.json.encode(body).decode())}")


def cut_off(end: str) -> ModelError:
    """A stream without its end: what came of it is a piece of an answer, and nobody knows how large a piece."""
    return ModelError("connection", f"the stream ended without {end}")


def filtered(why: str) -> ModelError:
    return ModelError("content_filter", f"the server's content filter took the whole answer ({why})")


def count(counts: Any, name: str) -> int:
    """A number of tokens; zero for whatever is no such number."""
    if not isinstance(counts, dict):
        return 0
    value = counts.get(name)
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """An object; an empty one for whatever is none."""
    return value if isinstance(value, dict) else {}


def texts(value: Any) -> list[dict[str, Any]]:
    """The content of a message as parts."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return [{"type": "text", "text": each} if isinstance(each, str) else each for each in value or ()]


def parse_names(body: bytes, listed: str, name: str) -> list[str] | None:
    """The names in a list of models; None if it is no such list, which is no failure: few servers have to list them."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    entries = decoded.get(listed) if isinstance(decoded, dict) else None
    if not isinstance(entries, list):
        return None
    return [str(each[name]) for each in entries if isinstance(each, dict) and name in each]


def split_data_url(url: str) -> tuple[str, str] | None:
    """The media type and the base64 of a `data:` URL; None if it is another URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head.removeprefix("data:").removesuffix(";base64").partition(";")[0], data


def as_object(arguments: Any) -> dict[str, Any]:
    """The arguments of a call, for protocols that have them as an object. What a model wrote wrongly is sent back to it
    as it was, under a name: it was told what is wrong, and must see it.
    """
    if isinstance(arguments, dict):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, TypeError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": arguments}
