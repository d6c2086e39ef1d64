"""HTML that escapes every text by default.

Everything that comes from models, data, files and servers is hostile. `h` escapes each child and each attribute value;
only `Markup`, which nothing but this module creates, passes as it is. So a page can show a text only as a text.
"""

import html
from collections.abc import Iterable
from typing import Any

from holdfast.printable import clean

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})
_URL_ATTRIBUTES = frozenset({"href", "src", "action", "formaction"})
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
    return html.escape(clean(str(value)).encode("utf-8", "backslashreplace").decode())


def h(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. `class_` and `for_` lose their underscore, `data_x` becomes `data-x`; False and None leave an
    attribute out, True writes it without a value.
    """
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Texts and elements one after the other; None and nested lists are allowed."""
    parts = []
    for each in children:
        if each is None:
            continue
        if isinstance(each, str | int | float):
            parts.append(escape(each))
        else:
            parts.append(join(each))
    return Markup("".join(parts))


def _attribute(key: str, value: str | int | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    if name in _URL_ATTRIBUTES and not _is_own_address(str(value)):
        raise ValueError(f"a page links only to its own site, not to {value!r}")
    return f' {name}="{escape(value)}"'


def _is_own_address(address: str) -> bool:
    """Whether an address stays on this site, or is an image in itself."""
    return address.startswith("data:image/") or (address.startswith(_OWN_SITE) and not address.startswith(_OTHER_SITE))
