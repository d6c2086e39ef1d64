"""Solvers and tools that are not Holdfast's: in modules beside the spec, and in packages that are installed."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.agents import agent, serving
from tests.e2e.commands import Done, exported, run, write_rows

MODULES = {
    "parts_solver": "async def solve(sample, ctx):\n    return await ctx.generate()\n",
    "parts_tool": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "parts_join": "def join(texts, row):\n    return ' and '.join(texts)\n",
}
NESTED = {
    "chain": {
        "solvers": [
            {"fork": {"solvers": ["chat", "parts_solver:solve"], "join": "parts_join:join"}},
            {"react": {"tools": ["parts_tool:add"]}},
        ],
        "prompts": ["Better: {answer}"],
    }
}
PACKAGE = '''
import holdfast

async def twice(sample, ctx, prompt="Again."):
    first = await ctx.generate()
    messages = [*ctx.messages, first.message, {"role": "user", "content": prompt}]
    return await ctx.generate(messages)

@holdfast.tool
def note(n: int) -> str:
    """Write a number down."""
    return f"noted {n}"
'''
OFFERED = "[holdfast.solvers]\ntwice = tiny_solvers:twice\n\n[holdfast.tools]\nnote = tiny_solvers:note\n"


def write(folder: Path, solver: Any, model: dict[str, Any] | None = None) -> Path:
    write_rows(folder / "rows.jsonl", [{"id": "a", "q": "one"}])
    spec = {
        "models": [model or {"name": "m", "provider": "mock"}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "solver": solver}],
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def go(folder: Path, spec: Path, env: dict[str, str] | None = None) -> Done:
    return run("run", spec, "--id", "r", "--store", folder / "runs", cwd=folder, env=env)


def test_changed_code_of_a_part_of_a_solver_is_refused(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    spec = write(tmp_path, NESTED)
    assert go(tmp_path, spec).code == 0
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text + "# another\n")
        refused = go(tmp_path, spec)
        assert refused.code == 3, name
        assert "the code of chain with parts_join, parts_solver, parts_tool" in refused.err
        (tmp_path / f"{name}.py").write_text(text)
    assert go(tmp_path, spec).code == 0


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """A distribution in a folder of its own, as pip leaves it; the environment that finds it."""
    site = tmp_path / "site"
    about = site / "tiny_solvers-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "tiny_solvers.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-solvers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(OFFERED)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))}


def test_a_solver_and_a_tool_of_an_installed_package_go_by_their_names(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    with serving(agent(3)) as server:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
        stages = [{"react": {"tools": ["note"]}}, {"twice": {"prompt": "Once more."}}]
        done = go(tmp_path, write(tmp_path, {"chain": {"solvers": stages}}, model), installed)
        assert done.code == 0, done.said
        assert server.stats().requests > 3
    (line,) = exported("r", tmp_path / "runs")
    assert line["status"] == "finished"


def test_what_no_package_offers_is_refused_with_the_nearest_name(tmp_path: Path, installed: dict[str, str]) -> None:
    refused = go(tmp_path, write(tmp_path, "twce"), installed)
    assert (refused.code, "did you mean 'twice'?" in refused.err) == (2, True)
    refused = go(tmp_path, write(tmp_path, {"react": {"tools": ["nte"]}}), installed)
    assert (refused.code, "tasks[0].solver.react.tools[0]: there is no tool" in refused.err) == (2, True)
    assert "did you mean 'note'?" in refused.err


def test_a_role_that_is_not_there_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    refused = go(tmp_path, write(tmp_path, {"chain": {"solvers": ["chat", {"conversation": {"turns": 2}}]}}))
    assert refused.code == 2
    assert "tasks[0].solver: there is no role 'user'; there are: none; add it to `roles`" in refused.err
    assert not (tmp_path / "runs").exists()
