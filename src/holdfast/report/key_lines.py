"""The story of one key in words: lines with a style, for a terminal, a notebook and a log alike."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.records.exchange import Message
from holdfast.records.facts import Failure, Files
from holdfast.records.references import with_strings
from holdfast.report.key_story import AttemptStory, KeyStory, ScoreStory, StepStory
from holdfast.report.tables import duration, tokens
from holdfast.report.wording import counted, human_bytes, own_words, told_content

_FILES_SHOWN = 20
SizeOf = Callable[[str], int | None]
Line = tuple[str, str]
"""A text without a line break in it, and its style."""


def story_lines(story: KeyStory, size_of: SizeOf = lambda reference: None) -> Iterator[Line]:
    """From what was asked to how it was scored. `size_of` knows how large the files are that a message refers to."""
    yield f"{story.key}  {story.status}", "bold"
    if story.doing:
        yield f"  {story.doing}", "cyan"
    if not story.attempts:
        yield f"  planned with the ordinal {story.o}; nothing of it is recorded yet", ""
    told = with_strings(story.row, lambda text, _: told_content(text, size_of))
    row = "is not recorded" if story.row is None else _compact(told)
    yield f"  row: {row}", ""
    for attempt in story.attempts:
        yield from _attempt(attempt, size_of)
    if story.answer is not None:
        yield "answer", "bold"
        yield from _indented(story.answer.text, 2)
    if story.scores:
        yield "scores", "bold"
    for score in story.scores:
        yield from _score(score)


def _attempt(attempt: AttemptStory, size_of: SizeOf) -> Iterator[Line]:
    times = " .. ".join(at[:19] for at in dict.fromkeys((attempt.began, attempt.ended)) if at)
    yield f"attempt {attempt.attempt}  {attempt.status}  {times}".rstrip(), "bold"
    for number, step in enumerate(attempt.steps, 1):
        yield from _step(number, step, size_of)
    spent = attempt.spent
    if spent is not None:
        orphaned = f", {spent.orphaned} orphaned" if spent.orphaned else ""
        yield f"  {spent.live} asked, {spent.replayed} replayed{orphaned}; {duration(spent.seconds)} of work", ""
    elif attempt.status == "unfinished":
        yield "  not ended: it is under way, or was cut off and goes on with a resume", ""
    if attempt.failure is not None:
        again = "" if attempt.final else "; another attempt follows"
        yield from _failure("failed", attempt.failure, again)


def _step(number: int, step: StepStory, size_of: SizeOf) -> Iterator[Line]:
    if step.kind == "generate":
        yield from _request(number, step, size_of)
        return
    arguments = _compact(step.called.arguments) if step.called else ""
    what = f"{step.called.tool}({arguments})" if step.called else step.kind
    yield f"  step {number}  {step.how}  record {step.n}", "bold"
    yield from _indented(f"[call] {what}", 4)
    if step.cancelled:
        yield "    cancelled by the solver", ""
    elif step.failure is not None:
        yield from _indented(f"{step.failure.kind}: {step.failure.message}", 4, "red")
    else:
        yield from _indented(f"[result] {step.value if isinstance(step.value, str) else _compact(step.value)}", 4)
    if step.files is not None:
        yield from _indented(_changes(step.files), 4)
    yield f"    {duration(step.seconds)}", ""


def _changes(files: Files) -> str:
    """What a call changed in the sandbox: a + for what is there now, a - for what is not."""
    if files.lost:
        return f"[files] not kept: {files.lost}"
    told = [f"+{path} {human_bytes(each.size)}" if each.blob else f"+{path}" for path, each in files.changed.items()]
    told += [f"-{path}" for path in files.removed]
    more = f", and {len(told) - _FILES_SHOWN} more" if len(told) > _FILES_SHOWN else ""
    return f"[files] {', '.join(told[:_FILES_SHOWN])}{more}"


def _request(number: int, step: StepStory, size_of: SizeOf) -> Iterator[Line]:
    asked = f" of role {step.role}" if step.role else ""
    yield f"  step {number}  {step.how}{asked}  record {step.n}", "bold"
    if step.params or step.tools:
        tools = f"tools {', '.join(step.tools)}" if step.tools else ""
        params = f"params {_compact(step.params)}" if step.params else ""
        yield f"    {'; '.join(filter(None, (params, tools)))}", ""
    if step.kept:
        yield f"    … {counted(step.kept, 'message')} as before (of record {step.after})", ""
    for message in step.messages:
        yield from _message(message, size_of)
    if step.cancelled:
        yield f"    cancelled by the solver after {duration(step.seconds)}", ""
        return
    if step.failure is not None:
        yield from _indented(f"{step.failure.kind}: {step.failure.message}", 4, "red")
    else:
        yield from _indented(f"[answer] {step.answer or ''}", 4)
        for call in step.tool_calls:
            yield f"    [tool call] {_call(call)}", ""
    facts = [step.finish_reason and f"finish reason {step.finish_reason}", tokens(step.usage), duration(step.seconds)]
    yield f"    {', '.join(filter(None, facts))}, asked {counted(step.tries, 'time')}", ""


def _message(message: Message, size_of: SizeOf) -> Iterator[Line]:
    text = told_content(message.get("content"), size_of)
    yield from _indented(f"[{message.get('role')}] {text}".rstrip(), 4)
    for call in message.get("tool_calls") or ():
        yield f"    [tool call] {_call(call)}", ""


def _score(score: ScoreStory) -> Iterator[Line]:
    before = "" if score.current else ", before: of another evaluation or answer"
    if score.failure is not None:
        message = own_words(score.scorer, score.failure.message)
        failure = msgspec.structs.replace(score.failure, message=message)
        yield from _failure(f"{score.scorer} failed", failure, before)
        return
    reason = f" ({score.reason})" if score.reason else ""
    yield from _indented(f"{score.scorer}: {score.value!r}{reason}{before}", 2)
    if score.metadata:
        yield f"    {_compact(score.metadata)}", ""


def _failure(what: str, failure: Failure, rest: str = "") -> Iterator[Line]:
    yield from _indented(f"{what}: {failure.kind}: {failure.message}{rest}", 2, "red")
    yield from _indented(failure.detail, 4)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _compact(call)
    return f"{function.get('name')}({function.get('arguments', '')})"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _indented(text: str, width: int, style: str = "") -> Iterator[Line]:
    """Line by line. What moves a terminal's cursor or changes its colours is shown as a space."""
    for line in text.splitlines():
        shown = "".join(each if each.isprintable() or each == "\t" else " " for each in line)
        yield f"{' ' * width}{shown}", style
