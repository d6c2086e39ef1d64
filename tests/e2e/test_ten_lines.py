"""Ten lines of Python: in a script that a type checker reads, in pytest, in IPython and in a real notebook."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import holdfast
from tests.e2e.commands import call, environment, wait_until

SCRIPT = """\
import holdfast

@holdfast.scorer
def close(sample: holdfast.Sample, answer: holdfast.Answer) -> bool:
    return abs(float(answer.text) - float(sample.target)) < 1
@holdfast.solver
async def twice(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    return await ctx.generate([*ctx.messages, (await ctx.generate()).message])
task = holdfast.Task("sums", data=[{"q": "4", "target": "4"}], prompt="{q}", solver=twice, scorers=[close])
run = holdfast.run(task, models=["mock/parrot"], limit=5, id="mine")
print(run.report(), run.samples().to_pandas()["output"].to_list(), [line.scores["close"] for line in run.samples()])
"""
TASK = "task = holdfast.Task('t', [{'id': 'a', 'q': '4'}, {'id': 'b', 'q': '5'}], '{q}', solver=mine, scorers=[right])"
SOLVER = "async def mine(sample, ctx):\n    return await ctx.generate()"
SCORER = "@holdfast.scorer\ndef right(sample, answer):\n    return answer.text == '4'"


def python(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_script_of_ten_lines_runs(tmp_path: Path) -> None:
    assert len([line for line in SCRIPT.splitlines() if line.strip()]) <= 10
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = python("mine.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sums  parrot  close   1.0000" in done.stdout
    assert done.stdout.rstrip().endswith("['4'] [True]")
    assert "completed" in call("show", "mine", cwd=tmp_path).out


@pytest.mark.long
def test_a_script_of_ten_lines_passes_a_strict_type_checker_and_its_slips_do_not(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    slips = {
        "holdfast.run(task": "holdfast.rum(task",
        "run.samples().to_pandas()": "run.sample().to_pandas()",
        "line.scores": "line.scored",
        "-> bool:": "-> list[bool]:",
        "sample.target": "sample.taget",
        "async def twice": "def twice",
        "(await ctx.generate()).message": "(await ctx.generate()).mesage",
        'data=[{"q"': 'data=3, other=[{"q"',
    }
    text = SCRIPT.replace("import holdfast\n", "")
    parts = [
        f"def slip{i}() -> None:\n    " + text.replace(*slip).replace("\n", "\n    ")
        for i, slip in enumerate(slips.items())
    ]
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "slips.py").write_text("import holdfast\n" + "\n\n".join(parts))
    files = ("mine.py", "slips.py")  # in one run, which reads the types of all of Holdfast
    kept = request.config.cache  # the types of Holdfast, from run to run: reading them takes ten seconds
    cache = str(kept.mkdir("types") if kept else tmp_path / "cache")
    found = python("-m", "mypy", "--strict", "--cache-dir", cache, *files, cwd=tmp_path).stdout
    assert found.endswith(" errors in 1 file (checked 2 source files)\n"), found
    assert "mine.py" not in found
    first = [i * (len(text.splitlines()) + 3) for i in range(len(slips) + 1)]
    lines = [int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line]
    caught = [any(first[i] < line <= first[i + 1] + 1 for line in lines) for i in range(len(slips))]
    assert dict(zip(slips, caught, strict=True)) == dict.fromkeys(slips, True), found


def test_a_test_of_ten_lines_runs_in_pytest(tmp_path: Path) -> None:
    test = "def test_it(tmp_path):\n    with holdfast.run(task, models=['mock'], store=str(tmp_path)) as run:\n"
    test += "        assert run.report().cells[0].scorers[0].summary.mean == 0.5\n"
    (tmp_path / "test_mine.py").write_text("\n".join(["import holdfast", SOLVER, SCORER, TASK, test]))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs"))
    InteractiveShell.clear_instance()
    made: InteractiveShell = InteractiveShell.instance()
    assert made.history_manager is not None
    made.history_manager.enabled = False
    return made


def told(shell: InteractiveShell, *cells: str) -> Any:
    """What the last of some cells gives."""
    result: Any = None
    for cell in cells:
        result = shell.run_cell(cell, store_history=True)  # type: ignore[no-untyped-call] # it has no types
        result.raise_error()
    return result.result


def test_functions_that_are_written_in_ipython_work_and_continue(shell: InteractiveShell) -> None:
    run = "run = holdfast.run(task, models=['mock/m'], id='x'); run.close()"
    told(shell, "import holdfast", SOLVER, SCORER, TASK, run)
    assert told(shell, "[line.scores for line in run.samples()]") == [{"right": True}, {"right": False}]
    assert (
        told(shell, SOLVER, SCORER, TASK, run, "run.summary().steps['live']") == 2
    )  # the same cells again: nothing new
    with pytest.raises(holdfast.DriftError):
        told(shell, SOLVER.replace("ctx.generate()", "ctx.generate('5')"), TASK, run)
    told(shell, "run.close()")


def test_an_error_in_a_cell_shows_the_cells_own_line(shell: InteractiveShell) -> None:
    broken = "async def mine(sample, ctx):\n    return 1 / 0"
    told(shell, "import holdfast", broken, SCORER, TASK, "run = holdfast.run(task, models=['mock'], id='x')")
    story = told(shell, "run.show('t/mock/a/1')")
    told(shell, "run.close()")
    assert "return 1 / 0" in str(story)
    assert "ZeroDivisionError" in str(story)


def test_a_run_can_be_awaited_in_a_cell(shell: InteractiveShell) -> None:
    told(shell, "import holdfast", SOLVER, SCORER, TASK)
    assert told(shell, "run = await holdfast.run_async(task, ['mock'])\nrun.close()\nlen(run.samples())") == 2
    told(shell, "run.close()")


def test_a_real_notebook_shows_a_bar_that_moves_and_tables(tmp_path: Path) -> None:
    slow = "models = [{'name': 'm', 'provider': 'mock', 'options': {'latency_seconds': 0.6}}]"
    cells = [
        "import holdfast",
        "\n".join((SOLVER, SCORER, TASK, slow)),
        "run = holdfast.run(task, models=models, id='x')",
        "run",
        "run.report()",
        "run.samples()",
        "run.show('t/m/a/1')",
        "again = holdfast.run(task, models=models, id='y', quiet=True)",
        "third = await holdfast.run_async(task, ['mock'], id='z')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call] # it has no types
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    assert outputs[:2] == [[], []]
    (bar,) = outputs[2]
    assert '<progress value="2" max="2">' in bar["data"]["text/html"]
    assert "2/2" in bar["data"]["text/plain"]
    assert [any("<table>" in each["data"]["text/html"] for each in shown) for shown in outputs[3:6]] == [True] * 3
    assert "t/m/a/1  finished" in outputs[6][0]["data"]["text/html"]
    assert outputs[7] == []
    assert '<progress value="2" max="2">' in outputs[8][0]["data"]["text/html"]


def test_a_notebook_shows_a_bar_for_each_model_and_keeps_the_last_state(tmp_path: Path) -> None:
    models = """models = [
        {'name': name, 'provider': 'mock', 'price': {'input': 9.0, 'output': 9.0}, 'options': {'latency_seconds': 0.3}}
        for name in ('m', 'n')
    ]"""
    cells = ["import holdfast", "\n".join((SOLVER, SCORER, TASK, models)), "holdfast.run(task, models=models).close()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call] # it has no types
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    (shown,) = notebook["cells"][2]["outputs"]
    page, text = shown["data"]["text/html"], shown["data"]["text/plain"]
    assert page.count('<progress value="2" max="2">') == 2
    assert page.count('<progress value="4" max="4">') == 1
    assert "<th>right</th>" in page
    head, first, second, total = text.splitlines()
    assert head.split() == ["model", "done", "rate", "left", "cost", "right", "failed"]
    assert [line.split()[0] for line in (first, second, total)] == ["m", "n", "total"]
    assert "0.50" in first
    assert "took" in total


def test_a_notebook_shows_each_result_once(tmp_path: Path) -> None:
    cells = [
        "\n".join(("import holdfast", SOLVER, SCORER, TASK)),
        "run = holdfast.run(task, models=['mock'], id='x', quiet=True)",
        "run",
        "run.report()",
        "run.samples()",
        "run.costs()",
        "holdfast.list_runs()",
        "holdfast.leaderboard(run)",
        "holdfast.gate(run, at_least=0.1)",
        "run.score('exact_match', quiet=True)",
        "await run.score_async(right, quiet=True)",
        "run.plot()",
        "run.verify()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call] # it has no types
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = {cell["source"]: cell["outputs"] for cell in notebook["cells"]}
    assert [outputs.pop(cell) for cell in cells[:2]] == [[], []]
    kinds = {cell: [each["output_type"] for each in shown] for cell, shown in outputs.items()}
    assert {cell: several for cell, several in kinds.items() if several != ["execute_result"]} == {}
    assert all(shown[0]["data"]["text/plain"].strip() for shown in outputs.values())


def on_a_terminal(tmp_path: Path, script: str) -> str:
    """What a script says whose standard error is a terminal."""
    parent, child = pty.openpty()
    env = environment({"TERM": "xterm"})
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=env, stderr=child) as process:
        os.close(child)
        said = b""
        try:
            while part := os.read(parent, 65536):
                said += part
        except OSError:  # how a pseudo-terminal says that the other end is closed
            pass
        assert process.wait(60) == 0
    os.close(parent)
    return said.decode()


def test_a_script_on_a_terminal_shows_a_line_unless_it_is_quiet(tmp_path: Path) -> None:
    script = "\n".join(["import holdfast", SOLVER, SCORER, TASK, "holdfast.run(task, models=['mock'], quiet=QUIET)"])
    assert "█\x1b[0m  2/2  100%" in on_a_terminal(tmp_path, script.replace("QUIET", "False"))
    assert on_a_terminal(tmp_path, script.replace("QUIET", "True")) == ""


@pytest.mark.parametrize("inside", [True, False], ids=["inside a running loop", "without a loop"])
def test_an_interrupted_cell_or_script_keeps_what_it_has_and_can_continue(tmp_path: Path, inside: bool) -> None:
    solver = "async def mine(sample, ctx):\n    first = await ctx.generate()\n    open('begun', 'a').write('x')\n"
    solver += (
        "    import asyncio\n    await asyncio.sleep(0 if __import__('os').path.exists('go') else 60)\n    return first"
    )
    run = "holdfast.run(task, models=['mock'], id='x')"
    last = f"import asyncio\nasync def main():\n    {run}\nasyncio.run(main())" if inside else run
    (tmp_path / "mine.py").write_text("\n".join(["import holdfast", solver, SCORER, TASK, last]))
    with subprocess.Popen(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        begun = tmp_path / "begun"
        assert wait_until(lambda: begun.exists() and begun.stat().st_size == 2, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    assert call("show", "x", "--json", cwd=tmp_path).json()["status"] == "interrupted"
    (tmp_path / "go").write_text("")
    done = python("mine.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = call("show", "x", "--json", cwd=tmp_path).json()
    assert (shown["status"], shown["steps"]["live"], shown["steps"]["replayed"]) == ("completed", 2, 2)
