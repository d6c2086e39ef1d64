"""Long work is shown on a terminal, and nowhere else."""

import sys
import time
from types import SimpleNamespace

import pytest

from holdfast.cli import progress, streams
from holdfast.cli.progress import counting, format_count, share, spinner


class Terminal:
    """Standard error that a person sees."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    seen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    for module in (streams, progress):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=seen))
    monkeypatch.setattr(progress, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_NEXT_SECONDS", 0.001)
    monkeypatch.setattr(progress, "terminal_width", lambda: 80)
    return seen


def test_counting_gives_every_item_and_shows_how_far_it_is(terminal: Terminal) -> None:
    assert list(counting(range(1000), "exporting", 1000)) == list(range(1000))
    assert f"exporting {format_count(256, 1000)}" in terminal.text
    assert terminal.text.endswith("\r\x1b[2K")


def seen(terminal: Terminal, text: str) -> None:
    for _ in range(10_000):
        if text in terminal.text:
            return
        time.sleep(0.001)
    raise AssertionError(f"{text!r} is not shown")


def test_a_spinner_shows_what_takes_so_long_until_it_ends(terminal: Terminal) -> None:
    with spinner("planning") as spin:
        seen(terminal, "planning … 0.")
        spin.update(1234)
        seen(terminal, "planning 1,234 0.")
        spin.update(5, 10)
        seen(terminal, f"planning {share(5, 10)} 0.")
        spin.end()
        before = terminal.text
    assert before.endswith("\r\x1b[2K")
    assert terminal.text == before


def test_an_error_ends_it_too(terminal: Terminal) -> None:
    with pytest.raises(ValueError, match="no"), spinner("planning"):
        raise ValueError("no")
    assert terminal.text == "" or terminal.text.endswith("\r\x1b[2K")


@pytest.mark.parametrize("why", ["no terminal", "a dumb one"])
def test_elsewhere_nothing_is_shown(
    why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if why == "a dumb one":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
    with spinner("planning"):
        assert list(counting(range(1000), "exporting", 1000)) == list(range(1000))
    assert capsys.readouterr().err == ""


def test_a_bar_is_full_at_the_end_and_not_before() -> None:
    assert format_count(0, 10).startswith("░")
    assert "░" in format_count(999, 1000)
    assert "░" not in format_count(1000, 1000)
    assert format_count(5, 10).endswith("50% 5/10")
    assert format_count(5, 0) == "5"
