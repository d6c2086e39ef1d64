"""Holdfast from Python: tasks, `run` and `run_async`. Async inside; the sync face is one thin wrapper."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.api.executing import execute, place_for
from holdfast.api.places import default_store
from holdfast.api.preparing import Given, find_modules_beside
from holdfast.api.runs import Run
from holdfast.api.working import Observe
from holdfast.errors import SpecError
from holdfast.records.exchange import Row
from holdfast.spec import build_spec, load_spec
from holdfast.spec.sweeping import base_of


class Task:
    """A data set, how it is asked, and how the answers are scored.

    `data` is a list of rows or the path of a file. `solver` and `scorers` are names or functions. Several prompts make
    variants of the task. Other fields are those of a task in a spec: system, repeats, sample_retries, fewshot, …
    """

    def __init__(
        self,
        name: str,
        data: str | Sequence[Row],
        prompt: str | Sequence[str] | Mapping[str, str] = "",
        *,
        solver: str | Callable[..., Any] | dict[str, Any] = "chat",
        scorers: Sequence[Any] = (),
        **fields: Any,
    ) -> None:
        self.name = name
        self.rows = None if isinstance(data, str) else list(data)
        self.solver = solver if callable(solver) else None
        self.scorers = [scorers] if callable(scorers) or isinstance(scorers, str) else list(scorers)
        self.fields = {**fields, "name": name, "prompt": prompt}
        if isinstance(data, str):
            self.fields["dataset"] = {**fields.get("dataset", {}), "path": data}
        if not callable(solver):
            self.fields["solver"] = solver
        if all(isinstance(scorer, str | dict) for scorer in self.scorers):  # then a spec can say it
            self.fields["scorers"] = self.scorers


async def run_async(
    tasks: "Task | Sequence[Task] | str",
    models: Sequence[str | dict[str, Any]] = (),
    *,
    id: str | None = None,
    store: str | None = None,
    observe: Observe | None = None,
    **fields: Any,
) -> Run:
    """Run tasks on models, or the spec in a file; returns the run. With the `id` of an earlier run, go on with it."""
    given = _given(tasks, models, fields)
    ended = await execute(given, place_for(given, store or default_store(), id), observe)
    return Run(ended.place)


def run(
    tasks: "Task | Sequence[Task] | str",
    models: Sequence[str | dict[str, Any]] = (),
    *,
    id: str | None = None,
    store: str | None = None,
    **fields: Any,
) -> Run:
    """`run_async`, from code that is not async; also inside a running event loop, such as a notebook's."""
    result: list[Run | BaseException] = []

    def work() -> None:
        try:
            result.append(asyncio.run(run_async(tasks, models, id=id, store=store, **fields)))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            result.append(error)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(tasks, models, id=id, store=store, **fields))
    thread = threading.Thread(target=work, name="holdfast-run")
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def _given(tasks: Task | Sequence[Task] | str, models: Sequence[str | dict[str, Any]], fields: dict[str, Any]) -> Given:
    if isinstance(tasks, str):
        if models:
            raise SpecError("a spec file names its models; leave out `models`, or pass tasks instead of a file")
        find_modules_beside(tasks)
        return Given(load_spec(tasks, [f"{name}={value}" for name, value in fields.items()]), where=tasks)
    if isinstance(models, str | dict):
        raise SpecError("models is a list: models=['mock'], or a list of mappings as in a spec")
    every = [tasks] if isinstance(tasks, Task) else list(tasks)
    raw = {**fields, "tasks": [task.fields for task in every], "models": [model_fields(model) for model in models]}
    spec = build_spec(raw, "run()")
    named = {task.name: task for task in every}
    made_of = {task.name: named[base_of(task.name, named)] for task in spec.tasks}
    return Given(
        spec=spec,
        rows={name: task.rows for name, task in made_of.items() if task.rows is not None},
        solvers={name: task.solver for name, task in made_of.items() if task.solver is not None},
        scorers={name: task.scorers for name, task in made_of.items()},
    )


def model_fields(model: str | dict[str, Any]) -> dict[str, Any]:
    """`openai/gpt-x` in short for a provider and its model; a mapping as it stands in a spec."""
    if isinstance(model, dict):
        return model
    provider, _, name = model.partition("/")
    return {"name": name or provider, "provider": provider, "model": name}
