"""The whole story of one key, from what the journal holds of it: attempts, their steps, the answer, its scores.

Says only what is recorded. Of a step it says whether the attempt that ended asked it live or was given it again: a step
that was recorded before the process that ended the attempt began was replayed, unless the attempt did not ask for it
any more (`orphaned`, which is counted for an attempt and not recorded for a step).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.journal import Entry
from holdfast.journal.lease import InFlight
from holdfast.records.exchange import Answer, Message, Row, Usage
from holdfast.records.facts import (
    Called,
    Failure,
    Files,
    RunResumed,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    Spent,
    Step,
)

_step = msgspec.json.Decoder(Step)
_finished = msgspec.json.Decoder(SampleFinished)
_failed = msgspec.json.Decoder(SampleFailed)
_score = msgspec.json.Decoder(ScoreGiven)
_resumed = msgspec.json.Decoder(RunResumed)


class StepStory(msgspec.Struct, frozen=True):
    """One durable call. `messages` are those that no earlier step holds; `kept` of those before them came first."""

    n: int
    at: str
    how: str
    """`live`, `replayed` (asked by a process or an attempt before the one that ended), `taken over` (by a fork)."""
    role: str
    kept: int
    after: int
    messages: list[Message]
    params: dict[str, Any]
    tools: list[str]
    answer: str | None
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    usage: Usage
    seconds: float
    tries: int
    failure: Failure | None
    cancelled: bool
    kind: str = "generate"
    called: Called | None = None
    value: Any = None
    """What a tool, or the clock, said."""
    files: Files | None = None
    """What it changed in the sample's sandbox."""


class AttemptStory(msgspec.Struct, frozen=True):
    """One try. `status`: finished, failed, or unfinished (cut off, or still under way)."""

    attempt: int
    status: str
    began: str
    ended: str
    steps: tuple[StepStory, ...]
    failure: Failure | None
    final: bool
    spent: Spent | None


class ScoreStory(msgspec.Struct, frozen=True):
    """One scorer's word. `current`: of the newest evaluation and of the answer that counts."""

    at: str
    scorer: str
    value: Any
    reason: str
    metadata: dict[str, Any]
    failure: Failure | None
    evaluation: str
    current: bool


class KeyStory(msgspec.Struct, frozen=True):
    """What `show RUN KEY --json` says: a contract, fields are only ever added."""

    run_id: str
    key: str
    o: int
    status: str
    doing: str
    """Of a live run: what this sample is doing, and since when."""
    row: Row | None
    messages: list[Message]
    """As first asked: system, examples, question. Empty if nothing is recorded yet."""
    attempts: tuple[AttemptStory, ...]
    answer: Answer | None
    failure: Failure | None
    """Why there is no answer: of the last attempt."""
    scores: tuple[ScoreStory, ...]

    def __str__(self) -> str:
        from holdfast.report.key_lines import story_lines

        return "\n".join(line for line, _ in story_lines(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


class KeyRecords(msgspec.Struct):
    """Everything that a journal holds of one key."""

    steps: list[tuple[int, str, int, Step]] = msgspec.field(default_factory=list)
    """n, at, sitting, step. A sitting is one process's work on the run, counted from 1."""
    ends: list[tuple[int, str, int, SampleFinished | SampleFailed]] = msgspec.field(default_factory=list)
    scores: list[tuple[str, ScoreGiven]] = msgspec.field(default_factory=list)
    begun_again: list[str] = msgspec.field(default_factory=list)
    """When further processes went on with the run."""

    @property
    def finished(self) -> tuple[int, SampleFinished] | None:
        """The first answer counts."""
        return next(((n, end) for n, _, _, end in self.ends if isinstance(end, SampleFinished)), None)


def collect(entries: Iterable[object], key: str) -> KeyRecords:
    """Pick one key's records out of a journal that is read in order."""
    found, sitting = KeyRecords(), 1
    for each in entries:
        if not isinstance(each, Entry):
            continue
        line = each.line
        if line.t == "run.resumed" and not _resumed.decode(line.d).live:
            sitting += 1
            found.begun_again.append(line.at)
        if line.k != key:
            continue
        if line.t == "step":
            found.steps.append((line.n, line.at, sitting, _step.decode(line.d)))
        elif line.t == "sample.finished":
            found.ends.append((line.n, line.at, sitting, _finished.decode(line.d)))
        elif line.t == "sample.failed":
            found.ends.append((line.n, line.at, sitting, _failed.decode(line.d)))
        elif line.t == "score":
            found.scores.append((line.at, _score.decode(line.d)))
    return found


def attempts_of(found: KeyRecords) -> tuple[AttemptStory, ...]:
    """In order. An attempt of a number may come to more than one end: each retry of a run counts on."""
    ends = {end.attempt: (at, sitting, end) for _, at, sitting, end in reversed(found.ends)}
    numbers = sorted({*ends, *(_attempt(step) for *_, step in found.steps)})
    return tuple(_attempt_story(number, found, ends.get(number)) for number in numbers)


def scores_of(found: KeyRecords, evaluation: str) -> tuple[ScoreStory, ...]:
    """Every score that was ever given, those that count last."""
    counts = found.finished[0] if found.finished else 0
    told = [
        ScoreStory(
            at=at,
            scorer=score.scorer,
            value=score.value,
            reason=score.reason,
            metadata=score.metadata,
            failure=score.failure,
            evaluation=score.evaluation,
            current=score.evaluation == evaluation and score.of == counts,
        )
        for at, score in found.scores
    ]
    return tuple(sorted(told, key=lambda score: score.current))


def doing_now(oldest: Sequence[InFlight], key: str) -> InFlight | None:
    return next((each for each in oldest if each.key == key), None)


def _attempt_story(
    number: int, found: KeyRecords, end: tuple[str, int, SampleFinished | SampleFailed] | None
) -> AttemptStory:
    own = [each for each in found.steps if _attempt(each[3]) == number]
    at, last, data = end if end is not None else ("", len(found.begun_again) + 1, None)
    failed = data if isinstance(data, SampleFailed) else None
    return AttemptStory(
        attempt=number,
        status="unfinished" if data is None else "failed" if failed is not None else "finished",
        began=min((each[1] for each in own), default=at),
        ended=at,
        steps=tuple(_step_story(n, at, step, replayed=sitting < last) for n, at, sitting, step in own),
        failure=failed.failure if failed is not None else None,
        final=failed.final if failed is not None else data is not None,
        spent=data.spent if data is not None else None,
    )


def _step_story(n: int, at: str, step: Step, *, replayed: bool) -> StepStory:
    asked, answer = step.asked, step.answer
    return StepStory(
        n=n,
        at=at,
        how="taken over" if step.origin else "replayed" if replayed else "live",
        role=asked.role if asked else "",
        kept=asked.keep if asked else 0,
        after=asked.after if asked else 0,
        messages=asked.new if asked else [],
        params=asked.params if asked else {},
        tools=list(_tool_names(asked.tools)) if asked else [],
        answer=answer.text if answer else None,
        tool_calls=answer.tool_calls if answer else [],
        finish_reason=answer.finish_reason if answer else "",
        usage=answer.usage if answer else Usage(),
        seconds=step.seconds,
        tries=step.tries,
        failure=step.failure,
        cancelled=step.cancelled,
        kind=step.kind,
        called=step.called,
        files=step.files,
        value=None if step.value is msgspec.UNSET else step.value,
    )


def _tool_names(tools: Iterable[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function")
        yield str(function.get("name") if isinstance(function, dict) else tool.get("name", "tool"))


def _attempt(step: Step) -> int:
    return int(step.scope.split("/")[1]) if step.scope.startswith("solve/") else 0
