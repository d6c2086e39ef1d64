"""`run --dry-run` and `replay`: what would be asked, and what a sample's code does with what was answered."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.api import Given
from holdfast.api import check as check_given
from holdfast.api.replaying import Replay, in_debugger, play, set_scene
from holdfast.cli.adhoc import naming_options
from holdfast.cli.output import print_json, say, warn
from holdfast.cli.running import Choice, given_of_run
from holdfast.plan import Work, blob_size, models_of
from holdfast.records.exchange import Message
from holdfast.report.tables import short
from holdfast.report.wording import counted, money, text_of, told_content
from holdfast.spec import Model, Spec

_CHARACTERS_A_TOKEN = 4
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens")
_SHOWN = 3


class Tried(msgspec.Struct, frozen=True):
    """What a cell would ask."""

    task: str
    model: str
    solver: str
    keys: int
    input_tokens: int
    """At a guess, of the first messages."""
    params: dict[str, Any]
    first: dict[str, list[Message]]
    """The messages of the first samples, by sample."""
    input_dollars: float | None = None
    """At a guess, of the first messages; None if the model has no price."""
    output_dollars_max: float | None = None
    """If every answer were as long as `max_tokens` allows; None if nothing limits it, or there is no price."""
    files: int = 0
    """In the first messages; what they cost no estimate knows."""


def dry_run(given: Given, as_json: bool) -> int:
    """The exact messages of each cell's first samples, and how much there is in all. Asks nothing, makes nothing."""
    with naming_options(given.where):
        prepared, planned = check_given(given)
    cells = [cell for name, work in prepared.works.items() for cell in _tried(name, work, given.spec)]
    if as_json:
        print_json({"planned": planned, "cells": cells})
        return 0
    for cell in cells:
        say(f"{cell.task} with {cell.model}: {counted(cell.keys, 'answer')}", "bold")
        params = msgspec.json.encode(cell.params).decode()
        files = f" and {counted(cell.files, 'file')}" if cell.files else ""
        say(f"  solver {cell.solver}, params {params}, about {short(cell.input_tokens)} tokens{files} in")
        size_of = prepared.works[cell.task].file_size
        for sample, messages in cell.first.items():
            say(f"  {sample}")
            for message in messages:
                say(f"    {message.get('role')}: {told_content(message.get('content'), size_of)}")
    _say_cost(cells)
    say(f"{counted(planned, 'answer')} in all; nothing was asked. A solver of your own may ask more than this.")
    return 0


def _say_cost(cells: Sequence[Tried]) -> None:
    """Nothing, if no model has a price."""
    priced = [cell for cell in cells if cell.input_dollars is not None]
    if not priced:
        return
    limited = [cell.output_dollars_max for cell in priced if cell.output_dollars_max is not None]
    out = f"at most ${sum(limited):,.2f} out" if len(limited) == len(priced) else "what comes out has no max_tokens"
    without = len(cells) - len(priced)
    rest = f"; {counted(without, 'cell')} without a price" if without else ""
    cost_in = money(sum(cell.input_dollars or 0.0 for cell in priced))
    say(f"An estimate, one request an answer: {cost_in} in, {out}{rest}.")


def _tried(name: str, work: Work, spec: Spec) -> Iterator[Tried]:
    characters = rows = files = 0
    first: dict[str, list[Message]] = {}
    for sample in work.samples(spec, surveyed=True):
        messages = work.renderer.messages(sample)
        characters += sum(len(text_of(message.get("content"))) for message in messages)
        files += _files_in(messages) if work.task.dataset.files else 0
        rows += 1
        if rows <= _SHOWN:
            first[sample.id] = messages
    repeats = work.task.repeats
    for model in models_of(spec, work.task):
        tokens = characters * repeats // _CHARACTERS_A_TOKEN
        told = (name, model.name, work.solver.name, rows * repeats, tokens, model.params, first)
        yield Tried(*told, *_cost(model, rows * repeats, tokens), files * repeats)


def _files_in(messages: Sequence[Message]) -> int:
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    return sum(1 for part in parts if isinstance(part, dict) and part.get("type") != "text")


def _cost(model: Model, keys: int, input_tokens: int) -> tuple[float | None, float | None]:
    """What goes in, and at most comes out; None where it cannot be known."""
    if model.price is None:
        return None, None
    given = [model.params.get(name) for name in _OUTPUT_LIMITS]
    limit = next((each for each in given if isinstance(each, int | float)), None)
    return model.price.dollars(input_tokens, 0), None if limit is None else model.price.dollars(0, keys * limit)


def replay(name: str, key: str, path: str | None, store: str | None, debugger: bool) -> int:
    """Run one sample's code again on its recorded steps. 1 if the code raises."""
    place, given = given_of_run(name, path, store, Choice())
    scene = set_scene(place, key, given)
    if scene.changed:
        warn("the solver's code has changed since the run began; this is what the new code does")
    result = in_debugger(scene) if debugger else asyncio.run(play(scene))
    if result is None:
        say("the debugger was left before the sample had ended")
        return 0
    for line in _told(result, partial(blob_size, place.folder)):
        say(line)
    return int(result.failure is not None and result.asked is None)


def _told(result: Replay, size_of: Callable[[str], int | None]) -> Iterator[str]:
    yield f"{counted(result.replayed, 'step')} replayed, {result.orphaned} never asked for; no request was sent"
    if result.asked is not None:
        yield "the code then asks for something that is not recorded:"
        for message in itertools.islice(result.asked, 50):
            yield f"  {message.get('role')}: {told_content(message.get('content'), size_of)}"
    elif result.answer is not None:
        yield f"answer: {result.answer.text}"
    elif result.failure is not None:
        yield f"{result.failure.kind}: {result.failure.message}"
        yield from result.failure.detail.splitlines()
