"""The repeats of one sample side by side, and the same sample of the task's other models."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.journal import Reader, blob_size
from holdfast.plan import find_sample_line, planned_line_at
from holdfast.records import Cell, Failure, Usage, parse_key
from holdfast.report import QuestionReader, StoredSpec, dollars, duration, find_planned, tokens
from holdfast.report.costs import used_dollars
from holdfast.state import AnswerRow, recorded_answer
from holdfast.view.layout import badge, facts
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.sample.page import score_badge
from holdfast.view.sources import Durability, NotFoundError, RunRef, RunStatus, ViewedRun
from holdfast.view.texts import TextPlace, content_blocks, file_sizes, text_block, value_block
from holdfast.view.transcript import open_reader

_REPEATS_MAX = 50
_MODELS_MAX = 20


class RepeatView(msgspec.Struct, frozen=True):
    """One answer in a row of answers."""

    key: str
    repeat: int
    status: str
    n: int
    """The record with its answer."""
    output: str | None
    failure: Failure | None
    scores: dict[str, Any]
    reasons: dict[str, str]
    attempt: int
    seconds: float
    usage: Usage
    dollars: float | None
    same: int
    """How many answers on this page are equal to it, itself included."""


class ModelRepeats(msgspec.Struct, frozen=True):
    model: str
    repeats: list[RepeatView]
    """The first ones, if there are very many."""


class RepeatsView(msgspec.Struct, frozen=True):
    ref: RunRef
    key: str
    """The first repeat of the model that the address names."""
    status: RunStatus
    durability: Durability
    live: bool
    input: Any
    target: Any
    models: list[ModelRepeats]
    """The named model first."""
    files: dict[str, int | None]
    evaluation: str = ""
    """The evaluation whose scores are shown, if it is not the current one."""


def load(request: PageRequest) -> RepeatsView:
    key = request.key
    own = parse_key(key)
    with request.sources.open(request.run) as run, open_reader(run) as reader:
        if run.damage:
            run.damage_report.require_originals()
        cells = [cell for cell in run.index.story.cells if cell.task == own.task]
        named = [cell for cell in cells if cell.model == own.model]
        first = next((found for cell in named if (found := find_planned(run.place.folder, [cell], key))), None)
        if first is None:
            raise NotFoundError(f"{run.run_id} has no sample {key!r}")
        models = list(dict.fromkeys([own.model, *(cell.model for cell in cells)]))[:_MODELS_MAX]
        offset = first.o - next(cell.first for cell in named if cell.first <= first.o < cell.first + cell.count)
        read = []
        other = run.find_evaluation(request.query.get("evaluation", ""))
        for model in models:
            sample = str(own._replace(model=model)).rpartition("/")[0]
            mine = [cell for cell in cells if cell.model == model]
            read.append(_of_model(_Answers(run, reader, other or run.index.story.evaluation), mine, sample, offset))
        counted = _with_equals([each for each in read if each is not None])
        asked = QuestionReader(run.place.folder, run.index.story.spec).of(own.task, first.data)
        size_of = partial(blob_size, run.place.folder)
        return RepeatsView(
            ref=request.run,
            key=key,
            status=run.shown_status(),
            durability=run.durability(),
            live=run.is_live,
            input=asked.input,
            target=asked.target,
            models=counted,
            files=file_sizes(size_of, asked.input, asked.target),
            evaluation=other,
        )


class _Answers(NamedTuple):
    """Where answers and their scores are read from."""

    run: ViewedRun
    reader: Reader
    evaluation: str


def _with_equals(models: list[ModelRepeats]) -> list[ModelRepeats]:
    """With the number of equal answers."""
    same = Counter(each.output for model in models for each in model.repeats)
    found = []
    for model in models:
        repeats = [msgspec.structs.replace(each, same=same[each.output]) for each in model.repeats]
        found.append(msgspec.structs.replace(model, repeats=repeats))
    return found


def _of_model(answers: _Answers, cells: list[Cell], sample: str, offset: int) -> ModelRepeats | None:
    """All repeats of a sample of one model, which are neighbours in the plan; an extension may have added more.
    `offset`: where the sample probably is in a cell, because it is there in another.
    """
    found: list[RepeatView] = []
    run = answers.run
    for cell in cells:
        o = _first_ordinal(run, cell, sample, cell.first + offset)
        rows = run.index.rows_around(o) if o is not None else {}
        while o is not None and len(found) < _REPEATS_MAX:
            line = planned_line_at(run.place.folder, cell, o) if o < cell.first + cell.count else None
            if line is None or line.k.rpartition("/")[0] != sample:
                break
            found.append(_repeat(answers, line.k, rows.get(o)))
            o += 1
    return ModelRepeats(parse_key(f"{sample}/1").model, found) if found else None


def _first_ordinal(run: ViewedRun, cell: Cell, sample: str, guess: int) -> int | None:
    """The first repeat of a sample in a cell."""
    line = planned_line_at(run.place.folder, cell, guess) if guess < cell.first + cell.count else None
    if line is None or line.k != f"{sample}/1":
        line = find_sample_line(run.place.folder, cell, sample)
    return None if line is None else line.o


def _repeat(answers: _Answers, key: str, row: AnswerRow | None) -> RepeatView:
    own, run = parse_key(key), answers.run
    if row is None:
        return RepeatView(key, own.repeat, "unfinished", 0, None, None, {}, {}, 0, 0.0, Usage(), None, 0)
    finished = recorded_answer(answers.reader, row) if row.status == "finished" else None
    used = row.used_by_role()
    scores = list(run.index.scores(answers.evaluation, row.o, 1)) if finished is not None else []
    return RepeatView(
        key=key,
        repeat=own.repeat,
        status=row.status,
        n=row.n,
        output=None if finished is None else finished.answer.text,
        failure=Failure(row.kind, row.message) if row.status == "failed" else None,
        scores={each.scorer: each.value for each in scores},
        reasons={each.scorer: each.reason or each.failure for each in scores if each.reason or each.failure},
        attempt=row.attempt,
        seconds=row.seconds,
        usage=sum(used.values(), Usage()),
        dollars=used_dollars(used, StoredSpec.of(run.index.story.spec).prices(own.model)),
        same=0,
    )


def render(found: RepeatsView, links: Links) -> Body:
    key = parse_key(found.key)
    place = TextPlace(found.ref, found.key, 0, links, found.files)
    parts: list[Child] = [
        h("p", h("a", f"← {key.sample_id}", href=_sample_address(found, links, found.models[0].repeats[0].key))),
        h("h1", f"All answers to {key.sample_id}"),
        h("h2", "Question"),
        h("div", list(content_blocks(found.input, place, "/input")), class_="panel")
        if found.input is not None
        else h("p", "The question is not recorded.", class_="quiet"),
    ]
    if found.target is not None:
        parts += [h("h2", "Target"), h("div", value_block(found.target, place, "/target"), class_="panel target")]
    for number, model in enumerate(found.models):
        parts.append(h("section", list(_model(model, place, found)), id=f"model-{number}", data_live=True))
    return Body(
        f"Repeats of {key.sample_id}",
        h("div", parts, class_="sample"),
        found.ref,
        "samples",
        found.status,
        found.durability,
        found.evaluation,
        is_live=found.live and found.ref.at is None,
    )


def _sample_address(found: RepeatsView, links: Links, key: str) -> str:
    return links.sample(found.ref, key, evaluation=found.evaluation)


def _model(model: ModelRepeats, place: TextPlace, found: RepeatsView) -> Iterator[Child]:
    yield h("h2", model.model)
    answers = [each.output for each in model.repeats if each.output is not None]
    if len(answers) > 1:
        kinds = len(set(answers))
        text = "all are equal" if kinds == 1 else f"{kinds} different ones"
        yield h("p", f"{len(answers)} answers, {text}.", class_="quiet")
    yield h("div", [_card(each, place, found) for each in model.repeats], class_="cards")


def _card(each: RepeatView, place: TextPlace, found: RepeatsView) -> Markup:
    at = msgspec.structs.replace(place, key=each.key, n=each.n)
    title = h("a", f"repeat {each.repeat}", href=_sample_address(found, place.links, each.key))
    scores = [
        h("p", f"{name} ", score_badge(value), h("span", f" {each.reasons.get(name, '')[:300]}", class_="quiet"))
        for name, value in each.scores.items()
    ]
    same = f"{each.same} equal answers on this page" if each.same > 1 and each.output is not None else ""
    pairs: list[tuple[str, Child]] = [
        ("tokens", tokens(each.usage) if each.usage.tokens else ""),
        ("cost", dollars(each.dollars) if each.dollars is not None else ""),
        ("time", duration(each.seconds) if each.seconds else ""),
        ("attempt", str(each.attempt) if each.attempt > 1 else ""),
    ]
    return h(
        "article",
        h("header", title, badge(each.status), h("span", same, class_="quiet")),
        scores,
        text_block(each.output, at, "/answer/text") if each.output is not None else None,
        h("p", h("strong", f"{each.failure.kind}: "), each.failure.message[:500], class_="problem")
        if each.failure
        else None,
        facts([(name, value) for name, value in pairs if value]),
        class_="card",
    )
