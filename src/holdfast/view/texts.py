"""Texts, files and pictures of a sample as HTML. Everything is hostile: texts only, pictures only from blobs.

A long text is cut, with a link to all of it. Every text has an address: the number of its record and a JSON pointer
into the data of the record, or into the row of the sample.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.records import FileChanges, Message, parse_reference, references_in
from holdfast.report.text import counted, human_bytes, shortened
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.sources import RunRef

CUT_CHARACTERS = 20_000
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_INLINE = "data:"
_FILES_SHOWN = 50
_FILE_FIELDS = ("url", "data", "file_data", "file_id")


class TextPlace(msgspec.Struct, frozen=True):
    """Where texts of one record are. `n`: the number of the record; 0 for the row of the sample."""

    ref: RunRef
    key: str
    n: int
    links: Links
    sizes: Mapping[str, int | None]
    """Of the files that texts refer to, by reference; None if a file is missing."""
    kept: Mapping[str, str] = {}
    """The evaluation and the list that the reader comes from: links to the same sample keep them."""

    def at(self, n: int) -> "TextPlace":
        return msgspec.structs.replace(self, n=n)

    def address(self, pointer: str) -> str:
        return self.links.text(self.ref, self.key, self.n, pointer)


def file_sizes(size_of: Callable[[str], int | None], *values: Any) -> dict[str, int | None]:
    """The sizes of all files that plain data refers to, by reference."""
    return {each: size_of(each) for each in dict.fromkeys(references_in(list(values)))}


def text_block(text: str, place: TextPlace, pointer: str, class_: str = "said") -> Markup:
    """A text with its line breaks; a long one is cut, except in a static copy, which has no page for the rest."""
    if len(text) <= CUT_CHARACTERS or place.links.is_static:
        return h("div", text, class_=class_)
    size = human_bytes(len(text.encode("utf-8", "replace")))
    more = h("a", f"show all ({size})", href=place.address(pointer), class_="more")
    return join([h("div", text[:CUT_CHARACTERS], "…", class_=class_), h("p", more)])


def value_block(value: Any, place: TextPlace, pointer: str, class_: str = "said") -> Markup:
    """A text, a file, or anything else as JSON."""
    if isinstance(value, str):
        found = file_link(value, place)
        return text_block(value, place, pointer, class_) if found is None else found
    return text_block(as_json(value), place, pointer, class_)


def escape_pointer(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def content_blocks(content: Any, place: TextPlace, pointer: str) -> Iterator[Markup]:
    """The content of a message: a text, or parts that are texts, files or anything else."""
    if content is None:
        return
    if not isinstance(content, list):
        yield value_block(content, place, pointer)
        return
    for number, part in enumerate(content):
        yield _part(part, place, f"{pointer}/{number}")


def _part(part: Any, place: TextPlace, pointer: str) -> Markup:
    if not isinstance(part, dict):
        return value_block(part, place, pointer)
    if isinstance(part.get("text"), str):
        return text_block(part["text"], place, f"{pointer}/text")
    name = str(part.get("type"))
    inner = part.get(name)
    at = f"{pointer}/{escape_pointer(name)}"
    if isinstance(inner, dict):
        field = next((each for each in _FILE_FIELDS if isinstance(inner.get(each), str)), "")
        inner, at = inner.get(field), f"{at}/{field}"
    if not isinstance(inner, str):
        return text_block(as_json(part), place, pointer)
    found = file_link(inner, place)
    if found is not None:
        return found
    if inner.startswith(_INLINE):  # not shown: only the stored files of a run are
        label = f"[{shortened(inner.partition(',')[0], 60)} {human_bytes(len(inner))}]"
        return h("p", h("a", label, href=place.address(at)), class_="file")
    return h("p", f"[{name}] ", shortened(inner, 200), class_="file")


def file_link(text: str, place: TextPlace) -> Markup | None:
    """A stored file: a picture, or a link to save it; None if the text is no reference to one."""
    reference = parse_reference(text)
    if reference is None:
        return None
    size = place.sizes.get(text)
    if size is None:
        return h("p", f"[{reference.type}, missing: {reference.digest[:12]}…]", class_="file damage")
    label = f"{reference.type}, {human_bytes(size)}"
    address = place.links.blob(place.ref, reference.digest)
    if reference.type in IMAGE_TYPES:
        picture = h("img", src=address, alt=f"picture in the message, {label}", loading="lazy")
        return h("p", h("a", picture, href=address), h("span", label, class_="quiet"), class_="file picture")
    return h("p", h("a", f"{label}: save", href=address), class_="file")


def message_block(message: Message, place: TextPlace, pointer: str) -> Markup:
    """One message: its role, its content, its tool calls."""
    role = str(message.get("role", "message"))
    calls = message.get("tool_calls")
    known = role if role in ("system", "user", "assistant", "tool", "developer") else "other"
    return h(
        "div",
        h("div", role, class_="role"),
        h(
            "div",
            *content_blocks(message.get("content"), place, f"{pointer}/content"),
            *call_blocks(calls if isinstance(calls, list) else [], place, f"{pointer}/tool_calls"),
            class_="content",
        ),
        class_=f"message {known}",
    )


def call_blocks(calls: list[Any], place: TextPlace, pointer: str) -> Iterator[Markup]:
    """Tool calls of a model."""
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            yield text_block(as_json(call), place, f"{pointer}/{number}", "said code")
            continue
        given = function.get("arguments", "")
        arguments = given if isinstance(given, str) else as_json(given)
        at = f"{pointer}/{number}/function/arguments"
        yield h(
            "div",
            h("span", f"calls {function.get('name')}", class_="function"),
            text_block(arguments, place, at, "said code"),
        )


def changed_files(files: FileChanges, place: TextPlace) -> Markup:
    """What a call changed in its sandbox."""
    if files.lost:
        return h("p", f"The files after this call were not kept: {files.lost}", class_="damage")
    lines: list[Child] = []
    for path, kept in files.changed.items():
        if kept.blob:
            address = place.links.blob(place.ref, kept.blob, path.rpartition("/")[2])
            lines.append(h("li", "+ ", h("a", path, href=address), f" {human_bytes(kept.size)}"))
        else:
            lines.append(h("li", f"+ {path}{f' → {kept.link}' if kept.link else '/'}"))
    lines += [h("li", f"- {path}") for path in files.removed]
    more = len(lines) - _FILES_SHOWN
    return h(
        "div",
        h("span", counted(len(lines), "changed file"), class_="quiet"),
        h("ul", lines[:_FILES_SHOWN], h("li", f"… and {more} more") if more > 0 else None, class_="files"),
    )
