"""Finds damage in a run and describes it: what is damaged, what is left, and the command that helps. Reads only.

Every reader calls `find_damage` before it shows a number. Damage that a resume has recorded is no longer reported here:
it appears as anomaly records, and the lost answers have been requested again.
"""

import os
import shlex
from collections.abc import Iterator, Sequence

import msgspec

from holdfast import files
from holdfast.errors import DamagedError
from holdfast.journal import OS_DISK, Damage, Lease, Loss, bounded, count_lost, describe, is_whole_file, unrecorded
from holdfast.plan import RESTORE, Flaw, check_originals, check_sizes, find_problem, originals
from holdfast.runs.store.lookup import RunLocation, not_started_error
from holdfast.runs.store.provenance import find_loss
from holdfast.spec import check_stored_spec
from holdfast.state import Fold, Index, Stamps, Standing, Story

COPIED_DAMAGE = "damage.json"
"""In a copy of a sharded run: what the journals of its shards have lost, by journal."""


class DamageReport(msgspec.Struct, frozen=True):
    """One sentence for each damage, by the file that is damaged."""

    journal: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """If the plan is damaged, keys without an answer cannot be listed."""
    data: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    """What `journal` says, without the run's name and the advice."""
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
    losses = (*_describe_losses(index, standing), *_copied_damage(place))
    journal = tuple(f"{place.run_id}: {each}; {_advise(place, story)}" for each in losses)
    plan = tuple(_describe_flaw(place, flaw) for flaw in flaws if flaw.is_plan)
    data = tuple(_describe_flaw(place, flaw) for flaw in flaws if not flaw.is_plan)
    return DamageReport(journal, plan, data, losses, tuple(flaws))


def _copied_damage(place: RunLocation) -> Iterator[str]:
    """What the journals have lost that a copy of a sharded run was made from."""
    if place.root:
        found = files.read_own_file(os.path.join(place.folder, COPIED_DAMAGE))
        for sentences in msgspec.json.decode(found, type=dict[str, list[str]]).values():
            yield from sentences


def _describe_losses(index: Index, standing: Standing) -> tuple[str, ...]:
    """What the journal has lost: damaged bytes, and records that are missing from its end. If the damaged bytes are its
    end, that is one loss: the lease tells which records they held.
    """
    story = index.story
    lost = losses_of(index.damage, story, standing, index.start_n)
    found = []
    if lost:
        places = f" in {len(lost)} places" if len(lost) > 1 else ""
        found.append(f"its journal is damaged: {count_lost(lost)} lost{places} ({describe(lost[0])})")
    if any(each.open_end for each in index.lost):
        return tuple(found)
    tail = find_missing_tail(story, index.last_n, standing)
    if not tail and index.start_n > max([index.last_n, *(each.n_last for each in index.damage)]):
        # started.jsonl still has a record after the end of the journal. Damage that covers it is reported already.
        tail = _describe_tail(index.last_n, index.start_n)
    return (*found, tail) if tail else tuple(found)


def losses_of(damage: Sequence[Damage], story: Story, standing: Standing, durable_n: int = 0) -> list[Damage]:
    """The losses in a journal that no `anomaly` record mentions, up to the last record that is known to have been
    durable: by the run's lease, or `durable_n`. Without foreign bytes that cost no record.
    """
    lost = [each for each in unrecorded(damage, story.anomalies) if each.records_lost or each.kind == "fence"]
    lease = _last_lease(story, standing)
    if lease is None:
        return bounded(lost, durable_n)
    return bounded(lost, max(durable_n, lease.durable_n), is_last=lease.last_n > 0)


def acknowledged_by(story: Story, standing: Standing) -> int:
    """The last record that the lease of the process that wrote the end of the journal knows to be durable, or 0."""
    lease = _last_lease(story, standing)
    return 0 if lease is None else lease.durable_n


def _last_lease(story: Story, standing: Standing) -> Lease | None:
    """The lease of the process that wrote the end of the journal; None if that process still writes, or is unknown."""
    lease = standing.lease
    if lease is None or standing.held or standing.copied or lease.epoch != story.epoch:
        return None
    return lease


def check_every_byte(place: RunLocation, fold: Fold, last_n: int, standing: Standing) -> Iterator[str]:
    """The checks of `find_damage` for `verify`: without any cache, so that plan and data are read completely. `verify`
    checks the journal's own bytes itself. `standing` must be taken before the journal is read. `last_n`: the number of
    the last record.
    """
    answers = fold.finished.count + fold.failed.count
    start = find_missing_start(place, fold.story, fold.damage, answers)
    tail = find_missing_tail(fold.story, last_n, standing)
    yield from filter(None, [start, f"{place.run_id}: {tail}; {_advise(place, fold.story)}" if tail else ""])
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


def find_missing_tail(story: Story, last_n: int, standing: Standing) -> str:
    """Describe a journal that ends before the last record that its lease acknowledged, or lacks the end record that the
    lease mentions; empty if neither is the case.
    """
    lease = _last_lease(story, standing)
    if lease is None:
        return ""
    if lease.durable_n > last_n:
        return _describe_tail(last_n, lease.durable_n)
    if not lease.end or story.end is not None:
        return ""
    return f"its lease mentions the record {lease.end}, which is missing from the end of its journal"


def _describe_tail(last_n: int, durable_n: int) -> str:
    if durable_n == last_n + 1:
        return f"record {durable_n} was durable and is missing from the end of its journal"
    return f"records {last_n + 1} to {durable_n} were durable and are missing from the end of its journal"


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


def describe_unreadable(place: RunLocation, story: Story, lost: Loss) -> str:
    """Describe a journal that no process writes and whose end cannot be read. The index does not count a damaged last
    line, because a live process may be writing it.
    """
    return f"{place.run_id}: {lost} in its journal cannot be read; {_advise(place, story)}"


def _advise(place: RunLocation, story: Story) -> str:
    """The command that helps. Without a mirror there is nothing that `recover` could read the lost records from."""
    again = f"request what was lost again with: {place.command('resume')}"
    if place.url or not story.spec.get("mirror"):
        return again
    return f"restore it from its mirror with: {shlex.join(['holdfast', 'recover', place.home])}, or {again}"
