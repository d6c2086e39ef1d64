"""The reference pages: docs/fields.md from the spec's types, docs/commands.md from the command line itself,
docs/events.md from the list of events that a run's log may hold, docs/scorers.md from the built-in scorers and
extractors, docs/benchmarks.md from the cards of benchmarks.

`python tools/reference.py` writes them, `--check` only says whether they are up to date (exit 1 if not). Invariant: a
page follows from the source alone; not from the terminal, the environment, or a list of names kept here. Refuses a
field whose type it has no words for: a page with a gap would be read as complete.
"""

import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.core
import typer.main
from msgspec import inspect as kinds

from holdfast.cli.arguments import description, field_meaning, in_words, link, scale_words, scorer_arguments
from holdfast.cli.main import app
from holdfast.plan import Benchmark, all_benchmarks
from holdfast.plan.benchmarks.registry import is_own
from holdfast.runs.execution.log import EVENTS, LOG
from holdfast.score.extractors import EXTRACTORS
from holdfast.score.scorers.registry import SECTIONS
from holdfast.spec import Model, Spec, Task
from holdfast.spec.types import field_classes, nested_type

DOCS = Path(__file__).parents[1] / "docs"
_GENERATED = "<!-- Made by tools/reference.py from the source: change that, then run `make docs`. -->"

_BENCHMARKS = """\
# Benchmarks
{generated}

This page lists the benchmarks that `holdfast run NAME` knows. [How to run and change them](howto/run-a-benchmark.md).
The result of a benchmark is the mean of the scorer in the column *result*; of `grade`, the share of correct answers.
Nothing here was compared with a download of the data: revisions are those that other tools fix, and `holdfast
benchmarks check --online` compares.

| name | samples | result | licence | needs |
|---|---|---|---|---|
{rows}

## Cards
{cards}
"""

Part = type[msgspec.Struct]
Parameter = typer.core.TyperArgument | typer.core.TyperOption

_FIELDS = """\
# The fields of a spec
{generated}

This page lists every field of a spec: its type, its default, and what changing it means for a resume. A spec is a YAML
file, or the arguments of `holdfast.run`. Its top level is [Spec](#spec). In the paths below, `[]` is any entry of a
list and `NAME` is a name that you choose. `--set` takes the same paths, with the number or the name of an entry:
`--set tasks[0].repeats=3`, `--set models.local.params.temperature=0.5`. Unknown fields are refused.
[guide.md](guide.md) shows the fields in use.

## What a class means
The class of a field defines what happens when a resume changes it. A field without a class cannot exist: the package
would fail to import.

| class | changing it changes | on resume |
|---|---|---|
| `result` | an answer, or what is stored | refused, with both values; nothing on disk is touched |
| `evaluation` | only scores | accepted and recorded; opens a new evaluation, old scores are never mixed in |
| `throughput` | only how fast, how far, or how it is shown | accepted and recorded |
| `place` | only where things are | accepted and recorded |

- The class applies wherever the value is written: in the spec, in `defaults`, or with `--set`.
- Adding, removing or reordering models, roles and tasks is a change of class `result`. So is adding or removing a
  `fewshot`.
- Changed content of a data file and changed code of a solver are of class `result`, although no field shows them.
  Changed code of a scorer is of class `evaluation`.
- `reduce` and `dataset.group` change how scores are read, not the scores: they open no new evaluation.

## defaults
`defaults` is a mapping at the top of a spec. It is merged into the tasks and models before validation, so it has no
class of its own. A default applies wherever a task or a model does not set the field. `params`, `options` and `headers`
are merged name by name; any other value is used as a whole. `defaults` may contain

- for every task: {task_fields};
- for every model and role: {model_fields}. Roles take no `params` from it.

The default `name` of a model is its `model`; that of a role is its key in `roles`.

## include
`include` is a file, or a list of files, at the top of a spec. Its fields are merged below those of the spec before
anything else. It has no class of its own: a resume compares the merged values.
[How it is merged](howto/start-a-run.md#include-other-files).

## when
`when` of a task or a model is a mapping of swept fields to values, or a list of such mappings. It keeps some of the
combinations of a [sweep](howto/data-and-prompts.md#only-some-combinations). Afterwards the spec has only the tasks and
models that are left.
"""

_COMMANDS = """\
# The commands
{generated}

`holdfast COMMAND --help` says the same. [guide.md](guide.md) shows the commands in use.

{overview}

## Exit codes
Scripts may rely on them.

| code | meaning |
|---|---|
{codes}
"""

_EVENTS = """\
# The events of a run's log
{generated}

Every run writes `{log}` in its folder: one JSON object a line, for people and machines. Each has `at` (UTC), `level`,
`event`, `run` and `message`; events of a sample have its `key` as well, and `kind` if it failed. The log is rotated, is
no original, and never keeps a run from working. From Python the same events come from the logger `holdfast.events`.

| event | level | meaning |
|---|---|---|
{rows}
"""

_SCORERS = """\
# The built-in scorers and extractors
{generated}

This page lists what `scorers`, `extract` and `extract_target` of a task may name. An entry is a name, or a name with
arguments: `numeric`, `{{numeric: {{tolerance: 0.01}}}}`. [How to write your own](howto/write-a-scorer.md).

- Every scorer also takes `name` (to use one scorer twice), `extract` and `extract_target`.
- A target may be a list: any entry counts as correct, and for similarities the most similar entry counts.
- A sample without a target has no score.
- The scale says which values are possible: right or wrong (`bool`), lowest to highest, a `count` from 0, a `label`, or
  any `number`. Parts of `all_of`, `any_of`, `none_of` and `weighted` have the same scale, or `normalise: true` maps
  each to 0..1. Your own scorers [declare theirs](howto/write-a-scorer.md#declare-the-scale).
- If a scorer needs an extra that is not installed, the spec is refused.
- An answer in which a scorer finds nothing to compare is wrong, never left out. The reason says so: "no number in the
  answer".
{kinds}
## Scorers of well-known benchmarks
| benchmark | entry |
|---|---|
| GSM8K, last number | `{{numeric: {{extract_target: {{after: {{marker: "####"}}}}}}}}` |
| GSM8K, only after `####` | the same with `extract: {{regex: {{pattern: '#### ?(-?\\$?[0-9.,]*[0-9])'}}}}` |
| MGSM | `{{numeric: {{whole: true}}}}`: `1.234` and `1 234` are 1234; digits of all scripts are read |
| AIME | `{{numeric: {{extract: boxed}}}}`: 025 equals 25 |
| MMLU, MMLU-Pro, GPQA, ARC | `choice`, with the choices in the row's `choices` or `options` |
| SQuAD, TriviaQA, CoQA | `token_f1`, `{{exact_match: {{extract: normalized, extract_target: normalized}}}}` |
| DROP | `drop_em`, `drop_f1` |
| IFEval | `ifeval_prompt`, `ifeval_instruction`, and both with `loose: true` |
| SimpleQA | `grade`, with a role `judge` |
| HumanEval | `{{code_tests: {{before: prompt, tests: "{{test}}\\ncheck({{entry_point}})"}}}}` |
| MBPP | `{{code_tests: {{before: test_setup_code, tests: test_list}}}}` |
| MBPP sanitized | `{{code_tests: {{before: test_imports, tests: test_list}}}}` |

`ifeval_prompt` and `ifeval_instruction` differ from the published checkers, which use nltk, in two definitions. A
sentence ends at a mark before a space, unless a small letter follows or the dot belongs to an abbreviation, an initial
or a list number. A word in capitals is a run of letters and digits, joined by hyphens and apostrophes.

## Extractors
`extract` takes a part out of the answer, and `extract_target` out of each text of the target, before they are compared.
Each is one extractor, or a list that is applied in order. If an answer lacks the part, the empty text is compared; if a
target lacks it, the scorer fails. Your own extractor is a function of a text, named as `module:function`.

| extractor | arguments | result |
|---|---|---|
{extractors}
"""

EXIT_CODES = {
    0: "done",
    1: "finished, with more failed samples than `fail_on_error` allows (default: any), or with cells that were stopped "
    "because their model cannot be asked (resumable), or scorers that broke",
    2: "bad spec or usage; also a path that does not exist or that you may not write to",
    3: "resume refused: it would mix two experiments",
    4: "held by another live process",
    5: "damaged data",
    6: "stopped at a budget, resumable with a higher one",
    7: "gate not passed",
    8: "storage failed: full, read-only, an I/O error, or the run's folder was deleted or moved; resumable",
    130: "interrupted, resumable",
}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python tools/reference.py [--check]\n")
        return 2
    made = pages()
    old = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments:
        sys.stderr.writelines(f"{path.name} is out of date: run `make docs`\n" for path in old)
        return int(bool(old))
    for path in old:
        path.write_text(made[path], encoding="utf-8")
    return 0


def pages() -> dict[Path, str]:
    """Each generated page with the text that it should have."""
    made = {
        "fields.md": fields_page(),
        "commands.md": commands_page(),
        "events.md": events_page(),
        "scorers.md": scorers_page(),
        "benchmarks.md": benchmarks_page(),
    }
    return {DOCS / name: text for name, text in made.items()}


def fields_page() -> str:
    parts = _places()
    told = _FIELDS.format(
        generated=_GENERATED, task_fields=_names(default_fields(Task)), model_fields=_names(default_fields(Model))
    )
    return told + "".join(_part_section(part, places) for part, places in parts.items())


def default_fields(part: Part) -> list[str]:
    """What `defaults` may hold for a task or a model: everything but its name."""
    return [field.name for field in msgspec.structs.fields(part) if field.name != "name"]


def field_rows(part: Part) -> Iterator[tuple[str, str, str, str, str]]:
    """Name, type in words, default, class and description of each field. A part's class is that of its own fields."""
    info = kinds.type_info(part)
    assert isinstance(info, kinds.StructType)
    classes = dict(field_classes(part))
    for field in info.fields:
        inner = nested_type(part, field.name)
        kind = f"see {link(inner)}" if classes[field.name] == "nested" and inner else str(classes[field.name])
        yield field.name, in_words(field.type), _default(field, inner is not None), kind, field_meaning(field)


def _places() -> dict[Part, list[str]]:
    """Every type of a spec with the paths at which it stands, as they are met on the way from Spec."""
    found: dict[Part, list[str]] = {}

    def walk(part: Part, place: str) -> None:
        found.setdefault(part, []).append(place)
        for name, kind in field_classes(part):
            inner = nested_type(part, name) if kind == "nested" else None
            if inner is not None:
                walk(inner, f"{place}{name}{_step(part, name)}.")

    walk(Spec, "")
    return found


def _step(part: Part, name: str) -> str:
    """What stands between a field's name and the fields of the type that it holds."""
    hint = typing.get_type_hints(part)[name]
    return {list: "[]", dict: ".NAME"}.get(typing.get_origin(hint) or hint, "")


def _part_section(part: Part, places: list[str]) -> str:
    lines = [f"\n## {part.__name__}"]
    if part.__doc__:
        lines += [inspect.cleandoc(part.__doc__), ""]
    lines += ["| field | type | default | class | meaning |", "|---|---|---|---|---|"]
    for name, words, default, kind, meaning in field_rows(part):
        paths = " ".join(f"`{place}{name}`" for place in places)
        lines.append(_row(paths, words, default, kind, meaning))
    return "\n".join(lines) + "\n"


def _default(field: kinds.Field, nested: bool) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if nested and isinstance(value, msgspec.Struct):
        return "as below"
    if value in ("", [], {}):
        return "empty"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(msgspec.to_builtins(value))}`"


def commands_page() -> str:
    commands = list(_commands(typer.main.get_command(app), "holdfast"))
    overview = ["| command | what it does |", "|---|---|"]
    overview += [_row(f"[{name}](#{_anchor(name)})", _help(each).split("\n\n")[0]) for name, each in commands[1:]]
    codes = [_row(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    told = _COMMANDS.format(generated=_GENERATED, overview="\n".join(overview), codes="\n".join(codes))
    return told + "".join(_command_section(name, each) for name, each in commands)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A command and those below it, in the order in which `--help` shows them."""
    yield name, command
    if isinstance(command, typer.core.TyperGroup):
        for below, each in command.commands.items():
            if not each.hidden:
                yield from _commands(each, f"{name} {below}")


def _command_section(name: str, command: Any) -> str:
    shown: list[Parameter] = [each for each in command.params if not each.hidden]
    arguments = [each for each in shown if isinstance(each, typer.core.TyperArgument)]
    options = [each for each in shown if isinstance(each, typer.core.TyperOption)]
    hints = typing.get_type_hints(command.callback, include_extras=True)
    usage = [name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])]
    usage += ["COMMAND"] if isinstance(command, typer.core.TyperGroup) else []
    lines = [f"\n## {name}", "```", " ".join(usage), "```", _help(command)]
    if arguments:
        lines += ["", "| argument | default | meaning |", "|---|---|---|"]
        lines += [_row(f"`{_argument(each)}`", _given(each), each.help or "") for each in arguments]
    if options:
        lines += ["", "| option | value | default | meaning |", "|---|---|---|---|"]
        values = [_value(each, hints.get(each.name or "")) for each in options]
        lines += [_row(_option(o), value, _given(o), o.help or "") for o, value in zip(options, values, strict=True)]
    return "\n".join(lines) + "\n"


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _argument(parameter: Parameter) -> str:
    name = parameter.metavar or (parameter.name or "").upper()
    name = f"{name}..." if parameter.nargs != 1 and not name.endswith("...") else name
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Parameter) -> str:
    return " ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))


def _value(option: typer.core.TyperOption, hint: Any) -> str:
    """The kind of value, from the function that the command is: typer's own types are no public part of it."""
    if option.is_flag:
        return ""
    numbers = {int: "whole number", float: "number"}
    told = option.metavar or next((word for kind, word in numbers.items() if kind in _leaves(hint)), "text")
    info = next(iter(getattr(hint, "__metadata__", ())), None)
    bounds = {"from": getattr(info, "min", None), "to": getattr(info, "max", None)}
    told = " ".join([told, *(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)])
    return f"{told}; repeatable" if option.multiple else told


def _leaves(hint: Any) -> set[Any]:
    inside = typing.get_args(hint)
    return {hint}.union(*map(_leaves, inside)) if inside else {hint} if isinstance(hint, type) else set()


def _given(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter, typer.core.TyperOption) and parameter.is_flag:
        return "on" if parameter.default else "off"
    return "" if parameter.default in (None, [], ()) else f"`{parameter.default}`"


def events_page() -> str:
    rows = [_row(f"`{event}`", level, meaning) for event, (level, meaning) in EVENTS.items()]
    return _EVENTS.format(generated=_GENERATED, log=LOG, rows="\n".join(rows))


def scorers_page() -> str:
    sections = []
    for kind, scorers in SECTIONS.items():
        lines = [f"\n## {kind}", "| scorer | arguments | score | scale | extra |", "|---|---|---|---|---|"]
        for each in scorers:
            extra = f"`{each.extra}`" if each.extra else ""
            cells = (_arguments(each.function, 2), description(each.function), scale_words(each.name), extra)
            lines.append(_row(f"`{each.name}`", *cells))
        sections.append("\n".join(lines) + "\n")
    extractors = [
        _row(f"`{name}`", _arguments(each.function, 1), description(each.function)) for name, each in EXTRACTORS.items()
    ]
    return _SCORERS.format(generated=_GENERATED, kinds="".join(sections), extractors="\n".join(extractors))


def benchmarks_page() -> str:
    """Every benchmark of this package. Those of other packages are not part of the page."""
    own = [each for each in all_benchmarks().values() if is_own(each)]
    rows = [
        _row(f"`{each.name}`", f"{each.samples:,}" if each.samples else "?", f"`{each.metric}`", each.licence, needs)
        for each in own
        for needs in [", ".join(each.needs)]
    ]
    return _BENCHMARKS.format(generated=_GENERATED, rows="\n".join(rows), cards="\n".join(map(_card, own)))


def _card(benchmark: Benchmark) -> str:
    dataset = benchmark.task["dataset"]
    config = dataset.get("config", "")
    configs = f"{len(config)} configurations" if isinstance(config, list) else config
    data = " ".join(filter(None, (dataset.get("hub") or dataset.get("path"), configs, dataset.get("split", ""))))
    lines = [f"\n### {benchmark.name}", f"{benchmark.title}. {benchmark.source}. Version {benchmark.version}.", ""]
    lines.append(f"- data: {data}, revision {dataset.get('revision') or 'not fixed'}")
    shown = (("comparable with", benchmark.comparable), ("differs", benchmark.differs))
    lines += [f"- {label}: {text}" for label, text in shown if text]
    lines += [f"- unverified: {doubt}" for doubt in benchmark.unverified]
    return "\n".join(lines)


def _arguments(function: Callable[..., Any], given: int) -> str:
    """The arguments of a scorer or an extractor, as a cell of a table."""
    listed = []
    for each in scorer_arguments(function, given):
        after = "required" if each.default is None else f"default `{each.default}`"
        listed.append(f"`{each.name}`: {each.type}; {after}")
    return "<br>".join(listed)


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
