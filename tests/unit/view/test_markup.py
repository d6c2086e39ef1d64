"""The HTML builder: every text is escaped, and no address leaves the site."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.printable import clean
from holdfast.view.markup import Markup, h, join

OWN = ["/", "/runs/x", "?q=1", "#step-1", "./a.html", "../a.html", "data:image/png;base64,"]
FOREIGN = [
    "javascript:x",
    "JAVASCRIPT:x",
    "http://x",
    "//x.example",
    "/\\x.example",
    "data:text/html,x",
    "x",
    "",
    " /x",
]


def test_children_are_escaped_and_markup_is_not() -> None:
    assert h("p", "<b>", h("i", "&"), None, ["x", 1, 2.5]) == "<p>&lt;b&gt;<i>&amp;</i>x12.5</p>"
    assert h("br") == "<br>"
    assert isinstance(h("p"), Markup)
    assert join(["<", h("b")]) == "&lt;<b></b>"


def test_attributes_are_escaped_and_named() -> None:
    made = h("a", class_='x" onclick="y', data_live=True, hidden=False, title=None, href="/x?a=1&b=2")
    assert made == '<a class="x&quot; onclick=&quot;y" data-live href="/x?a=1&amp;b=2"></a>'


@pytest.mark.parametrize("address", OWN)
def test_an_address_of_the_own_site_is_allowed(address: str) -> None:
    assert h("a", href=address).startswith("<a href=")


@pytest.mark.parametrize("address", FOREIGN)
def test_any_other_address_is_refused(address: str) -> None:
    for name in ("href", "src", "action", "formaction"):
        with pytest.raises(ValueError, match="own site"):
            h("a", **{name: address})


def test_short_texts_skip_only_what_needs_no_escape() -> None:
    for text in map(chr, (*range(0x11000), *range(0x11000, 0x110000, 999))):
        is_changed = html.escape(clean(text)).encode("utf-8", "backslashreplace").decode() != text
        assert (h("p", text) == f"<p>{text}</p>") is not is_changed, hex(ord(text))


@given(st.text(st.characters(codec=None)))
def test_no_text_becomes_markup_or_a_hidden_character(text: str) -> None:
    made = h("p", text, title=text)
    inside = made.removeprefix("<p").removesuffix("</p>")
    assert inside.count("<") == 0
    assert inside.count(">") == 1
    assert made.count('"') == 2
    made.encode()  # it can be sent
    assert not any(ord(each) < 32 and each not in "\t\r\n" for each in html.unescape(made))
    assert not set(made) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x7f\x9b")
