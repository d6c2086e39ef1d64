"""The story of one key in words: lines with a style, for a terminal, a notebook and a log alike."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.printable import one_line
from holdfast.records.facts import Failure, Files
from holdfast.records.references import with_strings
from holdfast.records.samples import Message
from holdfast.report.story import AttemptStory, BegunStory, KeyStory, ScoreStory, StepStory, call_name
from holdfast.report.tables import duration, tokens
from holdfast.report.text import counted, dollars, human_bytes, lines_of, own_words, told_content

_FILES_SHOWN = 20
SizeOf = Callable[[str], int | None]
Line = tuple[str, str]
"""A text without a line break in it, and its style."""

_MARKED = {
    "filtered": "the server says that it was filtered",
    "empty": "there is no text and no tool call",
    "truncated": "the server says that it was cut off",
}
_LINES_MAX = 6
_CHARACTERS_MAX = 600


class _Manner(msgspec.Struct, frozen=True):
    """How it is told. `size_of` knows how large the files are that a message refers to."""

    size_of: SizeOf
    full: bool
    resumes: tuple[str, ...]


def story_lines(story: KeyStory, size_of: SizeOf = lambda reference: None, *, full: bool = False) -> Iterator[Line]:
    """From what was asked to how it was scored, turn by turn. Without `full`, of long texts only the beginning; the
    answer is always whole.
    """
    return ((one_line(line), style) for line, style in _story(story, size_of, _Manner(size_of, full, story.resumes)))


def _story(story: KeyStory, size_of: SizeOf, manner: _Manner) -> Iterator[Line]:
    yield f"{story.key}  {story.status}", "bold"
    if story.doing:
        yield f"  {story.doing}", "cyan"
    if not story.attempts:
        yield f"  planned with the ordinal {story.o}; nothing of it is recorded yet", ""
    told = with_strings(story.row, lambda text, _: told_content(text, size_of))
    row = "is not recorded" if story.row is None else _compact(told)
    yield from _text(f"row: {row}", 2, manner)
    for attempt in story.attempts:
        yield from _attempt(f"attempt {attempt.attempt}", attempt, manner, is_live=story.in_progress is not None)
    if story.answer is not None:
        yield "answer", "bold"
        yield from _indented(story.answer.text, 2)
        for mark in story.answer.marks:
            yield f"  anomaly {mark}: {_MARKED[mark]}", "yellow"
    for kind, shown in story.anomalies.items():
        yield from _indented(f"anomaly {kind}: {shown}", 2, "yellow")
    for each in story.judgings:
        title = f"judges of the evaluation {each.evaluation}{f' ({each.name})' if each.name else ''}"
        title += f", attempt {each.told.attempt}" if each.told.attempt > 1 else ""
        yield from _attempt(title, each.told, manner, is_live=False)
    if story.scores:
        yield "scores", "bold"
    for score in story.scores:
        yield from _score(score)


class _Turn(msgspec.Struct):
    """A request and the calls behind it; calls before the first request have none."""

    request: StepStory | None
    calls: list[StepStory]
    process: int

    @property
    def results(self) -> list[str]:
        return [_result(call) for call in self.calls]

    def uncalled(self) -> list[dict[str, Any]]:
        """What the model called and no step tells of."""
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


def _attempt(title: str, attempt: AttemptStory, manner: _Manner, *, is_live: bool) -> Iterator[Line]:
    times = " .. ".join(at[:19] for at in dict.fromkeys((attempt.began, attempt.ended)) if at)
    yield f"{title}  {attempt.status}  {times}".rstrip(), "bold"
    before: _Turn | None = None
    for turn in _turns(attempt.steps):
        yield from _turn(turn, before, manner)
        before = turn
    for each in attempt.begun:
        yield from _begun(each, is_live=is_live and each.process == len(manner.resumes) + 1)
    yield from _sums(attempt)
    if attempt.failure is not None:
        again = "" if attempt.final else "; another attempt follows"
        yield from _failure("failed", attempt.failure, again)


def _sums(attempt: AttemptStory) -> Iterator[Line]:
    calls = sum(step.kind == "call" for step in attempt.steps)
    parts = [counted(attempt.turns, "turn"), counted(calls, "call") if calls else "", tokens(attempt.usage)]
    parts += [_dollars(attempt.dollars), took(sum(step.seconds for step in attempt.steps))]
    yield f"  {', '.join(filter(None, parts))}", ""
    spent = attempt.spent
    if spent is not None:
        orphaned = f", {spent.orphaned} orphaned ({tokens(spent.orphaned_usage)})" if spent.orphaned else ""
        yield f"  {spent.live} sent, {spent.replayed} replayed{orphaned}; {duration(spent.seconds)} of work", ""
    elif attempt.status == "unfinished":
        yield "  not ended: it is under way, or was cut off and goes on with a resume", ""


def _begun(begun: BegunStory, *, is_live: bool) -> Iterator[Line]:
    what = f"{begun.called.tool}({_compact(begun.called.arguments)})" if begun.called else "a call"
    came = "is under way" if is_live else "nothing is recorded of what came of it: it may have been done"
    yield from _indented(f"[begun] {what}  {begun.at[:19]}  record {begun.n}", 2, "yellow")
    yield f"    must not be made twice; {came}", "yellow"


def _turn(turn: _Turn, before: _Turn | None, manner: _Manner) -> Iterator[Line]:
    process = before.calls[-1].process if before and before.calls else before.process if before else turn.process
    if turn.request is not None:
        yield from _resumed(process, turn.process, manner)
        process = turn.process
        yield from _request(turn.request, before, manner)
        for wanted in turn.uncalled():
            yield from _text(f"[tool call] {_called(wanted)}", 4, manner)
    for call in turn.calls:
        yield from _resumed(process, call.process, manner)
        process = call.process
        yield from _call(call, manner)


def _resumed(before: int, now: int, manner: _Manner) -> Iterator[Line]:
    if now > before:
        at = manner.resumes[now - 2][:19]
        yield f"  -- resumed at {at}: what stands above was recorded before --", "cyan"


def _call(step: StepStory, manner: _Manner) -> Iterator[Line]:
    arguments = _compact(step.called.arguments) if step.called else ""
    what = f"{step.called.tool}({arguments})" if step.called else step.kind
    yield from _text(f"[call] {what}", 4, manner, rest=f"  {took(step.seconds)}")
    if step.cancelled:
        yield "    cancelled by the solver", ""
    elif step.failure is not None:
        yield from _text(f"[error] {step.failure.kind}: {step.failure.message}", 4, manner, "red")
    else:
        yield from _text(f"[result] {_result(step)}", 4, manner)
    if step.files is not None:
        yield from _text(_changes(step.files), 4, manner)


def _changes(files: Files) -> str:
    """What a call changed in the sandbox: a + for what is there now, a - for what is not."""
    if files.lost:
        return f"[files] not kept: {files.lost}"
    told = [f"+{path} {human_bytes(each.size)}" if each.blob else f"+{path}" for path, each in files.changed.items()]
    told += [f"-{path}" for path in files.removed]
    more = f", and {len(told) - _FILES_SHOWN} more" if len(told) > _FILES_SHOWN else ""
    return f"[files] {', '.join(told[:_FILES_SHOWN])}{more}"


def _request(step: StepStory, before: _Turn | None, manner: _Manner) -> Iterator[Line]:
    asked = f" of role {step.role}" if step.role else ""
    yield f"  turn {step.turn}  {step.how}{asked}  record {step.n}", "bold"
    yield from _settings(step, before.request if before else None, manner)
    yield from _new_messages(step, before.results if before else [], manner)
    if step.cancelled:
        yield f"    cancelled by the solver after {took(step.seconds)}", ""
        return
    if step.failure is not None:
        yield from _text(f"{step.failure.kind}: {step.failure.message}", 4, manner, "red")
    elif step.answer or not step.tool_calls:
        yield from _text(f"[answer] {step.answer or ''}", 4, manner)
    reason = step.finish_reason and f"finish reason {step.finish_reason}"
    facts = [reason, tokens(step.usage), _dollars(step.dollars), took(step.seconds)]
    yield f"    {', '.join(filter(None, facts))}, sent {counted(step.tries, 'time')}", ""


def _settings(step: StepStory, before: StepStory | None, manner: _Manner) -> Iterator[Line]:
    """Parameters and tools, where they are not those of the turn before."""
    if (step.params, step.tools) == ((before.params, before.tools) if before else ({}, [])):
        return
    named = ("params", _compact(step.params) if step.params else ""), ("tools", ", ".join(step.tools))
    had = bool(before and before.params), bool(before and before.tools)
    told = [f"{name} {value or 'none'}" for (name, value), was in zip(named, had, strict=True) if value or was]
    yield from _text("; ".join(told), 4, manner)


def _new_messages(step: StepStory, results: Sequence[str], manner: _Manner) -> Iterator[Line]:
    """What stands above, as the result of a call, is not told again."""
    known = [message for message in step.messages if message.get("role") == "tool" and _ends(message, results)]
    kept = f"{counted(step.kept, 'message')} as before (of record {step.after})" if step.kept else ""
    above = f"{counted(len(known), 'result')} of the calls above" if known else ""
    if kept or above:
        yield f"    … {', '.join(filter(None, (kept, above)))}", ""
    for message in step.messages:
        if message not in known:
            yield from _message(message, manner)


def _ends(message: Message, results: Sequence[str]) -> bool:
    content = message.get("content")
    return isinstance(content, str) and any(content == each or content == f"error: {each}" for each in results)


def _result(step: StepStory) -> str:
    if step.failure is not None:
        return step.failure.message
    return step.value if isinstance(step.value, str) else _compact(step.value)


def _message(message: Message, manner: _Manner) -> Iterator[Line]:
    text = told_content(message.get("content"), manner.size_of)
    yield from _text(f"[{message.get('role')}] {text}".rstrip(), 4, manner)
    for call in message.get("tool_calls") or ():
        yield from _text(f"[tool call] {_called(call)}", 4, manner)


def took(seconds: float) -> str:
    """Steps are often short."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


def _dollars(amount: float | None) -> str:
    return "" if amount is None else dollars(amount)


def _text(text: str, width: int, manner: _Manner, style: str = "", rest: str = "") -> Iterator[Line]:
    """A text that may be long. `rest` follows its last line, or what stands for it."""
    text = "\n".join(lines_of(text)).rstrip()
    lines = text.splitlines() or [""]
    shown = lines if manner.full else _beginning(lines)
    left = len(text) - sum(map(len, shown)) - len(shown) + 1
    if left <= 0:
        yield from _indented("\n".join(lines) + rest, width, style)
        return
    yield from _indented("\n".join(shown), width, style)
    yield f"{' ' * width}  … and {counted(left, 'more character')} (--full shows all){rest}", "dim"


def _beginning(lines: Sequence[str]) -> list[str]:
    shown: list[str] = []
    left = _CHARACTERS_MAX
    for line in lines[:_LINES_MAX]:
        if left <= 0:
            break
        shown.append(line[:left])
        left -= len(line)
    return shown


def _score(score: ScoreStory) -> Iterator[Line]:
    before = "" if score.current else ", before: of another evaluation or answer"
    if score.replaced:
        before = ", replaced by hand"
    if score.failure is not None:
        message = own_words(score.scorer, score.failure.message)
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
    """Line by line; what follows a `[name]` stands a little to the right."""
    hanging = 2 if text.startswith("[") else 0
    for number, line in enumerate(lines_of(text)):
        yield f"{' ' * (width + (hanging if number else 0))}{line}", style
