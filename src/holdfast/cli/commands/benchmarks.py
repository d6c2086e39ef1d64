"""`benchmarks`: the list of benchmarks, the card of one, and a check of cards against their data."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import xxhash
import yaml

from holdfast.cli.output import continuation_lines, print_json, print_line, print_sentence, print_table, warn
from holdfast.cli.progress import spinner
from holdfast.cli.targets import find_doubts
from holdfast.errors import HoldfastError, UsageError
from holdfast.plan import (
    JUDGE,
    Benchmark,
    all_benchmarks,
    broken_packages,
    find_benchmark,
    pin_revisions,
    prepare,
    resolve_benchmarks,
    source_of,
    task_fields,
)
from holdfast.records import Message
from holdfast.report import Grid
from holdfast.runs import find_modules_beside
from holdfast.score import resolve
from holdfast.solve import ScoredContinuation
from holdfast.spec import Spec, SpecFile

_CARD = (
    ("source", "source"),
    ("licence", "licence"),
    ("metric", "result"),
    ("comparable", "comparable with"),
    ("differs", "differs"),
)


_HUB_PACKAGES = ("huggingface_hub", "pyarrow")
"""Most data sets of the Hub are Parquet files."""


class _Checked(msgspec.Struct, frozen=True):
    """What a check found."""

    name: str
    problems: list[str]
    notes: list[str]


class _Text(str):
    """A text of several lines, which YAML shows as such."""


def print_benchmarks(as_json: bool) -> None:
    """Print every benchmark: its samples, its metric, its licence and what it needs."""
    every = list(all_benchmarks().values())
    if as_json:
        print_json([_as_json(each) for each in every])
        return
    for problem in broken_packages().values():
        warn(problem)
    names = ["name", "samples", "result", "licence", "needs"]
    rows = [
        [each.name, f"{each.samples:,}" if each.samples else "?", each.metric, each.licence, ", ".join(each.needs)]
        for each in every
    ]
    print_table(Grid(names, rows, right=("samples",), whole=("name",)))
    print_line("")
    print_sentence("To run one: holdfast run gsm8k --model openai/gpt-x --limit 50")
    print_sentence("The card of one, with its prompt: holdfast benchmarks show NAME")


def print_benchmark(name: str, as_json: bool) -> None:
    """Print the card of a benchmark, the prompt of its first sample, and its task as YAML."""
    benchmark = find_benchmark(name)
    first = _first_sample(benchmark)
    if as_json:
        print_json({**_as_json(benchmark), "task": _copied_task(benchmark), **msgspec.structs.asdict(first)})
        return
    print_line(f"{benchmark.name}  version {benchmark.version}")
    print_sentence(benchmark.title)
    print_line("")
    for label, text in _card_lines(benchmark):
        print_sentence(f"{label}: {text}")
    print_line("")
    print_line(f"The prompt (no sample: {first.problem}):" if first.problem else "The first sample is asked:")
    for line in continuation_lines(first.continuations):
        print_line(f"  {line}")
    template: Message = {"role": "user", "content": benchmark.task.get("prompt", "")}
    for message in () if first.continuations else first.prompt or [template]:
        print_line(f"  {message['role']}:")
        for line in str(message["content"]).splitlines():
            print_line(f"    {line}")
    print_line("")
    print_line("As a task of a spec, to copy and change:")
    for line in task_yaml(benchmark).splitlines():
        print_line(f"  {line}" if line else "")


def check_benchmarks(name: str | None, online: bool, as_json: bool) -> int:
    """Check one benchmark, or all, and return the exit code. `online`: compare the data with the card."""
    found = []
    for each in [find_benchmark(name)] if name else list(all_benchmarks().values()):
        problems, notes = _check_card(each)
        if online and not problems:
            with spinner(f"reading {each.name}"):
                more, seen = _check_data(each)
            problems, notes = [*problems, *more], [*notes, *seen]
        found.append(_Checked(each.name, problems, notes))
    if as_json:
        print_json(found)
    for checked in () if as_json else found:
        print_line(f"{checked.name}: {'; '.join(checked.problems) or 'ok'}")
        for note in checked.notes if name or online else ():
            print_sentence(f"  {note}")
    if not online and not as_json:
        again = " ".join(filter(None, ("holdfast benchmarks check", name, "--online")))
        sys.stderr.write(f"the data was not compared; that needs the network: {again}\n")
    return 2 if any(checked.problems for checked in found) else 0


def task_yaml(benchmark: Benchmark) -> str:
    """A list with the task of a benchmark, as YAML for a spec."""
    text: str = yaml.dump([_readable(_copied_task(benchmark))], Dumper=_Dumper, sort_keys=False, width=110)
    return text


def spec_yaml(benchmark: Benchmark) -> str:
    """A whole spec with an editable copy of a benchmark."""
    tasks = "".join(f"  {line}\n" if line else "\n" for line in task_yaml(benchmark).splitlines())
    needs = "".join(f"# It needs {each}.\n" for each in benchmark.needs)
    roles = "roles:\n  judge: {provider: mock}   # replace it by a model\n" if JUDGE in benchmark.needs else ""
    return (
        f"# A copy of the benchmark {benchmark.name}, version {benchmark.version}. Once you change it, its results can"
        f"\n# no longer be compared with those of the benchmark.\n{needs}"
        f"experiment: {benchmark.name.partition(':')[0]}\n"
        "models:\n  - {name: parrot, provider: mock}   # for example {provider: openai, model: gpt-x}\n"
        f"{roles}"
        f"tasks:\n{tasks}"
    )


def _copied_task(benchmark: Benchmark) -> dict[str, Any]:
    """The task, marked as a copy: once it is changed, it is no longer the benchmark."""
    fields = task_fields(benchmark, {"name": benchmark.name.replace(":", "-")})
    origin = fields.pop("benchmark")  # without the card's result and number of samples: the copy may have others
    copy = {"name": origin["name"], "version": origin["version"], "copy": True}
    return {"name": fields.pop("name"), "benchmark": copy, **fields}


def _as_json(benchmark: Benchmark) -> dict[str, Any]:
    fields = {name: getattr(benchmark, name) for name in benchmark.__struct_fields__}
    del fields["convert"], fields["task"]
    return {**fields, "unverified": _doubts(benchmark)}


def _card_lines(benchmark: Benchmark) -> Iterator[tuple[str, str]]:
    yield "samples", f"{benchmark.samples:,}" if benchmark.samples else "not known before the data is read"
    for field, label in _CARD:
        if text := getattr(benchmark, field):
            yield label, text
    fewshot = benchmark.task.get("fewshot")
    yield "examples", f"{fewshot['n']} of the split {fewshot['split']}" if fewshot else "none"
    yield from _sample_lines(benchmark.task["dataset"])
    if benchmark.subset:
        yield "subset", f"selects by {benchmark.subset}"
    if benchmark.needs:
        yield "needs", ", ".join(benchmark.needs)
    if benchmark.share != "ok":
        yield "sharing", "its terms forbid publishing the questions: reports that are shared leave their text out"
    for doubt in _doubts(benchmark):
        yield "unverified", doubt


def _sample_lines(dataset: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How samples are ordered and grouped."""
    if shuffle := dataset.get("shuffle"):
        strata = f", alternating over {shuffle['by']}" if shuffle.get("by") else ""
        yield "order", f"shuffled with the seed {shuffle['seed']}{strata}"
    if group := dataset.get("group"):
        yield "groups", f"samples with the same {group} are related, which widens error bars"


def _doubts(benchmark: Benchmark) -> list[str]:
    """What was not checked against the data itself."""
    pinned = [] if benchmark.is_pinned else ["the data has no fixed revision; the run stores the one that it used"]
    return [*benchmark.unverified, *pinned]


def _spec_of(benchmark: Benchmark) -> Spec:
    """A spec with only this benchmark."""
    roles = {"judge": {"provider": "mock"}}
    raw = {"models": [{"name": "mock", "provider": "mock"}], "roles": roles, "tasks": [benchmark.name], "limit": 1}
    return resolve_benchmarks(SpecFile("", raw)).spec


class _FirstSample(msgspec.Struct, frozen=True):
    """How the first sample is asked; if its data cannot be read, the problem."""

    prompt: list[Message]
    continuations: list[ScoredContinuation] = []
    problem: str = ""


def _first_sample(benchmark: Benchmark) -> _FirstSample:
    try:
        with spinner("reading the first sample"):
            spec = pin_revisions(_spec_of(benchmark), None)
            (work,) = prepare(spec, {}, {}).values()
            sample = next(work.samples(spec))
            messages = work.renderer.messages(sample)
            return _FirstSample(messages, work.solver.continuations(sample, messages))
    except HoldfastError as error:
        return _FirstSample([], problem=str(error))


def _check_card(benchmark: Benchmark) -> tuple[list[str], list[str]]:
    """Problems and notes that need no data."""
    problems, notes = [], [f"unverified: {doubt}" for doubt in _doubts(benchmark)]
    if benchmark.task["dataset"].get("hub"):
        missing = [name for name in _HUB_PACKAGES if importlib.util.find_spec(name) is None]
        problems += [f"its data needs {' and '.join(missing)}: pip install 'holdfast[hub,parquet]'"] if missing else []
    try:
        spec = _spec_of(benchmark)
        find_modules_beside("", spec)
        notes += find_doubts(spec)
        names = [resolve(entry, "scorers").name for entry in spec.tasks[0].scorers]
        if benchmark.metric not in names:
            problems.append(f"its result {benchmark.metric!r} is none of its scorers ({', '.join(names)})")
    except HoldfastError as error:
        problems.append(str(error))
    return problems, notes


def _check_data(benchmark: Benchmark) -> tuple[list[str], list[str]]:
    """Compare the rows of the source with the card: columns, number of samples, and the digest of the first row."""
    problems: list[str] = []
    try:
        spec = pin_revisions(msgspec.structs.replace(_spec_of(benchmark), limit=None), None)
        source = source_of(spec.tasks[0].dataset)
        assert source is not None  # every benchmark names its data
        _, first = next(source.open())
        missing = [column for column in benchmark.columns if column not in first]
        if missing:
            problems.append(f"the rows have no column {', '.join(missing)}; they have {', '.join(first)}")
            return problems, []
        (work,) = prepare(spec, {}, {}).values()
        samples = sum(1 for _ in work.samples(spec))
    except HoldfastError as error:
        return [str(error)], []
    if benchmark.samples is not None and samples != benchmark.samples:
        problems.append(f"there are {samples:,} samples, the card says {benchmark.samples:,}")
    digest = xxhash.xxh3_128_hexdigest(msgspec.json.encode(first, order="deterministic"))
    if benchmark.first_row and benchmark.first_row != digest:
        problems.append(f"the first row has the digest {digest}, the card says {benchmark.first_row}")
    revision = spec.tasks[0].dataset.revision
    return problems, [f"{samples:,} samples, revision {revision or 'none'}, digest of the first row {digest}"]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and indents lists below their field."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(_Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def _readable(value: Any) -> Any:
    """The same value, with texts of several lines marked."""
    if isinstance(value, dict):
        return {name: _readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    return _Text(value) if isinstance(value, str) and "\n" in value else value


def refuse_unknown_action(action: str, name: str | None) -> None:
    """UsageError for `benchmarks gsm8k`, which somebody will type."""
    if action in ("show", "check"):
        if action == "show" and not name:
            raise UsageError("name a benchmark: holdfast benchmarks show gsm8k")
        return
    if action in all_benchmarks():
        raise UsageError(f"holdfast benchmarks show {action} prints its card, holdfast run {action} runs it")
    raise UsageError(f"benchmarks {action}: write `benchmarks`, `benchmarks show NAME` or `benchmarks check [NAME]`")
