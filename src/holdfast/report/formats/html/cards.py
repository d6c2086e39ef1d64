"""Cards of the HTML report: example answers and failures, each with its question and its target."""

from collections.abc import Iterator, Sequence

from holdfast.report.examples import (
    ANSWERED,
    HIGHEST,
    LOWEST,
    RIGHT,
    WRONG,
    ExampleAnswer,
    ExampleGroup,
    GivenScore,
)
from holdfast.report.formats.html.elements import escaped, heading, pairs, passage
from holdfast.report.formats.run_page import FailureCause, RunPage, failure_causes
from holdfast.report.questions import UNKNOWN, asked_texts, value_text
from holdfast.report.text import counted

_QUESTION_MAX = 2_000
_TARGET_MAX = 500
_MESSAGE_MAX = 1_500
_CAUSES_MAX = 8
_PLACES_MAX = 5
_TITLES = {
    RIGHT: ("Right", "right answer"),
    WRONG: ("Wrong", "wrong answer"),
    HIGHEST: ("Highest scores", "scored answer"),
    LOWEST: ("Lowest scores", "scored answer"),
    ANSWERED: ("Answers", "answer"),
}


def example_cards(page: RunPage, level: int) -> Iterator[str]:
    """The examples of each outcome below a heading of this level. Answers to the same sample share a card."""
    for group in page.answers.groups:
        title, noun = _TITLES[group.outcome]
        yield heading(level, title)
        yield f'<p class="small muted">{len(group.answers)} of {_many(group.total, noun)}</p>\n'
        samples: dict[tuple[str, str], list[ExampleAnswer]] = {}
        for answer in group.answers:
            samples.setdefault((answer.key.task, answer.key.sample_id), []).append(answer)
        several = len({cell.task for cell in page.report.cells}) > 1
        yield '<div class="cards">\n'
        # Cards with several answers take the whole width, so they come first: there are no gaps between the others.
        for (task, sample), answers in sorted(samples.items(), key=lambda each: -len(each[1])):
            name = f"{task} / {sample}" if several else sample
            yield _example(page, group, name, answers, level + 1)
        yield "</div>\n"


def _example(page: RunPage, group: ExampleGroup, name: str, answers: Sequence[ExampleAnswer], level: int) -> str:
    """A question, and the answers of models to it side by side."""
    several = len({cell.model for cell in page.report.cells}) > 1
    blocks = []
    for answer in answers:
        model = f" of {answer.key.model}" if several else ""
        repeat = f", repeat {answer.key.repeat}" if answer.key.repeat > 1 else ""
        text = passage(answer.text, answer.characters) if answer.characters else '<em class="muted">empty</em>'
        title = f'<div class="label">{escaped(f"Answer{model}{repeat}")}</div>'
        blocks.append(f'<div class="answer">{title}{text}{_scores(answer.scores)}</div>\n')
    below = f'<div class="answers">\n{"".join(blocks)}</div>\n'
    kind = f"{group.outcome} wide-card" if len(answers) > 1 else group.outcome
    return _card(kind, escaped(name), list(_asked(page, answers[0].name)), level, below)


def failure_cards(page: RunPage, level: int) -> Iterator[str]:
    """One card for each cause of failures."""
    causes = failure_causes(page.report)
    for cause in causes[:_CAUSES_MAX]:
        message = cause.example.message
        facts = [("Message", passage(message[:_MESSAGE_MAX], len(message), "pre") if message else "")]
        facts += [*_asked(page, cause.example.key), ("Example", f"<code>{escaped(cause.example.key)}</code>")]
        title = f"{escaped(cause.title)} <small>{escaped(_counts(cause, len(page.report.cells)))}</small>"
        yield _card("failure", title, [(name, value) for name, value in facts if value], level)
    if len(causes) > _CAUSES_MAX:
        left = causes[_CAUSES_MAX:]
        more = _many(sum(cause.count for cause in left), "more failure")
        yield f'<p class="small muted">{more} of {counted(len(left), "other kind")}</p>\n'


def _counts(cause: FailureCause, cells: int) -> str:
    """`12 samples`, with the cells if there are several: `12 samples (sums/small 10, sums/large 2)`."""
    whole = _many(cause.count, cause.noun)
    if cells < 2:
        return whole
    shown = [f"{place} {count:,}" for place, count in list(cause.counts.items())[:_PLACES_MAX]]
    more = [f"{len(cause.counts) - _PLACES_MAX} more"] if len(cause.counts) > _PLACES_MAX else []
    return f"{whole} ({', '.join(shown + more)})"


def _asked(page: RunPage, key: str) -> Iterator[tuple[str, str]]:
    """The question, the target and what else is known and chosen."""
    for label, text in asked_texts(page.questions.get(key, UNKNOWN)):
        width = _TARGET_MAX if label == "target" else _QUESTION_MAX
        yield label.capitalize() if "." not in label else label, passage(text[:width], len(text))


def _scores(scores: Sequence[GivenScore]) -> str:
    if not scores:
        return ""
    items = (
        f'<li><span class="chip{_tone(each)}">{escaped(_score(each))}</span> '
        f'<span dir="auto">{escaped(each.reason or each.failure)}</span></li>\n'
        for each in scores
    )
    return f'<ul class="scores">\n{"".join(items)}</ul>\n'


def _score(each: GivenScore) -> str:
    """`numeric: right`, `rubric: 4 (1 to 5)`."""
    value, scale = each.value, each.scale
    if each.failure:
        return f"{each.scorer}: scorer failed"
    if value is None:
        return f"{each.scorer}: no score"
    if isinstance(value, bool) or (scale is not None and scale.is_bool and value in (0, 1)):
        return f"{each.scorer}: {'right' if value else 'wrong'}"
    if not isinstance(value, int | float):
        return f"{each.scorer}: {value_text(value)}"
    ends = scale is not None and scale.width is not None and (scale.lowest, scale.highest) != (0.0, 1.0)
    return f"{each.scorer}: {value:.4g}{f' ({scale.lowest:g} to {scale.highest:g})' if ends and scale else ''}"


def _tone(each: GivenScore) -> str:
    """The class that colours a score of right or wrong."""
    if each.failure:
        return " failure"
    is_bool = isinstance(each.value, bool) or (each.scale is not None and each.scale.is_bool)
    return "" if not is_bool or each.value is None else " right" if each.value else " wrong"


def _card(kind: str, title: str, facts: Sequence[tuple[str, str]], level: int, below: str = "") -> str:
    """`title`, the values of `facts`, and `below` are markup."""
    known = f"<dl>\n{pairs(facts)}</dl>\n" if facts else ""
    return f'<article class="card {kind}">\n<h{level}>{title}</h{level}>\n{known}{below}</article>\n'


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
