"""`show`, `export` and `ls`: status, samples and profile of a run, and the runs of a store or mirror. Only reads."""

import itertools
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.cli.output import (
    end_quietly,
    jobs_line,
    opened,
    print_json,
    print_line,
    print_sentence,
    print_table,
    report_written,
    warn,
)
from holdfast.cli.progress import counting, spinner
from holdfast.cli.streams import JSON_ESCAPES, lacks_characters
from holdfast.cli.targets import run_to_read, run_to_show
from holdfast.errors import DamageWarning, UsageError
from holdfast.journal import blob_size, is_url
from holdfast.report import (
    ExportLine,
    Grid,
    PaidTwice,
    anomaly_lines,
    asked_texts,
    cost_sentences,
    counted,
    dollars,
    duration,
    failure_lines,
    find_format,
    first_line,
    format_number,
    formats_of,
    group_lines,
    human_bytes,
    left_out_lines,
    marked_lines,
    phase_table,
    profile_lines,
    profile_title,
    retry_lines,
    shortened,
    status_text,
    status_tone,
    tokens,
    wrong_lines,
)
from holdfast.report import KeyFilter as WantedKeys
from holdfast.report.story_lines import story_lines
from holdfast.runs import (
    Export,
    MirrorProgress,
    RunFilter,
    RunLocation,
    RunSummary,
    count_shards,
    default_store,
    lines_to_export,
    select_runs,
)
from holdfast.runs import select_lines as _select_lines
from holdfast.spec import nearest
from holdfast.state import standing_of

_COUNTED_MAX = 10_000
"""How many more samples are counted than are listed: a look at the first must not read a long run."""
_ESCAPES = {"": "", "json": JSON_ESCAPES}
_OTHER_FORMATS = frozenset({"xlsx", "xls", "ods", "html", "htm", "md", "tex", "xml", "yaml", "yml", "db", "sqlite"})
"""Suffixes of files that hold something else than what `export` writes."""


def print_run(name: str, store: str | None, as_json: bool, evaluation: str = "") -> None:
    with run_to_show(name, store) as run:
        place, summary = run.place, run.summary(evaluation)
        report = None if as_json else run.report(evaluation)
        again = run.suggest_resume_command(summary.reason)
    if report is None:
        print_json(summary)
        return
    status = status_text(summary.status, summary.failed, summary.planned)
    print_sentence(f"{summary.experiment}/{summary.run_id}  {status}", "bold")
    if summary.reason:
        print_sentence(summary.reason)
    counts = f"{summary.finished} finished, {summary.failed} failed, {summary.unfinished} unfinished"
    print_sentence(f"planned {summary.planned}: {counts}")
    steps = summary.steps
    counts = f"{steps['live']} recorded over all sessions, {steps['replayed']} replayed, {steps['orphaned']} orphaned"
    print_sentence(f"steps: {counts}; {tokens(summary.usage)}")
    saved = summary.cost.saved_dollars
    replayed = [f"replay saved {dollars(saved)}"] if saved else []
    for line in (*cost_sentences(summary.cost), *replayed, *_paid_twice_lines(summary.paid_twice)):
        print_sentence(line)
    print_sentence(f"created {summary.created[:19]}, updated {summary.updated[:19]}, in {summary.folder}")
    if summary.mirror is not None:
        print_sentence(_mirror_line(summary.mirror, summary.status))
    for line in (*_shard_lines(summary), *_lineage(summary), *_in_flight(place), *_score_lines(summary)):
        print_sentence(line)
    cells = report.cells
    damage = [f"anomaly: {each.kind} in segment {each.segment}" for each in summary.anomalies]
    left_out = left_out_lines(cells) if summary.status != "running" else ()  # most samples of a live run are unfinished
    wrong = wrong_lines(cells)
    for line in (*wrong, *left_out, *group_lines(cells), *marked_lines(cells), *anomaly_lines(report, place.command)):
        print_sentence(line, "yellow")
    for line in (*failure_lines(cells), *damage):
        print_sentence(line, "red")
    for line in retry_lines(cells, place.command) if summary.status != "running" else ():
        print_sentence(line)
    if summary.status in {"interrupted", "cancelled", "failed"}:
        print_sentence(f"Continue with: {again}")


def _paid_twice_lines(paid: PaidTwice) -> Iterator[str]:
    if paid.answers:
        amount = "" if paid.dollars is None else f" ({dollars(paid.dollars)})"
        yield f"paid twice: {counted(paid.answers, 'answer')}{amount}"


def _score_lines(summary: RunSummary) -> Iterator[str]:
    for score in summary.scores:
        mean, scale = format_number(score["mean"]), score["scale"]
        notes = [f"of {scale[0]:g} to {scale[1]:g}"] if isinstance(scale, list) and scale != [0, 1] else []
        groups = "" if score["groups"] is None else f" in {counted(score['groups'], 'group')}"
        missing = f", no score {score['no_score']}" if score["no_score"] else ""
        missing += f", scorer failed {score['failures']}" if score["failures"] else ""
        name = f"{score['task']} / {score['model']} / {score['scorer']}"
        notes.append(f"n {score['n']}{groups}{missing}")
        yield f"{name}: {mean} ({', '.join(notes)})"


def _mirror_line(mirror: MirrorProgress, status: str) -> str:
    """How much of the journal is durable in the mirror."""
    lead = f"mirror: {mirror.url}, durable there up to record {mirror.mirrored}"
    left = mirror.acknowledged - mirror.mirrored
    if not left:
        return f"{lead}, which is all"
    if status in {"running", "stalled"}:
        return f"{lead} of {mirror.acknowledged}, {duration(mirror.behind_seconds)} behind"
    return f"{lead} of {mirror.acknowledged}; the next start on the run's machine sends the rest"


def print_profile(name: str, store: str | None, as_json: bool) -> None:
    with run_to_read(name, store) as run, spinner("reading the journal"):
        profile = run.profile()
    if as_json:
        print_json(profile)
        return
    print_sentence(profile_title(profile), "bold")
    print_table(phase_table(profile))
    for line in profile_lines(profile):
        print_sentence(line)


class ListOptions(msgspec.Struct, frozen=True):
    """How to list samples: at most `limit`, with these columns of their rows."""

    limit: int
    columns: tuple[str, ...] = ()
    evaluation: str = ""


def print_chosen(name: str, chosen: WantedKeys, options: ListOptions, store: str | None, as_json: bool) -> None:
    limit = options.limit
    with run_to_read(name, store) as run:
        run.row_columns(options.columns)
        lines = run.lines(options.evaluation, options.columns)
        selected = _select_lines(run, lines, chosen)
        found = list(itertools.islice(selected, limit))
        more = 0 if as_json else sum(1 for _ in itertools.islice(selected, _COUNTED_MAX))
        place = run.place
    if as_json:
        print_json(found)
        return
    for line in found:
        scores = " ".join(f"{scorer}={_value(value)}" for scorer, value in line.scores.items())
        print_sentence(f"{line.key}  {line.status}  {scores}".rstrip(), "bold")
        for label, text in _sample_texts(line):
            print_sentence(f"  {label}: {first_line(text, 200)}")
        for kind, shown in line.anomalies.items():
            print_sentence(f"    {kind}: {first_line(shown, 200)}", "yellow")
        for scorer, reason in line.reasons.items():
            print_sentence(f"    {scorer}: {first_line(reason, 200)}")
    if not found:
        print_sentence("No sample matches.")
    elif more:
        total = f"{limit:,} of {limit + more:,}{' or more' if more == _COUNTED_MAX else ''} are listed"
        again = f"to list up to {10 * limit}, add --limit {10 * limit}"
        print_sentence(f"{total}; {again}. The history of one: {place.command('show', found[0].key)}")


def _sample_texts(line: ExportLine) -> Iterator[tuple[str, str]]:
    """What was asked and what came of it, each with a label. What is not recorded is left out."""
    yield from asked_texts(line)
    if line.error is not None:
        yield "error", f"{line.error.kind}: {line.error.message}"
    elif line.output is not None:
        yield "answer", line.output


def _in_flight(place: RunLocation) -> Iterator[str]:
    """What the oldest samples of a live run are doing; of a stalled run, also where their code waits."""
    standing = standing_of(place.folder)
    if not standing.held or standing.lease is None:
        return
    stalled = standing.lease.stall.samples if standing.lease.stall else []
    for each in stalled or standing.lease.oldest:
        late = ", overdue" if each.overdue else ""
        yield f"in flight: {each.key or 'the event loop'}: {each.doing} for {duration(standing.now - each.since)}{late}"
        yield from (f"    {frame}" for frame in each.stack)


def _shard_lines(summary: RunSummary) -> Iterator[str]:
    """How many shards are in which state, and a line for each that is not complete."""
    if not summary.shards:
        return
    yield f"shards: {count_shards(summary.shards)}"
    for each in summary.shards:
        if each.status in ("completed", "not begun"):
            continue
        worker = f", {each.worker}" if each.worker else ""
        why = f"; {each.reason}" if each.reason else ""
        yield f"  {each.shard}  {each.status}  {each.finished} of {each.planned} finished{worker}{why}"


def _lineage(summary: RunSummary) -> Iterator[str]:
    """The run's batch jobs, tags, parent, changes, notes, and evaluations if there are several."""
    if summary.jobs:
        yield jobs_line(summary.jobs)
    if summary.tags:
        yield f"tags: {', '.join(summary.tags)}"
    if summary.parent:
        taken = counted(summary.steps["taken_over"], "step")
        yield f"forked from {summary.parent['experiment']}/{summary.parent['run_id']}, {taken} reused"
    lineage = [(each["at"], "tuned" if each["live"] else "resumed", each["changes"]) for each in summary.resumes]
    lineage += [(each["at"], f"extended by {each['planned']}", each["changes"]) for each in summary.extensions]
    lineage += [(each["at"], f"corrected {each['planned']}", each["changes"]) for each in summary.corrections]
    for at, what, changes in sorted(lineage, key=lambda change: change[0]):
        changed = "; ".join(f"{each['field']}: {_value(each['old'])} -> {_value(each['new'])}" for each in changes)
        yield f"{what} {at[:19]}  {changed}".rstrip()
    for note in summary.notes:
        yield f"note {note['at'][:19]}  {note['text']}"
    for each, called in summary.evaluation_names.items() if len(summary.evaluations) > 1 else ():
        part = "  (partial)" if each in summary.partial_evaluations else ""
        yield f"evaluation {each}  {called}{part}"  # `show` prints the scores of the last whole one that was used


def _value(value: Any) -> str:
    """A score for people. A scorer that failed gave none (`report.lines`)."""
    if isinstance(value, dict) and "failure" in value:
        return f"failed ({shortened(first_line(value['failure']['message']), 60)})"
    return shortened(repr(value), 60)


def print_key(name: str, key: str, store: str | None, as_json: bool, full: bool, evaluation: str = "") -> None:
    """Print the history of one key, also while it is in progress."""
    with run_to_read(name, store) as run:
        story, size_of = run.show(key, evaluation), partial(blob_size, run.place.folder)
    if as_json:
        print_json(story)
        return
    with end_quietly():
        for line, style in story_lines(story, size_of, full=full):
            print_line(line, style)


class ExportOptions(msgspec.Struct, frozen=True):
    """How to write an export. `events`: also the steps of each key."""

    format: str
    output: str | None
    events: bool
    evaluation: str = ""
    columns: tuple[str, ...] = ()
    """Columns of the data rows; see `parse_columns`."""


def export_run(name: str, options: ExportOptions, store: str | None, chosen: WantedKeys) -> None:
    output, suffix = options.output, os.path.splitext(options.output or "")[1].removeprefix(".")
    if suffix in _OTHER_FORMATS and not options.format:
        known = ", ".join(formats_of("export"))
        raise UsageError(f"{output}: export does not write .{suffix} files; choose the format with --format: {known}")
    format = options.format or (suffix if suffix in formats_of("export") else "jsonl")
    found = find_format("export", format)
    if found is None:
        raise UsageError(f"--format {format}: there is no such export{nearest(format, set(formats_of('export')))}")
    if options.events and not found.has_events:
        raise UsageError(f"--format {format} cannot hold events; leave out --events, or use --format jsonl")
    if not found.is_text and output is None:
        raise UsageError(f"--format {format} is not text: name a file with --output")
    with run_to_read(name, store) as run:
        wanted = Export(output or "", format, options.events, options.evaluation, chosen, options.columns)
        total = run.planned_count()
        lines, source = lines_to_export(
            run, wanted, lambda every: every if output is None else counting(every, "exporting", total)
        )
        if not found.is_text and output is not None:
            found.load()(lines, output, source)
            report_written(output)
            return
        if format == "csv" and output is None and lacks_characters():
            warn("CSV has no escapes: characters that this encoding lacks become \\uXXXX; --output FILE writes UTF-8")
        with end_quietly(), opened(output, _ESCAPES[found.escapes]) as out:
            found.load()(lines, out, source)


_STYLES = {
    "completed": "green",
    "interrupted": "yellow",
    "stalled": "yellow",
    "cancelled": "yellow",
    "failed": "red",
    "unreadable": "red",
}


def print_runs(store: str | None, chosen: RunFilter, as_json: bool) -> None:
    """List the runs of a folder or of a mirror."""
    where = store or default_store()
    if is_url(where):
        _print_mirror(where, chosen, as_json)
        return
    selected = select_runs(where, chosen)
    found = selected.runs
    for run in found:
        for sentence in run.damage:
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
    elif not found:
        _explain_none(where, selected.total)
    else:
        columns = ("run", "experiment", "status", "done", "failed", "size", "created", "tags")
        rows = []
        for run in found:
            status = status_text(run.status, run.failed, run.planned) + (", damaged" if run.damage else "")
            counts = f"{run.finished}/{run.planned}", str(run.failed or ""), human_bytes(run.bytes)
            created = run.created[:16].replace("T", " ")
            rows.append((run.run_id, run.experiment, status, *counts, created, " ".join(run.tags)))
        print_table(_grid(columns, rows, found, right=("done", "failed", "size"), whole=("run",)))


def _print_mirror(url: str, chosen: RunFilter, as_json: bool) -> None:
    with spinner("listing the mirror"):
        selected = select_runs(url, chosen)
    found, inexact = selected.runs, selected.inexact
    if as_json:
        print_json(found)
        return
    if not found:
        _explain_none(url, selected.total)
        return
    columns = ("run", "experiment", "status", "done", "failed", "last heartbeat", "url")
    rows = []
    for run in found:
        done, failed, heartbeat = "?", "?", "never"
        if run.updated:
            done = f"{run.finished}{'*' if run.folder in inexact else ''}/{run.planned}"
            failed = str(run.failed or "")
            age = time.time() - datetime.fromisoformat(run.updated).timestamp()
            heartbeat = f"{duration(max(age, 0.0))} ago"
        status = status_text(run.status, run.failed, run.planned)
        rows.append((run.run_id, run.experiment, status, done, failed, heartbeat, run.folder))
    print_table(_grid(columns, rows, found, right=("done", "failed"), whole=("run", "url")))
    if any(run.folder in inexact for run in found):
        print_line("*: at least; not all records could be read, so the counts are those of the last heartbeat")


def _explain_none(where: str, others: int) -> None:
    there = f"No such run; the store has {counted(others, 'other')}: holdfast ls"
    is_there = is_url(where) or os.path.isdir(where)
    none = f"No runs in {where}" if is_there else f"There is no folder {where}, so no runs"
    print_line(there if others else f"{none}. Start one with: holdfast run SPEC")


def _grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    runs: Sequence[RunSummary],
    right: Iterable[str],
    whole: Iterable[str],
) -> Grid:
    """A table with coloured statuses: red for failed or damaged, yellow for incomplete, green for completed."""
    tones = [status_tone(run.status, run.failed, run.planned) for run in runs]
    styles = {
        (number, "status"): "red" if run.damage else _STYLES.get(tone, "")
        for number, (run, tone) in enumerate(zip(runs, tones, strict=True))
    }
    return Grid(columns, rows, right=right, whole=whole, styles=styles)
