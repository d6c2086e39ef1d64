"""What earlier evaluations of a run say of an answer, for scorers that are still what they were.

A scorer whose name, arguments, code and judges are those of an earlier evaluation is not called again: its scores are
taken over, and with them what people have set in their place by hand. What failed is made again, and so is what a
scorer of groups says: it depends on answers that may have come since. The index says where the records are, the
journal what they say. One thread looks them up answer by answer, so that memory does not grow with the run.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.records.built_in import comparable
from holdfast.records.facts import ScoreGiven
from holdfast.state import Index, Story, recorded_edits, recorded_scores


class Sources(msgspec.Struct, frozen=True):
    """Where the scorers of one task are found again."""

    unchanged: dict[str, list[str]]
    """By scorer: the evaluations that have the same one, the newest first."""
    named: dict[str, list[str]]
    """By evaluation: all scorers that it has for the task."""


class Kept(msgspec.Struct, frozen=True):
    """What is taken over of one scorer for one answer. Without `scores` it must be asked."""

    scores: tuple[ScoreGiven, ...] = ()
    edits: tuple[ScoreGiven, ...] = ()


NOTHING_KEPT = Kept()


def sources_of(story: Story, evaluation: str, identities: Iterable[Mapping[str, Any]]) -> dict[str, Sources]:
    """By task, for an evaluation that is made of `identities`. Empty if no scorer is found again."""
    newest = [story.evaluation, *reversed(story.evaluations)]
    earlier = [story.evaluations[each] for each in dict.fromkeys(newest) if each and each != evaluation]
    known = [(each.evaluation, {comparable(told) for told in each.scorers}) for each in earlier]
    found: dict[str, Sources] = {}
    for told in identities:
        wanted = comparable(told)
        where = [name for name, every in known if wanted in every]
        if where:
            task = str(told["task"])
            named = {
                each.evaluation: [str(one["name"]) for one in each.scorers if one.get("task") == task]
                for each in earlier
            }
            found.setdefault(task, Sources({}, named)).unchanged[str(told["name"])] = where
    return found


class Earlier:
    """Open it before it is asked. One for a process's work on a run."""

    def __init__(self, run: str, evaluation: str, sources: Mapping[str, Sources]) -> None:
        self._run = run
        self._evaluation = evaluation
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "holdfast-earlier")
        self._index: Index | None = None
        self._reader = Reader(journal_folder(run))
        self._last_n = 0

    async def open(self) -> None:
        """Brings the index up to date, if there is anything to look for."""
        if self._sources:
            self._index = await asyncio.get_running_loop().run_in_executor(self._thread, Index, self._run)
            self._last_n = self._index.last_n

    async def find(self, task: str, answers: Sequence[tuple[int, int]]) -> list[dict[str, Kept]]:
        """For each answer, by its ordinal and its record's number: what each scorer need not be asked again."""
        sources = self._sources.get(task)
        if sources is None or all(of > self._last_n for _, of in answers):  # an answer of this process has no past
            return [{} for _ in answers]
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, sources, answers)

    async def close(self) -> None:
        if self._index is not None:
            loop = asyncio.get_running_loop()
            for each in (self._index, self._reader):
                await loop.run_in_executor(self._thread, each.close)
        self._thread.shutdown(wait=False)

    def _find(self, sources: Sources, answers: Sequence[tuple[int, int]]) -> list[dict[str, Kept]]:
        return [
            {name: self._kept(name, where, sources, answer) for name, where in sources.unchanged.items()}
            for answer in answers
        ]

    def _kept(self, scorer: str, where: Sequence[str], sources: Sources, answer: tuple[int, int]) -> Kept:
        """The scores of the newest evaluation that has them all, and the newest that were set by hand."""
        assert self._index is not None
        edits: tuple[ScoreGiven, ...] = ()
        for evaluation in where:
            names = sources.named[evaluation]
            if not edits:
                set_by_hand = recorded_edits(self._reader, self._index, answer, evaluation)
                edits = tuple(self._taken(each, evaluation) for each in _of(scorer, names, set_by_hand))
            scores = recorded_scores(self._reader, self._index, answer, evaluation)
            mine = _of(scorer, names, scores) if any(score.last for score in scores) else []
            if mine and not any(score.failure for score in mine):
                return Kept(tuple(self._taken(each, evaluation) for each in mine), edits)
        return Kept(edits=edits)

    def _taken(self, score: ScoreGiven, taken: str) -> ScoreGiven:
        """The same in the evaluation that is being made."""
        made = ScoreGiven(score.o, score.of, self._evaluation, score.scorer, score.value, score.reason, score.metadata)
        return msgspec.structs.replace(made, author=score.author, at=score.at, taken=taken)


def owner_of(score: str, scorers: Iterable[str]) -> str:
    """The scorer that gave a score of that name: its own, or `name.part`. Empty if none of them did."""
    return max((each for each in scorers if score == each or score.startswith(f"{each}.")), key=len, default="")


def _of(scorer: str, scorers: Sequence[str], scores: Iterable[ScoreGiven]) -> list[ScoreGiven]:
    return [score for score in scores if owner_of(score.scorer, scorers) == scorer]
