"""`run --dry-run` and `replay`: what would be asked, and what a sample's code does with what was answered."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from holdfast.cli.adhoc import naming_options
from holdfast.cli.commands.cost import estimate_lines
from holdfast.cli.commands.run import Choice, given_of_run
from holdfast.cli.output import hanging, print_json, say, warn
from holdfast.engine.budget import output_limit
from holdfast.journal.blobs import blob_size
from holdfast.plan import Work, models_of
from holdfast.records.samples import Message, Usage
from holdfast.report.tables import short
from holdfast.report.text import counted, lines_of, told_content
from holdfast.runs import Given
from holdfast.runs import check as check_given
from holdfast.runs.estimate import estimate, read_prompts
from holdfast.runs.replay import Replay, in_debugger, play, set_scene
from holdfast.spec import Model, Spec

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
    cells = [cell for name, work in prepared.works.items() for cell in _tried(name, work, prepared.spec)]
    guess = estimate(prepared.spec, prepared.works, {})
    if as_json:
        print_json({"planned": planned, "cells": cells, "estimate": guess})
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
                text = f"{message.get('role')}: {told_content(message.get('content'), size_of)}"
                for line in lines_of(hanging(text)):
                    say(f"    {line}")
    for line in estimate_lines(guess) if guess.dollars is not None else ():
        say(line)
    for line in guess.over():
        warn(line)
    say(f"{counted(planned, 'answer')} in all; nothing was asked. A solver of your own may ask more than this.")
    return 0


def _tried(name: str, work: Work, spec: Spec) -> Iterator[Tried]:
    prompts = read_prompts(work, spec, _SHOWN)
    keys, tokens = prompts.rows * work.task.repeats, prompts.tokens * work.task.repeats
    for model in models_of(spec, work.task):
        told = (name, model.name, work.solver.name, keys, tokens, model.params, prompts.first)
        yield Tried(*told, *_cost(model, keys, tokens), prompts.files * work.task.repeats)


def _cost(model: Model, keys: int, input_tokens: int) -> tuple[float | None, float | None]:
    """What goes in, and at most comes out; None where it cannot be known."""
    most = output_limit(model.params)
    cost_in = model.dollars(Usage(input_tokens, requests=keys))
    return cost_in, None if most is None else model.dollars(Usage(0, keys * most))


def replay(name: str, key: str, path: str | None, store: str | None, choice: Choice, debugger: bool) -> int:
    """Run one sample's code again on its recorded steps. 1 if the code raises."""
    place, given = given_of_run(name, path, store, choice)
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
