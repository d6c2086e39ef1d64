"""What a model costs, where the spec does not say: from the package `genai-prices`, if it is installed.

Its list comes with it; nothing is fetched. A price belongs to a server as much as to a model: a `base_url` that the
list does not know has no price, whatever the model is called there. Nothing is ever guessed to cost nothing.
"""

import importlib.metadata
import ipaddress
import urllib.parse
from typing import Any

import msgspec

from holdfast.spec.providers import PROVIDERS

PACKAGE = "genai-prices"


class Rates(msgspec.Struct, frozen=True):
    """In dollars for a million tokens; `request` for one request. None is no price of its own."""

    input: float
    output: float
    cached_input: float | None
    cache_write: float | None
    request: float
    source: str


def find_rates(provider: str, model: str, base_url: str) -> Rates | None:
    """The list's price today; None if it has none, or is not installed. Where a long request costs more, that of a
    short one.
    """
    if _is_at_home(base_url):
        return None
    info = PROVIDERS.get(provider)
    listed_as = "" if info is None else info.price_list
    where = {"provider_api_url": base_url} if base_url else {"provider_id": listed_as}
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


def _is_at_home(base_url: str) -> bool:
    """A server on this machine or in its own network is in no list, and reading the list takes a fifth of a second."""
    if not base_url:
        return False
    host = ""
    try:
        host = urllib.parse.urlsplit(base_url).hostname or ""
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host  # localhost, a name of the network's own, or no URL at all


def is_installed() -> bool:
    """Whether there is a list."""
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
    told = f"{source}, of requests up to {min(tiers)} tokens" if tiers else source
    return Rates(tokens_in, tokens_out, cached, written, (requests or 0.0) / 1000, told)


def _plain(listed: Any) -> float | None:
    """Of a price in tiers, the first."""
    return None if listed is None else float(getattr(listed, "base", listed))
