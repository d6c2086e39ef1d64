"""The whole story of one key, read from the journal: attempts with their steps, the answer, its scores.

It contains only recorded facts. A step is `replayed` if it was recorded before the process that ended the attempt
began, otherwise `live`. Orphaned steps (recorded, but not requested again after a resume) are only counted per
attempt, so a single step cannot be marked as orphaned. The structs are what `show RUN KEY --json` prints: fields are
only ever added.

A sample may have many thousands of steps. `KeyRecords` without texts is an outline of all; `with_texts` adds a part.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.journal import Entry, InFlight, Position
from holdfast.records import (
    Answer,
    Count,
    FactDecoder,
    Failure,
    FileChanges,
    Line,
    Message,
    Row,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    Seconds,
    Spent,
    Step,
    StepStarted,
    Timing,
    ToolCall,
    Usage,
)
from holdfast.spec import Price
from holdfast.state import Life, RecordHandlers

_step = FactDecoder(Step)
_STEP = "step"
_started = FactDecoder(StepStarted)
_finished = FactDecoder(SampleFinished)
_failed = FactDecoder(SampleFailed)
_score = FactDecoder(ScoreGiven)
_KEY_RECORDS: RecordHandlers["KeyRecords", Line] = RecordHandlers()


class _RequestOutline(msgspec.Struct, frozen=True, gc=False):
    role: str = ""
    params_of: Count = 0
    tools_of: Count = 0


class _CallOutline(msgspec.Struct, frozen=True, gc=False):
    tool: str


class _AnswerOutline(msgspec.Struct, frozen=True, gc=False):
    usage: Usage = Usage()


class _FailureOutline(msgspec.Struct, frozen=True, gc=False):
    kind: str


class StepOutline(msgspec.Struct, frozen=True, gc=False):
    """A step without its texts: decoding skips them."""

    scope: str
    q: str
    c: Count = 0
    kind: str = "generate"
    asked: _RequestOutline | None = None
    called: _CallOutline | None = None
    answer: _AnswerOutline | None = None
    failure: _FailureOutline | None = None
    cancelled: bool = False
    seconds: Seconds = 0.0
    timing: Timing | None = None
    tries: Count = 1
    batch: str = ""
    origin: Count = 0

    @property
    def usage(self) -> Usage:
        """As `Step.usage`."""
        return Usage() if self.answer is None else self.answer.usage.of_one(bool(self.batch))


class StepStory(msgspec.Struct, frozen=True):
    """One durable call. `messages` are the new ones; before them come the first `kept` messages of step `after`."""

    n: int
    at: str
    how: str
    """`live`, `replayed` (recorded by an earlier process), or `taken over` (copied by a fork)."""
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
    called: ToolCall | None = None
    value: Any = None
    """The result of a tool or of the clock."""
    files: FileChanges | None = None
    """What the call changed in the sample's sandbox."""
    turn: int = 0
    """A turn is a model request of any role with the calls after it. 0: before the first request."""
    process: int = 1
    """The number of the process that recorded it, as in the lineage of the run."""
    dollars: float | None = None
    """None if the spec has no price for the model."""
    reasoning: str = ""
    """The model's reasoning, if its server returns it."""
    raw: Any = None
    """The server's response body, with `record_raw`."""
    timing: Timing | None = None
    """Where the time of a model request went."""


class BegunStory(msgspec.Struct, frozen=True):
    """A call that must not be made twice was started, and its result is not recorded."""

    n: int
    at: str
    process: int
    called: ToolCall | None


class AttemptStory(msgspec.Struct, frozen=True):
    """One attempt. `status`: finished, failed, or unfinished (interrupted, or still running)."""

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
    """Of all listed steps."""
    dollars: float | None = None
    begun: tuple[BegunStory, ...] = ()


class JudgingStory(msgspec.Struct, frozen=True):
    """One attempt at scoring the answer in an evaluation with judges: the requests to them. It is finished when every
    scorer of the evaluation has given its score.
    """

    evaluation: str
    name: str
    """The evaluation's name, or its scorers."""
    told: AttemptStory


class SampleActivity(msgspec.Struct, frozen=True):
    """What a sample of a live run is doing, according to its journal and lease."""

    turn: int
    what: str
    """`waiting for the model`, `waiting for tools`, `solving`, `saving`, …; empty if the lease does not list it."""
    seconds: float
    """Time since its last activity; without the lease, the age of its last record."""
    tools: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.what:
            return f"in progress: turn {self.turn}; its last record is {self.seconds:.1f} s old"
        tools = f" {', '.join(self.tools)}" if self.tools else ""
        text = f"in progress: turn {self.turn}, {self.what}{tools} for {self.seconds:.1f} s"
        return text + "".join(f"; {frame}" for frame in self.stack)


class ScoreStory(msgspec.Struct, frozen=True):
    """One score, by a scorer or set by hand. `current`: it belongs to the shown evaluation and to the answer that
    counts, and was not replaced by hand.
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
    """A later score set by hand replaces it."""
    taken: str = ""
    """The evaluation that it was copied from."""
    n: int = 0
    """The number of its record."""


class KeyStory(msgspec.Struct, frozen=True):
    """The output of `show RUN KEY --json`: a contract, fields are only ever added."""

    run_id: str
    key: str
    o: int
    status: str
    doing: str
    """In a live run: what this sample is doing, and since when."""
    row: Row | None
    messages: list[Message]
    """The first request: system, examples, question. Empty if nothing is recorded yet."""
    attempts: tuple[AttemptStory, ...]
    answer: Answer | None
    failure: Failure | None
    """Why there is no answer: the failure of the last attempt."""
    scores: tuple[ScoreStory, ...]
    in_progress: SampleActivity | None = None
    resumes: tuple[str, ...] = ()
    """When later processes began: the second, the third, …"""
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """Anomalies of its answer: the reason by kind."""
    judgings: tuple[JudgingStory, ...] = ()
    """Requests to judges about its answers, by evaluation."""
    input: Any = None
    """The value of the input column; without one, the prompt. None if the row is not recorded."""
    target: Any = None
    prompt: str | None = None
    """The last user message of the task's prompt, rendered."""
    answered: int = 0
    """The number of the record with the answer."""

    def __str__(self) -> str:
        from holdfast.report.story_lines import story_lines

        return "\n".join(line for line, _ in story_lines(self, full=True))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


class KeyRecords(msgspec.Struct):
    """Every record of one key, in journal order. With `texts`, all steps are `Step`; otherwise `with_texts` gives some
    of them their texts.
    """

    steps: list[tuple[int, str, int, Step | StepOutline]] = msgspec.field(default_factory=list)
    """n, at, process, step. Processes are numbered from 1, in the order of `lives`."""
    ends: list[tuple[int, str, int, SampleFinished | SampleFailed]] = msgspec.field(default_factory=list)
    scores: list[tuple[int, str, int, ScoreGiven]] = msgspec.field(default_factory=list)
    begun: list[tuple[int, str, int, StepStarted]] = msgspec.field(default_factory=list)
    lives: Sequence[Life] = ()
    """Every process of the run, those that only scored included."""
    count: int = 0
    """How many records the key has."""
    texts: bool = True
    places: list[tuple[Position, int]] = msgspec.field(default_factory=list)
    """Where each step is, and its size in bytes."""
    shown: frozenset[int] | None = None
    """The numbers of the steps that stories list; None for all. Totals include every step."""

    @property
    def process(self) -> int:
        """The number of the last process that worked on samples."""
        return max((at for at, life in enumerate(self.lives, 1) if life.kind != "score.started"), default=1)

    def process_of(self, n: int) -> int:
        """The number of the process that wrote a record."""
        return max(bisect_right(self.lives, n, key=lambda life: life.n), 1)

    @_KEY_RECORDS.on("step")
    def _add_step(self, line: Line) -> None:
        step = _step.decode(line) if self.texts else _outline.decode(line)
        self.steps.append((line.n, line.at, self.process_of(line.n), step))

    @_KEY_RECORDS.on("step.started")
    def _add_announcement(self, line: Line) -> None:
        self.begun.append((line.n, line.at, self.process_of(line.n), _started.decode(line)))

    @_KEY_RECORDS.on("sample.finished")
    def _add_finished(self, line: Line) -> None:
        self.ends.append((line.n, line.at, self.process_of(line.n), _finished.decode(line)))

    @_KEY_RECORDS.on("sample.failed")
    def _add_failed(self, line: Line) -> None:
        self.ends.append((line.n, line.at, self.process_of(line.n), _failed.decode(line)))

    @_KEY_RECORDS.on("score")
    def _add_score(self, line: Line) -> None:
        self.scores.append((line.n, line.at, self.process_of(line.n), _score.decode(line)))

    @property
    def finished(self) -> tuple[int, SampleFinished] | None:
        """The answer that counts, which is the first, with its record number."""
        return next(((n, end) for n, _, _, end in self.ends if isinstance(end, SampleFinished)), None)

    @property
    def first_request(self) -> list[Message]:
        """The messages of the first request; empty if there is none, or if its texts were not read."""
        steps = (step for *_, step in self.steps if step.scope.startswith("solve/"))
        first = next(steps, None)
        return first.asked.new if isinstance(first, Step) and first.asked is not None else []

    def with_texts(self, shown: Iterable[int], read: Callable[[Position], object]) -> "KeyRecords":
        """A copy that lists only these steps, with their texts. `read` gets a record from the journal. Also reads the
        first step, and the steps that hold the parameters and tools of these.
        """
        at = {n: number for number, (n, *_) in enumerate(self.steps)}
        chosen = frozenset(each for each in shown if each in at)
        asked = [self.steps[at[n]][3].asked for n in chosen]
        needed = {number for each in asked if each is not None for number in (each.params_of, each.tools_of)}
        first = next((n for n, _, _, step in self.steps if step.scope.startswith("solve/")), 0)
        steps = list(self.steps)
        for n in sorted((chosen | needed | {first}) & at.keys()):
            _, when, process, step = steps[at[n]]
            entry = read(self.places[at[n]][0]) if isinstance(step, StepOutline) else None
            if isinstance(entry, Entry) and (entry.line.n, entry.line.t) == (n, _STEP):
                steps[at[n]] = (n, when, process, _step.decode(entry.line))
        return msgspec.structs.replace(self, steps=steps, shown=chosen)


_outline = FactDecoder(StepOutline)


def collect(entries: Iterable[object], key: str, found: KeyRecords | None = None) -> KeyRecords:
    """Collect one key's records from a journal that is read in order. `found`: add to these."""
    found = KeyRecords() if found is None else found
    for each in entries:
        if not isinstance(each, Entry):
            continue
        line = each.line
        if line.k != key:
            continue
        found.count += 1
        handler = _KEY_RECORDS.get(line.t)
        if handler is not None:
            handler(found, line)
            if line.t == _STEP:
                found.places.append((Position(line.n, each.segment, each.offset), each.end - each.offset))
    return found


def attempts_of(found: KeyRecords, prices: Mapping[str, Price | None]) -> tuple[AttemptStory, ...]:
    """The attempts in order. If several records end the same attempt, the first counts. `prices` are by role; the
    evaluated model has the empty role.
    """
    ends = {end.attempt: (at, process, end) for _, at, process, end in reversed(found.ends)}
    numbers = sorted({*ends, *(number for what, _, number in _scopes(found) if what == "solve")})
    stories = []
    for number in numbers:
        at, last, end = ends.get(number, ("", found.process, None))
        failed = end if isinstance(end, SampleFailed) else None
        story = AttemptStory(
            attempt=number,
            status="unfinished" if end is None else "failed" if failed is not None else "finished",
            began="",
            ended=at,
            steps=(),
            failure=failed.failure if failed is not None else None,
            final=failed.final if failed is not None else end is not None,
            spent=end.spent if end is not None else None,
        )
        stories.append(_with_steps(story, f"solve/{number}", found, last, prices))
    return tuple(stories)


def judgings_of(
    found: KeyRecords,
    prices: Mapping[str, Price | None],
    names: Mapping[str, str],
    given: Mapping[str, Mapping[str, Price | None]] | None = None,
) -> tuple[JudgingStory, ...]:
    """Scoring attempts in the order in which they began. `names`: of evaluations, by id. `given`: by evaluation, the
    prices of models that were given for it.
    """
    stories = []
    for what, evaluation, number in _scopes(found):
        if what != "score":
            continue
        ends = [each for each in found.scores if each[3].evaluation == evaluation and each[3].last]
        _, at, last, data = ends[number - 1] if number <= len(ends) else (0, "", len(found.lives), None)
        blank = AttemptStory(
            number, "unfinished" if data is None else "finished", "", at, (), None, data is not None, None
        )
        spent = None if data is None else data.spent
        own = {**prices, **(given or {}).get(evaluation, {})}
        story = _with_steps(blank, f"score/{evaluation}/{number}", found, last, own)
        named = names.get(evaluation, "")
        stories.append(JudgingStory(evaluation, named, msgspec.structs.replace(story, spent=spent)))
    return tuple(stories)


def scores_of(found: KeyRecords, evaluation: str) -> tuple[ScoreStory, ...]:
    """Every score ever given. Scores of the shown evaluation come last; in it, those set by hand after the others."""
    counts = found.finished[0] if found.finished else 0
    last = {(each.evaluation, each.of, each.scorer): each for *_, each in found.scores if each.author}
    stories: list[tuple[bool, ScoreStory]] = []
    for n, at, _, score in found.scores:
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
            n=n,
        )
        stories.append((is_here, story))
    stories.sort(key=lambda each: (each[0], bool(each[1].author)))
    return tuple(story for _, story in stories)


def activity_of(
    found: InFlight | None, attempts: Sequence[AttemptStory], now: float, process: int
) -> SampleActivity | None:
    """What an unfinished sample of a live run is doing. `found`: its entry in the lease, which lists only the oldest
    samples. For others the journal is used, if the current process has recorded a step of them.
    """
    steps = attempts[-1].steps if attempts and attempts[-1].status == "unfinished" else ()
    turn, open_tools = _open_turn(steps)
    if found is not None:
        what, waits = found.doing, found.doing == "waiting for an answer"
        if waits:
            what = "waiting for tools" if open_tools else "waiting for the model"
        since = round(max(now - found.since, 0.0), 3)
        return SampleActivity(turn, what, since, open_tools if waits else (), tuple(found.stack))
    if steps and steps[-1].process == process:
        written = datetime.fromisoformat(steps[-1].at).timestamp()
        return SampleActivity(turn, "", round(max(now - written, 0.0), 3))
    return None


def _open_turn(steps: Sequence[StepStory]) -> tuple[int, tuple[str, ...]]:
    """The current turn, and the tool calls of the last answer that have no step yet. For a solver that records no calls
    at all, none are reported as open.
    """
    asked = [index for index, step in enumerate(steps) if step.kind == "generate"]
    if not asked:
        return 1, ()
    last, after = steps[asked[-1]], steps[asked[-1] + 1 :]
    left = list(last.tool_calls)
    for step in after:
        done = next((each for each in left if step.called and call_name(each) == step.called.tool), None)
        if done is not None:
            left.remove(done)
    records_calls = len(asked) == 1 or any(step.called for step in steps)
    if left and records_calls:
        return last.turn, tuple(dict.fromkeys(map(call_name, left)))
    return last.turn + 1, ()


def call_name(call: Any) -> str:
    """The tool that a model calls, from the provider's format."""
    function = call.get("function") if isinstance(call, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else ""


def _with_steps(
    story: AttemptStory, scope: str, found: KeyRecords, last: int, prices: Mapping[str, Price | None]
) -> AttemptStory:
    """The attempt with the steps of its scope. `last`: the process that ended it."""
    every = [(at, step) for _, at, _, step in found.steps if step.scope == scope]
    # Announced calls without a step that records their result, as a resume determines them.
    done = {(step.scope, step.q, step.c) for *_, step in found.steps if not step.cancelled} if found.begun else set()
    begun = [
        BegunStory(n, at, process, started.called)
        for n, at, process, started in found.begun
        if started.scope == scope and (started.scope, started.q, started.c) not in done
    ]
    priced = [each for each in (_dollars_of(step, prices) for _, step in every) if each is not None]
    return msgspec.structs.replace(
        story,
        began=min((started_at(at, step) for at, step in every), default=story.ended),
        steps=tuple(_step_stories(scope, found, last, prices)),
        turns=sum(step.kind == "generate" for _, step in every),
        usage=sum((step.answer.usage for _, step in every if step.answer is not None), Usage()),
        dollars=sum(priced) if priced else None,
        begun=tuple(begun),
    )


def started_at(at: str, step: Step | StepOutline) -> str:
    """When a step's request entered the queue; `at`: when its response was recorded. Of a step that a fork copied, the
    time of the copy: the request belongs to another run.
    """
    took = step.seconds + (step.timing.queue if step.timing else 0.0)
    if step.origin or took <= 0:
        return at
    try:
        began = datetime.fromisoformat(at) - timedelta(seconds=took)
    except OverflowError:  # a stored duration that reaches back before the first year
        return at
    return f"{began.isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def _dollars_of(step: Step | StepOutline, prices: Mapping[str, Price | None]) -> float | None:
    price = prices.get(step.asked.role if step.asked else "") if step.answer is not None else None
    return None if price is None else price.dollars(step.usage)


def _step_stories(scope: str, found: KeyRecords, last: int, prices: Mapping[str, Price | None]) -> Iterator[StepStory]:
    requests = {n: step.asked for n, _, _, step in found.steps if isinstance(step, Step) and step.asked is not None}
    turn = 0
    for n, at, process, step in found.steps:
        if step.scope != scope:
            continue
        turn += step.kind == "generate"
        if not isinstance(step, Step) or not (found.shown is None or n in found.shown):
            continue
        asked = requests[n].filled(requests) if n in requests else None
        answer = step.answer
        yield StepStory(
            n=n,
            at=at,
            how="taken over" if step.origin else "replayed" if process < last else "live",
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
            value=None if step.value is msgspec.UNSET else step.value,
            files=step.files,
            turn=turn,
            process=process,
            dollars=_dollars_of(step, prices),
            reasoning=answer.reasoning if answer else "",
            raw=answer.raw if answer else None,
            timing=step.timing,
        )


def _tool_names(tools: Iterable[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function")
        yield str(function.get("name") if isinstance(function, dict) else tool.get("name", "tool"))


def _scopes(found: KeyRecords) -> Iterator[tuple[str, str, int]]:
    """(`solve` or `score`, evaluation, attempt number) of each scope, in the order in which they began."""
    begun = [(n, step.scope) for n, _, _, step in found.steps] + [(n, each.scope) for n, _, _, each in found.begun]
    for scope in dict.fromkeys(scope for _, scope in sorted(begun)):
        what, *evaluation, number = scope.split("/")
        yield what, "/".join(evaluation), int(number)
