"""Printing: results and JSON on standard output, messages on standard error."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.cli.streams import discard_output, escape_for_machines, unfiltered
from holdfast.errors import error_of_path, storage_errors
from holdfast.printable import CleanStream, clean, one_line, terminal_size, wrapped

if TYPE_CHECKING:
    from holdfast.runs import WaitingJob
    from holdfast.solve import ScoredContinuation


class CleanConsole(Console):
    """Writes colour codes, which `CleanStream` would escape, and cleans every text itself.

    If the reader closes the pipe early, the command continues and keeps its exit code.
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
_UNLIMITED_WIDTH = 10_000
_JOBS_SHOWN = 5


def print_table(table: RenderableType) -> None:
    """Print a table as wide as the terminal. In a file or a pipe no cell is wrapped, so that programs can read it."""
    width = console.width if sys.stdout.isatty() else _UNLIMITED_WIDTH
    CleanConsole(width).print(table, crop=False)


def terminal_width() -> int:
    """The width of the terminal on standard error; 80 if there is none."""
    return terminal_size(sys.stderr)[0]


def warn(line: str) -> None:
    write_message(f"warning: {hanging(line)}")


def continuation_lines(scored: "Iterable[ScoredContinuation]") -> Iterator[str]:
    """What a solver scores, as lines: a context once for all choices that share it, then their continuations, quoted
    because spaces count.
    """
    context = None
    for each in scored:
        if each.context != context:
            context = each.context
            yield from clean(hanging(f"context: {context}")).splitlines()
        yield f"continuation {each.label}: {msgspec.json.encode(each.continuation).decode()}"


def write_message(text: str) -> None:
    """Write lines to standard error. A terminal gets them wrapped at spaces, with no command broken."""
    if sys.stderr.isatty():
        text = "\n".join(line for each in text.split("\n") for line in wrapped(each, terminal_width()))
    sys.stderr.write(f"{text}\n")


def hanging(text: str) -> str:
    """Indent all lines but the first, so that no line of untrusted text looks like a message of ours."""
    return text.replace("\n", "\n  ")


@contextlib.contextmanager
def end_quietly() -> Iterator[None]:
    """Ignore a closed pipe, as with `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output(sys.stdout)


def print_json(value: Any) -> None:
    with end_quietly():
        escape_for_machines()
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


@contextlib.contextmanager
def opened(output: str | None, escapes: str = "") -> Iterator[IO[str]]:
    """Open the file that a command writes, and name it on standard error at the end; standard output for None.

    `escapes`: how a machine-readable format writes characters that the encoding of standard output lacks.
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
    report_written(output)


def report_written(path: str) -> None:
    sys.stderr.write(f"wrote {path}\n")


def print_line(line: str, style: str = "") -> None:
    """Print one line. It is not wrapped, so that it can be copied and searched, and has no markup."""
    console.print(one_line(line), style=style or None, markup=False, soft_wrap=True)


def print_sentence(text: str, style: str = "") -> None:
    """Print a sentence of ours. A terminal gets it wrapped at spaces, with no command broken."""
    line = one_line(text)
    for each in wrapped(line, console.width) if sys.stdout.isatty() else [line]:
        print_line(each, style)


def jobs_line(jobs: "Sequence[WaitingJob]") -> str:
    """How many batch jobs wait at servers, for how long, and their ids there."""
    oldest = min(datetime.fromisoformat(each.at).timestamp() for each in jobs)
    from holdfast.report import jobs_text  # late: few runs have batch jobs, and this imports the reports

    counts = jobs_text(len(jobs), sum(each.requests for each in jobs), time.time() - oldest)
    named = [each.id or f"{each.token} (not confirmed by the server)" for each in jobs[:_JOBS_SHOWN]]
    more = ", …" if len(jobs) > _JOBS_SHOWN else ""
    return f"{counts}: {', '.join(named)}{more}"
