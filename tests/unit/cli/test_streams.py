"""Standard error may be a live line, a pipe whose reader has gone, or a terminal: no command suffers from it."""

import io
import os
import subprocess
import sys

import pytest

from holdfast.cli.streams import ErrorStream, OutputStream
from holdfast.printable import CleanStream, live_line
from tests.screens import Screen

WRITES = """
import sys
from holdfast.cli.streams import install_streams
install_streams()
sys.stdin.read()  # until nobody reads us any more
for number in range(3):
    print("news", number, file=sys.stderr, flush=True)
print("went on")
"""


def test_a_reader_who_has_gone_ends_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stderr.close()
    process.stdin.close()
    assert process.stdout.read() == b"went on\n"
    process.stdout.close()
    assert process.wait() == 0


def test_a_message_replaces_the_live_line_and_a_line_feed_keeps_it() -> None:
    raw = io.StringIO()
    stream = ErrorStream(raw)
    stream.write_live([[("1 of 9", "")]], 80)
    stream.write("the store cannot be reached\n")
    stream.write("it is tried again\n")
    stream.write_live([[("2 of 9", "")]], 80)
    stream.write("\n")
    over = live_line("", 80)
    assert raw.getvalue() == f"{over}1 of 9{over}the store cannot be reached\nit is tried again\n{over}2 of 9\n"


def test_messages_of_both_streams_go_above_all_live_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.StringIO()
    error, output = ErrorStream(raw), OutputStream(raw)
    monkeypatch.setattr(sys, "stderr", error)
    block = [[("first", "bar")], [("second", "")]]
    error.write_live(block, 80)
    output.write("printed\n")
    error.write_live(block, 80)
    error.write("warned\n")
    error.write_live(block, 80)
    output.write("no line end")
    error.write_live(block, 80)
    error.write_live([[("last", "")]], 80)
    error.write("\n")
    output.write("report\n")
    assert Screen(80).show(raw.getvalue()) == ["printed", "warned", "no line end", "last", "report"]


def test_every_way_to_write_is_cleaned() -> None:
    raw = io.StringIO()
    for stream in (CleanStream(raw), ErrorStream(raw)):
        stream.write("\x1b[2J")
        stream.writelines(["\x9b", "\u202e\n"])
        print("\a", file=stream)
    assert raw.getvalue() == "\\u001b[2J\\u009b\\u202e\n\\u0007\n" * 2


def test_a_clean_stream_is_the_stream_below_it_in_all_else() -> None:
    with open(os.devnull, "w", encoding="utf-8") as raw:
        stream = ErrorStream(raw)
        assert (stream.fileno(), stream.encoding, stream.isatty()) == (raw.fileno(), "utf-8", False)
