"""`run --executor ray`: place the workers of a sharded run on a Ray cluster, show their progress, print the report.

The driver owns no state. If it dies, its workers stop, and the same command continues from their journals.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import FrameType

import msgspec
import typer

from holdfast.cli.app import rebuild_arguments
from holdfast.cli.commands.run import print_outcome, suggest_extend
from holdfast.cli.errors import suggesting_commands
from holdfast.cli.output import hanging, write_message
from holdfast.cli.progress import WorkersDisplay, spinner
from holdfast.engine import Progress
from holdfast.errors import UsageError
from holdfast.printable import is_watched
from holdfast.runs import (
    Ended,
    Given,
    Overrides,
    Placement,
    PlacementOptions,
    RayChoice,
    RayPool,
    Run,
    RunLocation,
    RunOutcome,
    ShardChoice,
    WorkerCommand,
    WorkerTotals,
    check_hosts,
    check_ray,
    connected,
    count_places,
    default_store,
    join,
    new_run_location,
    read_story,
    whole_run,
)
from holdfast.spec import key_variables

_INTERRUPTED = 130
_BUDGET = 6
_OF_DRIVER = ("executor", "workers", "address", "this_host")
"""Options that workers do not get as they were given."""


def parse_executor(executor: str, workers: int | None, address: str, shards: int | None) -> RayChoice:
    """What --executor, --workers and --address say. UsageError if they do not fit, or Ray is not installed."""
    if executor != "ray":
        if executor:
            raise UsageError(f"--executor {executor}: there is only ray")
        raise UsageError(f"{'--workers' if workers is not None else '--address'} goes with --executor ray")
    if shards is None:
        raise UsageError("--executor needs --shards N: the parts of the run that workers claim; several per worker")
    choice = RayChoice(address, min(workers or 0, shards))
    check_ray(choice)
    return choice


def run_on_ray(
    context: typer.Context, given: Given, part: ShardChoice | None, ray: RayChoice, overrides: Overrides
) -> int:
    """Start or continue the run that a command line describes; return the exit code."""
    assert part is not None  # `parse_executor` requires --shards
    place = new_run_location(given, context.params["store"] or default_store(), context.params["run_id"])
    spec = given.spec
    # Without signals of our own until workers exist: there is nothing to stop.
    with (
        suggesting_commands(place, given, overrides.sets, overrides.selection),
        spinner("reading the data and planning"),
    ):
        asyncio.run(join(given, place, part))
    status, outcome = _status(place), _outcome(place, given)
    if status == "cancelled":
        raise UsageError(f"{place.run_id} was cancelled; to continue it: {place.command('resume')}")
    if status == "completed" and not outcome.unfinished:
        return print_outcome(msgspec.structs.replace(outcome, complete=True))
    with contextlib.ExitStack() as stack:
        with spinner("connecting to Ray"):
            stack.enter_context(connected(ray))
        if part.this_host:
            check_hosts()
        arguments = (*rebuild_arguments(context, _OF_DRIVER), *(("--this-host",) if part.this_host else ()))
        names = {name for model in (*spec.models, *spec.roles.values()) for name in key_variables(model)}
        host = socket.gethostname() if part.this_host else ""
        command = WorkerCommand(arguments, os.getcwd(), dict(os.environ), tuple(sorted(names)), host)
        ended = _work(given, place, command, ray.workers or min(count_places(spec.workers), part.count))
    outcome = _outcome(place, given)
    if ended.reason:
        write_message(f"holdfast: {hanging(ended.reason)}")
    if ended.code not in (0, 1) or ended.reason:
        if outcome.unfinished:
            first = "raise limits.run, then " if ended.code == _BUDGET else ""
            write_message(f"every saved answer is kept; to continue, {first}run the same command")
        return ended.code
    if ended.interrupted:
        outcome = msgspec.structs.replace(outcome, interrupted=True)
    elif outcome.unfinished:  # the workers have said why
        outcome = msgspec.structs.replace(outcome, stopped=("workers",))
    code = print_outcome(outcome)
    if code in (0, 1):
        suggest_extend(given, place, overrides)
    return code


def _work(given: Given, place: RunLocation, command: WorkerCommand, workers: int) -> Ended:
    spec = given.spec
    totals = WorkerTotals(_progress(place))
    display = WorkersDisplay(place, spec.progress_file)
    options = PlacementOptions(workers, spec.grace_seconds, lambda: _status(place) == "cancelled")
    placement = Placement(RayPool(command, spec.workers), totals, options, write_message)
    with counting_interrupts(spec.grace_seconds) as interrupts:
        ended = placement.run(lambda: interrupts.received, display.show)
        display.show(totals.progress(), ended=True)
    return ended


class Interrupts:
    """How many interrupts have arrived."""

    def __init__(self, grace_seconds: float) -> None:
        self.received = 0
        self._grace_seconds = grace_seconds

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received += 1
        if self.received == 1:
            grace = f"at most {self._grace_seconds:g} s for requests in flight; press again to stop now"
            lead = "" if is_watched(sys.stderr) else "\n"  # live lines are replaced, and with them the `^C`
            os.write(2, f"{lead}{signal.Signals(number).name}: stopping the workers, {grace}\n".encode())
        elif self.received > 2:
            os.write(2, b"\nended at the third signal; the workers stop by themselves. Run the same command again\n")
            os._exit(_INTERRUPTED)


@contextlib.contextmanager
def counting_interrupts(grace_seconds: float) -> Iterator[Interrupts]:
    """Count interrupts inside of the block. Ray has set handlers of its own."""
    interrupts = Interrupts(grace_seconds)
    before = {each: signal.signal(each, interrupts.receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(place: RunLocation) -> Progress:
    """What the run has before this driver starts workers."""
    planned: dict[str, int] = {}
    for cell in read_story(place)[0].story.cells:
        planned[cell.model] = planned.get(cell.model, 0) + cell.count
    with Run(place) as run:
        cells = [(cell.model, cell.finished, cell.failed) for cell in run.cells()]
    return whole_run(planned, cells, time.monotonic())


def _status(place: RunLocation) -> str:
    with Run(place) as run:
        return run.status()[0]


def _outcome(place: RunLocation, given: Given) -> RunOutcome:
    with Run(place) as run:
        found = run.summary()
    return RunOutcome(place, given.spec, found.finished, found.failed, found.unfinished)
