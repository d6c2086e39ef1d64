"""Tools: Python functions that a model may call, described to it by their type hints.

Errors of the model (malformed arguments, an unknown name) and exceptions of a tool are returned to the model and never
end a sample. A tool with `repeatable=False` is announced in the journal before it runs. A sample that was interrupted
in between fails with the kind `unrepeatable`, unless the tool's own `recover` finds out what had happened.
"""

import asyncio
import inspect
import json
import types
import typing
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, overload

import msgspec

from holdfast.errors import HoldfastError, SpecError, describe_error
from holdfast.records import Failure, Step, ToolCall, redact, writable
from holdfast.sandbox.confinement import SandboxError
from holdfast.solve.tools.workplace import Workplace

Function = Callable[..., Any]
_NAME_MAX = 64
_WORKPLACE = "ctx"


class ToolArgumentsError(HoldfastError):
    """The model called a tool with arguments that it does not take. The text is for the model."""


def decoded(given: Any) -> dict[str, Any]:
    """Decode the arguments of a call as a model wrote them. ToolArgumentsError if they are no JSON object."""
    try:
        found = json.loads(given or "{}") if isinstance(given, str) or given is None else given
    except (ValueError, RecursionError) as error:
        raise ToolArgumentsError(f"the arguments are not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ToolArgumentsError(f"the arguments are not a JSON object: it is a {type(found).__name__}")
    return found


class Tool(msgspec.Struct, frozen=True):
    """A function with its description for models, and how it is called."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON Schema."""
    function: Function
    takes: type[msgspec.Struct] | None
    """A struct of the arguments, to check them. None (MCP): the server checks them, and the function is called with the
    workplace and the arguments as they are."""
    seconds: float | None = None
    repeatable: bool = True
    recover: Function | None = None
    """Called with the arguments of an interrupted call: returns its result, or raises if that cannot be known."""
    wants_workplace: bool = False
    """It has a parameter `ctx`, which we fill and the model does not see."""
    sandboxed: bool = False
    """It works in the sample's sandbox, `ctx.sandbox`; one call at a time."""

    def schema(self) -> dict[str, Any]:
        """Return the description that a request contains."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments and return what the function is called with. ToolArgumentsError names the parameters."""
        if self.takes is None:
            return given
        try:
            read = msgspec.convert(given, self.takes, strict=False)
        except msgspec.ValidationError as error:
            properties = json.dumps(self.parameters.get("properties", {}))
            raise ToolArgumentsError(f"{self.name}: {error}; its parameters are {properties}") from None
        return {name: getattr(read, name) for name in self.takes.__struct_fields__}


@overload
def tool(function: Function, /) -> Tool: ...


@overload
def tool(
    *,
    name: str = "",
    seconds: float | None = None,
    repeatable: bool = True,
    recover: Function | None = None,
    sandboxed: bool = False,
) -> Callable[[Function], Tool]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str = "",
    seconds: float | None = None,
    repeatable: bool = True,
    recover: Function | None = None,
    sandboxed: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool from a sync or async function: `@tool` or `@tool(seconds=30, repeatable=False)`."""

    def made(written: Function) -> Tool:
        plain = _make_tool(written, name)
        if sandboxed and not (repeatable and plain.wants_workplace):
            raise SpecError(
                f"the tool {plain.name} is sandboxed: it needs a parameter `ctx`, and is always repeatable, because "
                "its files are put back; let another tool do what must not be done twice"
            )
        return msgspec.structs.replace(
            plain, seconds=seconds, repeatable=repeatable, recover=recover, sandboxed=sandboxed
        )

    return made if function is None else made(function)


def as_tool(given: "Tool | Function") -> Tool:
    """Return a tool; a plain function becomes one that may be repeated."""
    return given if isinstance(given, Tool) else _make_tool(given)


def result_text(value: Any) -> str:
    """Return a result as the text that the model sees."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def invoke(tool: Tool, arguments: dict[str, Any], workplace: Workplace) -> Any:
    """Call the function; a sync one in a thread, so that it does not block the event loop."""
    if tool.takes is None:
        return await tool.function(workplace, arguments)
    if tool.wants_workplace:
        arguments = {_WORKPLACE: workplace, **arguments}
    if inspect.iscoroutinefunction(tool.function):
        return await tool.function(**arguments)
    result = await asyncio.to_thread(tool.function, **arguments)
    return await result if isinstance(result, Awaitable) else result


def _make_tool(function: Function, name: str = "") -> Tool:
    called = name or getattr(function, "__name__", type(function).__name__)
    if not called.isidentifier() or len(called) > _NAME_MAX:
        raise SpecError(
            f"a tool cannot be called {called!r}: give it a name of letters, digits and _, at most {_NAME_MAX}"
        )
    found = _described.get(function) if isinstance(function, types.FunctionType) else None
    if found is None or found.name != called:
        found = _describe(function, called)
        if isinstance(function, types.FunctionType):
            _described[function] = found
    description = inspect.cleandoc(function.__doc__ or "")
    takes, wants = found.takes, found.wants_workplace
    return Tool(called, description, found.parameters, function, takes, wants_workplace=wants)


class _Description(msgspec.Struct, frozen=True):
    """The parameters of a function. Without the function itself, so that the cache below does not keep it alive."""

    name: str
    parameters: dict[str, Any]
    takes: type[msgspec.Struct]
    wants_workplace: bool


_described: "weakref.WeakKeyDictionary[types.FunctionType, _Description]" = weakref.WeakKeyDictionary()
"""A cache: a solver calls the same plain function many times."""


def _describe(function: Function, name: str) -> _Description:
    parameters = _parameters_of(function, name)
    wants_workplace = parameters.pop(_WORKPLACE, None) is not None
    takes = _arguments_of(parameters, name)
    schema = msgspec.json.schema(takes, ref_template="#/$defs/{name}")
    definitions = schema.pop("$defs", {})
    body = definitions.pop(name, schema)
    body.pop("title", None)
    if definitions:
        body["$defs"] = definitions
    return _Description(name, body, takes, wants_workplace)


def _parameters_of(function: Function, name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters by name, each with its type hint."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as error:
        raise SpecError(f"the parameters of the tool {name} cannot be read: {error}") from error
    return {each.name: each.replace(annotation=hints.get(each.name, Any)) for each in parameters.values()}


def _arguments_of(parameters: dict[str, inspect.Parameter], name: str) -> type[msgspec.Struct]:
    """Return a struct of the parameters. SpecError for those that a JSON object cannot fill."""
    fields: list[Any] = []
    for parameter in parameters.values():
        if parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise SpecError(f"the tool {name} takes {parameter}: a model names each argument, so each needs a name")
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, parameter.annotation))
        else:
            fields.append((parameter.name, parameter.annotation, _default(parameter.default)))
    try:
        made = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(made)
    except TypeError as error:
        raise SpecError(f"the tool {name} has a parameter of a type that JSON cannot hold: {error}") from error
    return made


def _default(value: Any) -> Any:
    """Copy a mutable default for each call."""
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=types.MethodType(lambda given: given.copy(), value))
    return value


_MESSAGE_MAX = 8000


class LimitError(HoldfastError):
    """A sample has reached a limit. The attempt ends; its records stay."""

    def __init__(self, message: str, kind: str = "limit") -> None:
        super().__init__(message)
        self.kind = kind


async def call_tool(tool: Tool, called: ToolCall, workplace: Workplace) -> Step:
    """Call a tool and return its step. An exception becomes the step's failure, which the solver sees. SandboxError is
    raised: it ends the attempt.
    """
    try:
        async with asyncio.timeout(tool.seconds):
            value = await invoke(tool, tool.arguments(called.arguments), workplace)
    except TimeoutError as error:
        late = f"{tool.name} took longer than {tool.seconds:g} s" if tool.seconds else f"{tool.name}: {error!r}"
        return _failed(tool, called, late, workplace)
    except SandboxError:
        raise
    except HoldfastError as error:
        return _failed(tool, called, str(error), workplace)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return _failed(tool, called, describe_error(error), workplace)
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, value=value)


async def recover_call(tool: Tool, called: ToolCall, workplace: Workplace) -> Step:
    """Return the step of a call that a dead process had begun, by its `recover`; LimitError if it has none."""
    if tool.recover is None:
        raise LimitError(
            f"{tool.name} must not be repeated, and the process ended while it was being called: it may have been "
            "done. Find out, or give the tool a `recover`",
            "unrepeatable",
        )
    found = msgspec.structs.replace(tool, function=tool.recover, repeatable=True)
    return msgspec.structs.replace(await call_tool(found, called, workplace), once=True)


def _failed(tool: Tool, called: ToolCall, message: str, workplace: Workplace) -> Step:
    """Redact before cutting: half a secret would stay."""
    failure = Failure("tool", writable(redact(message, workplace.secrets))[:_MESSAGE_MAX])
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, failure=failure)
