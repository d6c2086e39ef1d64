"""`ls`, `show`, `report`, `verify` and `export`: commands that only read."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

import msgspec
from rich.table import Table

from holdfast.api import Run, RunPlace, RunSummary, default_store, find_run, list_runs
from holdfast.api.resuming import read_fold, stored_spec
from holdfast.cli.output import end_quietly, print_json, print_table, resume_command, say
from holdfast.errors import JournalError, UsageError
from holdfast.journal import OS_DISK, verify
from holdfast.journal.chain import is_whole_file
from holdfast.plan import blob_size, check_blobs, digest_file, originals
from holdfast.records.facts import SampleFailed, SampleFinished, Step
from holdfast.records.references import with_strings
from holdfast.report import PlannedKey, write_csv, write_jsonl
from holdfast.report.choosing import Wanted as WantedKeys
from holdfast.report.choosing import choose
from holdfast.report.tables import again_line, duration, failure_lines, report_table, tokens
from holdfast.report.wording import counted, first_line, human_bytes, own_words, shortened, told_content
from holdfast.state import Fold, standing_of

SizeOf = Callable[[str], int | None]
_FORMATS = ("jsonl", "csv")


class Wanted(msgspec.Struct, frozen=True):
    """Which runs to list."""

    experiment: str | None
    status: str | None
    tag: str | None
    limit: int


def print_runs(store: str | None, wanted: Wanted, as_json: bool) -> None:
    found = [
        run
        for run in list_runs(store or default_store())
        if wanted.experiment in (None, run.experiment)
        and wanted.status in (None, run.status)
        and (wanted.tag is None or wanted.tag in run.tags)
    ][-wanted.limit :]
    if as_json:
        print_json(found)
        return
    if not found:
        say("No runs. Start one with: holdfast run SPEC")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "experiment", "status", "finished", "failed", "size", "created", "tags"):
        table.add_column(name, justify="right" if name in {"finished", "failed", "size"} else "left")
    for run in found:
        done = f"{run.finished}/{run.planned}"
        failed, size, tags = str(run.failed or "·"), human_bytes(run.bytes), " ".join(run.tags)
        table.add_row(run.run_id, run.experiment, run.status, done, failed, size, run.created[:19], tags)
    print_table(table)


def print_run(name: str, store: str | None, as_json: bool) -> None:
    with Run.find(store or default_store(), name) as run:
        place, summary = run.place, run.summary()
        failures = [] if as_json else list(failure_lines(run.cells()))
    if as_json:
        print_json(summary)
        return
    say(f"{summary.experiment}/{summary.run_id}  {summary.status}", "bold")
    if summary.reason:
        say(summary.reason)
    counts = f"{summary.finished} finished, {summary.failed} failed, {summary.unfinished} unfinished"
    say(f"planned {summary.planned}: {counts}")
    steps = summary.steps
    asked = f"{steps['live']} asked, {steps['replayed']} replayed, {steps['orphaned']} orphaned"
    say(f"steps: {asked}; {tokens(summary.usage)}")
    say(f"created {summary.created[:19]}, updated {summary.updated[:19]}, in {summary.folder}")
    for line in _lineage(summary):
        say(line)
    for line in _in_flight(place):
        say(line)
    for score in summary.scores:
        say(_score_line(score))
    for failure in failures:
        say(failure, "red")
    for anomaly in summary.anomalies:
        say(f"anomaly: {anomaly.kind} in segment {anomaly.segment}", "red")
    if summary.failed and summary.status != "running":
        say(again_line(summary.failed, resume_command(place)))
    if summary.status in {"interrupted", "cancelled", "failed"}:
        say(f"Go on with: {resume_command(place)}")


def print_chosen(name: str, wanted: WantedKeys, limit: int, store: str | None, as_json: bool) -> None:
    with Run.find(store or default_store(), name) as run:
        try:
            found = list(itertools.islice(choose(run.lines(), wanted), limit + 1))
        except ValueError as error:
            raise UsageError(f"--grep: {error}") from error
    more = len(found) > limit
    if as_json:
        print_json(found[:limit])
        return
    for line in found[:limit]:
        told = f"{line.error['kind']}: {line.error['message']}" if line.error else line.output or ""
        scores = " ".join(f"{scorer}={_value(value)}" for scorer, value in line.scores.items())
        say(f"{line.key}  {line.status}  {scores}".rstrip(), "bold")
        say(f"  {first_line(told, 200)}")
    if not found:
        say("No such sample.")
    elif more:
        say(f"… and more; see them with --limit. The story of one: holdfast show {name} {found[0].key}")


def _in_flight(place: RunPlace) -> Iterator[str]:
    """Of a live run: what its oldest samples are doing; of one that has stalled, where their code is."""
    standing = standing_of(place.folder)
    if not standing.held or standing.lease is None:
        return
    stalled = standing.lease.stall.samples if standing.lease.stall else []
    for each in stalled or standing.lease.oldest:
        late = ", overdue" if each.overdue else ""
        yield f"in flight: {each.key or 'the loop'}: {each.doing} for {duration(standing.now - each.since)}{late}"
        yield from (f"    {frame}" for frame in each.stack)


def _score_line(score: dict[str, Any]) -> str:
    mean = "-" if score["mean"] is None else f"{score['mean']:.4f}"
    missing = f", no score {score['no_score']}" if score["no_score"] else ""
    missing += f", scorer failed {score['failures']}" if score["failures"] else ""
    return f"{score['task']} / {score['model']} / {score['scorer']}: {mean} (n {score['n']}{missing})"


def _lineage(summary: RunSummary) -> Iterator[str]:
    """Where the run comes from, and every change since."""
    if summary.tags:
        yield f"tags: {', '.join(summary.tags)}"
    if summary.parent:
        taken = counted(summary.steps["taken_over"], "step")
        yield f"forked from {summary.parent['experiment']}/{summary.parent['run_id']}, {taken} taken over"
    lineage = [(each["at"], "tuned" if each["live"] else "resumed", each["changes"]) for each in summary.resumes]
    lineage += [(each["at"], f"extended by {each['planned']}", each["changes"]) for each in summary.extensions]
    for at, what, changes in sorted(lineage, key=lambda each: each[0]):
        changed = "; ".join(f"{each['field']}: {_value(each['old'])} -> {_value(each['new'])}" for each in changes)
        yield f"{what} {at[:19]}  {changed}"
    for note in summary.notes:
        yield f"note {note['at'][:19]}  {note['text']}"


def _value(value: Any) -> str:
    return shortened(repr(value), 60)


def print_key(name: str, key: str, store: str | None, as_json: bool) -> None:
    with Run.find(store or default_store(), name) as run:
        story, size_of = run.story_of(key), partial(blob_size, run.place.folder)
        if not story:
            _print_planned(run.planned(key), as_json, size_of)
            return
    if as_json:
        print_json([{"type": kind, "at": at, "data": msgspec.to_builtins(data)} for kind, at, data in story])
        return
    for kind, at, data in story:
        say(f"{at[:19]}  {kind}", "bold")
        for line in _told(data, size_of):
            say(f"  {line}")


def _print_planned(planned: PlannedKey, as_json: bool, size_of: SizeOf) -> None:
    """A key without a record. As JSON it has the shape of a story, so that scripts need no second one."""
    if as_json:
        data = {"o": planned.o, "status": "unfinished", "row": planned.row}
        print_json([{"type": "planned", "at": "", "data": data}])
        return
    say(f"{planned.key}  unfinished", "bold")
    say(f"  planned with the ordinal {planned.o}; nothing of it is recorded yet")
    told = with_strings(planned.row, lambda text, _: told_content(text, size_of))
    row = "is not recorded" if planned.row is None else msgspec.json.encode(told).decode()
    say(f"  row: {row}")


def print_report(name: str, store: str | None, as_json: bool) -> None:
    with Run.find(store or default_store(), name) as run:
        place, report = run.place, run.report()
    if as_json:
        print_json(report)
    else:
        print_table(report_table(report, resume_command(place)))


def verify_run(name: str, store: str | None, as_json: bool) -> int:
    place = find_run(store or default_store(), name)
    found = verify(place.journal)
    errors = [*found.errors, *_check_files(place)]
    if as_json:
        print_json({**msgspec.to_builtins(found), "errors": errors, "ok": not errors})
    else:
        for warning in found.warnings:
            say(f"warning: {warning}")
        for error in errors:
            say(f"error: {error}", style="red")
        if found.keys:
            say(f"keys affected: {', '.join(found.keys[:20])}")
        verdict = (
            "is whole" if not errors else "is damaged; what can be read is kept, a resume makes the lost answers again"
        )
        size = f"{counted(found.records, 'record')} in {counted(found.segments, 'segment')}"
        say(f"{place.run_id}: {size}, {verdict}.")
    return 5 if errors else 0


def export_run(name: str, format: str, output: str | None, store: str | None) -> None:
    if format not in _FORMATS:
        raise UsageError(f"--format {format}: there are {', '.join(_FORMATS)}")
    with Run.find(store or default_store(), name) as run, end_quietly(), _opened(output) as out:
        if format == "csv":
            write_csv(run.lines(), out, run.scorers())
        else:
            write_jsonl(run.lines(), out)


@contextlib.contextmanager
def _opened(output: str | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        file = open(output, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below; only opening may be refused
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error.strerror}") from error
    with file:
        yield file


def _check_files(place: RunPlace) -> Iterator[str]:
    fold = read_fold(place)
    yield from _check_blobs(place, fold)
    for path, stored in originals(place.folder, fold.story.blocks):
        try:
            if digest_file(path) != stored:
                yield f"{path}: its content is not what the run began with"
            elif not is_whole_file(OS_DISK, path):
                yield f"{path}: the file has changed since it was written; its content can still be read"
        except JournalError as error:
            yield str(error)
        except OSError as error:
            yield f"{path}: {error.strerror}; restore it from a copy of the run"


def _check_blobs(place: RunPlace, fold: Fold) -> Iterator[str]:
    """Rows that cannot be read are told of with their file."""
    if fold.story.started is None:
        return
    with contextlib.suppress(JournalError, OSError):
        yield from check_blobs(place.folder, stored_spec(fold), fold.story.cells, fold.story.inputs)


def _told(data: Step | SampleFinished | SampleFailed | dict[str, Any], size_of: SizeOf) -> Iterator[str]:
    if isinstance(data, Step):
        yield from _told_step(data, size_of)
    elif isinstance(data, SampleFinished):
        yield f"attempt {data.attempt}: {data.answer.text}"
        yield f"{data.spent.live} asked, {data.spent.replayed} replayed, {duration(data.spent.seconds)}"
    elif isinstance(data, SampleFailed):
        yield f"attempt {data.attempt}: {data.failure.kind}: {data.failure.message}"
        yield from data.failure.detail.splitlines()
    elif "scorer" in data:
        failure = data.get("failure")
        if failure:
            message = own_words(data["scorer"], failure["message"])
            yield f"{data['scorer']} failed: {failure['kind']}: {message}"
            yield from failure.get("detail", "").splitlines()
        else:
            yield f"{data['scorer']}: {data.get('value')!r} {data.get('reason', '')}"
    else:
        yield msgspec.json.encode(data).decode()


def _told_step(step: Step, size_of: SizeOf) -> Iterator[str]:
    if step.asked is not None:
        if step.asked.keep:
            yield f"… {counted(step.asked.keep, 'message')} of record {step.asked.after}"
        for message in step.asked.new:
            yield f"[{message.get('role')}] {told_content(message.get('content'), size_of)}"
    if step.cancelled:
        yield "cancelled by the solver"
    elif step.failure is not None:
        yield f"{step.failure.kind}: {step.failure.message} (asked {counted(step.tries, 'time')})"
    elif step.answer is not None:
        yield f"[answer] {step.answer.text}"
        yield from map(_told_call, step.answer.tool_calls)
        yield f"{tokens(step.answer.usage)}, {duration(step.seconds)}, asked {counted(step.tries, 'time')}"


def _told_call(call: dict[str, Any]) -> str:
    function = call.get("function")
    if not isinstance(function, dict):
        return f"[tool call] {msgspec.json.encode(call).decode()}"
    return f"[tool call] {function.get('name')}({function.get('arguments')})"
