"""What is damaged in a run, in sentences for people: what, what is left, and the command that helps.

Every reader of a run goes through `find_damage` before it shows a number. Damage that a resume has recorded is no
longer reported here: its anomaly records are, and the lost answers were asked for again.
"""

import os
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError
from holdfast.journal import OS_DISK, Damage
from holdfast.journal.segments import is_whole_file
from holdfast.journal.verification import describe
from holdfast.plan import RESTORE, Flaw, check_originals, check_sizes, find_problem, originals
from holdfast.report.text import counted
from holdfast.runs.execution.provenance import lost_of
from holdfast.runs.store.lookup import RunPlace, not_begun
from holdfast.spec.source.loader import check_stored_spec
from holdfast.state import Fold, Index, Standing, Story


class DamageReport(msgspec.Struct, frozen=True):
    """One sentence for each damage; none if nothing is damaged."""

    journal: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """Without the plan, keys that have no answer cannot be listed."""
    data: tuple[str, ...] = ()
    tail: str = ""
    """The one of `journal` that says that its end is missing."""
    flaws: tuple[Flaw, ...] = ()
    """What `plan` and `data` describe."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self.journal, *self.plan, *self.data)

    def require_whole(self) -> None:
        """For commands that judge runs: with something missing, the verdict could be wrong."""
        for sentence in self.sentences:
            raise DamagedError(sentence)

    def require_originals(self) -> None:
        """For what is asked or scored by plan and data."""
        for sentence in (*self.plan, *self.data):
            raise DamagedError(sentence)

    def require_plan(self) -> None:
        for sentence in self.plan:
            raise DamagedError(sentence)


def find_damage(place: RunPlace, index: Index, standing: Standing, *, sizes_only: bool = False) -> DamageReport:
    """Check journal, plan and data of a run. DamagedError if its beginning is lost, so that nothing can be said of it.

    `standing` was taken before the index was read. `sizes_only`: do not compute digests of plan and data.
    """
    story = index.story
    if not standing.held:  # else it may be about to write the record
        problem = find_missing_start(place, story, index.damage, index.finished + index.failed)
        if problem:
            raise DamagedError(problem)
    if story.started is not None:
        check_stored_spec(story.spec)
        _check_ordinals(place, index)
    flaws = _find_flaws(place, index, sizes_only)
    tail = find_missing_tail(place, story, index.last_n, standing) or _find_cut_before_copy(place, index)
    journal = (*_describe_losses(place, index.lost), *([tail] if tail else ()))
    plan = tuple(_describe_flaw(place, flaw) for flaw in flaws if flaw.is_plan)
    data = tuple(_describe_flaw(place, flaw) for flaw in flaws if not flaw.is_plan)
    return DamageReport(journal, plan, data, tail, tuple(flaws))


def _check_ordinals(place: RunPlace, index: Index) -> None:
    """DamagedError for answers of keys that the plan does not have."""
    if index.unfinished < 0:
        raise DamagedError(
            f"{place.run_id}: its journal has answers of more keys than were planned ({index.story.planned}): "
            "somebody has changed it"
        )


def check_every_byte(place: RunPlace, fold: Fold, last_n: int, standing: Standing) -> Iterator[str]:
    """The same for `verify`, which checks the journal itself: from the journal and without anything remembered, so that
    plan and data are read whole. `standing` was taken before the journal was read; `last_n`: the number of its last
    record.
    """
    answers = fold.finished.count + fold.failed.count
    start = find_missing_start(place, fold.story, fold.damage, answers)
    yield from filter(None, [start, find_missing_tail(place, fold.story, last_n, standing)])
    for path, stored in originals(place.folder, fold.story.blocks):
        problem = find_problem(path, stored)
        if problem:
            yield f"{path} {problem}; {RESTORE}"
        elif not is_whole_file(OS_DISK, path):
            yield f"{path}: the file has changed since it was written; its content can still be read"


def find_missing_start(place: RunPlace, story: Story, damage: Sequence[Damage], answers: int) -> str:
    """What to say of a run whose `run.started` is lost; empty if it has one, or never began."""
    if story.started is not None:
        return ""
    lost = lost_of(place, story, damage, answers)
    if lost == "journal":
        what = "is empty" if place.began else "is no folder" if os.path.lexists(place.journal) else "is missing"
        return f"{place.run_id}: the journal in {place.journal} {what}, so its answers are lost here; {RESTORE}"
    if lost == "beginning":
        what = "the record that began the run is damaged, so nothing can be said of what was asked"
        return f"{place.run_id}: {what}; restore {place.journal} from a copy, or from its mirror with: holdfast recover"
    return ""


def find_missing_tail(place: RunPlace, story: Story, last_n: int, standing: Standing) -> str:
    """What to say of a journal that ends before the last record that its lease acknowledged, or without the record that
    the lease says has ended the run; empty if it does not.
    """
    lease = standing.lease
    if lease is None or standing.held or standing.copied or lease.epoch != story.epoch:
        return ""
    if lease.acknowledged <= last_n:
        if not lease.end or story.end is not None:
            return ""
        what = f"its lease says {lease.end}, and that record is missing from the end of its journal"
        return f"{place.run_id}: {what}; {_what_helps(place)}"
    what = f"records {last_n + 1} to {lease.acknowledged} were durable and are missing from the end of its journal"
    return f"{place.run_id}: {what}; {_what_helps(place)}"


def _find_cut_before_copy(place: RunPlace, index: Index) -> str:
    """What to say of a journal that ends before a record that started.jsonl still holds. Damage that covers the record
    is reported by itself.
    """
    if index.start_n <= max([index.last_n, *(each.n_last for each in index.damage)]):
        return ""
    what = f"records {index.last_n + 1} to {index.start_n} were durable and are missing from the end of its journal"
    return f"{place.run_id}: {what}; {_what_helps(place)}"


def require_started(place: RunPlace, fold: Fold) -> None:
    """DamagedError if the beginning of a run is lost; UsageError if it never began."""
    if fold.story.started is not None:
        return
    problem = find_missing_start(place, fold.story, fold.damage, fold.finished.count + fold.failed.count)
    if problem:
        raise DamagedError(problem)
    raise not_begun(place)


def require_originals(place: RunPlace, story: Story) -> None:
    """DamagedError if plan or data are not what the run recorded: nothing may be asked or scored by them."""
    for flaw in check_originals(place.folder, story.blocks, {}):
        raise DamagedError(_describe_flaw(place, flaw))


def _find_flaws(place: RunPlace, index: Index, sizes_only: bool) -> list[Flaw]:
    if sizes_only:
        return check_sizes(place.folder, index.story.blocks)
    stamps = dict(index.checked.stamps)
    flaws = check_originals(place.folder, index.story.blocks, stamps)
    index.checked.remember(stamps)
    return flaws


def _describe_flaw(place: RunPlace, flaw: Flaw) -> str:
    return f"{place.run_id}: {flaw}; {RESTORE}"


def describe_unreadable(place: RunPlace, records: int) -> str:
    """What to say of a journal that nobody writes and whose end cannot be read. An index does not count a damaged last
    line: it may be one that is being written.
    """
    return f"{place.run_id}: {counted(records, 'record')} in its journal cannot be read; {_what_helps(place)}"


def _describe_losses(place: RunPlace, lost: Sequence[Damage]) -> tuple[str, ...]:
    if not lost:
        return ()
    records = sum(each.records_lost for each in lost)
    places = f" in {len(lost)} places" if len(lost) > 1 else ""
    what = f"its journal is damaged: {counted(records, 'record')} lost{places} ({describe(lost[0])})"
    return (f"{place.run_id}: {what}; {_what_helps(place)}",)


def _what_helps(place: RunPlace) -> str:
    return f"restore it with: holdfast recover, or ask for what was lost again with: {place.command('resume')}"
