"""Runs with a plan, rows and any records that a test likes, and how the export describes their samples."""

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.journal import OpenRequest, journal_folder
from holdfast.plan.files import LineFile, data_path, plan_path
from holdfast.records import Cell, Draft, Failure, draft
from holdfast.records.facts import (
    RunEnded,
    RunResumed,
    RunStarted,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
)
from holdfast.records.samples import Answer, Usage
from holdfast.report import ExportLine
from holdfast.view.page import PageRequest
from holdfast.view.pages import samples
from holdfast.view.pages.samples import SampleList
from holdfast.view.sources import RunRef, Sources
from tests.journals import write_session

EVALUATION = "evaluation-1"
UID = "listed-run"
TASK, MODELS, REPEATS = "add", ("small", "large"), 2
WORDS = ("alpha", "beta", "gamma", "delta", "<b>bold</b>", "naïve", "日本語", "x\x00y")
SPEC: dict[str, Any] = {
    "experiment": "e",
    "models": [{"name": "small", "price": {"input": 1.0, "output": 2.0}}, {"name": "large"}],
    "tasks": [{"name": TASK, "repeats": REPEATS, "prompt": "{question}"}],
}


class ListedRun:
    """A run in a store of its own. `samples`: of each cell, each with two repeats."""

    def __init__(self, folder: Path, samples: int, spec: dict[str, Any] | None = None) -> None:
        self.store = folder / "runs"
        self.folder = str(self.store / "e" / "r")
        self.count = samples * REPEATS * len(MODELS)
        self._answers: dict[int, int] = {}
        """By ordinal: the record with the answer."""
        self._finishing: dict[int, int] = {}
        self._kept: list[Draft] = []
        self._attempts: dict[int, int] = {}
        os.makedirs(self.folder)
        cells, plan, rows = [], list[bytes](), list[bytes]()
        random_words = random.Random(samples)
        for row in range(1, samples + 1):
            question = f"What is {row}? {' '.join(random_words.choices(WORDS, k=6))}"
            values = {"id": f"q{row}", "question": question, "answer": f"{2 * row}"}
            held = {**values, "level": row % 5, "odd": row % 2 == 1, "mixed": f"text {row}" if row % 3 else row - 7.5}
            held |= {} if row % 4 else {"sparse": row % 7}
            rows.append(msgspec.json.encode({"r": row, "id": f"q{row}", "row": held, "i": "question", "t": "answer"}))
        for model in MODELS:
            first, at = len(plan), sum(len(line) + 1 for line in plan)
            cells.append(Cell(TASK, model, first, samples * REPEATS, at, 0))
            for row in range(1, samples + 1):
                for repeat in range(1, REPEATS + 1):
                    key = f"{TASK}/{model}/q{row}/{repeat}"
                    plan.append(msgspec.json.encode({"o": len(plan), "k": key, "r": row, "x": "0"}))
        self.keys = [msgspec.json.decode(line)["k"] for line in plan]
        stored_plan = LineFile(plan_path(self.folder)).write(plan)
        stored_rows = LineFile(data_path(self.folder)).write(rows)
        started = RunStarted("r", spec or SPEC, stored_plan, stored_rows, tuple(cells))
        self.append([draft("run.started", started), self.scoring()])

    def append(self, records: Iterable[Draft]) -> None:
        """What one process writes."""
        given = list(records)
        positions = write_session(journal_folder(self.folder), given, wanted=OpenRequest(UID))[1]
        for each, position in zip(given, positions, strict=True):
            if id(each) in self._finishing:
                self._answers[self._finishing[id(each)]] = position.n

    def scoring(self, evaluation: str = EVALUATION) -> Draft:
        return draft("score.started", ScoringStarted(evaluation, [{"name": "right"}, {"name": "length"}]))

    def resumed(self, spec: dict[str, Any] | None = None) -> Draft:
        return draft("run.resumed", RunResumed(spec=spec))

    def ended(self) -> Draft:
        return draft("run.completed", RunEnded(0, 0, 0))

    def finished(self, o: int, text: str, seconds: float = 0.5, tokens: int = 3, **fields: Any) -> Draft:
        spent = Spent(live=1, usage=Usage(tokens, len(text)), seconds=seconds)
        answer = Answer(text, finish_reason=fields.pop("finish_reason", "stop"))
        found = SampleFinished(o, self._attempt(o), answer, spent, 2, **fields)
        made = draft("sample.finished", found, self.keys[o])
        self._finishing[id(made)] = o
        self._kept.append(made)  # or another draft would get its id
        return made

    def failed(self, o: int, kind: str, message: str, *, final: bool = True) -> Draft:
        return draft("sample.failed", SampleFailed(o, self._attempt(o), Failure(kind, message), final), self.keys[o])

    def score(self, o: int, scorer: str, value: Any, evaluation: str = EVALUATION, **fields: Any) -> Draft:
        given = ScoreGiven(o, self._answers[o], evaluation, scorer, value, **fields)
        return draft("score", given, self.keys[o])

    def _attempt(self, o: int) -> int:
        self._attempts[o] = self._attempts.get(o, 0) + 1
        return self._attempts[o]

    def fill(self, seed: int, ordinals: Sequence[int]) -> None:
        """Random ends and scores for these samples."""
        draw = random.Random(seed)
        ends, done = [], []
        for o in ordinals:
            if o in self._answers:
                continue
            chance = draw.random()
            if chance < 0.7:
                text = "" if chance < 0.05 else " ".join(draw.choices(WORDS, k=draw.randrange(1, 12)))
                found = {"refusal": "sorry"} if draw.random() < 0.1 else {}
                why = "length" if draw.random() < 0.1 else "stop"
                seconds = round(draw.choice((0.1, 0.1, 0.2, 3.0, 40.0)), 3)
                ends.append(
                    self.finished(o, text, seconds, draw.randrange(9), finish_reason=why, anomalies=found, looked=1)
                )
                done.append(o)
            elif chance < 0.9:
                kind = draw.choice(("server", "timeout"))
                message = draw.choice((f"status {draw.randrange(500, 600)}", "no answer"))
                ends.append(self.failed(o, kind, message, final=chance < 0.85))
        self.append(ends)
        self.append([each for o in done for each in self._scores(o, draw)])

    def _scores(self, o: int, draw: random.Random) -> Iterable[Draft]:
        yield self.score(o, "right", draw.choice((True, False)))
        chance = draw.random()
        if chance < 0.1:
            yield self.score(o, "length", None, failure=Failure("scorer", f"cannot rate {o}"), last=True)
        elif chance < 0.2:
            yield self.score(o, "length", draw.choice((None, "long")), last=True)
        else:
            yield self.score(o, "length", draw.choice((0, draw.randrange(7) / 2)), last=True)


def page(sources: Sources, **query: Any) -> SampleList:
    """The data of the page. A `__` in a name is a dot."""
    given = {name.replace("__", "."): str(value) for name, value in query.items() if value not in (None, "")}
    return samples.load(PageRequest(sources, {"experiment": "e", "run": "r"}, given, is_data=True))


def exported(sources: Sources) -> list[ExportLine]:
    """All samples as `holdfast export` writes them: what the list must agree with."""
    with sources.open(RunRef("e", "r")) as run:
        return list(run.lines(columns=["*"]))
