"""Debugging one sample: `show RUN KEY`, `show RUN --failed …` and `replay RUN KEY [--pdb]`, as a user does it."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import ServerProcess, start_server_process
from tests.e2e.commands import Done, call, environment, finish, start, wait_until, write_rows, write_spec

SECRET = "sk-verysecret-0123456789abcdef"
SOLVERS = """\
import os

async def checked(sample, ctx, hint="Check it once more: "):
    first = await ctx.generate()
    second = await ctx.generate([*ctx.messages, first.message, {"role": "user", "content": hint + sample.input}])
    if sample.id == "s0002":
        raise LookupError("no luck with " + second.text + os.environ.get("MY_KEY", ""))
    return second.text

async def waiting(sample, ctx):
    await ctx.generate()
    import asyncio
    if not os.path.exists("go"):
        await asyncio.sleep(60)
    return await ctx.generate("7 + 1")

def judge(sample, answer):
    import holdfast
    return holdfast.Score(answer.text == sample.target, reason="compared", metadata={"with": sample.target})
"""
KEY = "sums/arith/s0001/1"
FAILED = "sums/arith/s0002/1"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with start_server_process() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Path:
    """A run `x` of three samples with two turns each; the second one's code raises."""
    made = tmp_path_factory.mktemp("samples")
    write_files(made, server)
    assert call("run", "eval.yaml", "--id", "x", cwd=made, env={"MY_KEY": SECRET}).code == 1
    return made


def write_files(folder: Path, server: ServerProcess, solver: str = "checked", **task: Any) -> None:
    (folder / "one_sample.py").write_text(SOLVERS)
    write_rows(folder / "shots.jsonl", [{"question": "1 + 1", "answer": "2"}])
    fields = {
        "solver": f"one_sample:{solver}",
        "scorers": ["numeric", "one_sample:judge"],
        "system": "You are exact.",
        "fewshot": {"path": "shots.jsonl", "n": 1},
        "sample_retries": 0,
        **task,
    }
    model = {"params": {"temperature": 0.0}, "headers": {"X-Key": "${MY_KEY:-none}"}}
    write_spec(folder, 3, server.base_url, task=fields, model=model)


def test_the_story_of_an_answer_is_whole(folder: Path) -> None:
    said = call("show", "x", KEY, cwd=folder).out
    told = [
        f"{KEY}  finished",
        "row:",
        "attempt 1  finished",
        "[system] You are exact.",
        "[user] Compute: 1 + 1",
        "[assistant] 2",
        "[user] Compute: 1 + 7",
        "[answer] 8",
        "finish reason stop",
        "turn 2  live",
        "… 5 messages as before",
        "[user] Check it once more: 1 + 7",
        "2 sent, 0 replayed",
        "\nanswer\n",
        "scores",
        "numeric: True (read 8)",
        "judge: True (compared)",
        '{"with":"8"}',
    ]
    at = [said.find(text) for text in told]
    assert -1 not in at, list(zip(told, at, strict=True))
    assert at == sorted(at), list(zip(told, at, strict=True))


def test_the_story_is_structured_for_scripts(folder: Path) -> None:
    story = call("show", "x", KEY, "--json", cwd=folder).json()
    assert (story["status"], story["key"], story["row"]["id"], story["failure"]) == ("finished", KEY, "s0001", None)
    assert [message["role"] for message in story["messages"]] == ["system", "user", "assistant", "user"]
    (attempt,) = story["attempts"]
    first, second = attempt["steps"]
    assert (first["how"], first["answer"], first["finish_reason"], first["tries"]) == ("live", "8", "stop", 1)
    assert first["usage"]["input_tokens"] > 0
    assert (second["kept"], second["after"], len(second["messages"])) == (5, first["n"], 1)
    assert attempt["spent"]["live"] == 2
    assert {score["scorer"]: (score["value"], score["reason"], score["current"]) for score in story["scores"]} == {
        "numeric": (True, "read 8", True),
        "judge": (True, "compared", True),
    }


def test_an_error_shows_the_users_own_lines_and_no_secret(folder: Path) -> None:
    done = call("show", "x", FAILED, cwd=folder)
    assert "failed: solver: LookupError: no luck with 16[redacted]" in done.out
    assert f'File "{folder}/one_sample.py", line 7, in checked' in done.out
    assert 'raise LookupError("no luck with "' in done.out
    assert "attempts.py" not in done.out
    assert SECRET not in done.out
    story = call("show", "x", FAILED, "--json", cwd=folder).json()
    assert story["failure"]["kind"] == "solver"
    assert "in checked" in story["failure"]["detail"]


def test_a_request_that_failed_for_good_shows_who_asked(tmp_path: Path, server: ServerProcess) -> None:
    write_files(tmp_path, server)
    spec = (tmp_path / "eval.yaml").read_text().replace(server.base_url, "http://127.0.0.1:9/v1")
    (tmp_path / "eval.yaml").write_text(spec.replace("fewshot", "request_retries: 0\n  fewshot", 0))
    assert call("run", "eval.yaml", "--id", "x", "--set", "models.arith.request_retries=0", cwd=tmp_path).code == 1
    said = call("show", "x", KEY, cwd=tmp_path).out
    assert "failed: connection: " in said
    assert "first = await ctx.generate()" in said


def test_steps_that_a_later_process_was_given_again_are_distinguished(tmp_path: Path, server: ServerProcess) -> None:
    write_files(tmp_path, server, "waiting")
    journal = tmp_path / "runs" / "sums" / "x" / "journal"
    with start("run", "eval.yaml", "--id", "x", cwd=tmp_path) as process:
        assert wait_until(lambda: steps_in(journal) == 3, process)
        live = call("show", "x", KEY, cwd=tmp_path).out
        as_json = call("show", "x", KEY, "--json", cwd=tmp_path).json()
        finish(process, signal.SIGKILL)
    assert f"{KEY}  unfinished" in live
    assert "turn 1  live" in live
    assert "[answer] 8" in live
    assert "not ended: it is under way" in live
    assert as_json["attempts"][0]["status"] == "unfinished"
    assert as_json["doing"]
    (tmp_path / "go").write_text("")
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    story = call("show", "x", KEY, "--json", cwd=tmp_path).json()
    (attempt,) = story["attempts"]
    assert [step["how"] for step in attempt["steps"]] == ["replayed", "live"]
    assert (attempt["spent"]["live"], attempt["spent"]["replayed"], story["doing"]) == (1, 1, "")


def steps_in(journal: Path) -> int:
    return sum(path.read_bytes().count(b'"t":"step"') for path in journal.glob("*.jsonl"))


def test_a_score_of_an_earlier_evaluation_is_reported_as_such(tmp_path: Path, server: ServerProcess) -> None:
    write_files(tmp_path, server, scorers=["numeric"])
    call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
    call("run", "eval.yaml", "--id", "x", "--set", "tasks.sums.scorers=[includes]", cwd=tmp_path)
    said = call("show", "x", KEY, cwd=tmp_path).out
    assert "numeric: True (read 8), from an earlier evaluation or answer" in said
    assert "  includes: True\n" in said


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--failed"], ["s0002"]),
        (["--kind", "solver"], ["s0002"]),
        (["--wrong"], []),
        (["--grep", "no luck"], ["s0002"]),
        (["--grep", "^(8|24)$"], ["s0001", "s0003"]),
        (["--grep", "S000"], ["s0001", "s0002", "s0003"]),
        (["--grep", "S000", "--limit", "2"], ["s0001", "s0002"]),
        (["--failed", "--grep", "nothing like it"], []),
    ],
    ids=" ".join,
)
def test_show_lists_the_samples_that_are_meant(folder: Path, options: list[str], ids: list[str]) -> None:
    listed = call("show", "x", *options, "--json", cwd=folder)
    assert listed.code == 0, listed.err
    assert [line["sample_id"] for line in listed.json()] == ids
    said = call("show", "x", *options, cwd=folder).out
    assert [f"sums/arith/{name}/1  " in said for name in ids] == [True] * len(ids)
    assert ("No sample matches" in said) == (not ids)


def test_show_lists_wrong_answers_with_their_scores(tmp_path: Path) -> None:
    write_spec(tmp_path, 3)
    call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
    said = call("show", "x", "--wrong", cwd=tmp_path).out
    title = "sums/arith/s0002/1  finished  numeric=False"
    asked = ["  question: 2 + 14", "  target: 16", "  prompt: Compute: 2 + 14"]
    assert said.splitlines()[:5] == [title, *asked, "  answer: 8"]
    assert "s0001" not in said


def test_show_says_which_kinds_there_are_and_that_there_is_more(folder: Path) -> None:
    slip = call("show", "x", "--kind", "solvr", cwd=folder)
    assert (slip.code, "did you mean 'solver'?" in slip.err) == (2, True)
    assert "1 of 3 are listed" in call("show", "x", "--grep", "s000", "--limit", "1", cwd=folder).out


@pytest.mark.parametrize("options", [["--grep", "("], [KEY, "--failed"]], ids=["no pattern", "a key and a list"])
def test_what_show_cannot_mean_is_refused(folder: Path, options: list[str]) -> None:
    done = call("show", "x", *options, cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("holdfast: ")


def replayed(folder: Path, *arguments: str, keys: str = "") -> Done:
    """`replay` in a process of its own that reads what is typed from a pipe."""
    command = [sys.executable, "-m", "holdfast", "replay", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), input=keys, capture_output=True, text=True, check=False, timeout=60
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_replay_gives_the_recorded_answer_and_sends_no_request(folder: Path, server: ServerProcess) -> None:
    before = server.stats().requests
    finished, failed = replayed(folder, "x", KEY), replayed(folder, "x", FAILED)
    assert (finished.code, finished.err) == (0, "")
    assert (
        finished.out == "2 steps replayed, 0 recorded steps left unused by the code; no request was sent\nanswer: 8\n"
    )
    assert failed.code == 1
    assert "solver: LookupError: no luck with 16" in failed.out
    assert "one_sample.py" in failed.out
    assert server.stats().requests == before


def test_a_replay_writes_nothing(folder: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert replayed(folder, "x", KEY).code == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == files


def test_changed_code_is_replayed_and_what_is_not_recorded_is_reported(tmp_path: Path, server: ServerProcess) -> None:
    write_files(tmp_path, server)
    call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
    (tmp_path / "one_sample.py").write_text(SOLVERS.replace("Check it once more: ", "Sure about "))
    before = server.stats().requests
    done = replayed(tmp_path, "x", KEY)
    assert done.code == 0
    assert "the solver's code has changed" in done.err
    assert "1 step replayed, 1 recorded step left unused" in done.out
    assert "the code then sends a request that is not recorded:" in done.out
    assert "user: Sure about 1 + 7" in done.out
    assert server.stats().requests == before


def test_a_replay_needs_no_key_of_a_model_and_no_scorer(tmp_path: Path, server: ServerProcess) -> None:
    write_files(tmp_path, server)
    spec = (tmp_path / "eval.yaml").read_text().replace("${MY_KEY:-none}", "${MY_KEY}")
    (tmp_path / "eval.yaml").write_text(spec)
    (tmp_path / "scorers_of_mine.py").write_text("def fine(sample, answer): return True\n")
    sets = ("--set", "tasks.sums.scorers=['scorers_of_mine:fine']")
    call("run", "eval.yaml", "--id", "x", *sets, cwd=tmp_path, env={"MY_KEY": SECRET})
    (tmp_path / "scorers_of_mine.py").unlink()
    assert replayed(tmp_path, "x", KEY).out.endswith("answer: 8\n")


def test_a_solver_that_only_a_script_has_is_not_replayed_as_another(tmp_path: Path) -> None:
    script = (
        "import holdfast\n"
        "async def mine(sample, ctx):\n    return 'mine'\n"
        "task = holdfast.Task('t', [{'q': '1'}], '{q}', solver=mine)\n"
        "holdfast.run(task, ['mock/m'], id='x')\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment(), check=True)
    done = replayed(tmp_path, "x", "t/m/1/1")
    assert done.code == 2
    assert "module:function" in done.err


def test_a_key_that_is_none_is_refused(folder: Path) -> None:
    for key in ("nonsense", "sums/arith/s9999/1", "other/arith/s0001/1"):
        done = replayed(folder, "x", key)
        assert (done.code, done.out) == (2, "")
        assert key in done.err


def test_the_debugger_stops_at_the_solvers_first_line_and_where_it_raises(folder: Path, server: ServerProcess) -> None:
    before = server.stats().requests
    done = replayed(folder, "x", FAILED, "--pdb", keys="p sample.id\nc\np second.text\nq\n")
    assert "-> first = await ctx.generate()" in done.out
    assert "'s0002'" in done.out
    assert '-> raise LookupError("no luck with "' in done.out
    assert "'16'" in done.out
    assert done.code == 1
    assert "Traceback" not in done.err
    assert server.stats().requests == before


@pytest.mark.parametrize("keys", ["q\n", ""], ids=["quit", "end of input"])
def test_the_debugger_can_be_left(folder: Path, keys: str) -> None:
    done = replayed(folder, "x", KEY, "--pdb", keys=keys)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("the debugger was quit before the sample ended\n")


def test_the_debugger_works_on_a_terminal(folder: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "replay", "x", KEY, "--pdb"]
    env = environment({"TERM": "dumb"})
    with subprocess.Popen(command, cwd=folder, env=env, stdin=child, stdout=child, stderr=child) as process:
        os.close(child)
        said = read_until(parent, "(Pdb) ")
        os.write(parent, b"n\n")
        said += read_until(parent, "(Pdb) ")
        os.write(parent, b"p first.text\n")
        said += read_until(parent, "(Pdb) ")
        os.write(parent, b"c\n")
        said += read_until(parent, "answer: ")
        assert process.wait(60) == 0
    os.close(parent)
    assert "-> first = await ctx.generate()" in said
    assert "'8'" in said


def read_until(terminal: int, text: str) -> str:
    said = ""
    while text not in said:
        said += os.read(terminal, 4096).decode()
    return said


def test_show_of_a_key_can_be_cut_short_by_a_pipe(folder: Path) -> None:
    command = f"{sys.executable} -m holdfast show x {KEY} | head -1"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{KEY}  finished\n", "")


def test_the_json_of_a_story_is_json(folder: Path) -> None:
    for key in (KEY, FAILED):
        assert json.loads(call("show", "x", key, "--json", cwd=folder).out)["run_id"] == "x"
