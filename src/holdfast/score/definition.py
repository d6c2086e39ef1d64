"""What a scorer is: a function of a sample and an answer, with a name and fixed arguments.

The function takes `(sample, answer)`, or `(sample, answer, ctx)` if it asks a judge, then any arguments that a spec may
set. A scorer of groups takes `(sample, answers)`: all repeats of a sample at once. Refuses functions that cannot be
called that way, when they are decorated rather than after a run was paid for.

Before it compares, a scorer may extract: each extractor, a function of a text, makes the answer's text, or the
target's, into a shorter one. What an answer does not hold is the empty text; a target that does not hold it raises.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, SupportsFloat, overload

import msgspec

from holdfast.records.samples import Answer, Sample, Score
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
Check = Callable[..., str]
"""Given the arguments: what is wrong with them, or with this machine for them; empty if nothing."""
Slow = Callable[..., bool]
"""Given a text and the arguments: whether it may take longer than an event loop can be held up."""
_SHOWN = 80
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Extractor(msgspec.Struct, frozen=True):
    """A named function of a text: what it takes out of it, or None if that is not there."""

    name: str
    function: Function
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    check: Check | None = None
    slow: Slow | None = None

    def __call__(self, text: str) -> str | None:
        found = self.function(text, **self.args)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"the extractor {self.name} returned a {type(found).__name__}; return a text, or None")
        return found


class Scorer(msgspec.Struct, frozen=True):
    """A named scoring function. Calling it calls the function with its arguments, on what its extractors find."""

    name: str
    function: Function
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    needs_ctx: bool = False
    """The function's third parameter is `ctx`: it makes durable calls of its own."""
    group: bool = False
    """It takes the answers of all repeats of a sample, and gives a list with a score for each, or one for all."""
    extract: tuple[Extractor, ...] = ()
    """One after the other, on the answer's text."""
    extract_target: tuple[Extractor, ...] = ()
    """On each text of the target."""
    check: Check | None = None
    """Asked when a spec is read, before anything is paid for."""
    packages: tuple[str, ...] = ()
    """What it needs besides Holdfast: their versions are part of what it is."""
    extra: str = ""
    """What installs them."""
    slow: Slow | None = None
    """If it may take long: then it is called in a thread."""

    def roles(self) -> list[str]:
        """The judges that it asks, as far as its arguments `roles` and `role` tell, and those that its parts ask."""
        several = self.args.get("roles")
        if isinstance(several, list) and several:
            return several
        parameter = inspect.signature(self.function).parameters.get("role")
        role = self.args.get("role", parameter.default if parameter is not None else None)
        own = [role] if isinstance(role, str) and role else []
        return list(dict.fromkeys([*own, *(each for part in self.parts() for each in part.roles())]))

    def parts(self) -> "list[Scorer]":
        """The scorers among its arguments."""
        found = []
        for value in self.args.values():
            several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            found += [each for each in several if isinstance(each, Scorer)]
        return found

    def __call__(self, sample: Sample, judged: Any, *rest: Any, **named: Any) -> Any:
        return self.function(*self.read(sample, judged), *rest, **{**self.args, **named})

    def using(self, **args: Any) -> "Scorer":
        """The same with arguments, for a task in Python: what `{name: {argument: value}}` is in a spec. `name`,
        `extract` and `extract_target` too; scorers and extractors as entries or as functions.
        """
        return msgspec.structs.replace(self, args={**self.args, **args})

    def read(self, sample: Sample, judged: Any) -> tuple[Sample, Any]:
        """What the function is given: the sample and the answer, or answers, as the extractors leave them."""
        if self.extract_target:
            sample = msgspec.structs.replace(sample, target=_of_target(sample.target, self.extract_target))
        if self.extract:
            several = isinstance(judged, list | tuple)
            judged = [self._of(each) for each in judged] if several else self._of(judged)
        return sample, judged

    def _of(self, answer: Answer) -> Answer:
        return msgspec.structs.replace(answer, text=extracted(answer.text, self.extract) or "")


def extracted(text: str, extractors: Sequence[Extractor]) -> str | None:
    """What is left of a text; None if one of the extractors finds nothing."""
    left: str | None = text
    for each in extractors:
        left = each(left) if left is not None else None
    return left


@overload
def scorer(function: ScoringFunction, *, name: str = "", group: bool = False, check: Check | None = None) -> Scorer: ...


@overload
def scorer(
    function: None = None, *, name: str = "", group: bool = False, check: Check | None = None
) -> Callable[[Function], Scorer]: ...


def scorer(
    function: Function | None = None, *, name: str = "", group: bool = False, check: Check | None = None
) -> Scorer | Callable[[Function], Scorer]:
    """Make a scorer of a function, sync or async: `@scorer`, `@scorer(name="close")`, `@scorer(group=True)`.

    `check` takes the same arguments as a spec sets, and says in a sentence what is wrong with them, or nothing.
    """
    if function is None:
        return lambda decorated: scorer(decorated, name=name, group=group, check=check)
    if isinstance(function, Scorer):
        return msgspec.structs.replace(
            function, name=name or function.name, group=group or function.group, check=check or function.check
        )
    called = name or _name_of(function)
    return Scorer(called, function, {}, _takes_ctx(function, called), group, check=check)


def needing(extra: str, *packages: str) -> Callable[[Scorer], Scorer]:
    """For a scorer that does its work with packages that only an extra installs. To import them may take seconds."""

    def noted(made: Scorer) -> Scorer:
        slow = None if inspect.iscoroutinefunction(made.function) else _always
        return msgspec.structs.replace(made, packages=packages, extra=extra, slow=slow)

    return noted


def slow_if(slow: Slow) -> Callable[[Scorer], Scorer]:
    """For a scorer that may take long on some texts."""
    return lambda made: msgspec.structs.replace(made, slow=slow)


def arguments_of(function: Function) -> tuple[dict[str, inspect.Parameter], bool]:
    """The arguments of a scoring function that a spec may set, and whether any other name is taken too (`**args`)."""
    parameters = list(inspect.signature(function).parameters.values())
    return arguments_after(function, 2 + _ctx_is_third(parameters))


def arguments_after(function: Function, given: int) -> tuple[dict[str, inspect.Parameter], bool]:
    """Those after the first `given` parameters."""
    parameters = list(inspect.signature(function).parameters.values())
    named = {
        parameter.name: parameter
        for index, parameter in enumerate(parameters)
        if index >= given
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return named, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def shortened(text: str) -> str:
    """For a reason."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _always(text: str, /, **_: Any) -> bool:
    return True


def _of_target(target: Any, extractors: Sequence[Extractor]) -> Any:
    if isinstance(target, list | tuple):
        return [_of_target(each, extractors) for each in target]
    if not isinstance(target, str):
        return target
    found = extracted(target, extractors)
    if found is None:
        raise ValueError(f"the target {shortened(target)!r} does not hold what extract_target looks for")
    return found


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
    return third and parameters[2].default is inspect.Parameter.empty


def _ctx_is_third(parameters: list[inspect.Parameter]) -> bool:
    return len(parameters) > 2 and parameters[2].name == "ctx" and parameters[2].kind in _POSITIONAL
