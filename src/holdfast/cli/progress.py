"""Showing a run while it works: a live line on a terminal, plain lines elsewhere, and a file for other programs."""

import asyncio
import os
import sys
import time

import msgspec

from holdfast.api import RunPlace
from holdfast.cli.output import terminal_width
from holdfast.cli.streams import write_live_line
from holdfast.cli.waiting import is_watched
from holdfast.engine import Engine, Progress
from holdfast.journal import OS_DISK, write_file
from holdfast.report.progress import line_of

_LIVE_SECONDS = 0.25
_PLAIN_SECONDS = 10.0
_UNWRITABLE: set[str] = set()


async def watch(engine: Engine, place: RunPlace) -> None:
    """Until cancelled. The last state is shown when the run ends."""
    live = is_watched()
    sys.stderr.write(f"run {place.experiment}/{place.run_id} in {place.folder}\n")
    progress = engine.progress
    if progress.before:
        left = progress.planned - progress.before
        sys.stderr.write(f"going on: answers kept: {progress.before} of {progress.planned}, to do: {left}\n")
    try:
        while True:
            await asyncio.sleep(_LIVE_SECONDS if live else _PLAIN_SECONDS)
            show(engine.progress, live)
            if engine.spec.progress_file:
                await asyncio.to_thread(write_progress, engine.progress, place, engine.spec.progress_file)
    finally:
        show(engine.progress, live)
        if live:
            sys.stderr.write("\n")
        if engine.spec.progress_file:
            write_progress(engine.progress, place, engine.spec.progress_file)


def write_progress(progress: Progress, place: RunPlace, path: str) -> None:
    """Others may read it at any time. If it cannot be written, the run matters more: say so once and go on."""
    data = {"run_id": place.run_id, "experiment": place.experiment, "at": time.time(), **msgspec.to_builtins(progress)}
    try:
        write_file(OS_DISK, os.path.abspath(path), os.path.abspath(f"{path}.tmp"), msgspec.json.encode(data))
    except OSError as error:
        if path not in _UNWRITABLE:
            _UNWRITABLE.add(path)
            sys.stderr.write(f"progress_file {path} cannot be written ({error.strerror}); the run goes on without it\n")


def show(progress: Progress, live: bool) -> None:
    """On a terminal the line is written over the last one; elsewhere each is a line of its own."""
    line = line_of(progress, time.monotonic())
    if live:
        write_live_line(line, terminal_width())
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
