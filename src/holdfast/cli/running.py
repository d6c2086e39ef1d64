"""`run`, `resume` and `check`."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.api import Ended, Given, Run, RunPlace, default_store, execute, find_run, runs_in
from holdfast.api import check as check_given
from holdfast.api.executing import find_modules_beside, read_fold, stored_spec
from holdfast.cli.output import print_json, print_table, resume_command, say, warn
from holdfast.cli.progress import watch
from holdfast.engine import Engine
from holdfast.errors import HoldfastError, SpecError, UsageError
from holdfast.report.tables import report_table
from holdfast.report.wording import counted
from holdfast.spec import Spec, build_spec, load_spec
from holdfast.spec.doubts import doubts
from holdfast.spec.drift import differences, refused
from holdfast.spec.explaining import nearest

_RUNS_LOOKED_AT = 20
_WITHOUT_DATA = "the run can go on only while its data files are there, unchanged, and cannot be audited without them"


class Choice(msgspec.Struct, frozen=True):
    """What the command line changes or selects in a spec."""

    sets: Sequence[str] = ()
    limit: int | None = None
    samples: list[str] | None = None
    tasks: list[str] | None = None
    models: list[str] | None = None


def run_spec(path: str, run_id: str | None, store: str | None, choice: Choice) -> int:
    spec = _load(path, choice)
    where = store or default_store()
    for doubt in doubts(spec, os.environ):
        warn(f"{path}: {doubt}")
    if run_id is None:
        _point_to_interrupted(spec, where)
    return _execute(Given(spec, where=path), where, run_id)


def resume_run(name: str, path: str | None, store: str | None, choice: Choice) -> int:
    where = store or default_store()
    place = find_run(where, name)
    fold = read_fold(place)
    if fold.story.started is None:
        begin = f"holdfast run SPEC --id {place.run_id}"
        raise UsageError(f"{place.run_id} has not begun: its journal holds no run; start it with: {begin}")
    find_modules_beside(path or fold.story.started.source)
    if path is None:
        spec = build_spec({**fold.story.spec}, "", choice.sets) if choice.sets else stored_spec(fold)
    else:
        spec = _load(path, choice)
    return _execute(Given(spec, where=path or "", from_run=path is None), place.store, place.run_id)


def check_spec(path: str, choice: Choice, as_json: bool) -> None:
    spec = _load(path, choice)
    prepared, planned = check_given(Given(spec, where=path))
    doubted = doubts(spec, os.environ)
    for doubt in doubted:
        warn(f"{path}: {doubt}")
    told = {
        "spec": path,
        "planned": planned,
        "tasks": [task.name for task in spec.tasks],
        "models": [model.name for model in spec.models],
        "evaluation": prepared.evaluation,
        "warnings": doubted,
    }
    if as_json:
        print_json(told)
    else:
        names = f"{counted(len(spec.tasks), 'task')}, {counted(len(spec.models), 'model')}"
        verdict = "can be run" if doubted else "is fine"
        say(f"{path} {verdict}: {counted(planned, 'answer')} to be made ({names}).")


def _load(path: str, choice: Choice) -> Spec:
    find_modules_beside(path)
    spec = load_spec(path, choice.sets)
    tasks = _chosen("--task", choice.tasks, {task.name: task for task in spec.tasks})
    models = _chosen("--model", choice.models, {model.name: model for model in spec.models})
    if choice.limit is not None and choice.limit < 1:
        raise SpecError(f"--limit {choice.limit}: at least 1")
    return msgspec.structs.replace(
        spec, tasks=tasks, models=models, limit=choice.limit or spec.limit, samples=choice.samples or spec.samples
    )


def _chosen(option: str, names: list[str] | None, parts: dict[str, Any]) -> list[Any]:
    for name in names or ():
        if name not in parts:
            raise SpecError(f"{option} {name}: the spec has none of that name{nearest(name, set(parts))}")
    return [part for name, part in parts.items() if not names or name in names]


def _execute(given: Given, store: str, run_id: str | None) -> int:
    if not given.spec.record_data:
        sys.stderr.write(f"record_data is off: {_WITHOUT_DATA}\n")
    ended = asyncio.run(_execute_until_signal(given, store, run_id))
    if ended.interrupted:
        kept = f"answers kept: {ended.finished} of {ended.finished + ended.failed + ended.unfinished}"
        sys.stderr.write(f"interrupted; {kept}. Go on with: {resume_command(ended.place)}\n")
    else:
        with Run(ended.place) as run:
            print_table(report_table(run.report(), resume_command(ended.place)))
    return ended.exit_code(given.spec.fail_on_error)


async def _execute_until_signal(given: Given, store: str, run_id: str | None) -> Ended:
    """The first Ctrl-C or SIGTERM stops the engine, which saves and says how to go on; the second ends at once."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    engines: list[Engine] = []

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        if engines:
            engines[0].stop()
        elif main is not None:
            main.cancel()

    async def observe(engine: Engine, place: RunPlace) -> None:
        engines.append(engine)
        await watch(engine, place, given.spec.progress_file)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await execute(given, store, run_id, observe)
    except asyncio.CancelledError:
        sys.stderr.write("interrupted before the run began\n")
        sys.exit(130)


def _point_to_interrupted(spec: Spec, store: str) -> None:
    """An interrupted run of the same spec is probably what the user wants to go on with."""
    for place in list(runs_in(store))[-_RUNS_LOOKED_AT:]:
        if place.experiment != spec.experiment:
            continue
        try:
            with Run(place) as run:
                status, _ = run.status()
                mine = status == "interrupted" and not refused(differences(stored_spec(read_fold(place)), spec))
        except (HoldfastError, msgspec.ValidationError):
            continue  # a run that cannot be read is not the one to point to
        if mine:
            sys.stderr.write(f"there is an interrupted run of this spec; to go on with it: {resume_command(place)}\n")
