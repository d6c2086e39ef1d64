"""Scores of earlier evaluations, to be copied into the current one for scorers that have not changed.

A scorer with the same name, arguments, code and judges as in an earlier evaluation is not called again: its scores are
copied, and with them the scores that people set by hand. Failed scores are computed again, and so are those of group
scorers: their group may have new answers. The index has the positions of the records, the journal their content. One
thread looks them up answer by answer, so that memory does not grow with the run. Nothing is written here.
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


class ScoreSources(msgspec.Struct, frozen=True):
    """Which earlier evaluations have the scorers of one task."""

    unchanged: dict[str, list[str]]
    """By scorer: the evaluations with the same scorer, newest first."""
    named: dict[str, list[str]]
    """By evaluation: all its scorers for the task."""


class KeptScores(msgspec.Struct, frozen=True):
    """What is copied for one scorer and one answer. Without `scores` the scorer must run."""

    scores: tuple[ScoreGiven, ...] = ()
    edits: tuple[ScoreGiven, ...] = ()


NO_KEPT_SCORES = KeptScores()


def sources_of(story: Story, evaluation: str, identities: Iterable[Mapping[str, Any]]) -> dict[str, ScoreSources]:
    """Return the sources by task, for an evaluation of the scorers `identities`; empty if all scorers are new."""
    newest = [story.evaluation, *reversed(story.evaluations)]
    earlier = [story.evaluations[each] for each in dict.fromkeys(newest) if each and each != evaluation]
    known = [(each.evaluation, {comparable(scorer) for scorer in each.scorers}) for each in earlier]
    found: dict[str, ScoreSources] = {}
    for scorer in identities:
        identity = comparable(scorer)
        where = [name for name, every in known if identity in every]
        if where:
            task = str(scorer["task"])
            named = {
                each.evaluation: [str(one["name"]) for one in each.scorers if one.get("task") == task]
                for each in earlier
            }
            found.setdefault(task, ScoreSources({}, named)).unchanged[str(scorer["name"])] = where
    return found


class EarlierScores:
    """Looks up scores to copy. Call `open` before `find`."""

    def __init__(self, run: str, evaluation: str, sources: Mapping[str, ScoreSources]) -> None:
        self._run = run
        self._evaluation = evaluation
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "holdfast-earlier")
        self._index: Index | None = None
        self._reader = Reader(journal_folder(run))
        self._last_n = 0

    async def open(self) -> None:
        """Bring the index up to date, if there is anything to look for."""
        if self._sources:
            self._index = await asyncio.get_running_loop().run_in_executor(self._thread, Index, self._run)
            self._last_n = self._index.last_n

    async def find(self, task: str, answers: Sequence[tuple[int, int]]) -> list[dict[str, KeptScores]]:
        """Return, for each answer (ordinal, record number), what is copied for each unchanged scorer."""
        sources = self._sources.get(task)
        if sources is None or all(
            of > self._last_n for _, of in answers
        ):  # answers of this process have no earlier scores
            return [{} for _ in answers]
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, sources, answers)

    async def close(self) -> None:
        if self._index is not None:
            loop = asyncio.get_running_loop()
            for each in (self._index, self._reader):
                await loop.run_in_executor(self._thread, each.close)
        self._thread.shutdown(wait=False)

    def _find(self, sources: ScoreSources, answers: Sequence[tuple[int, int]]) -> list[dict[str, KeptScores]]:
        return [
            {name: self._kept(name, where, sources, answer) for name, where in sources.unchanged.items()}
            for answer in answers
        ]

    def _kept(self, scorer: str, where: Sequence[str], sources: ScoreSources, answer: tuple[int, int]) -> KeptScores:
        """Return the scores of the newest evaluation that has them all, and the newest ones set by hand."""
        assert self._index is not None
        edits: tuple[ScoreGiven, ...] = ()
        for evaluation in where:
            names = sources.named[evaluation]
            if not edits:
                set_by_hand = recorded_edits(self._reader, self._index, answer, evaluation)
                edits = tuple(self._copy(each, evaluation) for each in _of(scorer, names, set_by_hand))
            scores = recorded_scores(self._reader, self._index, answer, evaluation)
            mine = _of(scorer, names, scores) if any(score.last for score in scores) else []
            if mine and not any(score.failure for score in mine):
                return KeptScores(tuple(self._copy(each, evaluation) for each in mine), edits)
        return KeptScores(edits=edits)

    def _copy(self, score: ScoreGiven, taken: str) -> ScoreGiven:
        """Return the same score for the current evaluation."""
        made = ScoreGiven(score.o, score.of, self._evaluation, score.scorer, score.value, score.reason, score.metadata)
        return msgspec.structs.replace(made, author=score.author, at=score.at, taken=taken)


def owner_of(score: str, scorers: Iterable[str]) -> str:
    """Return the scorer that gave a score called `name` or `name.part`; empty if none did."""
    return max((each for each in scorers if score == each or score.startswith(f"{each}.")), key=len, default="")


def _of(scorer: str, scorers: Sequence[str], scores: Iterable[ScoreGiven]) -> list[ScoreGiven]:
    return [score for score in scores if owner_of(score.scorer, scorers) == scorer]
