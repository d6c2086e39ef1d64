"""Repeats of a sample that are scored together, because a scorer of their task asks for all of them.

Invariant: a group is scored when the last of its repeats has ended, with every answer that it has. A repeat that had
failed and is answered later brings its whole group to be scored again; the later scores count. Memory holds the groups
that have begun and are not complete, and those that an earlier process left unscored.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.engine.tickets import Ticket
from holdfast.journal import Entry, Position, Reader
from holdfast.plan import PlanLine, planned_lines
from holdfast.records.decoding import FactDecoder
from holdfast.records.exchange import Answer
from holdfast.records.facts import Cell, SampleFinished
from holdfast.state import Fold

_finished = FactDecoder(SampleFinished)


class Member(msgspec.Struct, frozen=True):
    """An answer of a group: itself, or where an earlier process recorded it."""

    o: int
    key: str
    n: int
    answer: Answer | None = None
    position: Position | None = None


class _Group(msgspec.Struct):
    """The repeats of one sample that have ended, and the answers among them."""

    ended: int = 0
    members: list[Member] = msgspec.field(default_factory=list)


class Groups:
    """The groups of all tasks that have a scorer for groups."""

    def __init__(self, repeats: Mapping[str, int]) -> None:
        """`repeats`: by task, how many a sample has."""
        self._repeats = repeats
        self._open: dict[str, _Group] = {}
        self._left: dict[str, list[Member]] = {}

    def ended(self, ticket: Ticket, answer: Answer | None = None, n: int = 0) -> list[Member]:
        """A repeat has an answer, or will get none. The members of its group if it was the last; else nothing."""
        name = _sample_of(ticket.key)
        group = self._open.setdefault(name, _Group())
        group.ended += 1
        if answer is not None:
            group.members.append(Member(ticket.o, ticket.key, n, answer))
        if group.ended < self._repeats[ticket.cell.task]:
            return []
        del self._open[name]
        return _in_order(group)

    def take_left(self, ticket: Ticket) -> list[Member]:
        """The group of an answer that an earlier process left unscored; nothing if it is not complete, or taken."""
        return self._left.pop(_sample_of(ticket.key), [])

    def recollect(self, run: str, cells: Sequence[Cell], fold: Fold, reader: Reader) -> None:
        """What earlier processes have ended. Reads the plan, and the journal where a group that was scored already is
        to be scored again: not for the event loop.
        """
        of_each: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            if cell.task in self._repeats:
                of_each.setdefault((cell.task, cell.model), []).append(cell)
        for (task, _), blocks in of_each.items() if fold.finished.count or fold.failed.count else ():
            repeats = self._repeats[task]
            begun = _begun(run, blocks, fold, repeats)
            _find(begun.values(), reader)
            for name, group in begun.items():
                if group.ended == repeats:
                    self._left[name] = _in_order(group)
                else:
                    self._open[name] = group


def _begun(run: str, cells: Sequence[Cell], fold: Fold, repeats: int) -> dict[str, _Group]:
    """The groups of one task and model that are not complete, or not scored. An extension has more repeats of a sample
    in a block of its own.
    """
    groups: dict[str, _Group] = {}
    for cell in cells:
        for name, lines in itertools.groupby(planned_lines(run, cell), lambda line: _sample_of(line.k)):
            group = groups.setdefault(name, _Group())
            for line in lines:
                _add(group, line, fold)
            scored = not any(each.o in fold.unscored for each in group.members)
            if not group.ended or (group.ended == repeats and scored):
                del groups[name]
    return groups


def _add(group: _Group, line: PlanLine, fold: Fold) -> None:
    if line.o in fold.finished:
        group.members.append(Member(line.o, line.k, 0, position=fold.unscored.get(line.o)))
    group.ended += line.o in fold.finished or line.o in fold.failed


def _find(groups: Collection[_Group], reader: Reader) -> None:
    """Where the answers are that were scored before, and will be again with a new one of their group."""
    wanted = {each.o for group in groups for each in group.members if each.position is None}
    found: dict[int, Position] = {}
    for entry in reader.read(live=True) if wanted else ():
        if isinstance(entry, Entry) and entry.line.t == "sample.finished":
            o = _finished.decode(entry.line).o
            if o in wanted:
                found.setdefault(o, Position(entry.line.n, entry.segment, entry.offset))
    for group in groups:
        group.members = [
            msgspec.structs.replace(each, n=position.n, position=position)
            for each in group.members
            if (position := each.position or found.get(each.o)) is not None
        ]


def _in_order(group: _Group) -> list[Member]:
    return sorted(group.members, key=lambda each: int(each.key.rpartition("/")[2]))


def _sample_of(key: str) -> str:
    return key.rpartition("/")[0]
