"""Harmful characters are shown, never passed on and never dropped; JSON keeps its meaning."""

import io
import json
import unicodedata

import pytest
from rich.cells import cell_len

from holdfast.printable import LiveBlock, clean, is_watched, live_line, one_line, wrapped
from tests.screens import Screen

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("text", "shown", "line"),
    [
        ("plain ascii\ttab", "plain ascii\ttab", "plain ascii\ttab"),
        ("two\nlines\r\nthree", "two\nlines\r\nthree", "two\\nlines\\r\\nthree"),
        ("over\rwritten", "over\\rwritten", "over\\rwritten"),
        ("\r\r\n", "\\r\r\n", "\\r\\r\\n"),
        ("\x1b]52;c;aGk=\x07", "\\u001b]52;c;aGk=\\u0007", "\\u001b]52;c;aGk=\\u0007"),
        ("c1 \x9b2J", "c1 \\u009b2J", "c1 \\u009b2J"),
        ("nul \x00 del \x7f", "nul \\u0000 del \\u007f", "nul \\u0000 del \\u007f"),
        ("a\u202eb", "a\\u202eb", "a\\u202eb"),
        ("é → 模型 😀 ❤️ 👩‍💻 نمی‌دانم", "é → 模型 😀 ❤️ 👩‍💻 نمی‌دانم", "é → 模型 😀 ❤️ 👩‍💻 نمی‌دانم"),
    ],
)
def test_harmful_characters_are_shown_and_others_stay(text: str, shown: str, line: str) -> None:
    assert (clean(text), one_line(text)) == (shown, line)
    assert (clean(shown), one_line(line)) == (shown, line)  # cleaning twice changes nothing


def test_every_control_character_and_direction_override_is_shown() -> None:
    for code in range(0x110000):
        each = chr(code)
        if each not in "\t\n" and (unicodedata.category(each) in ("Cc", "Zl", "Zp") or each in BIDI):
            for text in (each, f"é{each}", f"a{each}b"):
                assert each not in clean(text) + one_line(text), hex(code)


def test_json_means_the_same_after_cleaning() -> None:
    value = {"text": "".join(map(chr, range(0xD800))) + BIDI + "\ufeff😀"}
    for ascii_only in (True, False):
        written = clean(json.dumps(value, ensure_ascii=ascii_only, indent=2))
        assert json.loads(written) == value
        assert written == clean(written)


def test_a_live_line_is_one_line_that_does_not_wrap() -> None:
    assert live_line("1 of 9\x1b[2J\nforged", 80) == "\r\x1b[2K1 of 9\\u001b[2J\\nforged"
    assert live_line("0123456789", 10) == "\r\x1b[2K01234567…"
    assert live_line("a\tb", 10) == "\r\x1b[2Ka b"


def test_a_live_block_replaces_all_its_lines() -> None:
    block, screen = LiveBlock(), Screen(40)
    assert screen.show("above\n" + block.draw([[("a", "")], [("b", "")], [("c", "")]], 40)) == ["above", "a", "b", "c"]
    assert screen.show(block.draw([[("d", "")]], 40)) == ["above", "d"]
    assert screen.show(block.draw([[("e", "")], [("f", "")]], 40)) == ["above", "e", "f"]
    assert screen.show(block.erase(40)) == ["above"]
    assert not block.is_shown


def test_a_live_block_that_a_narrower_terminal_wraps_is_removed_too() -> None:
    block, screen = LiveBlock(), Screen(20)
    wrapped = block.draw([[("x" * 38, "")], [("y" * 10, "")]], 40)
    assert screen.show(wrapped) == ["x" * 20, "x" * 18, "y" * 10]
    assert screen.show(block.draw([[("z", "")]], 20)) == ["z"]


def test_a_live_block_is_clean_cut_coloured_and_in_ascii_if_it_must() -> None:
    line = [[("█░", "bar"), (" \x1b[2J\n", ""), ("模" * 20, "bad")]]
    assert LiveBlock().draw(line, 20) == "\r\x1b[2K█░ \\u001b[2J\\n模模…"
    assert LiveBlock().draw([[("█░", "bar"), (" — ", "")]], 20, color=True) == "\r\x1b[2K\x1b[36m█░\x1b[0m — "
    assert LiveBlock().draw([[("█░", "bar"), (" — …·", "")]], 20, ascii_only=True) == "\r\x1b[2K#. - ~|"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "watched"),
    [
        (Tty(), {"TERM": "xterm"}, True),
        (Tty(), {"TERM": "xterm", "CI": "false"}, True),
        (Tty(), {"TERM": "xterm", "CI": "true"}, False),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (None, {"TERM": "xterm"}, False),
    ],
)
def test_live_lines_need_a_terminal_that_a_person_sees(
    stream: io.StringIO | None, environment: dict[str, str], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_watched(stream) == watched


SENTENCE = "sums/large exact_match: not passed: the mean is below 0.5 at confidence 0.95; 模型 too"


@pytest.mark.parametrize("width", [20, 40, 80, 140])
def test_a_long_sentence_is_broken_at_spaces_only(width: int) -> None:
    lines = wrapped(SENTENCE, width)
    assert " ".join(line.strip() for line in lines) == SENTENCE
    assert max(map(cell_len, lines)) <= max(width, len("  exact_match:"))
    assert all(line.startswith("  ") for line in lines[1:]), "a new line of its own begins at the left"


def test_a_command_that_is_to_be_copied_stays_on_one_line() -> None:
    command = "holdfast resume 20260101-120000-brisk-otter --set limits.run.cost_usd=10.0"
    lines = wrapped(f"  2 failed samples can be tried again with: {command}. Or see `holdfast verify x` for more", 40)
    assert lines == [
        "  2 failed samples can be tried again",
        "    with:",
        f"    {command}.",
        "    Or see `holdfast verify x` for more",
    ]
