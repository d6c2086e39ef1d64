"""`run --dry-run` and `replay`: what would be asked, and what a sample's code does with what was answered."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api import check as check_given
from holdfast.api.replaying import Replay, in_debugger, play, set_scene
from holdfast.cli.output import print_json, say, warn
from holdfast.cli.running import Choice, given_of_run, load_given
from holdfast.plan import Work, models_of
from holdfast.records.exchange import Message
from holdfast.report.tables import short
from holdfast.report.wording import counted
from holdfast.spec import Spec

_CHARACTERS_A_TOKEN = 4


class Tried(msgspec.Struct, frozen=True):
    """What a cell would ask."""

    task: str
    model: str
    solver: str
    keys: int
    input_tokens: int
    """At a guess, of the first messages."""
    params: dict[str, Any]
    messages: list[Message]
    """Of the first sample."""


def dry_run(path: str, choice: Choice, as_json: bool) -> int:
    """The exact messages of each cell's first sample, and how much there is in all. Asks nothing, makes nothing."""
    given = load_given(path, choice)
    prepared, planned = check_given(given)
    cells = [cell for name, work in prepared.works.items() for cell in _tried(name, work, given.spec)]
    if as_json:
        print_json({"planned": planned, "cells": cells})
        return 0
    for cell in cells:
        say(f"{cell.task} with {cell.model}: {counted(cell.keys, 'answer')}", "bold")
        params = msgspec.json.encode(cell.params).decode()
        say(f"  solver {cell.solver}, params {params}, about {short(cell.input_tokens)} tokens in")
        for message in cell.messages:
            say(f"  {message.get('role')}: {message.get('content')}")
    say(f"{counted(planned, 'answer')} in all; nothing was asked. A solver of your own may ask more than this.")
    return 0


def _tried(name: str, work: Work, spec: Spec) -> Iterator[Tried]:
    characters = rows = 0
    first: list[Message] = []
    for sample in work.samples(spec, surveyed=True):
        messages = work.renderer.messages(sample)
        characters += sum(len(str(message.get("content", ""))) for message in messages)
        rows += 1
        first = first or messages
    repeats = work.task.repeats
    for model in models_of(spec, work.task):
        tokens = characters * repeats // _CHARACTERS_A_TOKEN
        yield Tried(name, model.name, work.solver.name, rows * repeats, tokens, model.params, first)


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
    for line in _told(result):
        say(line)
    return int(result.failure is not None and result.asked is None)


def _told(result: Replay) -> Iterator[str]:
    yield f"{counted(result.replayed, 'step')} replayed, {result.orphaned} never asked for; no request was sent"
    if result.asked is not None:
        yield "the code then asks for something that is not recorded:"
        for message in itertools.islice(result.asked, 50):
            yield f"  {message.get('role')}: {message.get('content')}"
    elif result.answer is not None:
        yield f"answer: {result.answer.text}"
    elif result.failure is not None:
        yield f"{result.failure.kind}: {result.failure.message}"
        yield from result.failure.detail.splitlines()
