"""The lives of a run: each process that worked on it, from the record that began it to its last.

Owns `Life`. A life keeps the totals of the run at its beginning, so what it did is a difference of two totals, and
counting costs nothing while records are read. Its size grows with the number of processes and models, never with the
number of samples. It is derived from the journal: a crash loses nothing.
"""

import msgspec

from holdfast.journal import START, Cursor, Entry
from holdfast.records import Bill, Change, RunExtended, RunResumed, RunStarted, cell_names
from holdfast.state.profile import Profile
from holdfast.state.story import BEGINNINGS, ENDS, Story

SCORING = "score.started"
LIFE_RECORDS = BEGINNINGS | ENDS | {SCORING, "segment"}
"""Records that begin or end a life."""


class RunTotals(msgspec.Struct, frozen=True):
    """The totals of a run after a record."""

    finished: int = 0
    failed: int = 0
    steps: int = 0
    taken: int = 0
    """Steps that a fork copied from its parent."""
    replayed: int = 0
    orphaned: int = 0
    sent_seconds: float = 0.0
    """Time in flight, summed over all requests."""
    bills: dict[str, dict[str, Bill]] = msgspec.field(default_factory=dict)
    """By model and role, over all tasks. The evaluated model has the empty role."""


class Life(msgspec.Struct):
    """One process."""

    kind: str
    """How it began: the type of its first record, or `score.started` for a process that only scored."""
    n: int
    """The record that began it."""
    begun: Cursor
    """Behind that record; the start of the journal if it was lost and only its copy is left."""
    at: str
    epoch: int
    before: RunTotals
    host: str = ""
    pid: int = 0
    version: str = ""
    changes: tuple[Change, ...] = ()
    last_n: int = 0
    """Its last record; 0 while that is not known, because nothing came after it."""
    last_at: str = ""
    end: str = ""
    """The type of the record of its end; empty if it recorded none: killed, or still running."""
    reason: str = ""


def totals_of(story: Story, profile: Profile, finished: int, failed: int) -> RunTotals:
    bills: dict[str, dict[str, Bill]] = {}
    for cell, roles in story.bills.items():
        of_model = bills.setdefault(cell_names(cell)[1], {})
        for role, bill in roles.items():
            into = of_model.setdefault(role, Bill())
            into.requests += bill.requests
            for name in ("usage", "taken", "saved", "orphaned"):
                setattr(into, name, getattr(into, name) + getattr(bill, name))
    times = (*profile.models.values(), *profile.roles.values())
    return RunTotals(
        finished,
        failed,
        story.steps,
        story.taken,
        story.replayed,
        story.orphaned,
        round(sum(each.sent_seconds for each in times), 3),
        bills,
    )


def begins_life(lives: list[Life], epoch: int, kind: str) -> bool:
    """Whether a record of this kind begins a life. A process that only scores has no other beginning."""
    if kind != SCORING:
        return kind in BEGINNINGS
    return not lives or lives[-1].epoch != epoch or bool(lives[-1].end)


def note_life(lives: list[Life], story: Story, entry: Entry, epoch: int, before: RunTotals | None) -> None:
    """Update from a record that the story has seen. `epoch`: of the story before that. `before`: the totals before the
    record, if it may begin a life.
    """
    line = entry.line
    if line.t == "run.resumed" and story.resumes[-1].resumed.live:
        return  # limits were changed while the process continued
    last = lives[-1] if lives else None
    if last is not None and not last.last_n and (line.t in BEGINNINGS or story.epoch != epoch):
        last.last_n, last.last_at = line.n - 1, story.updated  # the story has not seen the time of this record yet
    if line.t in ENDS and last is not None and story.end is not None:
        last.end, last.reason = line.t, story.end.data.reason
    if before is not None:
        begun = START if entry.is_copy else Cursor(entry.segment, entry.end, line.n, line.x)
        life = Life(line.t, line.n, begun, line.at, story.epoch, before)
        _describe(life, story, since=last.at if last is not None else "")
        lives.append(life)


def _describe(life: Life, story: Story, since: str) -> None:
    """Fill in the process and its changes. `since`: the beginning of the life before."""
    fact: RunStarted | RunResumed | RunExtended | None = None
    if life.kind == "run.started":
        fact = story.started
    elif life.kind == "run.extended":
        fact = story.extensions[-1].extended
        life.changes = fact.changes
    elif life.kind == "run.resumed":
        fact = story.resumes[-1].resumed
        # A corrected model is recorded by `run.replanned`, directly before the resume.
        corrected = [each.replanned.changes for each in story.replans if each.at > since]
        life.changes = (*(change for changes in corrected for change in changes), *fact.changes)
    if fact is not None:
        pid = fact.host.get("pid", 0)
        life.host, life.version = str(fact.host.get("host", "")), fact.version
        life.pid = pid if isinstance(pid, int) else 0
