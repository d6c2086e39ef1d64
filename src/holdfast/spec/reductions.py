"""The `reduce` field: how the scores of one sample's repeats become one number.

`reduce: median`, `reduce: pass@5`, `reduce: {pass_at_k: {k: 5, threshold: 0.5}}`, or a list of such entries. Reducers
apply when scores are read; the recorded scores do not depend on them. SpecError for unknown reducers and arguments, a k
above the number of repeats, and a reducer that is listed twice.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.messages import nearest
from holdfast.spec.types import Task

MEAN = "mean"
THRESHOLD = 1.0
_PLAIN = (MEAN, "median", "mode", "majority", "max")
_COUNTING = {"pass_at_k": "pass@", "pass_power_k": "pass^", "cons_at_k": "cons@", "at_least": "at_least_"}
_SHORT = re.compile(r"(pass@|pass\^|cons@|at_least_)([1-9][0-9]{0,8})")
_NAMES = {*_PLAIN, *_COUNTING}


class Reduction(msgspec.Struct, frozen=True):
    """One reducer. `k` is 0 for reducers without k; a score of at least `threshold` counts as correct. `answer` names
    the scorer whose labels decide which answers are equal; if it is empty, the answers' texts decide.
    """

    name: str = MEAN
    k: int = 0
    threshold: float = THRESHOLD
    answer: str = ""

    @property
    def is_cons(self) -> bool:
        """Whether it compares the answers themselves, not only their scores."""
        return self.name == "cons_at_k"

    @property
    def label(self) -> str:
        """The name in tables, such as `pass@5`."""
        if self.name not in _COUNTING:
            return self.name
        beyond = "" if self.threshold == THRESHOLD else f" of {self.threshold:g}"
        by = f" by {self.answer}" if self.answer else ""
        return f"{_COUNTING[self.name]}{self.k}{beyond}{by}"


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    k: int
    threshold: float = THRESHOLD


class _ConsensusArguments(_Arguments, frozen=True, forbid_unknown_fields=True):
    answer: str = ""


def reductions(field: Any, place: str = "reduce") -> tuple[Reduction, ...]:
    """Parse a `reduce` field. `place` is its path in the spec, for errors."""
    several = isinstance(field, Sequence) and not isinstance(field, str)
    entries = list(field) if several else [field]
    if not entries:
        raise SpecError(f"{place}: an empty list; leave `reduce` out for the mean")
    found: list[Reduction] = []
    for index, entry in enumerate(entries):
        where = f"{place}[{index}]" if several else place
        each = _parse_entry(entry, where)
        if each in found:
            raise SpecError(f"{where}: {each.label} is listed twice; remove one")
        found.append(each)
    return tuple(found)


def check_reductions(task: Task, place: str) -> None:
    """SpecError if a reducer needs more repeats than the task has: found before anything is paid for."""
    for each in reductions(task.reduce, place):
        if each.k > task.repeats:
            raise SpecError(
                f"{place}: {each.label} needs {each.k} repeats, and the task has {task.repeats}; set repeats: {each.k}"
            )


def check_answers(task: Task, scorers: set[str], place: str) -> None:
    """SpecError if `answer` names a scorer that the task does not have. `final.letter` belongs to `final`."""
    for each in reductions(task.reduce, place):
        if each.answer and each.answer.partition(".")[0] not in scorers:
            near = nearest(each.answer, scorers)
            raise SpecError(f"{place}: {each.name}: the task has no scorer {each.answer!r}{near}")


def stored_reductions(spec: Mapping[str, Any]) -> dict[str, tuple[Reduction, ...]]:
    """Return the reducers of a stored spec by task. Runs from before the field existed use the mean."""
    return {str(task.get("name")): reductions(task.get("reduce", MEAN)) for task in spec.get("tasks", ())}


def _parse_entry(entry: Any, place: str) -> Reduction:
    short = _SHORT.fullmatch(entry) if isinstance(entry, str) else None
    if short is not None:
        return Reduction(next(name for name, sign in _COUNTING.items() if sign == short[1]), int(short[2]))
    entry = {entry: None} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise SpecError(f"{place}: expected a name, or one name with its arguments as in {{pass_at_k: {{k: 5}}}}")
    ((key, args),) = entry.items()
    name, args = str(key), args or {}
    if name not in _NAMES:
        raise SpecError(f"{place}: unknown reducer {name!r}{nearest(name, {*_NAMES, 'pass@5', 'pass^5', 'cons@5'})}")
    if name in _PLAIN:
        if args:
            raise SpecError(f"{place}: {name} takes no arguments, but has {', '.join(map(str, args))}")
        return Reduction(name)
    try:
        found = msgspec.convert(args, _ConsensusArguments if name == "cons_at_k" else _Arguments)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {name}: {error}; write {{{name}: {{k: 5}}}}, optionally with a threshold") from None
    if found.k < 1:
        raise SpecError(f"{place}: {name}: k is {found.k}; it must be at least 1")
    return Reduction(name, found.k, found.threshold, getattr(found, "answer", ""))
