"""The whole story of one key, from what the journal holds of it: attempts, their steps, the answer, its scores.

Says only what is recorded. Of a step it says whether the attempt that ended asked it live or was given it again: a step
that was recorded before the process that ended the attempt began was replayed, unless the attempt did not ask for it
any more (`orphaned`, which is counted for an attempt and not recorded for a step).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.journal import Entry
from holdfast.journal.ownership.lease import InFlight
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import (
    Asked,
    Called,
    Failure,
    Files,
    RunResumed,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    Spent,
    Step,
    StepStarted,
)
from holdfast.records.samples import Answer, Message, Row, Usage
from holdfast.spec import Price

_step = FactDecoder(Step)
_started = FactDecoder(StepStarted)
_finished = FactDecoder(SampleFinished)
_failed = FactDecoder(SampleFailed)
_score = FactDecoder(ScoreGiven)
_resumed = FactDecoder(RunResumed)


class StepStory(msgspec.Struct, frozen=True):
    """One durable call. `messages` are those that no earlier step holds; `kept` of those before them came first."""

    n: int
    at: str
    how: str
    """`live`, `replayed` (recorded by a process before the one that ended the attempt), `taken over` (by a fork)."""
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
    turn: int = 0
    """A turn is a model request, of whatever role, and the calls that follow it. 0: before the first request."""
    process: int = 1
    """Which of the processes that worked on the run recorded it; each resume begins another."""
    dollars: float | None = None
    """None if the spec has no price for the model."""
    reasoning: str = ""
    """What the model thought, as far as its server tells."""
    raw: Any = None
    """What the server sent, where the model's `record_raw` says so."""


class BegunStory(msgspec.Struct, frozen=True):
    """A call that must not be made twice was begun, and nothing is recorded of what came of it."""

    n: int
    at: str
    process: int
    called: Called | None


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
    turns: int = 0
    usage: Usage = Usage()
    """Of all its steps that are listed here."""
    dollars: float | None = None
    begun: tuple[BegunStory, ...] = ()


class JudgingStory(msgspec.Struct, frozen=True):
    """One try at scoring the answer in an evaluation that asks judges: what they were asked. It is finished when every
    scorer of the evaluation has had its say.
    """

    evaluation: str
    name: str
    """What the evaluation is called, or its scorers."""
    told: AttemptStory


class Doing(msgspec.Struct, frozen=True):
    """What a sample of a live run is doing, as far as its journal and its lease tell."""

    turn: int
    what: str
    """`waiting for the model`, `waiting for tools`, `solving`, `saving`, …; empty if only the journal tells."""
    seconds: float
    """Since it last moved; where only the journal tells, the age of its last record."""
    tools: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.what:
            return f"in progress: turn {self.turn}; its last record is {self.seconds:.1f} s old"
        tools = f" {', '.join(self.tools)}" if self.tools else ""
        told = f"in progress: turn {self.turn}, {self.what}{tools} for {self.seconds:.1f} s"
        return told + "".join(f"; {frame}" for frame in self.stack)


class ScoreStory(msgspec.Struct, frozen=True):
    """One scorer's word, or what a person set in its place. `current`: of the evaluation that is looked at and of the
    answer that counts, and not replaced by hand.
    """

    at: str
    scorer: str
    value: Any
    reason: str
    metadata: dict[str, Any]
    failure: Failure | None
    evaluation: str
    current: bool
    author: str = ""
    """Who set it by hand."""
    replaced: bool = False
    """Somebody has set another in its place by hand."""
    taken: str = ""
    """The evaluation that it was taken over from."""


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
    in_progress: Doing | None = None
    resumes: tuple[str, ...] = ()
    """When further processes went on with the run: the second, the third, …"""
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """What is odd about its answer, by kind, each with what shows it."""
    judgings: tuple[JudgingStory, ...] = ()
    """What judges were asked about its answers, by evaluation."""

    def __str__(self) -> str:
        from holdfast.report.story_lines import story_lines

        return "\n".join(line for line, _ in story_lines(self, full=True))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


class KeyRecords(msgspec.Struct):
    """Everything that a journal holds of one key."""

    steps: list[tuple[int, str, int, Step]] = msgspec.field(default_factory=list)
    """n, at, sitting, step. A sitting is one process's work on the run, counted from 1."""
    ends: list[tuple[int, str, int, SampleFinished | SampleFailed]] = msgspec.field(default_factory=list)
    scores: list[tuple[str, int, ScoreGiven]] = msgspec.field(default_factory=list)
    begun: list[tuple[int, str, int, StepStarted]] = msgspec.field(default_factory=list)
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
        if line.t == "run.resumed" and not _resumed.decode(line).live:
            sitting += 1
            found.begun_again.append(line.at)
        if line.k != key:
            continue
        if line.t == "step":
            found.steps.append((line.n, line.at, sitting, _step.decode(line)))
        elif line.t == "step.started":
            found.begun.append((line.n, line.at, sitting, _started.decode(line)))
        elif line.t == "sample.finished":
            found.ends.append((line.n, line.at, sitting, _finished.decode(line)))
        elif line.t == "sample.failed":
            found.ends.append((line.n, line.at, sitting, _failed.decode(line)))
        elif line.t == "score":
            found.scores.append((line.at, sitting, _score.decode(line)))
    return found


def attempts_of(found: KeyRecords, prices: Mapping[str, Price | None]) -> tuple[AttemptStory, ...]:
    """In order. An attempt of a number may come to more than one end: each retry of a run counts on. `prices` are by
    role, that of the evaluated model under the empty one.
    """
    ends = {end.attempt: (at, sitting, end) for _, at, sitting, end in reversed(found.ends)}
    numbers = sorted({*ends, *(number for what, _, number in _scopes(found) if what == "solve")})
    return tuple(_attempt_story(number, found, ends.get(number), prices) for number in numbers)


def judgings_of(
    found: KeyRecords, prices: Mapping[str, Price | None], names: Mapping[str, str]
) -> tuple[JudgingStory, ...]:
    """In the order in which they began. `names`: what the evaluations are called."""
    told = []
    for what, evaluation, number in _scopes(found):
        if what != "score":
            continue
        ends = [each for each in found.scores if each[2].evaluation == evaluation and each[2].last]
        at, last, data = ends[number - 1] if number <= len(ends) else ("", len(found.begun_again) + 1, None)
        blank = AttemptStory(
            number, "unfinished" if data is None else "finished", "", at, (), None, data is not None, None
        )
        spent = None if data is None else data.spent
        story = _with_steps(blank, f"score/{evaluation}/{number}", found, last, prices)
        named = names.get(evaluation, "")
        told.append(JudgingStory(evaluation, named, msgspec.structs.replace(story, spent=spent)))
    return tuple(told)


def scores_of(found: KeyRecords, evaluation: str) -> tuple[ScoreStory, ...]:
    """Every score that was ever given, those of the evaluation last, what people set behind what scorers said."""
    counts = found.finished[0] if found.finished else 0
    last = {(each.evaluation, each.of, each.scorer): each for *_, each in found.scores if each.author}
    told: list[tuple[bool, ScoreStory]] = []
    for at, _, score in found.scores:
        is_here = score.evaluation == evaluation and score.of == counts
        replaced = last.get((score.evaluation, score.of, score.scorer), score) is not score
        story = ScoreStory(
            at=score.at or at,
            scorer=score.scorer,
            value=score.value,
            reason=score.reason,
            metadata=score.metadata,
            failure=score.failure,
            evaluation=score.evaluation,
            current=is_here and not replaced,
            author=score.author,
            replaced=replaced,
            taken=score.taken,
        )
        told.append((is_here, story))
    told.sort(key=lambda each: (each[0], bool(each[1].author)))
    return tuple(story for _, story in told)


def doing_of(found: InFlight | None, attempts: Sequence[AttemptStory], now: float, process: int) -> Doing | None:
    """What an unfinished sample of a live run is doing. `found`: what the lease says of it, which tells only of the
    oldest samples; of others the journal tells, if this process has recorded something of them.
    """
    steps = attempts[-1].steps if attempts and attempts[-1].status == "unfinished" else ()
    turn, open_tools = _open_turn(steps)
    if found is not None:
        what, waits = found.doing, found.doing == "waiting for an answer"
        if waits:
            what = "waiting for tools" if open_tools else "waiting for the model"
        since = round(max(now - found.since, 0.0), 3)
        return Doing(turn, what, since, open_tools if waits else (), tuple(found.stack))
    if steps and steps[-1].process == process:
        written = datetime.fromisoformat(steps[-1].at).timestamp()
        return Doing(turn, "", round(max(now - written, 0.0), 3))
    return None


def _open_turn(steps: Sequence[StepStory]) -> tuple[int, tuple[str, ...]]:
    """The turn that a sample is in, and the tools that its last answer called and that no step tells of. A solver that
    records no calls at all is not taken to wait for them.
    """
    asked = [index for index, step in enumerate(steps) if step.kind == "generate"]
    if not asked:
        return 1, ()
    last, after = steps[asked[-1]], steps[asked[-1] + 1 :]
    wanted = list(last.tool_calls)
    for step in after:
        done = next((each for each in wanted if step.called and call_name(each) == step.called.tool), None)
        if done is not None:
            wanted.remove(done)
    records_calls = len(asked) == 1 or any(step.called for step in steps)
    if wanted and records_calls:
        return last.turn, tuple(dict.fromkeys(map(call_name, wanted)))
    return last.turn + 1, ()


def call_name(call: Any) -> str:
    """The tool that a model calls, as the wire has it."""
    function = call.get("function") if isinstance(call, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else ""


def _attempt_story(
    number: int,
    found: KeyRecords,
    end: tuple[str, int, SampleFinished | SampleFailed] | None,
    prices: Mapping[str, Price | None],
) -> AttemptStory:
    at, last, data = end if end is not None else ("", len(found.begun_again) + 1, None)
    failed = data if isinstance(data, SampleFailed) else None
    story = AttemptStory(
        attempt=number,
        status="unfinished" if data is None else "failed" if failed is not None else "finished",
        began="",
        ended=at,
        steps=(),
        failure=failed.failure if failed is not None else None,
        final=failed.final if failed is not None else data is not None,
        spent=data.spent if data is not None else None,
    )
    return _with_steps(story, f"solve/{number}", found, last, prices)


def _with_steps(
    story: AttemptStory, scope: str, found: KeyRecords, last: int, prices: Mapping[str, Price | None]
) -> AttemptStory:
    """With all that is recorded in its scope. `last`: the process that ended it."""
    steps = tuple(_step_stories(scope, found, last, prices))
    priced = [step.dollars for step in steps if step.dollars is not None]
    return msgspec.structs.replace(
        story,
        began=min((step.at for step in steps), default=story.ended),
        steps=steps,
        turns=max((step.turn for step in steps), default=0),
        usage=sum((step.usage for step in steps), Usage()),
        dollars=sum(priced) if priced else None,
        begun=tuple(_unsure(scope, found)),
    )


def _step_stories(scope: str, found: KeyRecords, last: int, prices: Mapping[str, Price | None]) -> Iterator[StepStory]:
    asked = {n: step.asked for n, _, _, step in found.steps if step.asked is not None}
    turn = 0
    for n, at, sitting, step in found.steps:
        if step.scope != scope:
            continue
        turn += step.kind == "generate"
        whole = asked[n].filled(asked) if n in asked else None
        told = _step_story(n, at, step, whole, replayed=sitting < last)
        price = prices.get(told.role) if told.answer is not None else None
        dollars = None if price is None else price.dollars(step.usage)
        yield msgspec.structs.replace(told, turn=turn, process=sitting, dollars=dollars)


def _unsure(scope: str, found: KeyRecords) -> Iterator[BegunStory]:
    """As a resume judges it: what was begun, and has no step that says what came of it."""
    done = {(step.scope, step.q, step.c) for *_, step in found.steps if not step.cancelled}
    for n, at, sitting, started in found.begun:
        if started.scope == scope and (started.scope, started.q, started.c) not in done:
            yield BegunStory(n, at, sitting, started.called)


def _step_story(n: int, at: str, step: Step, asked: Asked | None, *, replayed: bool) -> StepStory:
    answer = step.answer
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
        reasoning=answer.reasoning if answer else "",
        raw=answer.raw if answer else None,
    )


def _tool_names(tools: Iterable[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function")
        yield str(function.get("name") if isinstance(function, dict) else tool.get("name", "tool"))


def _scopes(found: KeyRecords) -> Iterator[tuple[str, str, int]]:
    """`solve` or `score`, the evaluation, and the number of the attempt, in the order in which they began."""
    begun = [(n, step.scope) for n, _, _, step in found.steps] + [(n, each.scope) for n, _, _, each in found.begun]
    for scope in dict.fromkeys(scope for _, scope in sorted(begun)):
        what, *evaluation, number = scope.split("/")
        yield what, "/".join(evaluation), int(number)
