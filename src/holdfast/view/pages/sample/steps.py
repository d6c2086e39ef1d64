"""The steps of a sample as HTML: attempt by attempt, with messages, calls, results, times and costs."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.report import AttemptStory, StepStory, counted, dollars, duration, tokens
from holdfast.report.story_lines import repeated_results, took
from holdfast.view.markup import Child, Markup, h
from holdfast.view.texts import (
    TextPlace,
    as_json,
    call_blocks,
    changed_files,
    message_block,
    text_block,
    value_block,
)

_USUAL = ("", "stop", "tool_calls", "end_turn", "tool_use")
"""Finish reasons that need no mention."""
_INLINE_CHARACTERS = 160


class StepFrame(msgspec.Struct, frozen=True):
    """What the steps of a sample need besides their own facts."""

    place: TextPlace
    resumes: tuple[str, ...]
    is_live: bool = False


def attempt_block(title: str, attempt: AttemptStory, frame: StepFrame) -> Markup | None:
    """An attempt with those of its steps that this page shows; None if it shows none of them."""
    if not attempt.steps and attempt.turns and attempt.failure is None and not attempt.begun:
        return None
    times = time_range(attempt.began, attempt.ended)
    return h(
        "section",
        h(
            "h3",
            f"{title} ",
            h("span", attempt.status, class_=f"badge {attempt.status}"),
            h("span", times, class_="quiet"),
        ),
        h("p", ", ".join(filter(None, _totals(attempt))), class_="quiet"),
        list(_blocks(attempt.steps, frame)),
        [_begun(each.n, each.at, f"{each.called.tool}" if each.called else "a call") for each in attempt.begun],
        _failure(attempt, frame),
        class_="attempt",
    )


def time_range(began: str, ended: str) -> str:
    """Two times, to the second; the date only once."""
    first, last = began[:19].replace("T", " "), ended[:19].replace("T", " ")
    if not last or first == last:
        return first
    return f"{first} to {last[11:] if first[:10] == last[:10] else last}"


def _totals(attempt: AttemptStory) -> Iterator[str]:
    yield counted(attempt.turns, "turn")
    yield tokens(attempt.usage)
    yield dollars(attempt.dollars) if attempt.dollars is not None else ""
    spent = attempt.spent
    if spent is not None:
        yield f"{spent.live} sent"
        yield f"{spent.replayed} replayed"
        yield f"{spent.orphaned} orphaned" if spent.orphaned else ""
        yield f"{duration(spent.seconds)} of work"


def _failure(attempt: AttemptStory, frame: StepFrame) -> Markup | None:
    failure = attempt.failure
    if failure is None:
        return None
    again = "" if attempt.final else " Another attempt follows."
    last = attempt.steps[-1].failure if attempt.steps else None
    is_shown = last is not None and last.message == failure.message
    text: list[Child] = [] if is_shown else [h("strong", f"{failure.kind}: "), failure.message[:2000]]
    return h(
        "div",
        h("p", text, again, class_="problem" if text else "quiet") if text or again else None,
        h("details", h("summary", "where"), h("pre", failure.detail[:20_000])) if failure.detail else None,
    )


def _begun(n: int, at: str, what: str) -> Markup:
    text = f"{what} was begun at {at[11:19]} (record {n}); no result is recorded. It is never repeated."
    return h("p", text, class_="warning")


def _blocks(steps: Sequence[StepStory], frame: StepFrame) -> Iterator[Markup]:
    process, results = steps[0].process if steps else 1, list[StepStory]()
    for step in steps:
        if step.process > process:
            at = frame.resumes[step.process - 2][:19].replace("T", " ")
            yield h(
                "p", f"Process {step.process} began at {at}. Everything above was recorded before.", class_="resumed"
            )
            process = step.process
        yield step_block(step, results, frame)
        if step.kind == "generate":
            results = []
        else:
            results.append(step)


def step_block(step: StepStory, calls: Sequence[StepStory], frame: StepFrame) -> Markup:
    """`calls`: the calls since the request before, whose results its messages repeat."""
    place = frame.place.at(step.n)
    body = list(_request(step, calls, place, frame)) if step.kind == "generate" else list(_call(step, place))
    return h(
        "article",
        _head(step, frame),
        body,
        changed_files(step.files, place) if step.files is not None else None,
        _raw(step, place),
        id=f"step-{step.n}",
        class_=f"step {'request' if step.kind == 'generate' else 'call'}",
    )


def _head(step: StepStory, frame: StepFrame) -> Markup:
    place, links = frame.place, frame.place.links
    what = f"turn {step.turn}" if step.kind == "generate" else step.called.tool if step.called else step.kind
    role = f"role {step.role}" if step.role else ""
    return h(
        "header",
        h("strong", what),
        [h("span", text, class_="tag") for text in (role, step.how if step.how != "live" else "") if text],
        h("span", " · ".join(filter(None, _facts(step))), class_="quiet"),
        h(
            "span",
            h("a", "record", href=links.sample_subpage(place.ref, place.key, f"records/{step.n}", **place.kept)),
            " ",
            h(
                "a",
                f"#{step.n}",
                href=links.sample(place.ref, place.key, step.n, **place.kept),
                title="Link to this step",
            ),
            class_="permalink",
        ),
    )


def _facts(step: StepStory) -> Iterator[str]:
    """Time, tokens and cost of a step."""
    yield step.at[11:19]
    yield took(step.seconds)
    timing = step.timing
    if timing is not None and timing.queue >= 0.0005:
        limited = f", {took(timing.limited)} of it for a rate limit" if timing.limited >= 0.0005 else ""
        yield f"waited {took(timing.queue)}{limited}"
    if step.tries > 1:
        lost = f", {took(timing.lost)} in failed tries" if timing is not None and timing.lost else ""
        yield f"sent {step.tries} times{lost}"
    if timing is not None and timing.first:
        yield f"first byte after {took(timing.first)}"
    if step.usage.tokens:
        yield tokens(step.usage)
    yield dollars(step.dollars) if step.dollars is not None else ""
    yield f"finish reason {step.finish_reason}" if step.finish_reason not in _USUAL else ""


def _request(step: StepStory, calls: Sequence[StepStory], place: TextPlace, frame: StepFrame) -> Iterator[Child]:
    known = repeated_results(step.messages, calls)
    notes: list[Child] = []
    if step.kept:
        text = f"{counted(step.kept, 'message')} as before"
        notes.append(
            h("a", text, href=place.links.sample(place.ref, place.key, step.after, **place.kept))
            if step.after
            else text
        )
    if known:
        notes.append(f"{'; ' if notes else ''}{counted(len(known), 'result')} of the calls above")
    if notes:
        yield h("p", "… ", notes, class_="quiet")
    for number, message in enumerate(step.messages):
        if message not in known:
            yield message_block(message, place, f"/asked/new/{number}")
    if step.cancelled:
        yield h("p", "cancelled by the solver", class_="quiet")
    if step.failure is not None:
        yield h("p", h("strong", f"{step.failure.kind}: "), step.failure.message[:2000], class_="problem")
    if step.reasoning:
        shown = text_block(step.reasoning, place, "/answer/message/reasoning_content", "said reasoning")
        yield h(
            "details", h("summary", f"reasoning, {len(step.reasoning):,} characters"), shown, id=f"reasoning-{step.n}"
        )
    if step.answer is not None:
        yield h(
            "div",
            h("div", "assistant", class_="role"),
            h(
                "div",
                text_block(step.answer, place, "/answer/text") if step.answer else None,
                list(call_blocks(step.tool_calls, place, "/answer/tool_calls")),
                h("span", "no text", class_="quiet") if not step.answer and not step.tool_calls else None,
                class_="content",
            ),
            class_="message assistant answer",
        )


def _call(step: StepStory, place: TextPlace) -> Iterator[Child]:
    if step.called is not None:
        arguments = msgspec.json.encode(step.called.arguments).decode()
        if len(arguments) > _INLINE_CHARACTERS:
            arguments = as_json(step.called.arguments)
        yield text_block(arguments, place, "/called/arguments", "said code")
    if step.cancelled:
        yield h("p", "cancelled by the solver", class_="quiet")
    elif step.failure is not None:
        yield h("p", h("strong", f"{step.failure.kind}: "), step.failure.message[:2000], class_="problem")
    else:
        yield h(
            "div",
            h("div", "result", class_="role"),
            h("div", value_block(step.value, place, "/value"), class_="content"),
            class_="message tool",
        )


def _raw(step: StepStory, place: TextPlace) -> Markup | None:
    """The request as a whole and its response. With a script they open in place."""
    if step.kind != "generate":
        return None
    address = place.links.sample_subpage(place.ref, place.key, f"steps/{step.n}", **place.kept)
    return h(
        "details",
        h("summary", "request and response"),
        h("p", h("a", "on a page of their own", href=address)),
        id=f"raw-{step.n}",
        class_="raw",
        data_load=None if place.links.is_static else address,
    )
