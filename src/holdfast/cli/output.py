"""Where commands print: people's output and JSON on standard output, news on standard error."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import IO, Any, cast

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.cli.streams import CleanStream, discard_output, escape_for_machines, unfiltered
from holdfast.errors import error_of_path, storage_errors
from holdfast.printable import clean, one_line
from holdfast.report.progress import told_jobs
from holdfast.runs import RunPlace
from holdfast.runs.summary import WaitingJob


class CleanConsole(Console):
    """Writes colours, which `CleanStream` would not let pass, and cleans every text that is written with them.

    A reader may close the pipe early: the command continues, and its exit code is that of its work.
    """

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, width=width)

    @property
    def file(self) -> IO[str]:
        return unfiltered(sys.stdout)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        raise AttributeError("this console always writes to standard output, where text is cleaned")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

    def on_broken_pipe(self) -> None:
        discard_output(sys.stdout)


console = CleanConsole()
_ENDLESS = 10_000
_JOBS_SHOWN = 5


def print_table(table: RenderableType) -> None:
    """As wide as the terminal; a file or a pipe has no width, and whoever reads it counts columns."""
    width = console.width if sys.stdout.isatty() else _ENDLESS
    CleanConsole(width).print(table, crop=False)


def terminal_width() -> int:
    """Of the terminal that news go to; 80 where there is none."""
    return Console(stderr=True).width


def warn(line: str) -> None:
    """News that stops nothing."""
    sys.stderr.write(f"warning: {hanging(line)}\n")


def hanging(text: str) -> str:
    """A message with its second and further lines indented: no text in it can pass for a message of its own."""
    return text.replace("\n", "\n  ")


@contextlib.contextmanager
def end_quietly() -> Iterator[None]:
    """Whoever reads our output may stop when they have seen enough: that is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output(sys.stdout)


def print_json(value: Any) -> None:
    with end_quietly():
        escape_for_machines()
        write_json(value, sys.stdout)


def write_json(value: Any, out: IO[str]) -> None:
    out.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


@contextlib.contextmanager
def opened(output: str | None, escapes: str = "") -> Iterator[IO[str]]:
    """The file that a command writes to, named on standard error at the end; standard output if `output` is None.

    `escapes`: how the format writes characters that standard output's encoding lacks, if it is a format for machines.
    """
    if output is None:
        if escapes:
            escape_for_machines(escapes)
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        file = open(output, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below; only opening may be refused
    except OSError as error:
        raise error_of_path(error, f"--output {output}: cannot be written: {error.strerror}") from error
    with storage_errors(f"--output {output}"), file:
        yield cast("IO[str]", CleanStream(file))  # the same bytes as on standard output
    tell_written(output)


def tell_written(path: str) -> None:
    sys.stderr.write(f"wrote {path}\n")


def say(line: str, style: str = "") -> None:
    """One line of text: not wrapped, so that it can be copied and searched; brackets mean nothing in it."""
    console.print(one_line(line), style=style or None, markup=False, soft_wrap=True)


def resume_command(place: RunPlace) -> str:
    """A command that works when it is copied."""
    return place.command("resume")


def jobs_line(jobs: Sequence[WaitingJob]) -> str:
    """What is with the servers of batch APIs, and where to find it there."""
    oldest = min(datetime.fromisoformat(each.at).timestamp() for each in jobs)
    told = told_jobs(len(jobs), sum(each.requests for each in jobs), time.time() - oldest)
    named = [each.id or f"{each.token} (not known to be there)" for each in jobs[:_JOBS_SHOWN]]
    more = ", …" if len(jobs) > _JOBS_SHOWN else ""
    return f"{told}: {', '.join(named)}{more}"
