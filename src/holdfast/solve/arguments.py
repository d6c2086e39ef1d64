"""Reads the arguments of a built-in solver from a spec, by the types of its parameters, before any request is sent.

Functions, tools, solvers and patterns are written as names or texts in a spec; the table `_READERS` says how each is
resolved. All other arguments are plain values. Each error names its place in the spec.
"""

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.solve.composed import Join, Pattern
from holdfast.solve.definition import Solver
from holdfast.solve.resources import Role
from holdfast.solve.tools.lookup import find_function, find_offers
from holdfast.solve.tools.mcp import ToolSource
from holdfast.solve.tools.tool import Function

Read = Callable[[Any, str], Any]
ResolveSolver = Callable[[Any, str], Solver]


def read_arguments(
    function: Callable[..., Any], arguments: dict[str, Any], place: str, resolve: ResolveSolver
) -> dict[str, Any]:
    """Return the arguments as the function takes them; `resolve` resolves solvers. The fields of a parameter that is a
    struct are written as arguments of their own.
    """
    takes = _parameters(function)
    _check_names(takes, arguments, place)
    readers = {Sequence[Solver]: lambda given, where: _solvers(given, where, resolve), **_READERS}
    read: dict[str, Any] = {}
    bundles: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        parameter, where = takes[name], f"{place}.{name}"
        reader = readers.get(parameter.hint)
        found = _plain(value, parameter.hint, where) if reader is None else reader(value, where)
        (bundles.setdefault(parameter.bundle, {}) if parameter.bundle else read)[name] = found
    hints = typing.get_type_hints(function)
    return read | {name: hints[name](**fields) for name, fields in bundles.items()}


class _Parameter(msgspec.Struct, frozen=True):
    hint: Any
    required: bool = False
    bundle: str = ""
    """The struct parameter that this is a field of."""


def _parameters(function: Callable[..., Any]) -> dict[str, _Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    found: dict[str, _Parameter] = {}
    for each in list(inspect.signature(function).parameters.values())[2:]:  # the first two are sample and ctx
        hint = hints[each.name]
        if hint not in _READERS and inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
            fields = typing.get_type_hints(hint, include_extras=True)
            found |= {name: _Parameter(fields[name], bundle=each.name) for name in hint.__struct_fields__}
        else:
            found[each.name] = _Parameter(hint, each.default is each.empty)
    return found


def _check_names(takes: dict[str, _Parameter], arguments: dict[str, Any], place: str) -> None:
    for name in arguments:
        if name not in takes:
            known = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise SpecError(f"{place}: does not take these arguments: there is no {name!r}; {known}")
    for name, parameter in takes.items():
        if parameter.required and name not in arguments:
            raise SpecError(f"{place}: the argument {name!r} is missing")


def _solvers(given: Any, place: str, resolve: ResolveSolver) -> list[Solver]:
    if not isinstance(given, list) or not given:
        raise SpecError(f"{place}: expected a list of solvers; it is {given!r}")
    return [resolve(each, f"{place}[{index}]") for index, each in enumerate(given)]


def _pattern(given: Any, place: str) -> "re.Pattern[str] | None":
    if not given:
        return None
    try:
        return re.compile(given)
    except (re.error, TypeError) as error:
        raise SpecError(f"{place}: {given!r} is not a regular expression: {error}") from error


def _optional_function(given: Any, place: str) -> Callable[..., Any] | None:
    return find_function(given, place) if given else None


def _join(given: Any, place: str) -> Any:
    if given in ("best", "majority"):
        return given
    if not isinstance(given, str) or ":" not in given:
        raise SpecError(f"{place}: expected best, majority or module:function; it is {given!r}")
    return find_function(given, place)


def _role(given: Any, place: str) -> Role:
    return Role(_plain(given, str, place))


def _plain(value: Any, hint: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {str(error).replace('Expected', 'expected')}; it is {value!r}") from error


_READERS: dict[Any, Read] = {
    Function: find_function,
    Function | None: _optional_function,
    Sequence[ToolSource]: find_offers,
    Pattern: _pattern,
    Join: _join,
    Role: _role,
}
