"""Scores recorded answers again and compares the result with the recorded scores (used by `runs.verification`).

Only for built-in scorers whose version and arguments are unchanged and that read one answer alone: they are
deterministic. The others are listed with the reason. Nothing is written and no model is called.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.schedule import Ticket
from holdfast.engine.scoring import AnswerToScore, apply_scorer
from holdfast.journal import Reader, journal_folder
from holdfast.plan import data_lines, planned_lines
from holdfast.records.built_in import normalized
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Cell, SampleFinished, ScoreGiven
from holdfast.records.samples import Sample
from holdfast.report.costs import StoredSpec
from holdfast.score import SCORERS, Scorer, identity
from holdfast.score.definition import Extractor
from holdfast.score.extractors import EXTRACTORS
from holdfast.state import Index, MadeRow

_MAY_DIFFER = {SCORERS[name].function for name in ("code_tests", "bert_score", "embedding_similarity")}
_TRANSIENT = frozenset({"stalled", "cancelled", "record", "too_large"})
"""Failures caused by the process, not by the answer: scoring again may succeed."""
_finished = FactDecoder(SampleFinished)
_given = FactDecoder(ScoreGiven)


class Rescored(msgspec.Struct):
    """The outcome."""

    again: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many of its scores were computed again."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why its scores were not computed again."""
    differences: list[str] = msgspec.field(default_factory=list)


async def rescore(index: Index, evaluation: str) -> Rescored:
    """Score every answer that counts again, in plan order, one at a time."""
    found = Rescored()
    counts: Counter[str] = Counter()
    spec, started = index.story.spec, index.story.evaluations.get(evaluation)
    scorers = _usable([] if started is None else started.scorers, found.skipped)
    if scorers and not spec.get("record_data", True):
        found.skipped |= {each.name: "the run does not hold its data" for every in scorers.values() for each in every}
        return found
    with contextlib.closing(Reader(journal_folder(index.folder))) as reader:
        for cell in (each for each in index.story.cells if each.task in scorers):
            for answer in _answers(index, reader, cell, evaluation):
                recorded = {each.scorer: each for each in index.made_of(answer.ticket.o, answer.of, evaluation)}
                for scorer in scorers[cell.task]:
                    (given,) = await apply_scorer([answer], scorer)
                    for each in given:
                        counts[each.scorer] += 1
                        found.differences += _differs(reader, answer, each, recorded.get(each.scorer))
    found.again = dict(counts)
    return found


def _usable(recorded: Sequence[Mapping[str, Any]], skipped: dict[str, str]) -> dict[str, list[Scorer]]:
    """The scorers that can be used again, by task. Fills `skipped` with the reason for the others."""
    found: dict[str, list[Scorer]] = {}
    for stored in map(normalized, recorded):
        try:
            made = _rebuild(stored)
            why = _why_not(made, stored)
        except KeyError:
            why = "it does not come with Holdfast, or a part of it does not"
        if why:
            skipped[str(stored.get("name", ""))] = why
        else:
            found.setdefault(str(stored.get("task", "")), []).append(made)
    return found


def _rebuild(stored: Any, known: Mapping[str, Scorer | Extractor] = SCORERS) -> Any:
    """A scorer or an extractor as it was recorded, with its parts. KeyError if one does not come with Holdfast."""
    if isinstance(stored, list):
        return [_rebuild(each, known) for each in stored]
    if not isinstance(stored, Mapping):
        return stored
    if not {"name", "function", "args"} <= stored.keys():
        return {name: _rebuild(each) for name, each in stored.items()}
    found = known[str(stored["function"])]
    parts = {name: tuple(_rebuild(stored.get(name, []), EXTRACTORS)) for name in ("extract", "extract_target")}
    more: dict[str, Any] = parts if isinstance(found, Scorer) else {}
    return msgspec.structs.replace(found, name=stored["name"], args=_rebuild(stored["args"]), **more)


def _why_not(made: Scorer, stored: Mapping[str, Any]) -> str:
    """Why a scorer cannot be used again; empty if it can."""
    if made.roles():
        return "it calls a judge"
    every = _with_parts(made)
    if any(each.group for each in every):
        return "it looks at all repeats of a sample at once"
    if any(each.function in _MAY_DIFFER for each in every):
        return "it runs code or a model, which may come out otherwise on another machine"
    if any(stored.get(name) != value for name, value in identity(made).items()):
        return "its version, or that of a package that it computes with, has changed since"
    return ""


def _with_parts(scorer: Scorer) -> Iterator[Scorer]:
    yield scorer
    for part in scorer.parts():
        yield from _with_parts(part)


def _answers(index: Index, reader: Reader, cell: Cell, evaluation: str) -> Iterator[AnswerToScore]:
    """The finished answers of a cell, each with its sample. Index and plan are read side by side."""
    counts = StoredSpec.of(index.story.spec).counts(cell.task)
    rows = index.answers("finished", cell.first, cell.count)
    row = next(rows, None)
    for ticket in _tickets(index.folder, cell):
        while row is not None and row.o < ticket.o:
            row = next(rows, None)
        if row is None:
            return
        entry = reader.record_at(row.segment, row.at_byte) if row.o == ticket.o else None
        if entry is not None:
            yield AnswerToScore(ticket, _finished.decode(entry.line).answer, row.n, evaluation, (), counts)


def _tickets(run: str, cell: Cell) -> Iterator[Ticket]:
    """The keys of a cell with their samples. Plan and data are read side by side."""
    rows = data_lines(run, cell)
    row = next(rows, None)
    made: Sample | None = None
    for line in planned_lines(run, cell):
        while row is not None and row.r < line.r:
            row, made = next(rows, None), None
        if row is None:
            return
        made = made or row.sample()
        yield Ticket(line.o, line.k, made, cell)


def _differs(reader: Reader, answer: AnswerToScore, now: ScoreGiven, recorded: MadeRow | None) -> Iterator[str]:
    if recorded is None or not recorded.position.n:
        return  # not scored, or only set by hand
    before = _failure(reader, recorded) if recorded.failure else ""
    failure = now.failure.kind if now.failure is not None else ""
    if before in _TRANSIENT:
        return
    same_value = recorded.value == now.value and isinstance(recorded.value, bool) == isinstance(now.value, bool)
    if bool(before) != bool(failure) or not same_value:
        text = f"recorded is {_shown(recorded.value, before)}, scored again {_shown(now.value, failure)}"
        yield f"{answer.ticket.key}: {now.scorer}: {text}"


def _failure(reader: Reader, recorded: MadeRow) -> str:
    """The kind of a recorded failure, from the journal: the index has only its message."""
    entry = reader.record_at(recorded.position.segment, recorded.position.offset)
    given = None if entry is None else _given.decode(entry.line)
    return given.failure.kind if given is not None and given.failure is not None else "unknown"


def _shown(value: Any, failure: str) -> str:
    return f"a failure ({failure})" if failure else repr(value)
