"""Calling a tool: whatever comes of it is a step, also that it raised or took too long."""

import asyncio

import msgspec

from holdfast.confine.confining import SandboxError
from holdfast.errors import HoldfastError, told
from holdfast.records import writable
from holdfast.records.facts import Called, Failure, Step
from holdfast.records.redaction import redact
from holdfast.solve.tools import Tool, invoke
from holdfast.solve.workplace import Workplace

_TOLD_MAX = 8000


class LimitError(HoldfastError):
    """A sample has used up what it may use. The attempt ends; what it recorded stays."""

    def __init__(self, message: str, kind: str = "limit") -> None:
        super().__init__(message)
        self.kind = kind


async def call_tool(tool: Tool, called: Called, workplace: Workplace) -> Step:
    """What a tool raises is the step's failure: the solver sees it, and decides. That its sandbox is gone is no
    failure of the tool: it ends the attempt.
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
        return _failed(tool, called, told(error), workplace)
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, value=value)


async def recover_call(tool: Tool, called: Called, workplace: Workplace) -> Step:
    """What a call came to that was begun by a process that died."""
    if tool.recover is None:
        raise LimitError(
            f"{tool.name} must not be repeated, and the process ended while it was being called: it may have been "
            "done. Find out, or give the tool a `recover`",
            "unrepeatable",
        )
    found = msgspec.structs.replace(tool, function=tool.recover, repeatable=True)
    return msgspec.structs.replace(await call_tool(found, called, workplace), once=True)


def _failed(tool: Tool, called: Called, message: str, workplace: Workplace) -> Step:
    """Half a character cannot be written as JSON, and half a secret would not be found: cut last."""
    failure = Failure("tool", writable(redact(message, workplace.secrets))[:_TOLD_MAX])
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, failure=failure)
