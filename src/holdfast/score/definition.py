"""What a scorer is: a function of a sample and an answer, with a name and fixed arguments.

The function takes `(sample, answer)`, or `(sample, answer, ctx)` if it asks a judge, then any arguments that a spec may
set. A scorer of groups takes `(sample, answers)`: all repeats of a sample at once. Refuses functions that cannot be
called that way, when they are decorated rather than after a run was paid for.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, SupportsFloat, overload

import msgspec

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.errors import ScorerError

Function = Callable[..., Any]
Value = SupportsFloat | str | None
"""A bool, a number of any make, a label, or no score."""
Scored = Value | Score | Mapping[str, Value | Score]
ScoringFunction = (
    Callable[[Sample, Answer], Scored | Awaitable[Scored]]
    | Callable[Concatenate[Sample, Answer, ...], Scored | Awaitable[Scored]]
)
"""The first also lets a checker see what a lambda takes."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Scorer(msgspec.Struct, frozen=True):
    """A named scoring function. Calling it calls the function with its arguments."""

    name: str
    function: Function
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    needs_ctx: bool = False
    """The function's third parameter is `ctx`: it makes durable calls of its own."""
    group: bool = False
    """It takes the answers of all repeats of a sample, and gives a list with a score for each, or one for all."""

    def roles(self) -> list[str]:
        """The judges that it asks, as far as its arguments `roles` and `role` tell."""
        several = self.args.get("roles")
        if isinstance(several, list) and several:
            return several
        parameter = inspect.signature(self.function).parameters.get("role")
        role = self.args.get("role", parameter.default if parameter is not None else None)
        return [role] if isinstance(role, str) and role else []

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self.function(*positional, **{**self.args, **named})


@overload
def scorer(function: ScoringFunction, *, name: str = "", group: bool = False) -> Scorer: ...


@overload
def scorer(function: None = None, *, name: str = "", group: bool = False) -> Callable[[Function], Scorer]: ...


def scorer(
    function: Function | None = None, *, name: str = "", group: bool = False
) -> Scorer | Callable[[Function], Scorer]:
    """Make a scorer of a function, sync or async: `@scorer`, `@scorer(name="close")`, `@scorer(group=True)`."""
    if function is None:
        return lambda decorated: scorer(decorated, name=name, group=group)
    if isinstance(function, Scorer):
        return msgspec.structs.replace(function, name=name or function.name, group=group or function.group)
    called = name or _name_of(function)
    return Scorer(called, function, {}, _takes_ctx(function, called), group)


def arguments_of(function: Function) -> tuple[dict[str, inspect.Parameter], bool]:
    """The arguments that a spec may set, and whether any other name is taken too (`**args`)."""
    parameters = list(inspect.signature(function).parameters.values())
    given = 2 + _ctx_is_third(parameters)
    named = {
        parameter.name: parameter
        for index, parameter in enumerate(parameters)
        if index >= given
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return named, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _name_of(function: Function) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name


def _takes_ctx(function: Function, name: str) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ScorerError(name, f"is no function whose parameters can be seen ({error}); wrap it in a def") from error
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    several = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if len(positional) < 2 and not several:
        shown = ", ".join(str(parameter) for parameter in parameters)
        raise ScorerError(name, f"takes ({shown}); a scorer takes (sample, answer), then ctx or arguments if it likes")
    third = _ctx_is_third(parameters)
    if not third and any(parameter.name == "ctx" for parameter in parameters):
        raise ScorerError(name, "ctx must be the third parameter: (sample, answer, ctx, ...)")
    return third


def _ctx_is_third(parameters: list[inspect.Parameter]) -> bool:
    return len(parameters) > 2 and parameters[2].name == "ctx" and parameters[2].kind in _POSITIONAL
