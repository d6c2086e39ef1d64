"""Asking the scorers again about the recorded answers, to see whether they say what is recorded.

Only of scorers that come with Holdfast, whose code and arguments are as they were, and that look at one answer alone:
those say the same every time. Which others there are is told, with the reason. Nothing is written, no model is asked.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.scoring import Judgement, judged
from holdfast.engine.tickets import Ticket
from holdfast.journal import Reader, journal_folder
from holdfast.plan import data_lines, planned_lines
from holdfast.records.decoding import FactDecoder
from holdfast.records.exchange import Sample
from holdfast.records.facts import Cell, SampleFinished, ScoreGiven
from holdfast.report.costs import Told
from holdfast.report.recounting import Recount, Said
from holdfast.score import BUILT_IN, Scorer, identity
from holdfast.score.definition import Extractor
from holdfast.score.extracting import EXTRACTORS

_MAY_DIFFER = {BUILT_IN[name].function for name in ("code_tests", "bert_score", "embedding_similarity")}
_OF_THE_MOMENT = frozenset({"stalled", "cancelled", "record", "too_large"})
"""Failures that say something of the process, not of the answer."""
_finished = FactDecoder(SampleFinished)


class Rescored(msgspec.Struct):
    """What came of it."""

    again: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many of its scores were made again."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why it was not asked again."""
    differences: list[str] = msgspec.field(default_factory=list)


async def rescore(run: str, recount: Recount, evaluation: str) -> Rescored:
    """Every answer that counts, in plan order, one at a time."""
    found = Rescored()
    counts: Counter[str] = Counter()
    told, recorded = Told.of(recount.spec), recount.scores.get(evaluation, {})
    scorers = _usable(recount.evaluations.get(evaluation, []), found.skipped)
    if scorers and not recount.spec.get("record_data", True):
        found.skipped |= {each.name: "the run does not hold its data" for every in scorers.values() for each in every}
        return found
    async for answer, counting in _asked(run, recount, evaluation, {task: told.counts(task) for task in scorers}):
        for scorer in scorers[counting]:
            (given,) = await judged([answer], scorer)
            for each in given:
                said = recorded.get(each.scorer, {}).get(answer.ticket.o)
                counts[each.scorer] += 1
                found.differences += _differs(answer, each, said)
    found.again = dict(counts)
    return found


def _usable(recorded: Sequence[Mapping[str, Any]], skipped: dict[str, str]) -> dict[str, list[Scorer]]:
    """By task: the scorers that can be asked again."""
    every: list[Scorer | Extractor] = [*BUILT_IN.values(), *EXTRACTORS.values()]
    own = {identity(each)["function"]: each for each in every}
    found: dict[str, list[Scorer]] = {}
    for told in recorded:
        try:
            made = _rebuilt(told, own)
            why = _why_not(made, told)
        except KeyError:
            why = "it does not come with Holdfast, or a part of it does not"
        if why:
            skipped[str(told.get("name", ""))] = why
        else:
            found.setdefault(str(told.get("task", "")), []).append(made)
    return found


def _rebuilt(told: Any, own: Mapping[str, Scorer | Extractor]) -> Any:
    """A scorer or an extractor as it was recorded, with its parts. KeyError if one does not come with Holdfast."""
    if isinstance(told, list):
        return [_rebuilt(each, own) for each in told]
    if not isinstance(told, Mapping):
        return told
    if not {"name", "function", "args", "source"} <= set(told):
        return {name: _rebuilt(each, own) for name, each in told.items()}
    found = own[told["function"]]
    parts = {name: tuple(_rebuilt(told.get(name, []), own)) for name in ("extract", "extract_target")}
    more: dict[str, Any] = parts if isinstance(found, Scorer) else {}
    return msgspec.structs.replace(found, name=told["name"], args=_rebuilt(told["args"], own), **more)


def _why_not(made: Scorer, told: Mapping[str, Any]) -> str:
    """Why a scorer cannot be asked again; empty if it can."""
    if made.roles():
        return "it asks a judge"
    every = _with_parts(made)
    if any(each.group for each in every):
        return "it looks at all repeats of a sample at once"
    if any(each.function in _MAY_DIFFER for each in every):
        return "it runs code or a model, which may come out otherwise on another machine"
    if any(told.get(name) != value for name, value in identity(made).items()):
        return "its code, or a package that it computes with, has changed since"
    return ""


def _with_parts(scorer: Scorer) -> Iterator[Scorer]:
    yield scorer
    for part in scorer.parts():
        yield from _with_parts(part)


async def _asked(
    run: str, recount: Recount, evaluation: str, counts: Mapping[str, Any]
) -> AsyncIterator[tuple[Judgement, str]]:
    """The answers of tasks whose scorers are asked again, each with its task."""
    with contextlib.closing(Reader(journal_folder(run))) as reader:
        for cell in recount.cells:
            if cell.task not in counts:
                continue
            for ticket in _tickets(run, cell):
                kept = recount.finished.get(ticket.o)
                entry = None if kept is None else reader.record_at(kept.segment, kept.offset)
                if kept is not None and entry is not None:
                    answer = _finished.decode(entry.line).answer
                    yield Judgement(ticket, answer, kept.n, evaluation, (), counts[cell.task]), cell.task


def _tickets(run: str, cell: Cell) -> Iterator[Ticket]:
    """The keys of a cell with their samples: plan and data are walked side by side."""
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


def _differs(answer: Judgement, now: ScoreGiven, said: Said | None) -> Iterator[str]:
    name = f"{answer.ticket.key}: {now.scorer}"
    if said is None or said.of != answer.of:
        return  # it was not scored yet, or another answer was
    if said.failure in _OF_THE_MOMENT:
        return
    failure = now.failure.kind if now.failure is not None else ""
    same_value = said.value == now.value and isinstance(said.value, bool) == isinstance(now.value, bool)
    if bool(said.failure) != bool(failure) or not same_value:
        yield f"{name}: recorded is {_shown(said.value, said.failure)}, scored again {_shown(now.value, failure)}"


def _shown(value: Any, failure: str) -> str:
    return f"a failure ({failure})" if failure else repr(value)
