"""`launch`: print or submit a job file, or run workers on this machine.

Owns no state: workers record everything. After any crash the same command continues the run.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from types import FrameType

import msgspec

from holdfast.cli.adhoc import AdHoc
from holdfast.cli.commands.run import print_outcome, resolve_specs
from holdfast.cli.output import hanging, write_message
from holdfast.cli.progress import run_display, spinner
from holdfast.engine import Progress
from holdfast.errors import UsageError
from holdfast.files import replace_file
from holdfast.launch import LAUNCHERS, ClusterOptions, LaunchJob, LocalWorkers, RunProgress, WorkerEnd, submit
from holdfast.records import SHARDS_MAX
from holdfast.report import counted
from holdfast.runs import Overrides, Run, RunLocation, RunOutcome, default_store, new_run_location, read_story
from holdfast.spec import Selection, nearest

_SHARDS_PER_WORKER = 4
"""So that workers which finish early find more to do."""
_POLL_SECONDS = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXPECTED_CODES = (0, 1, 6, 130)
"""Done, failed samples, stopped at a budget, interrupted: the report says the rest."""
_KILLED = 128


class LaunchRequest(msgspec.Struct, frozen=True):
    """What the options of `launch` say."""

    where: str
    spec: str
    run_id: str
    store: str | None
    shards: int | None
    workers: int | None
    sets: tuple[str, ...] = ()
    selection: Selection = Selection()
    output: str = ""
    submit: bool = False
    cluster: ClusterOptions = ClusterOptions()

    def options(self) -> tuple[str, ...]:
        """As options of `run`."""
        part = self.selection
        named = [("--set", each) for each in self.sets]
        named += [("--limit", str(part.limit))] if part.limit is not None else []
        named += [("--task", each) for each in part.tasks] + [("--model", each) for each in part.models]
        return tuple(word for pair in named for word in pair)


def launch_run(request: LaunchRequest) -> int:
    _check(request)
    job = _make_job(request)
    write = LAUNCHERS[request.where].write
    if write is None:
        return _run_workers(job)
    text = write(job)
    if request.submit:
        submit(request.where, text, job.folder)
    elif request.output:
        replace_file(os.path.abspath(request.output), text.encode())
        write_message(f"wrote {request.output}")
    else:
        sys.stdout.write(text)
    return 0


def _check(request: LaunchRequest) -> None:
    """UsageError for options that do not fit the launcher."""
    if request.where not in LAUNCHERS:
        known = ", ".join(LAUNCHERS)
        raise UsageError(f"there is no launcher {request.where!r}{nearest(request.where, set(LAUNCHERS))}: {known}")
    cluster = request.cluster
    given = {
        "--option": cluster.scheduler_options,
        "--image": cluster.image,
        "--secret": cluster.secret,
        "--folder": cluster.image_folder,
    }
    for option, value in given.items():
        if value and option not in LAUNCHERS[request.where].options:
            owner = next(name for name, each in LAUNCHERS.items() if option in each.options)
            raise UsageError(f"launch {request.where} has no {option}: it is for {owner}")
    if request.where == "local" and (request.submit or request.output):
        raise UsageError("launch local starts the workers itself: it has neither --submit nor --output")
    if request.submit and request.output:
        raise UsageError("--submit and --output cannot be combined: submit the job file, or write it")


def _make_job(request: LaunchRequest) -> LaunchJob:
    selection = request.selection
    overrides = Overrides(request.sets, selection)
    given = resolve_specs([request.spec], AdHoc(models=selection.models), overrides)[0]
    place = new_run_location(given, request.store or default_store(), request.run_id)
    shards, workers = request.shards, request.workers
    if request.where == "local":
        workers = workers or os.cpu_count() or 1
        shards = shards or _shards_of(place) or _SHARDS_PER_WORKER * workers
    elif shards is None and workers is None:
        raise UsageError(f"launch {request.where} needs --shards: into how many parts the run is divided")
    shards = shards or _SHARDS_PER_WORKER * (workers or 1)
    if shards > SHARDS_MAX:
        raise UsageError(f"--shards {shards}: at most {SHARDS_MAX:,} are possible")
    return LaunchJob(
        given,
        place,
        request.spec,
        request.options(),
        shards,
        min(workers or shards, shards),
        os.getcwd(),
        request.cluster,
    )


def _shards_of(place: RunLocation) -> int:
    """How many shards an existing run has; 0 if it does not exist, or has none."""
    started = read_story(place)[0].story.started if place.began else None
    return 0 if started is None else started.shards


def _run_workers(job: LaunchJob) -> int:
    logs = tempfile.mkdtemp(prefix="holdfast-workers-")
    words = [*job.run_words(store=job.place.store), "--shards", str(job.shards), "--this-host"]
    workers = LocalWorkers([sys.executable, "-m", "holdfast", *words], job.workers, logs)
    place, how = job.place, f"{counted(job.workers, 'worker')}, {counted(job.shards, 'shard')}"
    write_message(f"run {place.experiment}/{place.run_id} in {place.folder}: {how}")
    run = RunProgress(place, job.shards, job.spec.mirror.url if job.spec.mirror is not None else "")
    run.look_elsewhere()
    before = run.read(_planned(place), (), time.monotonic())
    try:
        with _forwarding_signals(workers, job.spec.grace_seconds):
            try:
                workers.start()
                last = _watch(job, workers, run, before)
            except BaseException:  # no worker continues to spend money unseen
                workers.stop(signal.SIGTERM)
                raise
        failed = _unexpected_end(workers, last)
        if failed is not None:
            return _explain(failed)
        for end in workers.ends:
            if end.code not in _EXPECTED_CODES:
                write_message(f"worker {end.number} {_describe(end)}, and others did its work; it printed: {end.log}")
        code = _print_end(job, workers, before, last)
    finally:
        if all(each.code in _EXPECTED_CODES for each in workers.ends):
            shutil.rmtree(logs, ignore_errors=True)
    return code


@contextlib.contextmanager
def _forwarding_signals(workers: LocalWorkers, grace_seconds: float) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM on to the workers, which handle them as `run` does."""

    def forward(number: int, frame: FrameType | None) -> None:
        if workers.stopped_by is None:
            grace = f"at most {grace_seconds:g} s for requests in flight; press again to stop now"
            sys.stderr.write(
                f"{signal.Signals(number).name}: stopping {counted(len(workers.pids), 'worker')}, {grace}\n"
            )
        workers.stop(signal.Signals(number))

    earlier = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _watch(job: LaunchJob, workers: LocalWorkers, run: RunProgress, before: Progress) -> Progress:
    """Show the progress of all workers until they have ended. Returns the last progress."""
    planned = 0
    with spinner("waiting for the plan of the first worker"):
        while workers.pids and not planned:
            _report_restarts(workers)
            planned = _planned(job.place)
            time.sleep(_POLL_SECONDS)
    if not planned:
        return before
    display = run_display()
    while True:
        _report_restarts(workers)
        if not workers.pids:
            run.look_elsewhere()  # what workers of other machines have done meanwhile
        progress = run.read(planned, workers.pids, time.monotonic())
        display.show(progress, ended=not workers.pids)
        if not workers.pids:
            return progress
        time.sleep(_POLL_SECONDS)


def _report_restarts(workers: LocalWorkers) -> None:
    for message in workers.poll():
        write_message(message)


def _planned(place: RunLocation) -> int:
    """The number of keys; 0 while the run has not begun."""
    return read_story(place)[0].story.planned if place.began else 0


def _unexpected_end(workers: LocalWorkers, last: Progress) -> WorkerEnd | None:
    """A worker that failed, unless the others have finished the run without it."""
    ends = [each for each in workers.ends if each.code not in _EXPECTED_CODES]
    is_done = last.planned and last.finished + last.failed == last.planned
    if is_done or not ends:
        return None
    # An exit code says more than a kill.
    return max(ends, key=lambda end: end.code)


def _describe(end: WorkerEnd) -> str:
    return f"ended with exit code {end.code}" if end.code >= 0 else f"was killed by signal {-end.code}"


def _explain(end: WorkerEnd) -> int:
    """Show why a worker failed. Returns the exit code of the command."""
    write_message(f"worker {end.number} {_describe(end)}; all it printed is in {end.log}. Its last lines:")
    write_message(f"  {hanging(end.last_lines())}")
    return end.code if end.code >= 0 else _KILLED - end.code


def _print_end(job: LaunchJob, workers: LocalWorkers, before: Progress, last: Progress) -> int:
    """Print the report, or how to continue. Returns the exit code of the whole run."""
    codes = {each.code for each in workers.ends}
    left = last.planned - last.finished - last.failed
    if not last.planned and workers.stopped_by is not None:
        write_message("interrupted before any request was sent; run the same command to start again")
        return 130
    outcome = RunOutcome(
        job.place,
        job.spec,
        last.finished,
        last.failed,
        left,
        # A run may be complete although a signal came: its last worker was about to end.
        interrupted=last.shards_done < last.shards and bool(codes & {6, 130} or (left and workers.stopped_by)),
        complete=bool(last.planned) and before.finished + before.failed == last.planned,
        stopped=("models that cannot be used",) if left and 1 in codes else (),
    )
    if 6 in codes and left:
        with Run(job.place) as run:
            reason = run.status()[1].removeprefix("budget: ")
        outcome = msgspec.structs.replace(outcome, budget=reason or "a limit of the run")
    return print_outcome(outcome)
