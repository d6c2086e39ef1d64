"""No text of a stranger controls the terminal: every command, every format, on a pipe and on a pseudo-terminal.

The store is made by the real engine with a server, data and names that carry escape sequences everywhere. Each command
is also run with the cleaner removed, and then the escapes must come through: so the test sees every text it means to.
"""

import contextlib
import csv
import fcntl
import html
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import holdfast
from holdfast.cli.app import offer_runs
from holdfast.printable import CleanStream
from tests.e2e.commands import Done, call, environment, finish, start, wait_until, write_rows
from tests.security.poison import (
    ARGUMENT,
    EXPERIMENT,
    FORGED,
    OTHER,
    PARTS,
    POISON,
    RUN,
    call_on_terminal,
    finished_key,
    harmful_in,
    make_store,
    poisoned_server,
    remove_cleaner,
    rewrite_journal,
    write_spec,
)

READING = [
    "show r",
    "show r KEY",
    "show r KEY --full",
    "show r KEY --json",
    "show r --json",
    "show r --failed",
    "show r --failed --json",
    "show r --profile",
    "show r --profile --json",
    "show r --task POISON",
    "replay r KEY",
    "report r",
    "report r r2",
    "report r --json",
    "report r --format markdown",
    "report r --format latex",
    "report r --format html",
    "report r --format junit",
    "report r --format POISON",
    "export r",
    "export r --events",
    "export r --format csv",
    "compare r r2",
    "compare r r2 --json",
    "leaderboard r r2",
    "leaderboard r r2 --format md",
    "leaderboard r r2 --format csv",
    "leaderboard r r2 --json",
    "gate r2 --baseline r2 --margin 0.1 --scorer exact_match",
    "gate r --at-least 0.5 --json",
    "cost r",
    "cost r --json",
    "cost eval.yaml",
    "score r --list",
    "score r --list --json",
    "check eval.yaml --json",
    "check POISON.yaml",
    "run eval.yaml --dry-run",
    "run eval.yaml --dry-run --json",
    "run eval.yaml --id r --set tasks.0.prompt=POISON",
    "run POISON.yaml",
]
HARMLESS = [
    "show r POISON",
    "show POISON",
    "show --POISON",
    "POISON",
    "export r --grep (POISON",
    "check eval.yaml",
    "run eval.yaml --set POISON=1",
    "gc POISON",
    "doctor POISON",
    "ls",
    "ls --json",
    "verify r",
    "verify r --scores",
    "doctor",
    "gc",
    "recover --list",
    "schema",
    "--help",
]
"""These print no text of strangers in this store, or only as Python quotes it."""
PLAIN_PARTS = """\
import holdfast

@holdfast.tool
def look_up(text: str) -> str:
    "Look it up."
    return text

async def solve(sample, ctx):
    answer = await ctx.generate()
    await ctx.call(look_up, {"text": "something"})
    if sample.id == "b":
        raise ValueError("something is wrong")
    return answer
"""
WAITING = """
async def wait(sample, ctx):
    import asyncio, pathlib
    await ctx.generate()
    pathlib.Path("begun").touch()
    await asyncio.sleep(600)
"""
MULTI_LINE = ("csv", "html", "junit")
"""Formats in which a text keeps its line breaks."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("poisoned")
    make_store(folder)
    return folder


def words(command: str, store: Path) -> list[str]:
    names = {"KEY": finished_key(store)}
    return [names.get(word, word.replace("POISON", ARGUMENT)) for word in command.split()]


def printed(done: Done) -> str:
    assert "\nTraceback" not in f"\n{done.said}", done.said[-2000:]
    return done.said


@pytest.mark.parametrize("command", [*READING, *HARMLESS])
def test_no_command_prints_a_control_character(command: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = words(command, store)
    piped, seen = call(*argv, cwd=store), call_on_terminal(*argv, cwd=store)
    assert harmful_in(printed(piped)) == []
    assert "\x1b" not in piped.said
    assert harmful_in(printed(seen)) == []
    assert piped.code == seen.code
    if not command.endswith(MULTI_LINE):
        assert not any(line.startswith(FORGED) for line in piped.said.split("\n"))
    if command in READING:
        remove_cleaner(monkeypatch)
        raw = call(*argv, cwd=store)
        assert raw.code == piped.code
        assert harmful_in(raw.said) != [], "the test does not see the poison"


CHANGING = [
    "retry r POISON",
    "retry r --kind POISON",
    "retry r",
    "extend r --set tasks.0.prompt=POISON",
    "extend r --set tasks.0.repeats=2",
    "fork r --id POISON",
    "fork r --id g --dry-run",
    "fork r --id f",
    "fork r2 --id h --set tasks.0.prompt=POISON --set models.0.params.stop=POISON",
    "cancel r",
    "cancel POISON",
    "tune r --set concurrency.samples=POISON",
    "tune r --set POISON=1",
    "tune POISON --set concurrency.samples=2",
    "export r --format parquet --output POISON.parquet",
    "export r --format parquet --output missing-POISON/x.parquet",
    "report r --plots figures-POISON",
    "report r r2 --plots figures --plot-format svg",
    "report r --plots figures --plot-format POISON",
]


@pytest.mark.parametrize("way", [call_on_terminal, pytest.param(call, marks=pytest.mark.long)])
def test_commands_that_change_a_run_or_write_files_print_no_control_character(
    way: Callable[..., Done], tmp_path: Path
) -> None:
    """In the order in which a user could type them, against a server that still answers."""
    with poisoned_server() as base_url:
        spec = write_spec(tmp_path, base_url)
        for run_id in (RUN, OTHER):
            assert call("run", spec, "--id", run_id, cwd=tmp_path).code == 1
        for command in CHANGING:
            done = way(*(word.replace("POISON", ARGUMENT) for word in command.split()), cwd=tmp_path)
            assert harmful_in(printed(done)) == [], command
            assert not any(line.startswith(FORGED) for line in done.said.split("\n")), command
            assert done.code in (0, 1, 2, 3), (command, done.said)


@pytest.mark.parametrize(
    "command",
    [
        "retry r2",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("fork r2 --id n", "extend r2 --set tasks.0.repeats=2")
        ),
    ],
)
def test_without_the_cleaner_commands_that_change_a_run_print_them(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    with poisoned_server() as base_url:
        assert call("run", write_spec(tmp_path, base_url), "--id", OTHER, cwd=tmp_path).code == 1
        remove_cleaner(monkeypatch)
        assert harmful_in(call(*command.split(), cwd=tmp_path).said) != []


@pytest.mark.long
def test_cancelling_and_tuning_a_live_run_is_as_clean(tmp_path: Path) -> None:
    """The names of the run's parts, and why it ended, carry escapes; the command waits for the live process."""
    with poisoned_server() as base_url:
        spec = yaml.safe_load(write_spec(tmp_path, base_url).read_text())
        (tmp_path / "poison_parts.py").write_text(f"{PARTS}{WAITING}")
        for task in spec["tasks"]:
            task["solver"] = "poison_parts:wait"
        (tmp_path / "eval.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        with start("run", "eval.yaml", "--id", RUN, cwd=tmp_path) as process:
            assert wait_until((tmp_path / "begun").exists, process)
            for command in (
                ["tune", RUN, "--set", "concurrency.samples=3"],
                ["tune", RUN, "--set", f"tasks.task{ARGUMENT}.prompt={ARGUMENT}"],
                ["cancel", RUN],
            ):
                done = call_on_terminal(*command, cwd=tmp_path)
                assert harmful_in(printed(done)) == [], command
            ended = finish(process)
        assert harmful_in(ended.said) == []


def test_a_parquet_file_holds_the_original_text_and_figures_none_that_controls(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.parquet"
    assert call("export", RUN, "--format", "parquet", "--output", path, cwd=store).code == 0
    assert f"8{POISON}" in parquet.read_table(path).column("output").to_pylist()
    done = call("report", RUN, OTHER, "--plots", tmp_path / "figures", "--plot-format", "svg", cwd=store)
    assert done.code == 0, done.said
    figures = list((tmp_path / "figures").iterdir())
    assert figures
    for figure in figures:
        assert harmful_in(figure.name) == []
        text = figure.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert harmful_in(text) == []


@pytest.mark.parametrize("format", ["markdown", "latex", "html", "junit", "json"])
def test_a_report_in_a_file_has_no_control_character(format: str, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "report"
    done = call("report", RUN, "--format", format, "--output", path, cwd=store)
    assert done.code == 0, done.err
    written = path.read_text(encoding="utf-8")
    assert harmful_in(written) == []
    assert "u001b[2J" in html.unescape(written).replace("\\[", "[")  # shown, not dropped
    if format == "junit":
        ElementTree.fromstring(written)


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_an_export_in_a_file_has_the_bytes_of_standard_output(format: str, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "export"
    assert call("export", RUN, "--format", format, "--output", path, cwd=store).code == 0
    written = path.read_bytes().decode()
    assert harmful_in(written) == []
    assert written == call("export", RUN, "--format", format, cwd=store).out


def test_a_parser_gets_the_original_text_back(store: Path) -> None:
    lines = [json.loads(line) for line in call("export", RUN, cwd=store).out.split("\n") if line]
    (line, _) = [line for line in lines if line["status"] == "finished"]
    assert (line["output"], line["finish_reason"]) == (f"8{POISON}", POISON)
    assert (line["task"], line["model"]) == (f"task{POISON}", f"answering{POISON}")
    assert f"ValueError: {POISON}" in {line["error"]["message"] for line in lines if line["error"]}
    story = call("show", RUN, line["key"], "--json", cwd=store).json()
    assert story["answer"]["text"] == f"8{POISON}"
    assert call("show", RUN, "--json", cwd=store).json()["notes"][0]["text"] == f"note{POISON}"


def test_a_spreadsheet_finds_no_formula(store: Path) -> None:
    rows = list(csv.reader(io.StringIO(call("export", RUN, "--format", "csv", cwd=store).out, newline="")))
    assert len({len(row) for row in rows}) == 1
    assert not any(cell.lstrip()[:1] in tuple("=+-@＝＋－＠") for row in rows for cell in row)  # noqa: RUF001


@pytest.mark.parametrize("format", ["markdown", "latex"])
def test_a_text_does_not_leave_its_row(format: str, store: Path) -> None:
    """Each row of a table has as many cells as its head."""
    text = call("report", RUN, "--format", format, cwd=store).out
    separator, row = ("|", r"^\|.*") if format == "markdown" else ("&", r".*\\\\$")
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) > 3
    assert len({line.replace(f"\\{separator}", "").count(separator) for line in rows}) == 1


@pytest.mark.long
def test_a_lease_of_another_machine_has_no_power_over_the_terminal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksum protects the lease. One run is held by a process here, the other was cut off on another machine."""
    folder = Path(shutil.copytree(store, tmp_path / "copy"))
    held, lost = (folder / "runs" / EXPERIMENT / name for name in (RUN, OTHER))
    sample = {"key": f"key{POISON}", "doing": f"doing{POISON}", "since": time.time(), "stack": [POISON]}
    for run in (held, lost):
        lease = json.loads((run / "lease.json").read_bytes()) | {"released": False, "held": POISON, "oldest": [sample]}
        lease["holder"] = {"pid": 1, "host": f"host{POISON}", "boot": POISON, "started": POISON, "space": POISON}
        lease["stall"] = {"since": time.time(), "why": f"why{POISON}", "samples": [sample]}
        lease.pop("end")
        (run / "lease.json").write_text(json.dumps(lease))
    rewrite_journal(lost, lambda line: line.update(t=line["t"].replace("run.completed", "x-lost")))
    commands = ["show r", "show r --json", "show r2", "show r2 --json", "ls", "ls --json", "doctor", "resume r"]
    with open(held / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = [way(*command.split(), cwd=folder) for command in commands for way in (call, call_on_terminal)]
        assert [harmful_in(printed(each)) for each in done] == [[]] * len(done)
        for text in ("host", "doing"):
            assert any(f"{text}\\u001b[2J" in each.said for each in done), text
        remove_cleaner(monkeypatch)
        for name in (RUN, OTHER):
            assert harmful_in(call("show", name, cwd=folder).said) != []


def test_a_real_process_is_as_clean(store: Path) -> None:
    """Not this process with its streams replaced: the command as a user starts it, on a pipe and on a terminal."""
    argv = [sys.executable, "-m", "holdfast", "replay", RUN, finished_key(store)]
    piped = subprocess.run(argv, cwd=store, env=environment(), capture_output=True, timeout=60, check=False)
    assert harmful_in((piped.stdout + piped.stderr).decode()) == []
    assert b"\x1b" not in piped.stdout + piped.stderr
    text = run_on_terminal(argv, store)
    assert harmful_in(text) == []
    assert "u001b[2J" in text


def test_the_live_line_of_a_run_is_clean(tmp_path: Path) -> None:
    """A run on a terminal, with its progress, its failures, and what its solver prints."""
    with poisoned_server() as base_url:
        spec = write_spec(tmp_path, base_url)
        text = run_on_terminal([sys.executable, "-m", "holdfast", "run", str(spec), "--id", RUN], tmp_path)
    assert "\r\x1b[2K" in text
    assert "printed by a solver \\u001b[2J" in text
    assert harmful_in(text) == []


def run_on_terminal(argv: list[str], folder: Path) -> str:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        argv, cwd=folder, env=environment({"TERM": "xterm-256color"}), stdin=follower, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        seen = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while piece := os.read(leader, 65536):
                seen += piece
        os.close(leader)
        process.wait(60)
    return seen.decode()


def test_without_the_stream_a_solver_and_an_error_reach_the_terminal(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the one place that nothing can pass by."""
    monkeypatch.setattr(CleanStream, "write", lambda self, text: self.unfiltered.write(text))
    assert harmful_in(call("replay", RUN, finished_key(store), cwd=store).out) != []


def test_no_module_writes_past_the_streams() -> None:
    """A new one has to be looked at, and named here if what it writes is clean."""
    past = re.compile(r"sys\.__std|std(?:out|err)\.buffer|os\.write\([12],|\bConsole\(")
    root = Path(holdfast.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if past.search(path.read_text())}
    assert found == {
        "cli/executor.py",  # in a signal handler, only words of its own
        "cli/signals.py",  # in a signal handler, cleaned
        "sandbox/launcher.py",  # into a pipe, in the sandbox
        "report/tables.py",  # into a text, which is printed through the streams
        "view/worker.py",  # into a pipe, to the viewer
    }


def test_python_prints_reports_and_stories_without_control_characters(store: Path) -> None:
    with holdfast.open_run(RUN, store=str(store / "runs")) as run:
        story = run.show(finished_key(store))
        shown = [str(run.report()), repr(run.samples()), str(story), repr(run)]
        pages = [run.report()._repr_html_(), run.samples()._repr_html_(), story._repr_html_()]
    for text in (*shown, *pages):
        assert harmful_in(text) == []


def test_tab_offers_no_name_that_a_shell_would_run(tmp_path: Path) -> None:
    for name in ("fine", "x;reboot", "$(reboot)", "a b", quote("x\x1b[2J")):
        (tmp_path / EXPERIMENT / name / "journal").mkdir(parents=True)
    assert [name for name, _ in offer_runs(str(tmp_path), "")] == ["latest", "fine"]


def fields_of(run: Path) -> list[tuple[str, str]]:
    """The type of a record, and the place in it, of every text in a journal."""
    found: dict[tuple[str, str], None] = {}

    def look(line: dict[str, Any]) -> None:
        for place in places(line["d"], ""):
            found[line["t"], place] = None
        found[line["t"], "@"] = None

    rewrite_journal(run, look)
    return list(found)


def places(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, str):
        yield at
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from places(each, f"{at}.{name}")
    for each in value if isinstance(value, list) else ():
        yield from places(each, f"{at}[]")


def poisoned(value: Any, at: str, place: str) -> Any:
    if isinstance(value, str):
        return f"{value}{POISON}" if at == place else value
    if isinstance(value, dict):
        return {name: poisoned(each, f"{at}.{name}", place) for name, each in value.items()}
    return [poisoned(each, f"{at}[]", place) for each in value] if isinstance(value, list) else value


@pytest.mark.long
def test_no_field_of_a_journal_has_power_over_the_terminal(tmp_path: Path, plain_store: Path) -> None:
    """Field by field, with checksums that are right: also texts that no server can set, as kinds, ids and times. A
    command may fail on what no Holdfast wrote; what it prints then is clean too.
    """
    fields = fields_of(Path(shutil.copytree(plain_store, tmp_path / "look")) / "runs" / EXPERIMENT / RUN)
    assert len(fields) > 40
    shown = 0
    for number, (kind, place) in enumerate(fields):
        folder = Path(shutil.copytree(plain_store, tmp_path / str(number)))

        def change(line: dict[str, Any], kind: str = kind, place: str = place) -> None:
            if line["t"] == kind:
                line["d"] = poisoned(line["d"], "", place)
                line["at"] += POISON if place == "@" else ""

        rewrite_journal(folder / "runs" / EXPERIMENT / RUN, change)
        for command in (
            "ls",
            "show r",
            "show r t/m/a/1",
            "show r t/m/b/1",
            "report r",
            "export r",
            "verify r",
            "doctor",
        ):
            done = call_on_terminal(*command.split(), cwd=folder)
            assert harmful_in(done.said) == [], (kind, place, command)
            shown += "u001b[2J" in done.out
        shutil.rmtree(folder)
    assert shown > 20


@pytest.fixture
def plain_store(tmp_path: Path) -> Path:
    """A small run without anything harmful in it."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "plain_parts.py").write_text(PLAIN_PARTS)
    write_rows(folder / "rows.jsonl", [{"id": each, "question": "4 + 4", "answer": "8"} for each in "ab"])
    dataset = {"path": "rows.jsonl", "id": "id", "input": "question", "target": "answer"}
    task = {"name": "t", "dataset": dataset, "prompt": "Compute: {question}", "scorers": ["exact_match"]}
    task["solver"] = "plain_parts:solve"
    models = [{"name": "m", "provider": "mock", "options": {"reply": "8"}}]
    spec = {"experiment": EXPERIMENT, "models": models, "tasks": [task], "tags": ["tagged"]}
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))
    assert call("run", "eval.yaml", "--id", RUN, cwd=folder).code == 1
    return folder
