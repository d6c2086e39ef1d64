"""Answers of many megabytes: memory stays bounded, every text is kept, and what cannot be saved says why."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.commands import call, environment, run, start

SIZE = 10_000_000
SAMPLES = 10
PARTS = """\
import asyncio, os
from holdfast.records.samples import Answer

def text_of(name, size):
    return (name + " word" * (size // 5))[:size]

async def reply(request):
    name, size = request.messages[-1]["content"].split()
    return text_of(name, int(size))

async def solve(sample, ctx):
    answer = await ctx.generate()
    if os.path.exists("block"):
        open(f"waits-{sample.id}", "w").close()
        await asyncio.Event().wait()
    return answer
"""
MEASURED = """\
import resource, sys
from holdfast.cli.main import main
code = 0
try:
    main()
except SystemExit as error:
    code = error.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""


def stage(folder: Path, sizes: list[int]) -> None:
    (folder / "parts.py").write_text(PARTS)
    (folder / "measured.py").write_text(MEASURED)
    rows = ({"id": f"s{number:02}", "input": f"s{number:02} {size}"} for number, size in enumerate(sizes))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = {
        "models": [{"name": "m", "provider": "parts:reply"}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "solver": "parts:solve", "scorers": ["includes"]}],
    }
    (folder / "spec.json").write_text(json.dumps(spec))


def peak_bytes(folder: Path, *arguments: str) -> int:
    """The peak memory of a command that runs in a process of its own."""
    command = [sys.executable, "measured.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(None), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1])


def text_of(name: str, size: int) -> str:
    return (name + " word" * (size // 5))[:size]


def exported(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_a_killed_run_of_large_answers_is_resumed_and_read_in_the_memory_of_a_few_answers(tmp_path: Path) -> None:
    stage(tmp_path, [SIZE] * SAMPLES)
    (tmp_path / "block").touch()
    with start("run", "spec.json", "--id", "x", cwd=tmp_path) as process:
        while len(list(tmp_path.glob("waits-*"))) < SAMPLES:
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / "block").unlink()
    idle = peak_bytes(tmp_path, "ls", "--json")
    for command in (
        ("resume", "x"),
        ("export", "x", "--format", "jsonl", "--output", "out.jsonl"),
        ("score", "x", "--scorers", "exact_match"),
    ):
        grown = (peak_bytes(tmp_path, *command) - idle) / SIZE
        assert grown < 20, f"{command[0]} took the memory of {grown:.1f} answers"
    assert [line["output"] for line in exported(tmp_path)] == [text_of(f"s{n:02}", SIZE) for n in range(SAMPLES)]
    assert call("show", "x", "--json", cwd=tmp_path).json()["steps"]["live"] == SAMPLES  # nothing was asked twice


def test_an_answer_above_the_limit_fails_with_the_limit_and_not_with_the_solvers_code(tmp_path: Path) -> None:
    stage(tmp_path, [10, 50_000_000, 70_000_000])
    done = run("run", "spec.json", "--id", "x", cwd=tmp_path)
    assert done.code == 1, done.said
    found = call("show", "x", "--json", cwd=tmp_path).json()
    assert (found["finished"], found["failed"]) == (2, 1)
    (failure,) = found["failures"]
    assert failure["kind"] == "too_large"
    report = call("report", "x", cwd=tmp_path).said
    assert "at most 64 MiB" in " ".join(report.split())
    assert "solver's code" not in report


def test_large_answers_stay_whole_without_their_steps_in_a_fork_and_among_events(tmp_path: Path) -> None:
    sizes = [200_000, 300_000]
    stage(tmp_path, sizes)
    assert run("run", "spec.json", "--id", "x", cwd=tmp_path).code == 0
    texts = [text_of(f"s{n:02}", size) for n, size in enumerate(sizes)]
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/x/journal"))
    assert call("fork", "x", "--id", "y", cwd=tmp_path).code == 0
    done = call("recover", str(folder), "--no-events", "--output", "condensed", cwd=tmp_path)
    assert done.code == 0, done.said
    (condensed,) = (path.parent for path in tmp_path.glob("condensed/**/journal"))
    for place in (str(condensed), "y", "x"):
        done = call("export", place, "--events", "--format", "jsonl", "--output", "out.jsonl", cwd=tmp_path)
        assert done.code == 0, done.said
        assert [line["output"] for line in exported(tmp_path)] == texts
    for line, text in zip(exported(tmp_path), texts, strict=True):
        answers = [event["d"]["answer"] for event in line["events"] if "answer" in event["d"]]  # type: ignore[attr-defined]
        assert answers
        assert all(each["message"]["content"] == each["text"] == text for each in answers)
        assert line["messages"][-1]["content"] == text  # type: ignore[index]
