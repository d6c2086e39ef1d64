"""Prices of models that the spec gives no price for, and estimates of the number of tokens of a text.

Prices come from the package `genai-prices`, if it is installed. The package contains its price list; nothing is
fetched. A price belongs to a server as much as to a model: a model behind a `base_url` that the list does not know has
no price, whatever its name. An unknown price is never taken as 0.

Tokens are estimated without a tokenizer and without the network. Each model has its own tokenizer, and most are not
public or must be downloaded. So this counts the pieces that all of them split at (words, groups of digits, punctuation,
characters of scripts without spaces), with known error bounds. Special tokens such as `<|endoftext|>` are counted as
ordinary text.
"""

import importlib.metadata
import ipaddress
import math
import re
import urllib.parse
from typing import Any

import msgspec

from holdfast.records import Message
from holdfast.spec import PROVIDERS

PACKAGE = "genai-prices"


class Rates(msgspec.Struct, frozen=True):
    """Prices in dollars per million tokens; `request` per request. None: the same price as other input tokens."""

    input: float
    output: float
    cached_input: float | None
    cache_write: float | None
    request: float
    source: str


def find_rates(provider: str, model: str, base_url: str) -> Rates | None:
    """Today's list price; None if the list has none or is not installed. Where long requests cost more, the price of
    short ones.
    """
    if _is_local(base_url):
        return None
    info = PROVIDERS.get(provider)
    listed_as = "" if info is None else info.price_list
    where: dict[str, Any] = {"provider_api_url": base_url} if base_url else {"provider_id": listed_as}
    if not model or not all(where.values()):
        return None
    try:
        import genai_prices  # slow, and an extra
    except ImportError:
        return None
    try:
        found: Any = genai_prices.calc_price(genai_prices.Usage(input_tokens=1, output_tokens=1), model, **where)
    except LookupError:
        return None
    return _rates(found.model_price, f"{PACKAGE} {importlib.metadata.version(PACKAGE)}")


def _is_local(base_url: str) -> bool:
    """Whether a server is on this machine or in a private network. No list has those, and reading it takes 0.2 s."""
    if not base_url:
        return False
    host = ""
    try:
        host = urllib.parse.urlsplit(base_url).hostname or ""
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host  # localhost, a name of the local network, or not a URL


def is_installed() -> bool:
    """Whether the price list is installed."""
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _rates(listed: Any, source: str) -> Rates | None:
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "requests_kcount")
    found = [getattr(listed, name, None) for name in names]
    tiers = [tier.start for each in found for tier in getattr(each, "tiers", ())]
    tokens_in, tokens_out, cached, written, requests = (_plain(each) for each in found)
    if tokens_in is None or tokens_out is None:
        return None
    shown_source = f"{source}, of requests up to {min(tiers)} tokens" if tiers else source
    return Rates(tokens_in, tokens_out, cached, written, (requests or 0.0) / 1000, shown_source)


def _plain(listed: Any) -> float | None:
    """A price as a number; of a price with tiers, the first tier."""
    return None if listed is None else float(getattr(listed, "base", listed))


LEAST, MOST = 0.65, 1.5
"""The real count is between LEAST and MOST times the estimate: measured with two public tokenizers on English, code,
JSON, sums and 15 other languages. Older tokenizers may need more for scripts that they split into bytes.
"""
_A_MESSAGE = 4
"""Tokens of a message besides its text: its role and its delimiters."""
_PIECES = re.compile(r"([A-Za-z]+)|( ?\d+)|([\u0080-\u2fff]+)|([\u3000-\U0010ffff]+)|([!-/:-@[-`{-~]+)|\n\s*")
_LETTERS = 6.2
"""Letters per token in English words."""
_DIGITS = 3
_LETTERS_ELSEWHERE = 2.4
"""Letters per token for accented letters, Greek, Cyrillic, Hebrew, Arabic and the scripts of India."""
_SIGNS = 1.1
_MARKS = 2.0


def count_tokens(text: str) -> int:
    """The estimate. It never raises, whatever the text holds."""
    count = 0.0
    for letters, digits, elsewhere, signs, marks in _PIECES.findall(text):
        if letters:
            count += max(len(letters) / _LETTERS, 1.0)
        elif digits:
            apart = digits[0] == " "  # a space before digits is a token of its own
            count += apart + math.ceil((len(digits) - apart) / _DIGITS)
        elif elsewhere:
            count += len(elsewhere) / _LETTERS_ELSEWHERE
        elif signs:
            count += len(signs) / _SIGNS
        elif marks:
            count += max(len(marks) / _MARKS, 1.0)
        else:
            count += 1
    return math.ceil(count)


def count_message_tokens(message: Message) -> int:
    """The estimate for a message's text. Images and other files are not counted."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return _A_MESSAGE + sum(count_tokens(text) for text in texts if isinstance(text, str))
