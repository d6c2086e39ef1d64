"""From a sample to an answer: prompts, solvers, and the durable steps that they take."""

from holdfast.confine.confining import SandboxError
from holdfast.solve.calling import LimitError
from holdfast.solve.context import Context, ToolFailedError
from holdfast.solve.means import Allowance, Asking, Means
from holdfast.solve.parts import is_in_text
from holdfast.solve.prompts import Prompt, Renderer, columns_of
from holdfast.solve.sandbox import Sandboxes, check_paths, sandbox_doubts
from holdfast.solve.snapshots import Blobs
from holdfast.solve.solvers import resolve_solver, sandboxes_of, solver
from holdfast.solve.solving import Solve, Solver
from holdfast.solve.steps import Recorded, Scope, StepFailedError, Steps, Unsure
from holdfast.solve.tools import Tool, ToolArgumentsError, tool
from holdfast.solve.workplace import Workplace

__all__ = [
    "Allowance",
    "Asking",
    "Blobs",
    "Context",
    "LimitError",
    "Means",
    "Prompt",
    "Recorded",
    "Renderer",
    "SandboxError",
    "Sandboxes",
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
    "check_paths",
    "columns_of",
    "is_in_text",
    "resolve_solver",
    "sandbox_doubts",
    "sandboxes_of",
    "solver",
    "tool",
]
