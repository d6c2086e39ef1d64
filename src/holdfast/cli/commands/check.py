"""`check`, `run --dry-run` and `replay`: what a spec or a sample's code would do, without calling a model.

Nothing here writes to a store. Only `check --servers` sends requests: one per server, for its list of models.
"""

import asyncio
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.cli.adhoc import benchmarks_of, naming_options
from holdfast.cli.commands.cost import estimate_lines
from holdfast.cli.errors import explain
from holdfast.cli.output import continuation_lines, hanging, print_json, print_line, warn, write_message
from holdfast.cli.targets import find_doubts, load_named
from holdfast.engine import output_limit
from holdfast.errors import HoldfastError, Problems, SpecError, UsageError
from holdfast.journal import blob_size, open_objects
from holdfast.plan import PreparedTask, models_of
from holdfast.records import Message, Usage
from holdfast.report import content_text, counted, lines_of, short
from holdfast.runs import (
    Given,
    Overrides,
    ServerCheck,
    check_servers,
    open_replay,
    play,
    replay_in_debugger,
    resolve_run,
)
from holdfast.runs import check as check_given
from holdfast.runs.estimate import Estimate, estimate, read_prompts
from holdfast.score import scale_hints, threshold_hints
from holdfast.solve import ScoredContinuation
from holdfast.spec import KeptCombinations, Spec, missing_keys

_SAMPLES_SHOWN = 3
_MESSAGES_MAX = 50


class SpecCheck(msgspec.Struct, frozen=True):
    """What `check --json` prints about a spec."""

    spec: str
    planned: int = 0
    tasks: Sequence[str] = ()
    models: Sequence[str] = ()
    evaluation: str = ""
    warnings: Sequence[str] = ()
    errors: Sequence[str] = ()
    servers: Sequence[ServerCheck] = ()
    combinations: Sequence[KeptCombinations] = ()
    """How many combinations of its sweeps each `when` keeps."""


def check_specs(paths: Sequence[str], overrides: Overrides, servers: bool, as_json: bool) -> int:
    """Print whether specs can be run. Returns 2 if one cannot, also because a server does not respond."""
    found = []
    for path in paths:
        try:
            found.append(_check_spec(path, overrides, servers, is_only=len(paths) == 1))
        except HoldfastError as error:
            if len(paths) == 1:
                raise
            explain(error)  # the other specs are still checked
            found.append(SpecCheck(path, errors=str(error).split("\n")))
            continue
        if not as_json:
            _print_check(found[-1])
    if as_json:
        print_json(found if len(paths) > 1 else found[0])
    return 2 if any(each.errors for each in found) else 0


def _check_spec(path: str, overrides: Overrides, servers: bool, *, is_only: bool) -> SpecCheck:
    """Check one spec, and print its warnings and what keeps it from being run now."""
    problems = Problems()
    given = load_named(path, overrides, problems, is_only=is_only)
    spec = given.spec
    try:
        prepared, planned = check_given(given, problems)
    except SpecError as refusal:
        keys = map(given.explain, missing_keys(spec, os.environ))
        raise SpecError("\n".join((str(refusal), *keys))) from refusal
    replies = asyncio.run(check_servers(spec)) if servers else []
    warnings = [
        *find_doubts(spec),
        *(each.doubt for each in replies if each.doubt),
    ]
    hints = scale_hints(each for every in prepared.scorers.values() for each in every)
    for index, task in enumerate(spec.tasks):
        hints += threshold_hints(task, prepared.scorers[task.name], f"tasks[{index}].reduce")
    errors = [*missing_keys(spec, os.environ), *(each.error for each in replies if each.error)]
    if spec.mirror is not None:
        try:
            open_objects(spec.mirror.url)
        except UsageError as refusal:
            errors.append(f"mirror.url: {refusal}")
    for warning in (*warnings, *hints):
        warn(given.explain(warning))
    for error in errors:
        write_message(f"holdfast: {given.explain(error)}")
    return SpecCheck(
        path,
        planned,
        [task.name for task in spec.tasks],
        [model.name for model in spec.models],
        prepared.evaluation,
        [*warnings, *hints],
        errors,
        replies,
        given.kept,
    )


def _print_check(checked: SpecCheck) -> None:
    for each in checked.servers:
        if not each.error:
            print_line(f"{each.place}: the server responds")
    for kept in checked.combinations:
        print_line(f"{kept.place} keeps {kept.kept} of {counted(kept.total, 'combination')}")
    names = f"{counted(len(checked.tasks), 'task')}, {counted(len(checked.models), 'model')}"
    verdict = "cannot be run now" if checked.errors else "can be run" if checked.warnings else "is valid"
    print_line(f"{checked.spec} {verdict}: {counted(checked.planned, 'answer')} planned ({names}).")


class CellPreview(msgspec.Struct, frozen=True):
    """The requests of one task with one model, as `run --dry-run --json` prints them."""

    task: str
    model: str
    solver: str
    keys: int
    input_tokens: int
    """An estimate, of the first messages."""
    params: dict[str, Any]
    first: dict[str, list[Message]]
    """The messages of the first samples, by sample."""
    input_dollars: float | None = None
    """An estimate, of the first messages; None if the model has no price."""
    output_dollars_max: float | None = None
    """If every answer were as long as `max_tokens` allows; None if nothing limits it, or there is no price."""
    files: int = 0
    """In the first messages; no estimate includes their cost."""
    continuations: Mapping[str, Sequence[ScoredContinuation]] = {}
    """By sample, what is scored instead of generated: for solvers that rank choices by their likelihood."""


class SpecPreview(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `run --dry-run --json` prints about a spec. `spec` is set if there are several."""

    planned: int
    cells: Sequence[CellPreview]
    estimate: Estimate
    spec: str = ""


def print_dry_runs(specs: Sequence[Given], as_json: bool) -> int:
    """Print the exact messages of each cell's first samples, and an estimate of the whole. Sends and writes nothing."""
    several = len(specs) > 1
    found = []
    for given in specs:
        with naming_options(given.where, benchmarks_of(given)):
            prepared, planned = check_given(given)
        cells = [cell for name, work in prepared.works.items() for cell in _preview_cells(name, work, prepared.spec)]
        guess = estimate(prepared.spec, prepared.works, {})
        found.append(SpecPreview(planned, cells, guess, given.where if several else ""))
        if not as_json:
            if several:
                print_line(given.where, "bold")
            _print_preview(found[-1], prepared.works)
    if as_json:
        print_json(found if several else found[0])
    return 0


def _print_preview(preview: SpecPreview, works: Mapping[str, PreparedTask]) -> None:
    for cell in preview.cells:
        print_line(f"{cell.task} with {cell.model}: {counted(cell.keys, 'answer')}", "bold")
        params = msgspec.json.encode(cell.params).decode()
        files = f" and {counted(cell.files, 'file')}" if cell.files else ""
        print_line(f"  solver {cell.solver}, params {params}, about {short(cell.input_tokens)} input tokens{files}")
        size_of = works[cell.task].file_size
        for sample, messages in cell.first.items():
            print_line(f"  {sample}")
            scored = cell.continuations.get(sample, ())
            for line in continuation_lines(scored):
                print_line(f"    {line}")
            for message in () if scored else messages:
                text = f"{message.get('role')}: {content_text(message.get('content'), size_of)}"
                for line in lines_of(hanging(text)):
                    print_line(f"    {line}")
    guess = preview.estimate
    for line in estimate_lines(guess) if guess.dollars is not None else ():
        print_line(line)
    for line in guess.over():
        warn(line)
    planned = counted(preview.planned, "answer")
    print_line(f"{planned} in all; no request was sent. Your own solvers may send more than this.")


def _preview_cells(name: str, work: PreparedTask, spec: Spec) -> Iterator[CellPreview]:
    prompts = read_prompts(work, spec, _SAMPLES_SHOWN)
    repeats = work.task.repeats
    keys, tokens = prompts.rows * repeats, prompts.tokens * repeats
    for model in models_of(spec, work.task):
        most = output_limit(model.params)
        yield CellPreview(
            name,
            model.name,
            work.solver.name,
            keys,
            tokens,
            model.params,
            prompts.first,
            model.dollars(Usage(tokens, requests=prompts.requests * repeats)),
            None if most is None else model.dollars(Usage(0, keys * most)),
            prompts.files * repeats,
            prompts.continuations,
        )


def replay_sample(
    name: str, key: str, path: str | None, store: str | None, overrides: Overrides, debugger: bool
) -> int:
    """Run one sample's code again on its recorded steps. Returns 1 if the code raises."""
    place, given = resolve_run(name, path, store, overrides)
    scene = open_replay(place, key, given)
    if scene.changed:
        warn("the solver's code has changed since the run began; this is what the new code does")
    result = replay_in_debugger(scene) if debugger else asyncio.run(play(scene))
    if result is None:
        print_line("the debugger was quit before the sample ended")
        return 0
    unused = counted(result.orphaned, "recorded step")
    print_line(f"{counted(result.replayed, 'step')} replayed, {unused} left unused by the code; no request was sent")
    if result.asked is not None:
        print_line("the code then sends a request that is not recorded:")
        for message in itertools.islice(result.asked, _MESSAGES_MAX):
            text = content_text(message.get("content"), partial(blob_size, place.folder))
            print_line(f"  {message.get('role')}: {text}")
    elif result.answer is not None:
        print_line(f"answer: {result.answer.text}")
    elif result.failure is not None:
        for line in (f"{result.failure.kind}: {result.failure.message}", *result.failure.detail.splitlines()):
            print_line(line)
    # A step that is not recorded ends a replay, but is no fault of the code.
    return int(result.failure is not None and result.asked is None)
