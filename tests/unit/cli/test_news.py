"""Standard error may be a live line, a pipe whose reader has gone, or a terminal: no command suffers from it."""

import io
import os
import subprocess
import sys

from holdfast.cli.news import News
from holdfast.report.wording import written_over

WRITES = """
import sys
from holdfast.cli.news import tell_news
tell_news()
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


def test_what_is_told_meanwhile_takes_the_place_of_the_live_line() -> None:
    stream = io.StringIO()
    news = News(stream)
    news.write(written_over("1 of 9", 80))
    news.write("the store cannot be reached\n")
    news.write("it is tried again\n")
    news.write(written_over("2 of 9", 80))
    news.write("\n")
    over = written_over("", 80)
    assert stream.getvalue() == (f"{over}1 of 9{over}the store cannot be reached\nit is tried again\n{over}2 of 9\n")


def test_it_is_the_stream_in_all_else() -> None:
    with open(os.devnull, "w", encoding="utf-8") as stream:
        news = News(stream)
        assert (news.fileno(), news.encoding, news.isatty()) == (stream.fileno(), "utf-8", False)
