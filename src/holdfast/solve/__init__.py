"""From a sample to an answer: prompts, solvers, and the durable steps that they take."""

from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.definition import Solve, Solver
from holdfast.solve.prompts import Prompt, Renderer, columns_of, is_in_text
from holdfast.solve.registry import resolve_solver, sandboxes_of, solver
from holdfast.solve.resources import Allowance, Asking, Means
from holdfast.solve.steps import Recorded, Scope, StepFailedError, Steps, Unsure
from holdfast.solve.tools.tool import LimitError, Tool, ToolArgumentsError, tool
from holdfast.solve.tools.workplace import Workplace

__all__ = [
    "Allowance",
    "Asking",
    "Context",
    "LimitError",
    "Means",
    "Prompt",
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
    "Workplace",
    "columns_of",
    "is_in_text",
    "resolve_solver",
    "sandboxes_of",
    "solver",
    "tool",
]
