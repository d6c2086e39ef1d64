"""Finds damage in a run and describes it: what is damaged, what is left, and the command that helps. Reads only.

Every reader calls `find_damage` before it shows a number. Damage that a resume has recorded is no longer reported here:
it appears as anomaly records, and the lost answers have been requested again.
"""

import os
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError
from holdfast.journal import OS_DISK, Damage, describe, is_whole_file
from holdfast.plan import RESTORE, Flaw, check_originals, check_sizes, find_problem, originals
from holdfast.report import counted
from holdfast.runs.store.lookup import RunLocation, not_started_error
from holdfast.runs.store.provenance import find_loss
from holdfast.spec import check_stored_spec
from holdfast.state import Fold, Index, Stamps, Standing, Story


class DamageReport(msgspec.Struct, frozen=True):
    """One sentence for each damage, by the file that is damaged."""

    journal: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """If the plan is damaged, keys without an answer cannot be listed."""
    data: tuple[str, ...] = ()
    tail: str = ""
    """The sentence in `journal` about a missing end; empty if there is none."""
    flaws: tuple[Flaw, ...] = ()
    """The flaws that `plan` and `data` describe."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self.journal, *self.plan, *self.data)

    def require_whole(self) -> None:
        """DamagedError if anything is damaged: for commands whose verdict could be wrong if data is missing."""
        for sentence in self.sentences:
            raise DamagedError(sentence)

    def require_originals(self) -> None:
        """DamagedError if plan or data are damaged."""
        for sentence in (*self.plan, *self.data):
            raise DamagedError(sentence)

    def require_plan(self) -> None:
        for sentence in self.plan:
            raise DamagedError(sentence)


def find_damage(place: RunLocation, index: Index, standing: Standing, *, sizes_only: bool = False) -> DamageReport:
    """Check journal, plan and data of a run. DamagedError if `run.started` is lost, without which nothing can be shown.

    `standing` must be taken before the index is read. `sizes_only`: do not compute digests of plan and data.
    """
    story = index.story
    if not standing.held:  # a live process may be about to write the record
        problem = find_missing_start(place, story, index.damage, index.finished + index.failed)
        if problem:
            raise DamagedError(problem)
    if story.started is not None:
        check_stored_spec(story.spec)
        if index.unfinished < 0:
            raise DamagedError(
                f"{place.run_id}: its journal has answers for more keys than were planned ({index.story.planned}): "
                "it was edited"
            )
    if sizes_only:
        flaws = check_sizes(place.folder, story.blocks)
    else:
        stamps = dict(index.checked.stamps)
        flaws = check_originals(place.folder, story.blocks, stamps)
        index.checked.remember(stamps)
    tail = find_missing_tail(place, story, index.last_n, standing)
    if not tail and index.start_n > max([index.last_n, *(each.n_last for each in index.damage)]):
        # started.jsonl still has a record after the end of the journal. Damage that covers it is reported separately.
        what = f"records {index.last_n + 1} to {index.start_n} were durable and are missing from the end of its journal"
        tail = f"{place.run_id}: {what}; {_advise(place)}"
    journal = [tail] if tail else []
    if index.lost:
        records = counted(sum(each.records_lost for each in index.lost), "record")
        places = f" in {len(index.lost)} places" if len(index.lost) > 1 else ""
        what = f"its journal is damaged: {records} lost{places} ({describe(index.lost[0])})"
        journal.insert(0, f"{place.run_id}: {what}; {_advise(place)}")
    plan = tuple(_describe_flaw(place, flaw) for flaw in flaws if flaw.is_plan)
    data = tuple(_describe_flaw(place, flaw) for flaw in flaws if not flaw.is_plan)
    return DamageReport(tuple(journal), plan, data, tail, tuple(flaws))


def check_every_byte(place: RunLocation, fold: Fold, last_n: int, standing: Standing) -> Iterator[str]:
    """The checks of `find_damage` for `verify`: without any cache, so that plan and data are read completely. `verify`
    checks the journal's own bytes itself. `standing` must be taken before the journal is read. `last_n`: the number of
    the last record.
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


def find_missing_start(place: RunLocation, story: Story, damage: Sequence[Damage], answers: int) -> str:
    """Describe a run whose `run.started` is lost; empty if it has one, or never began."""
    if story.started is not None:
        return ""
    lost = find_loss(place, story, damage, answers)
    if lost == "journal":
        what = "is empty" if place.began else "is not a folder" if os.path.lexists(place.journal) else "is missing"
        return f"{place.run_id}: the journal in {place.journal} {what}, so its answers are lost here; {RESTORE}"
    if lost == "beginning":
        what = "its first record (run.started) is damaged, so its spec and plan are unknown"
        return f"{place.run_id}: {what}; restore {place.journal} from a copy, or from its mirror with: holdfast recover"
    return ""


def find_missing_tail(place: RunLocation, story: Story, last_n: int, standing: Standing) -> str:
    """Describe a journal that ends before the last record that its lease acknowledged, or lacks the end record that the
    lease mentions; empty if neither is the case.
    """
    lease = standing.lease
    if lease is None or standing.held or standing.copied or lease.epoch != story.epoch:
        return ""
    if lease.acknowledged <= last_n:
        if not lease.end or story.end is not None:
            return ""
        what = f"its lease mentions the record {lease.end}, which is missing from the end of its journal"
        return f"{place.run_id}: {what}; {_advise(place)}"
    what = f"records {last_n + 1} to {lease.acknowledged} were durable and are missing from the end of its journal"
    return f"{place.run_id}: {what}; {_advise(place)}"


def require_started(place: RunLocation, fold: Fold) -> None:
    """DamagedError if `run.started` is lost; UsageError if the run never began."""
    if fold.story.started is not None:
        return
    problem = find_missing_start(place, fold.story, fold.damage, fold.finished.count + fold.failed.count)
    if problem:
        raise DamagedError(problem)
    raise not_started_error(place)


def require_originals(place: RunLocation, story: Story, checked: Stamps | None = None) -> None:
    """DamagedError if plan or data differ from what the run recorded: they must not be used for requests or scores.
    `checked`: files that need not be digested again, for a run with nothing left to request or score.
    """
    for flaw in check_originals(place.folder, story.blocks, dict(checked or {})):
        raise DamagedError(_describe_flaw(place, flaw))


def _describe_flaw(place: RunLocation, flaw: Flaw) -> str:
    return f"{place.run_id}: {flaw}; {RESTORE}"


def describe_unreadable(place: RunLocation, records: int) -> str:
    """Describe a journal that no process writes and whose end cannot be read. The index does not count a damaged last
    line, because a live process may be writing it.
    """
    return f"{place.run_id}: {counted(records, 'record')} in its journal cannot be read; {_advise(place)}"


def _advise(place: RunLocation) -> str:
    return f"restore it with: holdfast recover, or request what was lost again with: {place.command('resume')}"
