"""The story of one key as styled lines of text, for terminals, notebooks and logs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.printable import one_line
from holdfast.records import Failure, FileChanges, Message, with_strings
from holdfast.report.questions import value_text
from holdfast.report.story import AttemptStory, KeyStory, ScoreStory, StepStory, call_name
from holdfast.report.tables import duration, tokens
from holdfast.report.text import content_text, counted, dollars, human_bytes, lines_of, without_scorer_name

_FILES_SHOWN = 20
SizeOf = Callable[[str], int | None]
Line = tuple[str, str]
"""A text without line breaks, and its style."""

_MARKED = {
    "filtered": "the server says that it was filtered",
    "empty": "there is no text and no tool call",
    "truncated": "the server says that it was cut off",
}
_LINES_MAX = 6
_CHARACTERS_MAX = 600


class _Options(msgspec.Struct, frozen=True):
    """How to render. `size_of` returns the size of a file that a message refers to."""

    size_of: SizeOf
    full: bool
    resumes: tuple[str, ...]


def story_lines(story: KeyStory, size_of: SizeOf = lambda reference: None, *, full: bool = False) -> Iterator[Line]:
    """From the first request to the scores, turn by turn. Without `full`, long texts are shortened; the answer never
    is.
    """
    lines = _story(story, _Options(size_of, full, story.resumes))
    return ((one_line(line), style) for line, style in lines)


def _story(story: KeyStory, options: _Options) -> Iterator[Line]:
    yield f"{story.key}  {story.status}", "bold"
    if story.doing:
        yield f"  {story.doing}", "cyan"
    if not story.attempts:
        yield f"  not started yet; it is number {story.o + 1} in the plan", ""
    yield from _asked(story, options)
    for attempt in story.attempts:
        yield from _attempt(f"attempt {attempt.attempt}", attempt, options, is_live=story.in_progress is not None)
    if story.answer is not None:
        yield "answer", "bold"
        yield from _indented(story.answer.text, 2)
        for mark in story.answer.marks:
            yield f"  anomaly {mark}: {_MARKED[mark]}", "yellow"
    for kind, reason in story.anomalies.items():
        yield from _indented(f"anomaly {kind}: {reason}", 2, "yellow")
    for each in story.judgings:
        title = f"judges of the evaluation {each.evaluation}{f' ({each.name})' if each.name else ''}"
        title += f", attempt {each.told.attempt}" if each.told.attempt > 1 else ""
        yield from _attempt(title, each.told, options, is_live=False)
    if story.scores:
        yield "scores", "bold"
    for score in story.scores:
        yield from _score(score)


def _asked(story: KeyStory, options: _Options) -> Iterator[Line]:
    """The row and the target."""
    shown = with_strings(story.row, lambda text, _: content_text(text, options.size_of))
    row = "is not recorded" if story.row is None else _compact(shown)
    yield from _text(f"row: {row}", 2, options)
    if story.target is not None:
        yield from _text(f"target: {value_text(story.target)}", 2, options)


class _Turn(msgspec.Struct):
    """A request and the calls after it. Calls before the first request have none."""

    request: StepStory | None
    calls: list[StepStory]
    process: int

    @property
    def results(self) -> list[str]:
        return [_result(call) for call in self.calls]

    def calls_without_step(self) -> list[dict[str, Any]]:
        """Tool calls of the model that have no step."""
        done = [(call.called.tool, call.called.arguments) for call in self.calls if call.called]
        left = []
        for call in self.request.tool_calls if self.request else ():
            if (made := (call_name(call), _arguments(call))) in done:
                done.remove(made)
            else:
                left.append(call)
        return left


def _turns(steps: Sequence[StepStory]) -> Iterator[_Turn]:
    turn: _Turn | None = None
    for step in steps:
        if step.kind == "generate" or turn is None:
            if turn is not None:
                yield turn
            turn = _Turn(None, [], step.process)
        if step.kind == "generate":
            turn.request = step
        else:
            turn.calls.append(step)
    if turn is not None:
        yield turn


def _attempt(title: str, attempt: AttemptStory, options: _Options, *, is_live: bool) -> Iterator[Line]:
    times = " .. ".join(at[:19] for at in dict.fromkeys((attempt.began, attempt.ended)) if at)
    yield f"{title}  {attempt.status}  {times}".rstrip(), "bold"
    before: _Turn | None = None
    for turn in _turns(attempt.steps):
        yield from _turn(turn, before, options)
        before = turn
    for each in attempt.begun:
        what = f"{each.called.tool}({_compact(each.called.arguments)})" if each.called else "a call"
        runs_now = is_live and each.process == len(options.resumes) + 1
        came = "is under way" if runs_now else "its outcome is not recorded: it may have run"
        yield from _indented(f"[begun] {what}  {each.at[:19]}  record {each.n}", 2, "yellow")
        yield f"    is never repeated; {came}", "yellow"
    calls = sum(step.kind == "call" for step in attempt.steps)
    parts = [counted(attempt.turns, "turn"), counted(calls, "call") if calls else "", tokens(attempt.usage)]
    parts += [_dollars(attempt.dollars), took(sum(step.seconds for step in attempt.steps))]
    yield f"  {', '.join(filter(None, parts))}", ""
    spent = attempt.spent
    if spent is not None:
        orphaned = f", {spent.orphaned} orphaned ({tokens(spent.orphaned_usage)})" if spent.orphaned else ""
        yield f"  {spent.live} sent, {spent.replayed} replayed{orphaned}; {duration(spent.seconds)} of work", ""
    elif attempt.status == "unfinished":
        yield "  not ended: it is under way, or was interrupted and continues with a resume", ""
    if attempt.failure is not None:
        again = "" if attempt.final else "; another attempt follows"
        yield from _failure("failed", attempt.failure, again)


def _turn(turn: _Turn, before: _Turn | None, options: _Options) -> Iterator[Line]:
    process = before.calls[-1].process if before and before.calls else before.process if before else turn.process
    if turn.request is not None:
        yield from _resumed(process, turn.process, options)
        process = turn.process
        yield from _request(turn.request, before, options)
        for call in turn.calls_without_step():
            yield from _text(f"[tool call] {_called(call)}", 4, options)
    for step in turn.calls:
        yield from _resumed(process, step.process, options)
        process = step.process
        arguments = _compact(step.called.arguments) if step.called else ""
        what = f"{step.called.tool}({arguments})" if step.called else step.kind
        yield from _text(f"[call] {what}", 4, options, rest=f"  {took(step.seconds)}")
        if step.cancelled:
            yield "    cancelled by the solver", ""
        elif step.failure is not None:
            yield from _text(f"[error] {step.failure.kind}: {step.failure.message}", 4, options, "red")
        else:
            yield from _text(f"[result] {_result(step)}", 4, options)
        if step.files is not None:
            yield from _text(_changes(step.files), 4, options)


def _resumed(before: int, now: int, options: _Options) -> Iterator[Line]:
    if now > before:
        at = options.resumes[now - 2][:19]
        yield f"  -- resumed at {at}: everything above was recorded before --", "cyan"


def _changes(files: FileChanges) -> str:
    """What a call changed in the sandbox: + for files created or changed, - for files removed."""
    if files.lost:
        return f"[files] not kept: {files.lost}"
    changes = [f"+{path} {human_bytes(each.size)}" if each.blob else f"+{path}" for path, each in files.changed.items()]
    changes += [f"-{path}" for path in files.removed]
    more = f", and {len(changes) - _FILES_SHOWN} more" if len(changes) > _FILES_SHOWN else ""
    return f"[files] {', '.join(changes[:_FILES_SHOWN])}{more}"


def _request(step: StepStory, before: _Turn | None, options: _Options) -> Iterator[Line]:
    asked = f" of role {step.role}" if step.role else ""
    yield f"  turn {step.turn}  {step.how}{asked}  record {step.n}", "bold"
    earlier = before.request if before else None
    if (step.params, step.tools) != ((earlier.params, earlier.tools) if earlier else ({}, [])):
        named = ("params", _compact(step.params) if step.params else ""), ("tools", ", ".join(step.tools))
        had = bool(earlier and earlier.params), bool(earlier and earlier.tools)
        settings = [f"{name} {value or 'none'}" for (name, value), was in zip(named, had, strict=True) if value or was]
        yield from _text("; ".join(settings), 4, options)
    yield from _new_messages(step, before.results if before else [], options)
    if step.cancelled:
        yield f"    cancelled by the solver after {took(step.seconds)}", ""
        return
    if step.failure is not None:
        yield from _text(f"{step.failure.kind}: {step.failure.message}", 4, options, "red")
    elif step.answer or not step.tool_calls:
        yield from _text(f"[answer] {step.answer or ''}", 4, options)
    reason = step.finish_reason and f"finish reason {step.finish_reason}"
    facts = [reason, tokens(step.usage), _dollars(step.dollars), took(step.seconds)]
    yield f"    {', '.join(filter(None, facts))}, sent {counted(step.tries, 'time')}", ""


def _new_messages(step: StepStory, results: Sequence[str], options: _Options) -> Iterator[Line]:
    """New messages of a request, without tool results that were shown above."""
    known = _repeated(step.messages, results)
    kept = f"{counted(step.kept, 'message')} as before (of record {step.after})" if step.kept else ""
    above = f"{counted(len(known), 'result')} of the calls above" if known else ""
    if kept or above:
        yield f"    … {', '.join(filter(None, (kept, above)))}", ""
    for message in step.messages:
        if message not in known:
            text = content_text(message.get("content"), options.size_of)
            yield from _text(f"[{message.get('role')}] {text}".rstrip(), 4, options)
            for call in message.get("tool_calls") or ():
                yield from _text(f"[tool call] {_called(call)}", 4, options)


def repeated_results(messages: Sequence[Message], calls: Sequence[StepStory]) -> list[Message]:
    """The messages of a request that only repeat the results of the calls before it."""
    return _repeated(messages, list(map(_result, calls)))


def _repeated(messages: Sequence[Message], results: Sequence[str]) -> list[Message]:
    shown = {*results, *(f"error: {each}" for each in results)}
    answers = [message for message in messages if message.get("role") == "tool"]
    return [each for each in answers if isinstance(each.get("content"), str) and each["content"] in shown]


def _result(step: StepStory) -> str:
    if step.failure is not None:
        return step.failure.message
    return step.value if isinstance(step.value, str) else _compact(step.value)


def took(seconds: float) -> str:
    """A duration; in milliseconds below one second, because steps are often short."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


def _dollars(amount: float | None) -> str:
    return "" if amount is None else dollars(amount)


def _text(text: str, width: int, options: _Options, style: str = "", rest: str = "") -> Iterator[Line]:
    """A text, shortened if it is long. `rest` follows the last line."""
    text = "\n".join(lines_of(text)).rstrip()
    lines = text.splitlines() or [""]
    shown = lines
    if not options.full:
        shown, room = [], _CHARACTERS_MAX
        for line in lines[:_LINES_MAX]:
            if room <= 0:
                break
            shown.append(line[:room])
            room -= len(line)
    left = len(text) - sum(map(len, shown)) - len(shown) + 1
    if left <= 0:
        yield from _indented("\n".join(lines) + rest, width, style)
        return
    yield from _indented("\n".join(shown), width, style)
    yield f"{' ' * width}  … and {counted(left, 'more character')} (--full shows all){rest}", "dim"


def _score(score: ScoreStory) -> Iterator[Line]:
    before = "" if score.current else ", from an earlier evaluation or answer"
    if score.replaced:
        before = ", replaced by hand"
    if score.failure is not None:
        message = without_scorer_name(score.scorer, score.failure.message)
        failure = msgspec.structs.replace(score.failure, message=message)
        yield from _failure(f"{score.scorer} failed", failure, before)
        return
    reason = f" ({score.reason})" if score.reason else ""
    if score.author:
        reason = f" (set by hand by {score.author} at {score.at[:19]}: {score.reason})"
    yield from _indented(f"{score.scorer}: {score.value!r}{reason}{before}", 2)
    if score.metadata:
        yield f"    {_compact(score.metadata)}", ""


def _failure(what: str, failure: Failure, rest: str = "") -> Iterator[Line]:
    yield from _indented(f"{what}: {failure.kind}: {failure.message}{rest}", 2, "red")
    yield from _indented(failure.detail, 4)


def _called(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _compact(call)
    return f"{function.get('name')}({function.get('arguments', '')})"


def _arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    given = function.get("arguments") if isinstance(function, dict) else None
    try:
        return msgspec.json.decode(given or "{}") if isinstance(given, str) else given or {}
    except (msgspec.DecodeError, RecursionError):
        return given


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _indented(text: str, width: int, style: str = "") -> Iterator[Line]:
    """The lines of a text, indented. After a `[name]`, following lines are indented a little more."""
    hanging = 2 if text.startswith("[") else 0
    for number, line in enumerate(lines_of(text)):
        yield f"{' ' * (width + (hanging if number else 0))}{line}", style
