"""`check`: whether a spec can be run. Makes nothing; asks servers only if it is told to, and never a model."""

import asyncio
import os
import sys
from typing import Any

from holdfast.cli.adhoc import suggest_spec
from holdfast.cli.commands.run import Choice, load
from holdfast.cli.output import print_json, say, warn
from holdfast.report.text import counted
from holdfast.runs import Given
from holdfast.runs import check as check_given
from holdfast.runs.execution.preparation import Served, ask_servers
from holdfast.sandbox.box import sandbox_doubts
from holdfast.solve import sandboxes_of
from holdfast.spec import Spec
from holdfast.spec.api_keys import missing_keys
from holdfast.spec.warnings import doubts


def check_spec(path: str, choice: Choice, servers: bool, as_json: bool) -> int:
    """Exit 2 also if a server that was to be asked is not there: whoever asks that wants to know."""
    suggest_spec(path)
    spec = load(path, choice)
    prepared, planned = check_given(Given(spec, where=path))
    asked = asyncio.run(ask_servers(spec)) if servers else []
    warnings = [
        *doubts(spec, os.environ),
        *sandbox_doubts(sandboxes_of(spec)),
        *(each.doubt for each in asked if each.doubt),
    ]
    errors = [*missing_keys(spec, os.environ), *(each.error for each in asked if each.error)]
    for warning in warnings:
        warn(f"{path}: {warning}")
    for error in errors:
        sys.stderr.write(f"holdfast: {path}: {error}\n")
    told: dict[str, Any] = {
        "spec": path,
        "planned": planned,
        "tasks": [task.name for task in spec.tasks],
        "models": [model.name for model in spec.models],
        "evaluation": prepared.evaluation,
        "warnings": warnings,
        "errors": errors,
        "servers": asked,
    }
    if as_json:
        print_json(told)
    else:
        _tell(path, spec, planned, told, asked)
    return 2 if errors else 0


def _tell(path: str, spec: Spec, planned: int, told: dict[str, Any], asked: list[Served]) -> None:
    for each in asked:
        if not each.error:
            say(f"{each.place}: the server is there")
    names = f"{counted(len(spec.tasks), 'task')}, {counted(len(spec.models), 'model')}"
    verdict = "cannot be run now" if told["errors"] else "can be run" if told["warnings"] else "is fine"
    say(f"{path} {verdict}: {counted(planned, 'answer')} to be made ({names}).")
