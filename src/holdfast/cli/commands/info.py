"""`info`: every name that a spec or a command may use, with its arguments and an example.

All names come from the tables that also resolve them: providers, scorers, extractors, solvers, tools, formats,
benchmarks and commands; extras come from the metadata of the installed package. To list another kind, add one line to
`KINDS`.
"""

import importlib.metadata
import inspect
import os
import platform
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import yaml
from msgspec import inspect as kinds

import holdfast
from holdfast.cli.arguments import (
    ArgumentInfo,
    default_words,
    description,
    field_arguments,
    in_words,
    scale_words,
    scorer_arguments,
)
from holdfast.cli.output import print_json, print_line
from holdfast.datasets import FORMATS as DATA_FORMATS
from holdfast.errors import UsageError
from holdfast.plan import all_benchmarks
from holdfast.report import FORMATS
from holdfast.runs import configuration_path, default_store, state_folder
from holdfast.score import EXTRACTORS, SCORERS, Scorer
from holdfast.solve import SOLVERS, TOOLS, Solver, SolverParameter, parameters_of
from holdfast.spec import PROVIDERS, Model, ProviderInfo, nearest
from holdfast.state import FOLDER_VARIABLE, cache_folder
from holdfast.version import __version__

_WIDTH_MAX = 100
_UNBROKEN = "\N{NO-BREAK SPACE}"
_DEVELOPERS_EXTRAS = {"dev", "docs"}
_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra *== *['\"]([\w-]+)['\"]")
"""A line of `Requires-Dist`: the package, and the extra that needs it."""
_LINK = re.compile(r"\[\w+\]\(#\w+\)")
"""A type as a link on a reference page."""
_EXAMPLE_VALUES: dict[str, Any] = {
    "column": "level",
    "criteria": "The answer is correct and polite.",
    "equals": "easy",
    "marker": "Answer:",
    "model": "MODEL",
    "name": "answer",
    "pattern": "[0-9]+",
    "run": ["my-agent", "{prompt}"],
    "schema": {"type": "object"},
    "value": 0.5,
    "weights": [2, 1],
}
"""Values in examples, by the name of a required argument."""


class Topic(msgspec.Struct, frozen=True):
    """Something that has a name."""

    kind: str
    name: str
    text: str
    """What it is or does."""
    arguments: list[ArgumentInfo] = msgspec.field(default_factory=list)
    example: str = ""
    facts: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.) (?=[A-Z`])", " ".join(self.text.split()), maxsplit=1)[0]


def print_info(name: str | None, as_json: bool) -> int:
    """Print all names, those of one kind, or everything about one name. UsageError if nothing has the name."""
    if name is None:
        _print_overview(as_json)
        return 0
    found = list(KINDS[name]()) if name in KINDS else [each for each in topics() if each.name == name]
    if not found:
        names = {each.name for each in topics()} | set(KINDS)
        hint = nearest(name, names)
        similar = f"{hint} L" if "did you mean" in hint else "; l"
        raise UsageError(f"nothing is called {name!r}{similar}ist all names with: holdfast info")
    if as_json:
        print_json({"topics": found})
    elif name in KINDS:
        _print_rows([(each.name, each.summary) for each in found])
    else:
        for index, topic in enumerate(found):
            if index:
                print_line("")
            _print_topic(topic)
    return 0


def topics() -> Iterator[Topic]:
    """Everything that has a name, by kind."""
    for list_kind in KINDS.values():
        yield from list_kind()


def _print_overview(as_json: bool) -> None:
    store = os.path.abspath(default_store())
    places = {
        "runs": store,
        "settings": configuration_path(store),
        "cache": cache_folder(),
        "state": state_folder(),
        "code": os.path.dirname(os.path.abspath(holdfast.__file__)),
    }
    if as_json:
        head = {"version": __version__, "python": platform.python_version()}
        print_json({**head, "places": places, "topics": list(topics())})
        return
    print_line(f"Holdfast {__version__}, Python {platform.python_version()}")
    for kind, list_kind in KINDS.items():
        print_line("")
        print_line(f"{kind.capitalize()}:", "bold")
        names = dict.fromkeys(_listed_name(each) for each in list_kind())
        for line in _wrap(", ".join(each.replace(" ", _UNBROKEN) for each in names), _width() - 2):
            print_line(f"  {line.replace(_UNBROKEN, ' ')}")
    print_line("")
    print_line("Where things are kept:", "bold")
    variables = {
        "runs": " (--store, HOLDFAST_STORE)",
        "settings": " (rules of `gc` for these runs, if you write some)",
        "cache": f" ({FOLDER_VARIABLE})",
        "state": " (XDG_STATE_HOME): the runs that you trust, and the token of `view`",
    }
    _print_rows([(name, f"{path}{variables.get(name, '')}") for name, path in places.items()])
    print_line("")
    print_line("One kind: holdfast info scorers. One name: holdfast info exact_match.")


def _listed_name(topic: Topic) -> str:
    return topic.name if topic.facts.get("installed", "yes") == "yes" else f"{topic.name} (not installed)"


def _print_topic(topic: Topic) -> None:
    print_line(f"{topic.name}: {topic.kind}", "bold")
    for paragraph in topic.text.split("\n\n"):
        for line in _wrap(paragraph, _width() - 2):
            print_line(f"  {line}")
    for fact, value in topic.facts.items():
        print_line(f"  {fact}: {value}")
    if topic.arguments:
        print_line("Arguments:")
        _print_rows([(each.name, _argument_text(each)) for each in topic.arguments])
    print_line("Example:")
    for line in topic.example.splitlines():
        print_line(f"  {line}")


def _argument_text(argument: ArgumentInfo) -> str:
    after = "required" if argument.default is None else f"default {argument.default}" if argument.default else ""
    parts = (_LINK.sub("mapping", argument.type).replace("`", ""), after)
    return ". ".join(filter(None, ("; ".join(filter(None, parts)), argument.meaning)))


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    left = max(len(name) for name, _ in rows)
    for name, text in rows:
        lines = _wrap(text, max(_width() - left - 4, 30)) or [""]
        print_line(f"  {name:{left}}  {lines[0]}".rstrip())
        for line in lines[1:]:
            print_line(f"  {'':{left}}  {line}")


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH_MAX)


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _providers() -> Iterator[Topic]:
    fields = field_arguments(Model, ("model", "base_url", "api_key_env", "headers", "params"))
    for name, info in PROVIDERS.items():
        facts = {"server": info.base_url, "key": " or ".join(info.key_variables)}
        if info.batch_factory:
            facts["batches"] = "yes"
        text = (
            f"A server with the protocol of {info.speaks}, by its short name."
            if info.speaks
            else description(inspect.getmodule(_load(info.factory))).partition("\n\n")[0]
        )
        known = {fact: value for fact, value in facts.items() if value}
        arguments = [*fields, *_option_arguments(info)]
        yield Topic("provider", name, text, arguments, _PROVIDER_EXAMPLES.get(name, f"models: [{name}/MODEL]"), known)
    yield from _installed("provider", "holdfast.providers", lambda name: f"models: [{name}/MODEL]")


_PROVIDER_EXAMPLES = {
    "mock": "models:\n  - {name: mock, provider: mock, options: {reply: ['4', 'no idea'], latency_seconds: 0.1}}",
    "openai": "models:\n  - openai/MODEL\n  - {name: other, provider: openai, model: MODEL, options: {api: responses}}",
}


def _option_arguments(info: ProviderInfo) -> list[ArgumentInfo]:
    """The options of a provider, or of the one whose protocol it speaks."""
    if info.speaks:
        return _option_arguments(PROVIDERS[info.speaks])
    if not info.options:
        return [ArgumentInfo("options", "mapping", "{}", info.free_options or "This provider has none.")]
    part = getattr(inspect.getmodule(_load(info.factory)), info.options)
    found = field_arguments(part, part.__struct_fields__)
    return [msgspec.structs.replace(each, name=f"options.{each.name}") for each in found]


def _load(factory: str) -> Any:
    module, _, function = factory.partition(":")
    return getattr(importlib.import_module(module), function)


def _scorers() -> Iterator[Topic]:
    for name, scorer in SCORERS.items():
        arguments = scorer_arguments(scorer.function)
        facts = {"scale": " ".join(scale_words(name).replace("`", "").split())}
        if scorer.extra:
            facts["needs"] = f"pip install 'holdfast[{scorer.extra}]'"
        example = f"scorers: {_flow([_entry(name, _required(scorer.function, arguments))])}"
        if any(each.name == "role" for each in arguments):
            example += "\nroles: {judge: openai/MODEL}"
        yield Topic("scorer", name, description(scorer.function), arguments, example, facts)
    yield from _installed("scorer", "holdfast.scorers", lambda name: f"scorers: [{name}]")


def _extractors() -> Iterator[Topic]:
    for name, extractor in EXTRACTORS.items():
        arguments = scorer_arguments(extractor.function, 1)
        entry = _entry(name, _required(extractor.function, arguments))
        example = f"scorers: {_flow([{'exact_match': {'extract': entry}}])}"
        yield Topic("extractor", name, description(extractor.function), arguments, example)
    yield from _installed("extractor", "holdfast.extractors", lambda name: f"extract: {name}")


def _required(function: Callable[..., Any], arguments: Iterable[ArgumentInfo]) -> dict[str, Any]:
    """Example values of the arguments that a scorer cannot do without."""
    hints = typing.get_type_hints(function)
    return {each.name: _example_value(each.name, hints[each.name]) for each in arguments if each.default is None}


def _example_value(name: str, hint: Any) -> Any:
    if hint is Scorer:
        return "exact_match"
    if typing.get_origin(hint) is list and Scorer in typing.get_args(hint):
        return ["exact_match", "includes"]
    if hint == Sequence[Solver]:
        return ["chat", "critique"]
    return _EXAMPLE_VALUES.get(name, "my_module:my_function")


def _entry(name: str, given: dict[str, Any]) -> Any:
    """An entry of a spec: a name, or a name with arguments."""
    return {name: given} if given else name


def _solvers() -> Iterator[Topic]:
    for name, function in SOLVERS.items():
        parameters = parameters_of(function)
        arguments = [
            ArgumentInfo(each, _solver_words(parameter), default_words(parameter.default))
            for each, parameter in parameters.items()
        ]
        given = {
            each.name: _example_value(each.name, parameters[each.name].hint)
            for each in arguments
            if each.default is None
        }
        if "tools" in parameters and name != "chat":
            given["tools"] = list(TOOLS)[:1]
        yield Topic("solver", name, description(function), arguments, f"solver: {_flow(_entry(name, given))}")
    yield from _installed("solver", "holdfast.solvers", lambda name: f"solver: {name}")


def _solver_words(parameter: SolverParameter) -> str:
    name = str(parameter.hint)
    written = next((words for part, words in _WRITTEN_AS.items() if part in name), "")
    return written or in_words(kinds.type_info(parameter.hint))


_WRITTEN_AS = {
    "Literal['best'": "`best`, `majority` or module:function",
    "McpServer": "list of tools",
    "definition.Solver": "list of solvers",
    "re.Pattern": "regular expression",
    "resources.Role": "name of a role",
    "Callable": "module:function",
}
"""How a spec writes arguments of solvers that are not plain values, by a part of the type's name."""


def _tools() -> Iterator[Topic]:
    for name, tool in TOOLS.items():
        arguments = [ArgumentInfo(each, "set by the model") for each in tool.parameters["properties"]]
        example = f"solver: {_flow({'react': {'tools': [name]}})}"
        facts = {"runs in": "the sample's sandbox"} if tool.sandboxed else {}
        yield Topic("tool", name, tool.description, arguments, example, facts)
    yield from _installed("tool", "holdfast.tools", lambda name: f"solver: {{react: {{tools: [{name}]}}}}")


def _formats() -> Iterator[Topic]:
    for each in FORMATS:
        output = f" --output results{each.suffix}" if each.suffix else ""
        facts = {"short": each.alias} if each.alias else {}
        if each.extra:
            facts["needs"] = f"pip install 'holdfast[{each.extra}]'"
        text = "Answers and scores, one line per sample." if each.kind == "export" else "The report of runs."
        example = f"holdfast {each.kind} RUN --format {each.name}{output}"
        yield Topic(f"{each.kind} format", each.name, text, [], example, facts)
    for name in DATA_FORMATS:
        yield Topic("data format", name, "A file with the rows of a task.", [], f"dataset: {{path: rows.{name}}}")


def _benchmarks() -> Iterator[Topic]:
    """With the card's title, what it needs, and its variants: the benchmarks with the same name before the colon."""
    every = all_benchmarks()
    for name, each in every.items():
        variants = [other for other in every if other.partition(":")[0] == name.partition(":")[0] and other != name]
        facts = {
            "samples": f"{each.samples:,}" if each.samples else "",
            "result": each.metric,
            "needs": ", ".join(each.needs),
            "variants": ", ".join(variants),
            "card": f"holdfast benchmarks show {name}",
        }
        example = f"holdfast run {name} --model openai/MODEL --limit 50"
        yield Topic("benchmark", name, each.title, [], example, {fact: text for fact, text in facts.items() if text})


def _extras() -> Iterator[Topic]:
    needed: dict[str, list[str]] = {}
    try:
        lines = importlib.metadata.requires("holdfast") or []
    except importlib.metadata.PackageNotFoundError:  # the source is used without being installed
        lines = []
    for package, extra in (each.groups() for each in map(_REQUIREMENT.match, lines) if each is not None):
        needed.setdefault(extra, []).append(package)
    for extra, packages in sorted(needed.items()):
        if extra not in _DEVELOPERS_EXTRAS:
            versions = [(package, _version(package)) for package in packages]
            listed = ", ".join(f"{package} {version}".rstrip() for package, version in versions)
            installed = "yes" if all(version for _, version in versions) else "no"
            text = f"Installs {listed}."
            yield Topic("extra", extra, text, [], f"pip install 'holdfast[{extra}]'", {"installed": installed})


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _installed(kind: str, group: str, example: Callable[[str], str]) -> Iterator[Topic]:
    """What other installed packages offer. Their code is not imported."""
    for point in importlib.metadata.entry_points(group=group):
        package = point.dist.name if point.dist is not None else "an installed package"
        yield Topic(kind, point.name, f"From {package}: {point.value}.", [], example(point.name))


def _commands() -> Iterator[Topic]:
    import typer.main

    from holdfast.cli.app import app  # `cli.main` has added every command to it

    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        shown = [each for each in command.params if not each.hidden]
        names = {each.name: each.metavar or each.name.upper() for each in shown if each.param_type_name == "argument"}
        required = [names[each.name] for each in shown if each.name in names and each.required]
        example = " ".join(["holdfast", name, _COMMAND_EXAMPLES.get(name) or " ".join(required)]).strip()
        arguments = [
            ArgumentInfo(
                names.get(each.name) or " ".join(each.opts), "", None if each.required else "", each.help or ""
            )
            for each in shown
        ]
        yield Topic("command", name, inspect.cleandoc(command.help or ""), arguments, example)


_COMMAND_EXAMPLES = {
    "run": "eval.yaml",
    "compare": "RUN OTHER",
    "extend": "RUN --set tasks.NAME.repeats=3",
    "tune": "RUN --set concurrency.samples=8",
    "gate": "RUN --at-least 0.8",
    "cost": "RUN",
    "gc": "--older-than 30d",
    "launch": "local SPEC --id NEW --workers 2",
    "merge": "RUN OTHER --id NEW",
}
"""Commands that need more than their required arguments."""

KINDS: dict[str, Callable[[], Iterator[Topic]]] = {
    "providers": _providers,
    "scorers": _scorers,
    "extractors": _extractors,
    "solvers": _solvers,
    "tools": _tools,
    "formats": _formats,
    "benchmarks": _benchmarks,
    "extras": _extras,
    "commands": _commands,
}
"""How the names of each kind are listed."""
