"""From a sample to an answer: `prompts` renders its first messages, a solver (`registry`) works through a `Context`,
and every call of the context is a durable step (`steps`), which `replay` delivers again after a crash. Tools for
models are in `tools`.
"""

from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.definition import ScoredContinuation, Solve, Solver
from holdfast.solve.mcp import servers_in
from holdfast.solve.prompts import Prompt, Renderer, ShotRule, columns_of, is_in_text
from holdfast.solve.registry import SOLVERS, SolverParameter, parameters_of, resolve_solver, sandboxes_of, solver
from holdfast.solve.replay import RecordedStep
from holdfast.solve.resources import AttemptLimits, AttemptResources, BridgeBackend, BridgeRequest, ModelHandle, Send
from holdfast.solve.steps import Scope, StepFailedError, Steps, UnconfirmedCall, is_kept
from holdfast.solve.tools.built_in import TOOLS
from holdfast.solve.tools.tool import LimitError, Tool, ToolArgumentsError, tool
from holdfast.solve.tools.workplace import Workplace

__all__ = [
    "SOLVERS",
    "TOOLS",
    "AttemptLimits",
    "AttemptResources",
    "BridgeBackend",
    "BridgeRequest",
    "Context",
    "LimitError",
    "ModelHandle",
    "Prompt",
    "RecordedStep",
    "Renderer",
    "Scope",
    "ScoredContinuation",
    "Send",
    "ShotRule",
    "Solve",
    "Solver",
    "SolverParameter",
    "StepFailedError",
    "Steps",
    "Tool",
    "ToolArgumentsError",
    "ToolFailedError",
    "UnconfirmedCall",
    "Workplace",
    "columns_of",
    "is_in_text",
    "is_kept",
    "parameters_of",
    "resolve_solver",
    "sandboxes_of",
    "servers_in",
    "solver",
    "tool",
]
