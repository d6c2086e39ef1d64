"""Texts of models and data on pages: as text only, cut if they are long, files only from blobs."""

from typing import Any

import pytest

from holdfast.records import FileChanges, KeptFile, Message
from holdfast.view.links import Links
from holdfast.view.markup import join
from holdfast.view.sources import RunRef
from holdfast.view.texts import (
    CUT_CHARACTERS,
    TextPlace,
    changed_files,
    content_blocks,
    file_sizes,
    message_block,
    text_block,
)
from holdfast.view.web.files import file_name, image_type

DIGEST = "a" * 64
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def place(sizes: dict[str, int | None] | None = None) -> TextPlace:
    return TextPlace(RunRef("e", "r"), "t/m/s/1", 7, Links(), sizes or {})


def shown(content: Any, sizes: dict[str, int | None] | None = None) -> str:
    return join(content_blocks(content, place(sizes), "/asked/new/0/content"))


def test_a_long_text_is_cut_and_links_to_all_of_it() -> None:
    text = "é" * (CUT_CHARACTERS + 1)
    said = text_block(text, place(), "/answer/text")
    assert said.count("é") == CUT_CHARACTERS
    assert "show all (40.0 kB)" in said
    assert "/samples/t/m/s/1/text?record=7&amp;pointer=%2Fanswer%2Ftext" in said
    assert "show all" not in text_block(text[1:], place(), "/answer/text")


@pytest.mark.parametrize(
    "content",
    [
        EVIL,
        [EVIL],
        [{"type": "text", "text": EVIL}],
        [{"type": EVIL, EVIL: EVIL}],
        [{"type": "image_url", "image_url": {"url": EVIL}}],
        [{"type": "image_url", "image_url": {"url": f"https://evil.example/{EVIL}"}}],
        [{"type": "image_url", "image_url": {"url": f"data:{EVIL},x"}}],
        {"any": EVIL},
        [[EVIL]],
        7,
    ],
)
def test_nothing_of_a_message_becomes_markup_and_nothing_is_loaded_from_elsewhere(content: Any) -> None:
    said = shown(content)
    assert "<script" not in said
    assert "<img" not in said
    assert 'href="http' not in said
    message: Message = {
        "role": EVIL,
        "content": content,
        "tool_calls": [{"function": {"name": EVIL, "arguments": EVIL}}],
    }
    assert "<script" not in message_block(message, place(), "/asked/new/0")


def test_a_stored_picture_is_shown_and_any_other_file_is_a_link() -> None:
    picture, other = f"blob:sha256-{DIGEST};image/png", f"blob:sha256-{DIGEST};image/svg+xml"
    sizes: dict[str, int | None] = {picture: 1200, other: 1200}
    said = shown([{"type": "image_url", "image_url": {"url": picture}}], sizes)
    assert f'<img src="/runs/e/r/blobs/{DIGEST}"' in said
    assert "<img" not in shown(other, sizes)
    assert "image/svg+xml, 1.2 kB" in shown(other, sizes)
    assert "missing" in shown(picture)


def test_an_inline_picture_is_not_shown() -> None:
    said = shown([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])
    assert "<img" not in said
    assert "pointer=%2Fasked%2Fnew%2F0%2Fcontent%2F0%2Fimage_url%2Furl" in said
    assert "pointer=%2Fasked%2Fnew%2F0%2Fcontent%2F0%2Fa~1b~0" in shown([{"type": "a/b~", "a/b~": "data:x,y"}])


def test_sizes_are_those_of_all_references_in_the_data() -> None:
    picture = f"blob:sha256-{DIGEST};image/png"
    assert file_sizes({picture: 5}.get, {"a": [picture, "b"]}, None, picture) == {picture: 5}


def test_changed_files_are_links_and_their_names_are_text() -> None:
    files = FileChanges("x", {f"out/{EVIL}": KeptFile(0o644, DIGEST, 3), "d": KeptFile(0o755)}, ["gone.txt"])
    said = changed_files(files, place())
    assert "<script" not in said
    assert f"/runs/e/r/blobs/{DIGEST}?name=" in said
    assert "- gone.txt" in said
    assert "not kept: disk full" in changed_files(FileChanges("x", lost="disk full"), place())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", ""),
        (b"<svg onload=alert(1)>", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_only_the_first_bytes_make_a_file_a_picture(content: bytes, expected: str) -> None:
    assert image_type(content) == expected


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("a.txt", "a.txt"),
        ("../../etc/passwd", "passwd"),
        ('x"; filename=evil.exe', "x__ filename_evil.exe"),
        ("a\r\nSet-Cookie: b", "a__Set-Cookie_ b"),
        (".bashrc", "bashrc"),
        ("...", "otherwise"),
        ("", "otherwise"),
    ],
)
def test_a_name_to_save_a_file_under_is_harmless(wanted: str, name: str) -> None:
    assert file_name(wanted, "otherwise") == name
