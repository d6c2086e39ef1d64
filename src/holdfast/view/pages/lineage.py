"""The lineage of a run: its processes with kills and resumes, what each changed, and what was not paid for again."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from itertools import islice

import msgspec

from holdfast.journal import Cursor, Damage, Reader
from holdfast.records import Change, FactDecoder, Line, Spent
from holdfast.report import (
    LifeReport,
    LineageReport,
    SavedWork,
    changed_fields,
    dollars,
    duration,
    lineage_sentences,
    tokens,
)
from holdfast.runs import read_session
from holdfast.state import Life
from holdfast.view.charts import Span, figure, life_chart
from holdfast.view.layout import badge, table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.sources import Durability, NotFoundError, RunRef, RunStatus, Sources, ViewedRun
from holdfast.view.travel import Stop, format_cursor, parse_cursor, ref_of, timeline_stops, travel_form

_SAMPLES = 50
_SCANNED_MAX = 50_000
"""Records that are read for one page of samples."""
_TEXT_MAX = 300
_DIGITS_MAX = 15
_TONES = frozenset({"scored", "killed", "running", "failed", "interrupted", "cancelled"})
_KILLED = ("killed", "taken over")


class _Ended(msgspec.Struct, frozen=True):
    o: int
    attempt: int
    spent: Spent = Spent()
    final: bool = True


_ended = FactDecoder(_Ended)


class LifeSample(msgspec.Struct, frozen=True):
    """A sample that ended in a life. `n`: of its record; in a sharded run, in the journal of its shard."""

    key: str
    status: str
    at: str
    n: int
    attempt: int
    seconds: float
    replayed: int
    """Steps that it replayed."""


class LifeSamples(msgspec.Struct, frozen=True):
    """Samples that one process ended, in the order of time."""

    life: int
    samples: list[LifeSample]
    next: str | None
    """For `after`; None at the end."""


class LineageView(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    ref: RunRef
    lineage: LineageReport
    forks: list[RunRef]
    """Runs that were forked from this one, as far as they are in the open stores."""
    parent: RunRef | None
    """The run that this one was forked from, if it is in an open store."""
    stops: list[Stop]
    durability: Durability
    live: bool
    chosen: LifeSamples | None = None
    status: RunStatus = RunStatus()


def load(request: PageRequest) -> LineageView:
    ref = ref_of(request)
    life = request.number("life")
    with request.sources.open(ref) as run:
        report, uid, last = run.lineage(), run.uid, run.index.last_n
        stops = timeline_stops(run.index.lives, last)
        chosen = None if life is None else _samples(run, life, request.query.get("after", ""))
        live, durability, status = run.is_live, run.durability(), run.shown_status()
    forks, parent = _relatives(request.sources, ref, uid, report)
    forks = forks if ref.at is None else []  # those of a past state are not known
    return LineageView(ref, report, forks, parent, stops, durability, live, chosen, status)


def _relatives(sources: Sources, ref: RunRef, uid: str, report: LineageReport) -> tuple[list[RunRef], RunRef | None]:
    forks, parent, above = [], None, report.parent
    for found, of in sources.list_parents():
        if of is not None and of.get("uid") == uid and found != ref:
            forks.append(found)
        is_named = above is not None and (found.experiment, found.run_id) == (above["experiment"], above["run_id"])
        if is_named and above is not None and found.uid in ("", above.get("uid", "")):
            parent = found
    return forks, parent


def _samples(run: ViewedRun, number: int, after: str) -> LifeSamples:
    """One page of the samples that a process ended, read from the journal from its first record on."""
    if run.place.root:
        return _samples_of_shard(run, number, after)
    lives = run.index.lives
    if not 1 <= number <= len(lives):
        raise NotFoundError(f"life: there is no process {number}; the run has {len(lives)}")
    life: Life = lives[number - 1]
    last_n = life.last_n or run.index.last_n
    given = parse_cursor(after) if after else None
    cursor = given if given is not None and given.n >= life.begun.n else life.begun
    found: list[LifeSample] = []
    behind, scanned = cursor, 0
    with closing(Reader(run.place.journal, cursor=cursor)) as reader:
        for each in reader.read(live=True):
            if isinstance(each, Damage) or each.is_copy or each.line.n < life.n:
                continue
            if each.line.n > last_n:
                return LifeSamples(number, found, None)
            if len(found) == _SAMPLES or scanned == _SCANNED_MAX:
                return LifeSamples(number, found, format_cursor(behind))
            scanned, behind = scanned + 1, Cursor(each.segment, each.end, each.line.n, each.line.x)
            if each.line.t in ("sample.finished", "sample.failed"):
                found.append(_sample(each.line))
    return LifeSamples(number, found, None)


def _samples_of_shard(run: ViewedRun, number: int, after: str) -> LifeSamples:
    """As above, for a process that worked on a shard. `after`: how many samples the pages before have."""
    lives = run.lineage().lives
    if not 1 <= number <= len(lives):
        raise NotFoundError(f"life: there is no process {number}; the run has {len(lives)}")
    shard = lives[number - 1].shard
    session = sum(each.shard == shard for each in lives[: number - 1])
    first = int(after) if after.isascii() and after.isdigit() and len(after) < _DIGITS_MAX else 0
    ended = islice(read_session(run.place, shard, session), first, first + _SAMPLES + 1)
    found = [_sample(line) for line in ended]
    return LifeSamples(number, found[:_SAMPLES], str(first + _SAMPLES) if len(found) > _SAMPLES else None)


def _sample(line: Line) -> LifeSample:
    ended = _ended.decode(line)
    status = "finished" if line.t == "sample.finished" else "failed"
    return LifeSample(str(line.k), status, line.at, line.n, ended.attempt, ended.spent.seconds, ended.spent.replayed)


def render(found: LineageView, links: Links) -> Body:
    report = found.lineage
    parts: list[Child] = [
        h("h1", "Lineage"),
        h("section", list(_summary(found, links)), id="lives", data_live=True),
        travel_form(found.ref, found.stops, links, "lineage"),
        _chosen(found, links),
        _events(report),
    ]
    return Body(
        f"Lineage {report.run_id}",
        join(parts),
        found.ref,
        "lineage",
        found.status,
        found.durability,
        is_live=found.live and found.ref.at is None,
    )


def _summary(found: LineageView, links: Links) -> Iterator[Child]:
    report = found.lineage
    for sentence in lineage_sentences(report):
        yield h("p", f"{sentence[:1].upper()}{sentence[1:]}.", class_="sentence")
    if report.parent is not None:
        name = f"{report.parent['experiment']}/{report.parent['run_id']}"
        shown: Child = h("a", name, href=links.run(found.parent)) if found.parent is not None else name
        yield h("p", "Forked from ", shown, f", with {report.taken_steps:,} steps copied.")
    if found.forks:
        items = [h("a", f"{ref.experiment} / {ref.run_id}", href=links.run(ref)) for ref in found.forks]
        yield h("p", "Forks of this run: ", [[", " if number else "", each] for number, each in enumerate(items)])
    yield figure(
        life_chart(_spans(report.lives)),
        "When each process worked on the run. A cross is a process that was killed or taken over.",
    )
    yield _table(found, links)


def _spans(lives: Sequence[LifeReport]) -> list[Span]:
    if not lives:
        return []
    start = _time(lives[0].at)
    found = []
    for life in lives:
        began, ended = _time(life.at) - start, _time(life.ended_at) - start
        is_killed = life.ended in _KILLED
        tone = "scored" if life.began == "scored" else "killed" if is_killed else life.ended
        tone = tone if tone in _TONES else "ended"
        hint = f"process {life.number}, {life.began}: {life.ended or 'no end recorded'}, {duration(ended - began)}"
        name = f"{life.number} {life.began}" + (f" {life.shard}" if life.shard else "")
        found.append(Span(name, began, max(ended, began), tone, hint, is_killed))
    return found


def _time(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() if at else 0.0


def _table(found: LineageView, links: Links) -> Markup:
    columns = [
        "process",
        "began",
        "ended",
        "samples finished",
        "steps recorded",
        "paid",
        "kept from before",
        "replayed",
        "changed",
    ]
    rows = [_row(life, found.ref, links) for life in found.lineage.lives]
    return table(columns, rows, numbers=frozenset({"samples finished", "steps recorded", "paid"}))


def _row(life: LifeReport, ref: RunRef, links: Links) -> Markup:
    at_start = msgspec.structs.replace(ref, at=life.first_n)
    at_end = msgspec.structs.replace(ref, at=life.last_n)
    samples = links.run(ref, "lineage", life=str(life.number)) + "#samples"
    is_listed = life.began != "scored" and (life.first_n or (life.shard and ref.at is None))
    where = [
        f"shard {life.shard}" if life.shard else "",
        life.host,
        f"pid {life.pid}" if life.pid else "",
        f"holdfast {life.version}" if life.version else "",
        f"epoch {life.epoch}" if life.epoch else "",
    ]
    began = [
        h("div", life.began, " ", h("time", _clock(life.at), datetime=life.at, class_="quiet")),
        h("div", h("a", f"record {life.first_n:,}", href=links.run(at_start)), class_="quiet")
        if life.first_n
        else None,
        h("div", f"{duration(life.idle_seconds)} later", class_="quiet") if life.idle_seconds else None,
    ]
    ended = [
        h("div", badge(life.ended, life.reason) if life.ended else "", " ", _clock_of(life)),
        h("div", h("a", f"record {life.last_n:,}", href=links.run(at_end)), class_="quiet") if life.last_n else None,
        h("div", life.reason, class_="quiet text") if life.reason else None,
    ]
    finished = [
        h("a", f"{life.finished:,}", href=samples) if is_listed else f"{life.finished:,}",
        h("div", f"{life.finished_in_all:,} in {'the shard' if life.shard else 'all'}", class_="quiet"),
        h("div", f"{life.failed_in_all:,} failed", class_="quiet") if life.failed_in_all else None,
    ]
    orphaned = h("div", f"{life.orphaned:,} orphaned", class_="quiet") if life.orphaned else None
    return h(
        "tr",
        h("td", h("strong", str(life.number)), [h("div", each, class_="quiet tight") for each in where]),
        h("td", began),
        h("td", ended),
        h("td", finished, class_="number"),
        h("td", f"{life.steps:,}", orphaned, class_="number"),
        h(
            "td",
            dollars(life.dollars) if life.dollars is not None and life.usage.requests else "",
            h("div", tokens(life.usage), class_="quiet") if not life.shard else None,
            class_="number",
        ),
        h("td", _kept(life)),
        h("td", _saved(life.replayed, life.replayed_steps, "step")),
        h("td", _changes(life)),
    )


def _clock(at: str) -> str:
    return at[:19].replace("T", " ")


def _clock_of(life: LifeReport) -> Markup:
    return h("time", _clock(life.ended_at), datetime=life.ended_at, class_="quiet")


def _kept(life: LifeReport) -> list[Child]:
    """What this process found recorded and did not have to ask for again."""
    if not life.kept.responses and not life.kept_finished:
        return []
    money = f", {dollars(life.kept.dollars)}" if life.kept.dollars else ""
    seconds = f", {duration(life.kept_seconds)} of requests" if not life.shard else ""
    return [
        h("div", f"{life.kept_finished:,} samples{money}"),
        h("div", f"{life.kept.responses:,} responses{seconds}", class_="quiet"),
    ]


def _saved(work: SavedWork, steps: int, noun: str) -> list[Child]:
    if not steps:
        return []
    money = dollars(work.dollars) if work.dollars else ""
    several = f"{steps:,} {noun}{'' if steps == 1 else 's'}"
    return [h("div", ", ".join(filter(None, (several, money)))), h("div", tokens(work.usage), class_="quiet")]


def _changes(life: LifeReport) -> list[Child]:
    if not life.changes:
        return [h("span", "nothing" if life.number > 1 else "", class_="quiet")]
    only = "only speed or place" if life.is_throughput_only else "more than speed"
    return [h("div", only, class_="quiet"), h("ul", [change_item(each) for each in life.changes], class_="changes")]


def change_item(change: Change) -> Markup:
    """One field with both values, and the class of the change."""
    (field, old, new, kind) = changed_fields([change])[0]
    return h(
        "li",
        h("code", field),
        ": ",
        h("del", _bounded(old)),
        " → ",
        h("ins", _bounded(new)),
        " ",
        h("span", kind, class_="tag"),
    )


def _bounded(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _chosen(found: LineageView, links: Links) -> Markup | None:
    chosen = found.chosen
    if chosen is None:
        return None
    rows = [
        h(
            "tr",
            h("td", badge(each.status)),
            h("td", h("a", each.key, href=links.sample(found.ref, each.key))),
            h("td", f"{each.n:,}", class_="number"),
            h("td", h("time", _clock(each.at), datetime=each.at)),
            h("td", str(each.attempt), class_="number"),
            h("td", duration(each.seconds), class_="number"),
            h("td", f"{each.replayed:,}" if each.replayed else "", class_="number"),
        )
        for each in chosen.samples
    ]
    columns = ["status", "sample", "record", "at", "attempt", "seconds", "replayed steps"]
    more = None
    if chosen.next is not None:
        address = links.run(found.ref, "lineage", life=str(chosen.life), after=chosen.next) + "#samples"
        more = h("nav", h("a", "next →", href=address, rel="next"), class_="pager")
    numbers = frozenset({"record", "attempt", "seconds", "replayed steps"})
    return h(
        "section",
        h("h2", f"Samples that process {chosen.life} ended"),
        table(columns, rows, numbers=numbers, class_="rows") if rows else h("p", "None on this page."),
        more,
        id="samples",
    )


def _events(report: LineageReport) -> Markup | None:
    """Limits that were changed while a process was running, and notes of people."""
    rows = [
        h(
            "li",
            h("time", _clock(each.at), datetime=each.at),
            " limits changed: ",
            [change_item(c) for c in each.changes],
        )
        for each in report.tuned
    ]
    rows += [h("li", h("time", _clock(each["at"])), f" note: {each['text']}") for each in report.notes]
    return h("section", h("h2", "Notes and tuning"), h("ul", rows)) if rows else None
