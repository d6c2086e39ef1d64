"""Defines scorers and extractors.

A scorer is a named function of `(sample, answer)`, or `(sample, answer, ctx)` if it calls a judge model, followed by
arguments that a spec may set. A group scorer takes `(sample, answers)`: all repeats of a sample at once. A function
with another signature is refused when it is decorated, before a run is paid for.

An extractor is a function that takes a part out of a text. A scorer may apply extractors to the answer and to the
target before it compares them. If an answer lacks the part, the scorer receives the empty text; a target that lacks it
raises.

A user's scorer may declare its scale. The scales of built-in scorers are in `score.scales`.

Errors:

HoldfastError
├── SpecError
│   └── ScorerError   before a run: an unknown scorer or argument, or a function that is not a scorer
└── ScoringFailed     during a run: the scorer raised, or returned a value that is not a score
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, SupportsFloat, overload

import msgspec

from holdfast.errors import HoldfastError, ScorerError
from holdfast.records import Answer, Failure, Sample, Score
from holdfast.stats import BOOL, LABEL, Scale, parse_scale


class ScoringFailed(HoldfastError):  # noqa: N818 - an expected outcome that is recorded, not a bug
    """A scorer failed on one answer. `detail` has the traceback through the user's own code."""

    kind = "scorer"

    def __init__(self, scorer: str, message: str, detail: str = "") -> None:
        super().__init__(scorer, message, detail)
        self.scorer = scorer
        self.message = message
        self.detail = detail

    def __str__(self) -> str:
        return f"scorer {self.scorer!r}: {self.message}"

    @property
    def failure(self) -> Failure:
        """The failure as it is recorded."""
        return Failure(self.kind, str(self), self.detail)


Function = Callable[..., Any]
Value = SupportsFloat | str | None
"""A bool, a number (also of numpy, Decimal or Fraction), a label, or None for no score."""
Scored = Value | Score | Mapping[str, Value | Score]
ScoringFunction = (
    Callable[[Sample, Answer], Scored | Awaitable[Scored]]
    | Callable[Concatenate[Sample, Answer, ...], Scored | Awaitable[Scored]]
)
"""The first alternative lets type checkers infer the parameters of a lambda."""
Check = Callable[..., str]
"""Checks the arguments, and whether this machine has what they need. Returns the problem, or an empty text."""
Slow = Callable[..., bool]
"""Returns whether a call with this text and these arguments could block the event loop for too long."""
OneScale = str | Sequence[float] | Scale
DeclaredScale = OneScale | Mapping[str, OneScale]
"""`"bool"`, `"count"`, `"label"`, `"number"`, `(lowest, highest)`, or a mapping of these by the name of the part."""
_SHOWN = 80
_SCALE_OF_RETURN: list[tuple[Any, Scale]] = [
    *((each, BOOL) for each in (bool, "bool", bool | None, "bool | None")),
    *((each, LABEL) for each in (str, "str", str | None, "str | None")),
]
"""By return annotation, also in a module whose annotations are texts."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Extractor(msgspec.Struct, frozen=True):
    """A named function that takes a part out of a text, and returns None if the text lacks it."""

    name: str
    function: Function
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    check: Check | None = None
    slow: Slow | None = None

    def __call__(self, text: str) -> str | None:
        found = self.function(text, **self.args)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"the extractor {self.name} returned a {type(found).__name__}; return a str or None")
        return found


class Scorer(msgspec.Struct, frozen=True):
    """A named scoring function with arguments. Calling it applies the extractors, then the function."""

    name: str
    function: Function
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    needs_ctx: bool = False
    """The function's third parameter is `ctx`: it makes durable model calls."""
    group: bool = False
    """The function takes the answers of all repeats of a sample, and returns a list of scores or one score for all."""
    extract: tuple[Extractor, ...] = ()
    """Applied to the answer's text, in order."""
    extract_target: tuple[Extractor, ...] = ()
    """Applied to each text of the target, in order."""
    check: Check | None = None
    """Called when a spec is read, before anything is paid for."""
    packages: tuple[str, ...] = ()
    """Packages that it computes with. Their versions are part of its identity."""
    extra: str = ""
    """The extra of Holdfast that installs these packages."""
    slow: Slow | None = None
    """Decides whether a call runs in a thread. None: never."""
    scale: Scale | dict[str, Scale] | None = None
    """As a user declares it, for all its scores or by part. None: not declared, or built in (see `score.scales`)."""

    def roles(self) -> list[str]:
        """Return the roles that it calls, according to its arguments `roles` and `role`, and those of its parts."""
        several = self.args.get("roles")
        if isinstance(several, list) and several:
            return several
        parameter = inspect.signature(self.function).parameters.get("role")
        role = self.args.get("role", parameter.default if parameter is not None else None)
        own = [role] if isinstance(role, str) and role else []
        return list(dict.fromkeys([*own, *(each for part in self.parts() for each in part.roles())]))

    def parts(self) -> "list[Scorer]":
        """Return the scorers among its arguments."""
        found = []
        for value in self.args.values():
            several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            found += [each for each in several if isinstance(each, Scorer)]
        return found

    def __call__(self, sample: Sample, judged: Any, *rest: Any, **named: Any) -> Any:
        return self.function(*self.read(sample, judged), *rest, **{**self.args, **named})

    def using(self, **args: Any) -> "Scorer":
        """Return this scorer with arguments, for a task in Python: the same as `{name: {argument: value}}` in a spec.

        Also accepts `name`, `scale`, `extract` and `extract_target`. Scorers and extractors are spec entries or
        functions.
        """
        return msgspec.structs.replace(self, args={**self.args, **args})

    def read(self, sample: Sample, judged: Any) -> tuple[Sample, Any]:
        """Apply the extractors to the sample's target and to the answer or answers."""
        if self.extract_target:
            sample = msgspec.structs.replace(sample, target=_extract_target(sample.target, self.extract_target))
        if self.extract:
            several = isinstance(judged, list | tuple)
            judged = [self._extract(each) for each in judged] if several else self._extract(judged)
        return sample, judged

    def _extract(self, answer: Answer) -> Answer:
        return msgspec.structs.replace(answer, text=apply_extractors(answer.text, self.extract) or "")


def apply_extractors(text: str, extractors: Sequence[Extractor]) -> str | None:
    """Apply extractors in order. Returns None if one of them finds nothing."""
    left: str | None = text
    for each in extractors:
        left = each(left) if left is not None else None
    return left


@overload
def scorer(
    function: ScoringFunction,
    *,
    name: str = "",
    group: bool = False,
    check: Check | None = None,
    scale: DeclaredScale | None = None,
) -> Scorer: ...


@overload
def scorer(
    function: None = None,
    *,
    name: str = "",
    group: bool = False,
    check: Check | None = None,
    scale: DeclaredScale | None = None,
) -> Callable[[Function], Scorer]: ...


def scorer(
    function: Function | None = None,
    *,
    name: str = "",
    group: bool = False,
    check: Check | None = None,
    scale: DeclaredScale | None = None,
) -> Scorer | Callable[[Function], Scorer]:
    """Turn a function, sync or async, into a scorer: `@scorer`, `@scorer(name="close")`, `@scorer(group=True)`.

    `check` receives the arguments that a spec sets, and returns what is wrong with them, or an empty text. `scale` is
    what the scorer gives: "bool", "count", "label", "number" or (lowest, highest), or a dict of these by the name of
    the part. Without it, the return annotation `bool` declares "bool" and `str` declares "label".
    """
    if function is None:
        return lambda decorated: scorer(decorated, name=name, group=group, check=check, scale=scale)
    if isinstance(function, Scorer):
        return msgspec.structs.replace(
            function,
            name=name or function.name,
            group=group or function.group,
            check=check or function.check,
            scale=function.scale if scale is None else read_scale(scale, name or function.name),
        )
    innermost: Any = function
    while isinstance(innermost, functools.partial):
        innermost = innermost.func
    own_name = getattr(innermost, "__name__", type(innermost).__name__)
    full_name = name or ("lambda" if own_name == "<lambda>" else own_name)
    declared = _annotated_scale(innermost) if scale is None else read_scale(scale, full_name)
    return Scorer(full_name, function, {}, _takes_ctx(function, full_name), group, check=check, scale=declared)


def read_scale(declared: Any, place: str) -> Scale | dict[str, Scale]:
    """Return a declaration as a scale, or as scales by part. ScorerError if it is neither."""
    try:
        if not isinstance(declared, Mapping):
            return parse_scale(declared)
        if not declared or not all(isinstance(part, str) for part in declared):
            raise ValueError(f"scale {dict(declared)!r}: give the scale of each part by its name, as {{part: [1, 5]}}")
        return {part: parse_scale(each) for part, each in declared.items()}
    except ValueError as error:
        raise ScorerError(place, str(error)) from error


def _annotated_scale(function: Any) -> Scale | None:
    """The scale of a user's function by its return annotation. Built-in functions have theirs in `score.scales`."""
    if str(getattr(function, "__module__", "")).startswith(f"{__name__.partition('.')[0]}."):
        return None
    returned = getattr(function, "__annotations__", {}).get("return")
    return next((scale for annotation, scale in _SCALE_OF_RETURN if annotation == returned), None)


def requires(extra: str, *packages: str) -> Callable[[Scorer], Scorer]:
    """Decorate a scorer that needs the packages of an extra. It runs in a thread, because imports may take seconds."""

    def decorate(made: Scorer) -> Scorer:
        slow: Slow | None = None if inspect.iscoroutinefunction(made.function) else lambda text, /, **_: True
        return msgspec.structs.replace(made, packages=packages, extra=extra, slow=slow)

    return decorate


def slow_if(slow: Slow) -> Callable[[Scorer], Scorer]:
    """Decorate a scorer that may take long on some texts."""
    return lambda made: msgspec.structs.replace(made, slow=slow)


def arguments_of(function: Function) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the arguments of a scoring function that a spec may set, and whether it takes any others (`**args`)."""
    parameters = list(inspect.signature(function).parameters.values())
    return arguments_after(function, 2 + _ctx_is_third(parameters))


def arguments_after(function: Function, given: int) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the arguments after the first `given` parameters, and whether the function takes any others."""
    parameters = list(inspect.signature(function).parameters.values())
    named = {
        parameter.name: parameter
        for index, parameter in enumerate(parameters)
        if index >= given
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return named, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def shorten(text: str) -> str:
    """Shorten a text for a score's reason."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _extract_target(target: Any, extractors: Sequence[Extractor]) -> Any:
    if isinstance(target, list | tuple):
        return [_extract_target(each, extractors) for each in target]
    if not isinstance(target, str):
        return target
    found = apply_extractors(target, extractors)
    if found is None:
        raise ValueError(f"the target {shorten(target)!r} does not contain what extract_target looks for")
    return found


def _takes_ctx(function: Function, name: str) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ScorerError(name, f"its parameters cannot be inspected ({error}); wrap it in a def") from error
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    is_variadic = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if len(positional) < 2 and not is_variadic:
        shown = ", ".join(str(parameter) for parameter in parameters)
        raise ScorerError(name, f"takes ({shown}); a scorer takes (sample, answer), then optionally ctx and arguments")
    third = _ctx_is_third(parameters)
    if not third and any(parameter.name == "ctx" for parameter in parameters):
        raise ScorerError(name, "ctx must be the third parameter: (sample, answer, ctx, ...)")
    return third and parameters[2].default is inspect.Parameter.empty


def _ctx_is_third(parameters: list[inspect.Parameter]) -> bool:
    return len(parameters) > 2 and parameters[2].name == "ctx" and parameters[2].kind in _POSITIONAL
