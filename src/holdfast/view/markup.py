"""HTML that escapes every text by default.

Everything that comes from models, data, files and servers is hostile. `h` escapes each child and each attribute value;
only `Markup`, which nothing but this module creates, passes as it is. So a page can show a text only as a text.
"""

import functools
import html
import re
from collections.abc import Iterable
from typing import Any

from holdfast.printable import clean

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})
_URL_ATTRIBUTES = frozenset({"href", "src", "action", "formaction"})
_SHORT = 2_000
_SPECIAL = re.compile(
    "[&<>\"'\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""What must be escaped, or shown as an escape: more than `clean` changes, never less."""
_OWN_SITE = ("/", "?", "#", "./", "../")
_OTHER_SITE = ("//", "/\\")


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def escape(value: Any) -> str:
    """A text as HTML. Control characters, direction overrides and lone surrogates are shown as escapes, never sent."""
    if isinstance(value, Markup):
        return value
    text = value if type(value) is str else str(value)
    if len(text) < _SHORT and _SPECIAL.search(text) is None:  # most texts: a page has hundreds of short ones
        return text
    return html.escape(clean(text).encode("utf-8", "backslashreplace").decode())


def h(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. `class_` and `for_` lose their underscore, `data_x` becomes `data-x`; False and None leave an
    attribute out, True writes it without a value.
    """
    parts = ["<", name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            parts.append(_attribute(key, value))
    parts.append(">")
    if name not in _VOID:
        _collect(children, parts)
        parts += ("</", name, ">")
    return Markup("".join(parts))


def join(children: Iterable[Child]) -> Markup:
    """Texts and elements one after the other; None and nested lists are allowed."""
    parts: list[str] = []
    _collect(children, parts)
    return Markup("".join(parts))


def _collect(children: Iterable[Child], parts: list[str]) -> None:
    for each in children:
        if type(each) is Markup:
            parts.append(each)
        elif isinstance(each, str | int | float):
            parts.append(escape(each))
        elif each is not None:
            _collect(each, parts)


@functools.cache
def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _attribute(key: str, value: str | int | bool) -> str:
    name = _attribute_name(key)
    if value is True:
        return f" {name}"
    if name in _URL_ATTRIBUTES and not _is_own_address(str(value)):
        raise ValueError(f"a page links only to its own site, not to {value!r}")
    return f' {name}="{escape(value)}"'


def _is_own_address(address: str) -> bool:
    """Whether an address stays on this site, or is an image in itself."""
    return address.startswith("data:image/") or (address.startswith(_OWN_SITE) and not address.startswith(_OTHER_SITE))
