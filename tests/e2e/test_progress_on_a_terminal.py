"""The progress of real runs as a person sees it: on terminals of several widths, in CI, and from Python.

The screens of docs/howto/watch-a-run.md are compared with what is shown here, but for numbers and the length of bars.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import call, environment, run
from tests.e2e.test_guide import Block, blocks, comparable
from tests.screens import Watched, watch

PAGE = "howto/watch-a-run.md"
ROWS = 1000
SMALL: dict[str, Any] = {"name": "small", "latency_seconds": 0.15, "max_connections": 16}
LARGE: dict[str, Any] = {"name": "large", "latency_seconds": 0.3, "max_connections": 8}
LOCAL: dict[str, Any] = {"name": "local", "latency_seconds": 0.4, "max_connections": 4}
SLOW = [{"kind": "rate_limit", "every": 9, "times": 1, "retry_after": 3.0, "message": "429 Too Many Requests"}]
PRICE = {"input": 400.0, "output": 1600.0}


def model(name: str, latency_seconds: float, max_connections: int, **options: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "provider": "mock", "max_connections": max_connections}
    made["options"] = {"reply": ["4", "The answer is 4."], "latency_seconds": latency_seconds, **options}
    return made if name == "local" else made | {"price": PRICE}


def write_spec(
    folder: Path, models: list[dict[str, Any]], scorers: tuple[str, ...] = ("exact_match",), count: int = ROWS
) -> Path:
    rows = [{"id": f"s{number}", "question": f"1 + {number % 7}", "target": "4"} for number in range(count)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "sums", "dataset": {"path": "sums.jsonl"}, "prompt": "{id}: {question}", "scorers": list(scorers)}
    spec = folder / "sums.yaml"
    spec.write_text(yaml.safe_dump({"experiment": "sums", "models": models, "tasks": [task]}))
    return spec


def on_terminal(folder: Path, width: int, until: Any = lambda lines: False, **env: str) -> Watched:
    return on_a_pty([sys.executable, "-m", "holdfast", "run", "sums.yaml", "--id", "x"], folder, width, until, **env)


def on_a_pty(command: list[str], folder: Path, width: int, until: Any = lambda lines: False, **env: str) -> Watched:
    changes = {"TERM": "xterm-256color", "CI": "", "TZ": "UTC", **env}
    return watch(command, folder, environment(changes), (width, 24), until)


def without_bars(line: str) -> str:
    """A busy machine may need minutes where the page has seconds."""
    return re.sub(r"\b0 (min|h)\b", "0 s", re.sub(r"[█░]+", "█", comparable(line)))


def shows(block: Block, lines: list[str]) -> bool:
    """Whether the screen ends with the lines of a block."""
    expected = [without_bars(line) for line in block.text.splitlines()]
    return [without_bars(line) for line in lines[-len(expected) :]] == expected


SCREENS: list[tuple[int, list[dict[str, Any]], tuple[str, ...]]] = [
    (80, [model(**SMALL)], ("exact_match",)),
    (80, [model(**SMALL, failures=SLOW)], ("exact_match",)),
    (80, [model(**SMALL), model(**LARGE), model(**LOCAL)], ("exact_match",)),
    (140, [model(**SMALL), model(**LARGE), model(**LOCAL)], ("exact_match", "numeric")),
    (40, [model(**SMALL)], ("exact_match",)),
    (40, [model(**SMALL), model(**LARGE), model(**LOCAL)], ("exact_match",)),
]


QUICK_SCREENS = (1, 3, 5)


@pytest.mark.parametrize(
    "number",
    [pytest.param(each, marks=() if each in QUICK_SCREENS else pytest.mark.long) for each in range(len(SCREENS))],
)
def test_the_screens_of_the_page_are_what_a_run_shows(number: int, tmp_path: Path) -> None:
    width, models, scorers = SCREENS[number]
    block = [each for each in blocks(PAGE) if each.language == "text"][number]
    assert max(map(len, block.text.splitlines())) < width
    write_spec(tmp_path, models, scorers)
    watched = on_terminal(tmp_path, width, lambda lines: shows(block, lines))
    assert watched.seen, "\n".join(watched.lines)


@pytest.mark.long
def test_the_plain_lines_of_the_page_are_what_a_log_gets(tmp_path: Path) -> None:
    """The run takes longer than the ten seconds after which the first line is due."""
    block = [each for each in blocks(PAGE) if each.language == "text"][len(SCREENS)]
    failures = [{"kind": "server", "every": 7, "times": 1, "message": "503 Service Unavailable"}]
    write_spec(tmp_path, [model("small", 0.25, 1, failures=failures)], count=90)
    watched = on_terminal(tmp_path, 120, lambda lines: shows(block, lines), CI="true")
    assert watched.seen, watched.raw
    assert "\x1b" not in watched.raw


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL), model(**LOCAL)], count=20)
    done = run("run", "sums.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 0
    assert "\x1b" not in done.err
    first, last = done.err.splitlines()
    assert first.startswith("run sums/x in ")
    total = r"40/40  100%  .*  took .*  \$0\.\d+\+  0 failed"
    assert re.fullmatch(rf"{total}  \(small 100% exact_match 0\.\d\d, local 100% .*\)", last)


@pytest.mark.parametrize("env", [{"CI": "true"}, {"TERM": "dumb"}], ids=["CI", "dumb"])
def test_a_terminal_that_is_a_log_gets_plain_lines(env: dict[str, str], tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL)], count=20)
    watched = on_terminal(tmp_path, 100, **env, NO_COLOR="1")
    assert watched.code == 0
    assert "\x1b[2K" not in watched.raw
    assert [line for line in watched.lines if line.startswith("20/20  100%  ")] != []


@pytest.mark.parametrize("width", [40, pytest.param(80, marks=pytest.mark.long)])
def test_the_last_state_stays_above_the_report(width: int, tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL), model(**LARGE)], count=40)
    watched = on_terminal(tmp_path, width)
    assert watched.code == 0
    (total,) = (number for number, line in enumerate(watched.lines) if line.startswith("total"))
    assert "80/80" in watched.lines[total]
    assert "took" in watched.lines[total]
    assert [line.split()[0] for line in watched.lines[total - 3 : total]] == ["model", "small", "large"]
    assert watched.lines[total + 1].startswith("sums/x  completed")
    assert sum("80/80" in line for line in watched.lines) == 1, "it was replaced in place"


def test_colours_can_be_turned_off(tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL)], count=8)
    assert "\x1b[36m█" in on_terminal(tmp_path, 80).raw
    write_spec(tmp_path, [model(**SMALL)], count=8)
    command = [sys.executable, "-m", "holdfast", "run", "sums.yaml", "--id", "y", "--no-color"]
    plain = on_a_pty(command, tmp_path, 80).raw
    assert "█" in plain
    assert "\x1b[36m" not in plain


def test_an_encoding_without_blocks_gets_a_bar_too(tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL)], count=8)
    watched = on_terminal(tmp_path, 80, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert [line for line in watched.lines if line.startswith("#####") and "8/8" in line] != []


SCRIPT = """
import logging, sys
import holdfast

logging.basicConfig()

async def solve(sample, ctx):
    answer = await ctx.generate()
    if sample.id == "s9":
        print("printed by a solver")
        logging.warning("logged by a solver")
    return answer

rows = [{"id": f"s{number}", "question": "2 + 2", "target": "4"} for number in range(100)]
task = holdfast.Task("sums", rows, "{question}", solver=solve, scorers=["exact_match"])
options = {"reply": "4", "latency_seconds": 0.2}
models = [{"name": name, "provider": "mock", "max_connections": 8, "options": options} for name in ("small", "large")]
holdfast.run(task, models=models, id="x").close()
print("after the run")
"""


@pytest.mark.parametrize("width", [pytest.param(40, marks=pytest.mark.long), 140])
def test_a_python_script_shows_the_same_as_the_command(width: int, tmp_path: Path) -> None:
    watched = on_a_pty([sys.executable, "-c", SCRIPT], tmp_path, width)
    assert watched.code == 0
    head, small, large, total = watched.lines[-5:-1]
    assert watched.lines[:-5] == ["printed by a solver", "WARNING:root:logged by a solver"] * 2, "above the block"
    assert [line.split()[0] for line in (head, small, large, total)] == ["model", "small", "large", "total"]
    assert "200/200" in total
    assert watched.lines[-1] == "after the run"
    assert ("1.00" in small) == (width > 40), "the running score, if there is room"


def test_a_python_script_without_a_terminal_says_little(tmp_path: Path) -> None:
    """Short runs of scripts and tests have no output of their own."""
    watched = on_a_pty([sys.executable, "-c", SCRIPT.replace("range(100)", "range(12)")], tmp_path, 80, CI="true")
    assert watched.lines == ["printed by a solver", "WARNING:root:logged by a solver"] * 2 + ["after the run"]


def test_the_progress_file_has_each_model(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, [model(**SMALL), model(**LOCAL)], count=8)
    spec.write_text(spec.read_text() + "progress_file: progress.json\n")
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == 0
    models = json.loads((tmp_path / "progress.json").read_text())["models"]
    assert [(name, each["finished"], each["has_unpriced"]) for name, each in models.items()] == [
        ("small", 8, False),
        ("local", 8, True),
    ]
    assert models["small"]["dollars"] > 0
    assert models["local"]["scores"]["exact_match"]["samples"] == 8


def test_a_resumed_run_counts_what_was_done_and_shows_its_scores(tmp_path: Path) -> None:
    write_spec(tmp_path, [model(**SMALL)], count=400)
    killed = on_terminal(tmp_path, 80, lambda lines: any(re.search(r"\b[1-9]\d+/400", line) for line in lines))
    assert killed.seen
    resumed = on_terminal(tmp_path, 80, lambda lines: any("failed" in line for line in lines))
    assert resumed.seen
    (continuing,) = (line for line in resumed.lines if line.startswith("continuing: "))
    before = int(continuing.split()[1])
    (bar,) = (line for line in resumed.lines if "/400" in line)
    assert int(re.findall(r"(\d+)/400", bar)[0]) >= before > 0
    assert "exact_match —" not in "".join(resumed.lines), "scores of the first process are there at once"
