"""From a sample to an answer: prompts, solvers, and the durable steps that they take."""

from holdfast.solve.context import Allowance, AskFailedError, Asking, Context, LimitError, ReadFile, ToolFailedError
from holdfast.solve.parts import is_in_text
from holdfast.solve.prompts import Prompt, Renderer, columns_of
from holdfast.solve.solvers import Solve, Solver, resolve_solver, solver
from holdfast.solve.steps import Recorded, Scope, StepFailedError, Steps, Unsure
from holdfast.solve.tools import Tool, ToolArgumentsError, tool

__all__ = [
    "Allowance",
    "AskFailedError",
    "Asking",
    "Context",
    "LimitError",
    "Prompt",
    "ReadFile",
    "Recorded",
    "Renderer",
    "Scope",
    "Solve",
    "Solver",
    "StepFailedError",
    "Steps",
    "Tool",
    "ToolArgumentsError",
    "ToolFailedError",
    "Unsure",
    "columns_of",
    "is_in_text",
    "resolve_solver",
    "solver",
    "tool",
]
