"""Jinja templates with limits on time and memory.

A template can multiply (`{{ 'a' * 10**10 }}`, nested loops), and its numbers may come from a data row. Jinja's sandbox
limits neither time nor memory, and evaluates constants already when it compiles. So templates are compiled and rendered
in the worker process of `score.worker_process`, which has a memory limit and is killed when it takes too long. Most
templates cannot produce more text than the template and the row together; these are rendered here, in microseconds.
"""

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from holdfast.errors import SpecError
from holdfast.records.samples import Row
from holdfast.score.worker_process import run_in_worker

if TYPE_CHECKING:
    from jinja2 import Template, nodes

SECONDS_MAX = 5.0
CHARACTERS_MAX = 16_000_000
_MISSING, _TEXT = "missing", "text"
_LINEAR_NODES = frozenset(
    [
        "Template",
        "Output",
        "TemplateData",
        "Const",
        "Name",
        "Getattr",
        "Getitem",
        "If",
        "Compare",
        "Operand",
        "And",
        "Or",
        "Not",
        "Test",
        "Filter",
        "For",
    ]
)
_LINEAR_FILTERS = frozenset(
    [
        "capitalize",
        "default",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "last",
        "length",
        "lower",
        "string",
        "title",
        "tojson",
        "trim",
        "upper",
    ]
)


def compile_jinja(template: str) -> Callable[[Row], str]:
    """Compile a template; SpecError if it is invalid. The returned function raises KeyError for a missing column, and
    SpecError if rendering takes too long or the text becomes too large.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import SandboxedEnvironment
    except ImportError as error:
        raise SpecError("`template: jinja` needs one more package: pip install 'holdfast[jinja]'") from error
    try:
        parsed = SandboxedEnvironment().parse(template)  # parsing evaluates nothing
    except TemplateError as error:
        raise _invalid(error) from error
    except RecursionError:
        raise SpecError("the template is nested too deeply; simplify it") from None
    if _is_linear(parsed):
        try:
            return functools.partial(_render_here, _compiled(template))
        except TemplateError as error:
            raise _invalid(error) from error
    problem = _run_in_child("check", template)
    if problem:
        raise _invalid(problem)
    return functools.partial(_render_in_child, template)


def _invalid(problem: object) -> SpecError:
    return SpecError(f"the template is not valid Jinja: {problem}; correct it, or leave out `template: jinja`")


def _is_linear(node: "nodes.Node", targets: Collection[str] | None = None) -> bool:
    """Whether its text is at most as long as the template and the row together. `targets`: inside a loop, the names
    that the loop sets; any other value would be repeated for every item.
    """
    kind, own = type(node).__name__, vars(node)
    if kind not in _LINEAR_NODES:
        return False
    if kind == "Name" and targets is not None and own["name"] not in targets:
        return False
    if kind == "Filter" and own["name"] not in _LINEAR_FILTERS:
        return False
    if kind == "For":
        if targets is not None or own["recursive"]:
            return False
        names = {"loop", *(name.name for name in _names_in(own["target"]))}
        inside = [*own["body"], *([own["test"]] if own["test"] is not None else [])]
        outside = [own["iter"], *own["else_"]]
        return all(_is_linear(each, names) for each in inside) and all(map(_is_linear, outside))
    return all(_is_linear(each, targets) for each in node.iter_child_nodes())


def _names_in(target: "nodes.Node") -> "list[nodes.Name]":
    from jinja2 import nodes

    return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))


def _render_here(compiled: "Template", row: Row) -> str:
    from jinja2 import UndefinedError

    try:
        return compiled.render(row)
    except UndefinedError as error:
        raise KeyError(str(error)) from error


def _render_in_child(template: str, row: Row) -> str:
    kind, text = _run_in_child("render", template, row)
    if kind == _MISSING:
        raise KeyError(text)
    return str(text)


def _run_in_child(function: str, *args: Any) -> Any:
    try:
        return run_in_worker(SECONDS_MAX, f"{__name__}:{function}", *args)
    except TimeoutError:
        raise SpecError(f"the template takes longer than {SECONDS_MAX:g} s; look for loops in it") from None
    except ValueError as error:
        why = "it needs too much memory" if "MemoryError" in str(error) else error
        raise SpecError(f"the template cannot be filled in: {why}") from None


def check(template: str) -> str:
    """Return what is wrong with a template; empty if nothing. Runs in the child."""
    from jinja2 import TemplateError

    try:
        _compiled(template)
    except TemplateError as error:
        return str(error) or type(error).__name__
    return ""


def render(template: str, row: Row) -> tuple[str, str]:
    """Return the text, or the name of a missing column. Runs in the child."""
    from jinja2 import UndefinedError

    pieces: list[str] = []
    size = 0
    try:
        for piece in _compiled(template).generate(row):
            pieces.append(piece)
            size += len(piece)
            if size > CHARACTERS_MAX:
                raise ValueError(f"it becomes longer than {CHARACTERS_MAX:,} characters")
    except UndefinedError as error:
        return _MISSING, str(error)
    return _TEXT, "".join(pieces)


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> "Template":
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template)
