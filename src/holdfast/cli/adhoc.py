"""A run without a spec file: options of `run` become a spec.

The spec is stored in the run like any other, so `resume`, `extend` and `fork` need no file, and the same command with
the same `--id` continues the run. Options that only make sense without a spec file are refused beside one.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.datasets import hub_address, is_url
from holdfast.errors import SpecError, UsageError
from holdfast.plan import experiment_of, find_benchmark, resolve_benchmarks
from holdfast.runs import Given, find_modules_beside
from holdfast.spec import PROVIDERS, Selection, SpecFile, expand_names, fill_environment, select, value_of

EXPERIMENT = "ad-hoc"
_OPTIONS = (
    (r"models\[\d+\]\.base_url", "--base-url"),
    (r"models\[\d+\]\.params\.(\w+)", r"--param \1"),
    (r"models\[\d+\]\.params", "--param"),
    (r"models\[\d+\](?:\.\w+)?", "--model"),
    (r"tasks\[0\]\.scorers\[\d+\]", "--scorer"),
    (r"tasks\[0\]\.(?:prompt|messages)", "--prompt"),
    (r"tasks\[0\]\.system", "--system"),
    (r"tasks\[0\]\.dataset(?:\.path)?", "--data"),
    (r"samples", "--sample"),
)
"""Places of the generated spec as error messages name them, and the option that each comes from."""


class AdHoc(msgspec.Struct, frozen=True):
    """The options as they were typed; `models` are `PROVIDER/MODEL`."""

    models: Sequence[str] = ()
    data: str = ""
    prompt: str = ""
    system: str = ""
    scorers: Sequence[str] = ()
    base_url: str = ""
    params: Sequence[str] = ()
    input: str = ""
    target: str = ""
    id: str = ""

    def refuse_beside_spec(self, path: str) -> None:
        """Raise UsageError for an option whose value a spec file has."""
        fields = {
            "--data": (self.data, "tasks.NAME.dataset.path"),
            "--prompt": (self.prompt, "tasks.NAME.prompt"),
            "--system": (self.system, "tasks.NAME.system"),
            "--scorer": (self.scorers, "tasks.NAME.scorers"),
            "--base-url": (self.base_url, "models.NAME.base_url"),
            "--param": (self.params, "models.NAME.params"),
            "--input": (self.input, "tasks.NAME.dataset.input"),
            "--target": (self.target, "tasks.NAME.dataset.target"),
            "--id-column": (self.id, "tasks.NAME.dataset.id"),
        }
        for option, (value, field) in fields.items():
            if value:
                raise UsageError(f"{option} is for a run without a spec; with {path}, write --set {field}=…")


def build_given(options: AdHoc, sets: Sequence[str], part: Selection, benchmarks: Sequence[str] = ()) -> Given:
    """Build the spec from the options: of the benchmarks, or of the data that they name."""
    if benchmarks:
        for name in benchmarks:
            find_benchmark(name)
        _refuse_beside_benchmark(options, benchmarks[0])
        tasks: list[Any] = [
            {"benchmark": name, **({"system": options.system} if options.system else {})} for name in benchmarks
        ]
        experiment = experiment_of(benchmarks)
    else:
        _refuse_missing(options)
        tasks, experiment = [_task_of_data(options)], EXPERIMENT
    raw = {"experiment": experiment, "models": _models_of(options), "tasks": tasks}
    fill_environment(raw, sets)
    with naming_options("", benchmarks):
        # no ${VARIABLES}: the shell has expanded those
        spec = resolve_benchmarks(SpecFile("", raw), sets, None).spec
        find_modules_beside("", spec)
    named = any(each.partition("=")[0] == "experiment" for each in sets)
    return Given(select(spec, part), names_experiment=named)


def _task_of_data(options: AdHoc) -> dict[str, Any]:
    if is_url(options.data):
        raise UsageError("--data takes a file; write a spec for a file at a URL: dataset: {path: URL, sha256: …}")
    if address := hub_address(options.data):
        raise UsageError(f"--data takes a file; write a spec for a data set of the Hub: {address}")
    data = os.path.abspath(options.data)
    columns = {"id": options.id, "input": options.input, "target": options.target}
    return {
        "name": re.sub(r"[*?\[\]]", "", os.path.basename(data).split(".")[0]) or "data",
        "dataset": {"path": data, **columns},
        "prompt": options.prompt,
        "system": options.system,
        "scorers": [value_of(text, "--scorer") for text in options.scorers],
    }


def _models_of(options: AdHoc) -> list[dict[str, Any]]:
    params: dict[str, Any] = {}
    for text in options.params:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {text}: write NAME=VALUE, for example --param temperature=0")
        params[name] = value_of(value, f"--param {name}")
    names = list(dict.fromkeys(options.models))
    for text in names:
        if "/" not in text and ":" not in text and text != "mock":
            raise UsageError(f"--model {text}: {_model_advice(text)}")
    models: list[dict[str, Any]] = [{**fields, "params": params} for fields in expand_names(names)]
    for fields in models:
        if options.base_url and fields["provider"] != "mock":
            fields["base_url"] = options.base_url
    return models


@contextlib.contextmanager
def naming_options(where: str = "", benchmarks: Sequence[str] = ()) -> Iterator[None]:
    """Name the option or the benchmark in a SpecError, not the place in a generated spec. `where`: the spec file, if
    there is one. `benchmarks`: the names of the tasks, if they are benchmarks.
    """
    try:
        yield
    except SpecError as error:
        if where:
            raise
        places = [(rf"tasks\[{index}\](?:\.|: )", f"{name}: ") for index, name in enumerate(benchmarks)]
        places += [(f"{place}(?=[:.])", option) for place, option in _OPTIONS]
        text = str(error).removeprefix(": ")
        for place, named in places:
            text = re.sub(f"^{place}", named, text, flags=re.MULTILINE)
        raise SpecError(text) from error


def benchmarks_of(given: Given) -> list[str]:
    """The tasks of a run of benchmarks by their names; none for other runs."""
    is_run_of_benchmarks = not given.where and all(task.benchmark is not None for task in given.spec.tasks)
    return [task.name for task in given.spec.tasks] if is_run_of_benchmarks else []


def _model_advice(text: str) -> str:
    """What to write instead of a model without a provider."""
    near = next(iter(difflib.get_close_matches(text, PROVIDERS, n=1, cutoff=0.7)), "")
    if near:
        return f"did you mean {near if near == 'mock' else f'{near}/MODEL'}?"
    return f"write PROVIDER/MODEL, for example openai/{text}, or mock"


def _refuse_beside_benchmark(options: AdHoc, name: str) -> None:
    """UsageError for options that would make it another task, and without a model."""
    given = {"--data": options.data, "--prompt": options.prompt, "--scorer": options.scorers}
    given |= {"--input": options.input, "--target": options.target, "--id-column": options.id}
    for option, value in given.items():
        if value:
            how = f"write a spec with `tasks: [{{benchmark: {name}, …}}]`, or copy it: holdfast init --benchmark {name}"
            raise UsageError(f"{option} would change the benchmark {name}; {how}")
    if not options.models:
        raise UsageError(f"--model is missing: holdfast run {name} --model openai/gpt-x --limit 50")


def _refuse_missing(options: AdHoc) -> None:
    if options.data and options.models:
        return
    if options.data:
        raise UsageError("--model is missing: write PROVIDER/MODEL, for example --model openai/gpt-x, or --model mock")
    if any(getattr(options, name) for name in options.__struct_fields__):
        raise UsageError("--data is missing: name a .jsonl, .json or .csv file, or a SPEC")
    here = next((name for name in sorted(os.listdir()) if name.endswith((".yaml", ".yml"))), "")
    example = f"holdfast run {here}" if here else "holdfast run SPEC (make one with: holdfast init)"
    raise UsageError(f"say what to run: {example}, or holdfast run --model M --data FILE --prompt '…'")
