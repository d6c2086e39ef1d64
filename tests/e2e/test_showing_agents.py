"""`show RUN KEY` of agents: turns, calls, costs, resumes, what is under way and what nobody knows."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.report.text import dollars
from tests.e2e.agents import agent, serving, write
from tests.e2e.commands import call, run, start
from tests.e2e.live_runs import wait_for

KEY = "t/m/s0/1"
TOOLS = '''
import asyncio, os, signal
from pathlib import Path
import holdfast

HERE = Path(__file__).parent

@holdfast.tool
async def note(n: int) -> str:
    """Write a number down."""
    if n == 21:
        raise LookupError("no room for 21")
    if n == 40 and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "a long line of the result\\\\n" * 40 if n == 10 else f"noted {n}"

@holdfast.tool
async def hold(n: int) -> str:
    """Take long."""
    await asyncio.sleep(600 if n == 10 else 0)
    return "held"
'''


def shown(folder: Path, *options: str) -> str:
    return call("show", "r", KEY, *options, "--store", folder / "runs", cwd=folder).out


def story_of(folder: Path) -> Any:
    return json.loads(shown(folder, "--json"))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight turns with two calls each; killed in the fifth, and resumed."""
    folder = tmp_path_factory.mktemp("resumed")
    with serving(agent(8, tools=2)) as server:
        spec = write(folder, server.base_url, {"react": {"tools": ["mine:note"], "turns": 40}})
        (folder / "mine.py").write_text(TOOLS)
        document = yaml.safe_load(spec.read_text())
        document["models"][0]["price"] = {"input": 1000.0, "output": 0.0}
        spec.write_text(yaml.safe_dump(document))
        command = ("run", spec, "--id", "r", "--store", folder / "runs")
        assert run(*command, cwd=folder).code == -9
        assert run(*command, cwd=folder).code == 0
    return folder


def test_turns_are_numbered_and_tell_what_was_new_what_was_called_and_what_it_took(resumed: Path) -> None:
    said = shown(resumed)
    assert [f"  turn {turn}  " in said for turn in range(1, 10)] == [True] * 8 + [False]
    third = said[said.index("  turn 3  ") : said.index("  turn 4  ")]
    assert "messages as before (of record" in third
    assert "2 results of the calls above" in third
    assert "[tool call]" not in third
    assert '[call] note({"n":20})' in third
    assert "[result] noted 20" in third
    assert "[error] tool: LookupError: no room for 21" in third
    assert "8 turns, 14 calls, " in said


def test_what_was_recorded_before_a_resume_is_shown_above_it(resumed: Path) -> None:
    said, story = shown(resumed), story_of(resumed)
    before, after = said.split("  -- resumed at ")
    assert after.startswith(story["resumes"][0][:19])
    assert "turn 4  replayed" in before
    assert "turn 6  live" in after
    processes = [step["process"] for step in story["attempts"][0]["steps"]]
    assert processes == sorted(processes)
    assert set(processes) == {1, 2}


def test_a_long_result_is_cut_and_says_how_to_see_all(resumed: Path) -> None:
    line = "a long line of the result"
    said, whole = shown(resumed), shown(resumed, "--full")
    assert "more characters (--full shows all)" in said
    assert said.count(line) < whole.count(line) == 40
    assert "--full" not in whole


def test_dollars_are_those_of_the_recorded_tokens(resumed: Path) -> None:
    (attempt,) = story_of(resumed)["attempts"]
    asked = [step for step in attempt["steps"] if step["kind"] == "generate"]
    assert [step["turn"] for step in asked] == list(range(1, 9))
    assert all(step["dollars"] == step["usage"]["input_tokens"] / 1000 for step in asked)
    assert attempt["dollars"] == pytest.approx(sum(step["dollars"] for step in asked))
    assert dollars(attempt["dollars"]) in shown(resumed)


def test_what_a_live_sample_waits_for_is_reported_from_outside(tmp_path: Path) -> None:
    with serving(agent(5, name="hold")) as server:
        spec = write(tmp_path, server.base_url, {"react": {"tools": ["mine:hold"]}})
        (tmp_path / "mine.py").write_text(TOOLS)
        with start("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path) as process:
            wait_for(lambda: server.stats().requests == 2, "the second turn")
            wait_for(lambda: "waiting for tools hold" in story_of(tmp_path)["doing"], "the lease tells of it")
            story, said = story_of(tmp_path), shown(tmp_path)
            process.kill()
        assert (story["status"], story["in_progress"]["turn"], story["in_progress"]["tools"]) == (
            "unfinished",
            2,
            ["hold"],
        )
        assert "in progress: turn 2, waiting for tools hold for " in said
        assert '[tool call] hold({"n": 10})' in said
        wait_for(lambda: story_of(tmp_path)["in_progress"] is None, "its process is gone")


def test_a_live_sample_that_waits_for_its_model_says_so(tmp_path: Path) -> None:
    with serving(agent(5), latency=60) as server:
        spec = write(tmp_path, server.base_url, {"react": {"tools": ["mine:note"]}})
        with start("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path) as process:
            wait_for(lambda: server.stats().requests == 1, "the first request")
            wait_for(lambda: "turn 1, waiting for the model for " in story_of(tmp_path)["doing"], "the lease tells")
            process.kill()


def test_a_call_that_was_begun_and_may_have_been_made_is_reported(tmp_path: Path) -> None:
    with serving(agent(5, name="pay")) as server:
        spec = write(tmp_path, server.base_url, {"react": {"tools": ["mine:pay"]}})
        assert run("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == -9
    said, story = shown(tmp_path), story_of(tmp_path)
    assert '[begun] pay({"n":20})' in said
    assert "it may have run" in said
    (begun,) = story["attempts"][0]["begun"]
    assert begun["called"] == {"tool": "pay", "arguments": {"n": 20}}


def test_an_export_with_events_holds_the_steps_and_the_conversation(resumed: Path) -> None:
    def exported(*options: str) -> Any:
        return json.loads(call("export", "r", *options, "--store", resumed / "runs", cwd=resumed).out)

    whole, without, plain = exported("--events"), exported("--no-events"), exported()
    steps = [event for event in whole["events"] if event["t"] == "step"]
    assert len(steps) == 8 + 14
    assert [message["role"] for message in whole["messages"]][:3] == ["user", "assistant", "tool"]
    assert whole["messages"][-1]["content"] == plain["output"] == "done after 8"
    assert without == plain
    assert not {"events", "messages"} & plain.keys()
    refused = run("export", "r", "--events", "--format", "csv", "--store", resumed / "runs", cwd=resumed)
    assert (refused.code, "cannot hold events" in refused.err) == (2, True)
