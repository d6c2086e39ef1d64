"""One sample: question, target, answer, scores, the timeline of its processes, its steps in windows."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from holdfast.journal import blob_size
from holdfast.records import parse_key
from holdfast.report import (
    AttemptStory,
    KeyStory,
    ScoreStory,
    counted,
    dollars,
    find_planned,
    key_at,
    tokens,
    without_scorer_name,
)
from holdfast.view.layout import badge, facts, table
from holdfast.view.links import Editing, Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.evaluations import evaluation_choice, evaluation_labels, evaluation_note
from holdfast.view.pages.list_state import decode_list
from holdfast.view.pages.sample.steps import StepFrame, attempt_block, time_range
from holdfast.view.pages.samples import listed_neighbours
from holdfast.view.sources import Durability, RunRef, RunStatus, ViewedRun
from holdfast.view.texts import (
    TextPlace,
    as_json,
    content_blocks,
    escape_pointer,
    file_sizes,
    message_block,
    text_block,
    value_block,
)
from holdfast.view.timeline import (
    ProcessSpan,
    Timeline,
    make_timeline,
    render_timeline,
    timeline_legend,
    unfinished_processes,
)
from holdfast.view.transcript import StepWindow, load_transcript

_LAST = 10**15


class Neighbours(msgspec.Struct, frozen=True):
    """Keys to go to from here; empty if there is none."""

    previous: str
    next: str
    """In the list that the reader comes from; without one, in plan order."""
    models: list[str]
    """The same sample and repeat of the task's other models."""


class SampleView(msgspec.Struct, frozen=True):
    """Everything that the page of a sample shows. `story` is that of `show RUN KEY --json`, with the texts of only
    those steps that are in the windows.
    """

    ref: RunRef
    status: RunStatus
    durability: Durability
    live: bool
    story: KeyStory
    window: StepWindow
    judges: StepWindow
    timeline: Timeline
    records: int
    """How many records it has."""
    neighbours: Neighbours
    evaluation: str
    """The evaluation whose scores are shown."""
    evaluations: dict[str, str]
    """What to call each, by id."""
    chosen: str
    """The evaluation as the address gives it."""
    listed: str
    """The list that the reader comes from, as the address gives it; empty for all samples."""
    commands: dict[str, str]
    files: dict[str, int | None]
    """The sizes of the files that its texts refer to."""
    damage: tuple[str, ...]
    """What is missing or changed in the run's files."""


def load(request: PageRequest) -> SampleView:
    key, evaluation = request.key, request.query.get("evaluation", "")
    step = _LAST if request.query.get("step") == "last" else request.number("step")
    with request.sources.open(request.run) as run:
        found = load_transcript(run, key, evaluation, step)
        ended = _ends_of_processes(run) if unfinished_processes(found.records) else {}
        story = found.story
        listed = [each for attempt in story.attempts for each in attempt.steps]
        listed += [each for _, attempt in _judgings(story) for each in attempt.steps]
        size_of = partial(blob_size, run.place.folder)
        texts = [(each.messages, each.value) for each in listed]
        current = next((each.evaluation for each in story.scores if each.current), run.index.story.evaluation)
        return SampleView(
            ref=request.run,
            status=run.shown_status(),
            durability=run.durability(),
            live=run.is_live,
            story=story,
            window=found.solving,
            judges=found.judging,
            timeline=make_timeline(found.records, ended, is_live=run.is_live),
            records=found.records.count,
            neighbours=_neighbours(request, run, story),
            evaluation=current,
            evaluations=evaluation_labels(run),
            chosen=evaluation,
            listed=request.query.get("list", ""),
            commands=_commands(run, story),
            files=file_sizes(size_of, story.row, story.input, story.target, [list(each) for each in texts]),
            damage=run.damage,
        )


def _ends_of_processes(run: ViewedRun) -> dict[int, str]:
    """Why each process ended, by its number; empty for those that recorded no end because they only scored."""
    return {life.number: life.ended for life in run.lineage().lives if not life.shard}


def _neighbours(request: PageRequest, run: ViewedRun, story: KeyStory) -> Neighbours:
    cells, folder, own = run.index.story.cells, run.place.folder, parse_key(story.key)
    cell = next(each for each in cells if each.first <= story.o < each.first + each.count)
    models = []
    for other in cells:
        if other.task != cell.task or other.model == cell.model:
            continue
        key = str(own._replace(model=other.model))
        o = other.first + story.o - cell.first  # cells of the same task have mostly the same samples in the same order
        is_there = other.first <= o < other.first + other.count and key_at(folder, [other], o) == key
        if is_there or find_planned(folder, [other], key) is not None:
            models.append(key)
    beside = listed_neighbours(request, run, story.o) if request.query.get("list") else None
    before, after = beside or (key_at(folder, cells, story.o - 1), key_at(folder, cells, story.o + 1))
    return Neighbours(before, after, models)


def _commands(run: ViewedRun, story: KeyStory) -> dict[str, str]:
    """Shell commands about this sample, by what they do."""
    place = run.place
    found = {
        "show it in a terminal": place.command("show", story.key),
        "run its code again on the recorded steps": place.command("replay", story.key),
    }
    if story.status == "failed":
        found["try it again"] = place.command("retry", story.key)
    found["fork the run, reusing every unchanged step"] = place.fork_command()
    return found


def render(found: SampleView, links: Links) -> Body:
    story = found.story
    place = TextPlace(found.ref, story.key, 0, links, found.files, _kept(found))
    parts = [
        [h("p", sentence, class_="problem", role="alert") for sentence in found.damage],
        h("div", _title(found, links), id="head", data_live=True),
        h("section", _question(story, place), id="question"),
        h("section", _answer(story, place), id="answer", class_="pair", data_live=True),
        h("section", list(_scores(found, place)), id="scores", data_live=True),
        _hand_score(found, links.editing, links) if links.editing is not None and found.ref.at is None else None,
        h("section", list(_timeline(found, links)), id="timeline", data_live=True),
        h("section", list(_steps(found, place)), id="steps", data_live=True),
        h("section", list(_judges(found, place)), id="judges", data_live=True),
        _rest(found, place),
    ]
    return Body(
        parse_key(story.key).sample_id,
        h("div", join(parts), class_="sample"),
        found.ref,
        "samples",
        found.status,
        found.durability,
        found.chosen,
        scripts=("sample.js",),
        is_live=found.live and found.ref.at is None,
    )


def _title(found: SampleView, links: Links) -> Iterator[Child]:
    story, ref, beside = found.story, found.ref, found.neighbours
    key = parse_key(story.key)
    yield h(
        "nav",
        _in_list(found, links),
        h("a", "← previous", href=_beside(found, links, beside.previous), rel="prev") if beside.previous else None,
        h("a", "next →", href=_beside(found, links, beside.next), rel="next") if beside.next else None,
        h("a", "all repeats", href=links.repeats(ref, story.key, evaluation=found.chosen)),
        *(_downloads(found, links) if not links.is_static else ()),
        class_="beside",
        aria_label="Samples",
    )
    yield h("h1", f"{key.sample_id} ", badge(story.status))
    if story.doing:
        yield h("p", story.doing, class_="doing", role="status")
    usage = [attempt.usage for attempt in story.attempts]
    cost = [attempt.dollars for attempt in story.attempts if attempt.dollars is not None]
    names = [(parse_key(each).model, links.sample(ref, each, evaluation=found.chosen)) for each in beside.models]
    others = [join([" ", h("a", name, href=address)]) for name, address in names]
    records = counted(found.records, "record")
    pairs: list[tuple[str, Child]] = [
        ("task", key.task),
        ("model", [key.model, h("span", " also: ", others, class_="quiet") if others else None]),
        ("repeat", str(key.repeat)),
        ("attempts", str(len(story.attempts)) if len(story.attempts) > 1 else ""),
        ("tokens", tokens(sum(usage[1:], usage[0])) if usage else ""),
        ("cost", dollars(sum(cost)) if cost else ""),
        (
            "",
            records
            if links.is_static
            else h("a", records, href=links.sample_subpage(ref, story.key, "records", **_kept(found))),
        ),
    ]
    yield h(
        "ul", [h("li", h("span", f"{name} ", class_="quiet"), value) for name, value in pairs if value], class_="chips"
    )


def _downloads(found: SampleView, links: Links) -> Iterator[Markup]:
    """The data of this page, with the scores that it shows."""
    ref, key = found.ref, found.story.key
    yield h("a", "JSON", href=links.data(links.sample(ref, key, evaluation=found.chosen)))
    yield h("a", "download", href=links.sample_subpage(ref, key, "story.json", evaluation=found.chosen))


def _beside(found: SampleView, links: Links, key: str) -> str:
    """Another sample, or this one, in the same list and with the same evaluation."""
    return links.sample(found.ref, key, None, **_kept(found))


def _kept(found: SampleView) -> dict[str, str]:
    return {"evaluation": found.chosen, "list": found.listed}


def _in_list(found: SampleView, links: Links) -> Markup:
    query = {"evaluation": found.chosen, **decode_list(found.listed)}
    return h("a", "↑ list", href=links.run(found.ref, "samples", **query), rel="up", title="The list of these samples")


def _question(story: KeyStory, place: TextPlace) -> Iterator[Child]:
    yield h("h2", "Question")
    if isinstance(story.input, list) and all(isinstance(each, dict) and "role" in each for each in story.input):
        yield [message_block(each, place, f"/input/{at}") for at, each in enumerate(story.input)]
    elif story.input is not None:
        yield h("div", list(content_blocks(story.input, place, "/input")), class_="panel")
    elif story.messages:
        yield [
            message_block(each, place.at(_first_number(story)), f"/asked/new/{at}")
            for at, each in enumerate(story.messages)
        ]
    else:
        yield h("p", "The question is not recorded.", class_="quiet")
    if story.row:
        rows = [
            h("tr", h("th", name, scope="row"), h("td", value_block(value, place, f"/row/{escape_pointer(name)}")))
            for name, value in story.row.items()
        ]
        body = h("div", h("table", h("tbody", rows)), class_="wide")
        yield h("details", h("summary", f"the row, {counted(len(story.row), 'column')}"), body, id="row")


def _first_number(story: KeyStory) -> int:
    """The record of the first request."""
    return next((step.n for attempt in story.attempts for step in attempt.steps), 0)


def _answer(story: KeyStory, place: TextPlace) -> Iterator[Child]:
    if story.target is not None:
        yield h(
            "div",
            h("h2", "Target"),
            h("div", value_block(story.target, place, "/target"), class_="panel target"),
        )
    yield h("div", h("h2", "Answer"), list(_answer_parts(story, place)))


def _answer_parts(story: KeyStory, place: TextPlace) -> Iterator[Child]:
    if story.answer is not None:
        body = text_block(story.answer.text, place.at(story.answered), "/answer/text")
        yield h("div", body, class_="panel")
        for mark in story.answer.marks:
            yield h("p", f"anomaly: {mark}", class_="warning")
    elif story.failure is not None:
        yield h("p", h("strong", f"{story.failure.kind}: "), story.failure.message[:2000], class_="problem")
    else:
        yield h("p", "There is no answer yet.", class_="quiet")
    for kind, reason in story.anomalies.items():
        yield h("p", h("strong", f"anomaly {kind}: "), reason, class_="warning")


def _scores(found: SampleView, place: TextPlace) -> Iterator[Child]:
    story = found.story
    if not story.scores:
        return
    yield h("h2", "Scores")
    current = [each for each in story.scores if each.current]
    earlier = [each for each in story.scores if not each.current]
    columns = ["scorer", "value", "reason", "by", "record"]
    if place.links.is_static:
        yield evaluation_note(found.evaluations, found.evaluation, found.ref.run_id)
    else:
        yield evaluation_choice(found.evaluations, found.evaluation, partial(_with_evaluation, found, place.links))
    if current:
        yield table(columns, [_score_row(each, place) for each in current])
    if earlier:
        rows = [_score_row(each, place, is_earlier=True) for each in reversed(earlier)]
        text = counted(len(earlier), "earlier or replaced score")
        yield h("details", h("summary", text), table([*columns, "evaluation"], rows), id="earlier-scores")


def _with_evaluation(found: SampleView, links: Links, evaluation: str) -> str:
    return links.sample(found.ref, found.story.key, evaluation=evaluation, list=found.listed)


def score_badge(value: Any) -> Markup:
    """A value; right and wrong in colour."""
    if isinstance(value, bool):
        return h("span", "right" if value else "wrong", class_=f"badge {'right' if value else 'wrong'}")
    return h("span", "no score" if value is None else value if isinstance(value, str | int | float) else as_json(value))


def _score_row(score: ScoreStory, place: TextPlace, *, is_earlier: bool = False) -> Markup:
    at = place.at(score.n)
    if score.failure is not None:
        shown: Child = h("span", "scorer failed", class_="badge failed")
        reason = text_block(without_scorer_name(score.scorer, score.failure.message), at, "/failure/message")
    else:
        shown, reason = (
            score_badge(score.value),
            text_block(score.reason, at, "/reason") if score.reason else Markup(""),
        )
    more = None
    if score.metadata:
        body = text_block(as_json(score.metadata), at, "/metadata", "said code")
        more = h("details", h("summary", "details"), body, id=f"score-{score.n}")
    by: Child = h("span", "copied", title=f"from evaluation {score.taken}") if score.taken else ""
    if score.author:
        by = h("span", f"{score.author}, {score.at[:16].replace('T', ' ')}", title="set by hand")
    record = h(
        "a", f"#{score.n}", href=place.links.sample_subpage(place.ref, place.key, f"records/{score.n}", **place.kept)
    )
    cells: list[Child] = [score.scorer, shown, join([reason, more]), by, record]
    cells += [f"{score.evaluation}{', replaced by hand' if score.replaced else ''}"] if is_earlier else []
    return h("tr", [h("td", cell, class_="text" if number == 2 else None) for number, cell in enumerate(cells)])


def _hand_score(found: SampleView, editing: Editing, links: Links) -> Markup:
    """The place of the form. It is a live region only until it has the form: what a person types is never replaced."""
    form = _form(found, editing, links)
    return h("section", form, id="hand-score", data_live=form is None)


def _form(found: SampleView, editing: Editing, links: Links) -> Markup | None:
    """Set a score by hand."""
    story = found.story
    scorers = list(dict.fromkeys(each.scorer for each in story.scores if each.current))
    if story.answer is None or not scorers:
        return None
    options = [h("option", name, value=name) for name in scorers]
    return h(
        "details",
        h("summary", "Set a score by hand"),
        h(
            "form",
            h("input", type="hidden", name="form_token", value=editing.form_token),
            h("input", type="hidden", name="evaluation", value=found.evaluation),
            h("label", "Scorer ", h("select", options, name="scorer")),
            h(
                "label",
                "Value ",
                h("input", name="value", required=True, placeholder="true, false, 0.5, null", maxlength=2000),
            ),
            h("label", "Reason ", h("textarea", "", name="reason", required=True, rows="2", maxlength=10000)),
            h("label", "Your name ", h("input", name="author", value=editing.author, required=True, maxlength=200)),
            h("button", "Save"),
            h("p", "It is recorded with your name and reason, and replaces the scorer's value.", class_="quiet"),
            method="post",
            action=links.sample_subpage(found.ref, story.key, "scores", **_kept(found)),
            class_="edit",
        ),
        id="edit",
    )


def _timeline(found: SampleView, links: Links) -> Iterator[Child]:
    figure = render_timeline(found.timeline, lambda n: links.sample(found.ref, found.story.key, n, **_kept(found)))
    if figure is None:
        return
    yield h("h2", "Timeline")
    legend = [
        h("span", h("i", "", class_=f"key {class_}"), f" {text}") for class_, text in timeline_legend(found.timeline)
    ]
    yield h("figure", h("div", figure, class_="scroll"), h("figcaption", legend, class_="legend"))
    if len(found.timeline.lives) > 1 or any(life.killed for life in found.timeline.lives):
        yield h("ul", [h("li", _life_text(life)) for life in found.timeline.lives], class_="lives")


def _life_text(life: ProcessSpan) -> str:
    parts = [
        f"{counted(life.replayed, 'step')} replayed" if life.replayed else "",
        f"{counted(life.steps, 'step')} recorded",
    ]
    end = {"killed": "killed before the sample was finished", "running": "running"}.get(life.end, life.end)
    return f"Process {life.process}, {time_range(life.began, life.ended)}: {', '.join(filter(None, parts))}; {end}."


def _steps(found: SampleView, place: TextPlace) -> Iterator[Child]:
    story = found.story
    if not story.attempts:
        yield h("p", f"Not started yet; it is number {story.o + 1:,} in the plan.", class_="quiet")
        return
    yield h("h2", "Steps")
    beside = _window_links(found, found.window, place)
    frame = _frame(found, place)
    yield beside
    for attempt in story.attempts:
        yield attempt_block(f"Attempt {attempt.attempt}", attempt, frame)
    yield beside


def _frame(found: SampleView, place: TextPlace) -> StepFrame:
    return StepFrame(place, found.story.resumes, found.story.in_progress is not None)


def _window_links(found: SampleView, window: StepWindow, place: TextPlace) -> Markup | None:
    """Where this window is among all steps, and links to the others."""
    if window.total <= window.last - window.first + 1:
        return None
    links, ref, key = place.links, place.ref, found.story.key
    query = _kept(found)
    shown: list[Child] = [h("span", f"Steps {window.first:,} to {window.last:,} of {window.total:,}")]
    if window.before is not None:
        shown += [
            h("a", "first", href=_beside(found, links, key)),
            h("a", "← earlier", href=links.sample(ref, key, window.before, **query)),
        ]
    if window.after is not None:
        shown.append(h("a", "later →", href=links.sample(ref, key, window.after, **query)))
        shown.append(h("a", "last", href=f"{links.sample_subpage(ref, key, '', step='last', **query)}#steps"))
    return h("nav", shown, class_="windows", aria_label="Steps")


def _judges(found: SampleView, place: TextPlace) -> Iterator[Child]:
    story = found.story
    blocks = [attempt_block(title, attempt, _frame(found, place)) for title, attempt in _judgings(story)]
    if not any(blocks):
        return
    yield h("h2", "Judges")
    yield _window_links(found, found.judges, place)
    yield blocks


def _judgings(story: KeyStory) -> Iterator[tuple[str, AttemptStory]]:
    """Attempts at scoring with judges, each with its title."""
    for each in story.judgings:
        attempt = each.told
        again = f", attempt {attempt.attempt}" if attempt.attempt > 1 else ""
        yield f"Judges of {each.name or each.evaluation}{again}", attempt


def _rest(found: SampleView, place: TextPlace) -> Markup:
    commands = [(text, h("pre", command, class_="command")) for text, command in found.commands.items()]
    return h("section", h("h2", "Commands"), facts(commands), id="commands")
