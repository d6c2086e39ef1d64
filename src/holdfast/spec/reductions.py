"""What a spec says of repeats: how the scores of one sample's repeats become one number.

`reduce: median`, `reduce: pass@5`, `reduce: {pass_at_k: {k: 5, threshold: 0.5}}`, or a list of such entries. Scores are
recorded answer by answer whatever it says; only what is read from them differs. Refuses, with the nearest name: what is
no reducer, arguments that one does not take, a k beyond the number of repeats, and one reducer twice.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.source.messages import nearest
from holdfast.spec.types import Task

MEAN = "mean"
THRESHOLD = 1.0
_PLAIN = (MEAN, "median", "mode", "majority", "max")
_COUNTING = {"pass_at_k": "pass@", "pass_power_k": "pass^", "cons_at_k": "cons@", "at_least": "at_least_"}
_SHORT = re.compile(r"(pass@|pass\^|cons@|at_least_)([1-9][0-9]{0,8})")
_NAMES = {*_PLAIN, *_COUNTING}


class Reduction(msgspec.Struct, frozen=True):
    """One number for a sample. `k` is 0 where none is needed; a score of at least `threshold` is right. `answer`: the
    scorer whose labels say which answers are the same; their texts do if it is empty.
    """

    name: str = MEAN
    k: int = 0
    threshold: float = THRESHOLD
    answer: str = ""

    @property
    def label(self) -> str:
        """As a table calls it: `pass@5`."""
        if self.name not in _COUNTING:
            return self.name
        beyond = "" if self.threshold == THRESHOLD else f" of {self.threshold:g}"
        by = f" by {self.answer}" if self.answer else ""
        return f"{_COUNTING[self.name]}{self.k}{beyond}{by}"


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    k: int
    threshold: float = THRESHOLD


class _OfAnswers(_Arguments, frozen=True, forbid_unknown_fields=True):
    answer: str = ""


def reductions(said: Any, place: str = "reduce") -> tuple[Reduction, ...]:
    """What a `reduce` field means. `place` says where it stands, for errors."""
    several = isinstance(said, Sequence) and not isinstance(said, str)
    entries = list(said) if several else [said]
    if not entries:
        raise SpecError(f"{place}: an empty list; leave it out for the mean")
    found: list[Reduction] = []
    for index, entry in enumerate(entries):
        where = f"{place}[{index}]" if several else place
        each = _one(entry, where)
        if each in found:
            raise SpecError(f"{where}: {each.label} stands there twice; leave one out")
        found.append(each)
    return tuple(found)


def check_reductions(task: Task, place: str) -> None:
    """Of a task that is about to be run: more repeats than there will be are a mistake before they are paid for."""
    for each in reductions(task.reduce, place):
        if each.k > task.repeats:
            raise SpecError(f"{place}: {each.label} needs {each.k} repeats, and the task has {task.repeats}")


def check_answers(task: Task, scorers: set[str], place: str) -> None:
    """That the scorers which say what an answer is are among the task's; `final.letter` is one of `final`."""
    for each in reductions(task.reduce, place):
        if each.answer and each.answer.partition(".")[0] not in scorers:
            near = nearest(each.answer, scorers)
            raise SpecError(f"{place}: {each.name}: the task has no scorer {each.answer!r}{near}")


def stored_reductions(spec: Mapping[str, Any]) -> dict[str, tuple[Reduction, ...]]:
    """By task, of a stored spec; the mean for runs that are older than the field."""
    return {str(task.get("name")): reductions(task.get("reduce", MEAN)) for task in spec.get("tasks", ())}


def _one(entry: Any, place: str) -> Reduction:
    if isinstance(entry, str):
        short = _SHORT.fullmatch(entry)
        if short is not None:
            name = next(name for name, sign in _COUNTING.items() if sign == short[1])
            return Reduction(name, int(short[2]))
        return _named(entry, {}, place)
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise SpecError(f"{place}: expected a name, or one name with its arguments as in {{pass_at_k: {{k: 5}}}}")
    ((name, args),) = entry.items()
    return _named(str(name), args or {}, place)


def _named(name: str, args: Any, place: str) -> Reduction:
    if name not in _NAMES:
        raise SpecError(
            f"{place}: there is no reducer {name!r}{nearest(name, {*_NAMES, 'pass@5', 'pass^5', 'cons@5'})}"
        )
    if name in _PLAIN:
        if args:
            raise SpecError(f"{place}: {name} takes no arguments, and has {', '.join(map(str, args))}")
        return Reduction(name)
    try:
        found = msgspec.convert(args, _OfAnswers if name == "cons_at_k" else _Arguments)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {name}: {error}; write {{{name}: {{k: 5}}}}, if you like with a threshold") from None
    if found.k < 1:
        raise SpecError(f"{place}: {name}: k is {found.k}; it is a whole number from 1")
    return Reduction(name, found.k, found.threshold, getattr(found, "answer", ""))
