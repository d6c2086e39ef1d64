"""Solvers of several turns, each cut off after every record: nothing is asked or done twice."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import SpecError
from holdfast.records.samples import Answer, Message
from holdfast.solve import AttemptResources, Context, ModelHandle, Scope, Steps, tool
from holdfast.solve.registry import resolve_solver
from tests.unit.solve import agents_stage
from tests.unit.solve.agents_stage import DONE, SAMPLE, Drawing, Model, attempt, call, calls, says, scripted, survives
from tests.unit.solve.stage import KEY, MemoryJournal, run

STAGE = agents_stage.__name__
TOOLS = [f"{STAGE}:add", f"{STAGE}:fail"]


def test_react_calls_tools_at_once_and_continues_until_an_answer() -> None:
    both = calls(call("add", '{"a": 2, "b": 3}', 1), call("add", '{"a": 1, "b": 1}', 2))
    text, models = survives("react", lambda: {"": Model(scripted(both, says("5")))}, tools=TOOLS)
    assert text == "5"
    assert sorted(DONE) == [("add", (1, 1)), ("add", (2, 3))]
    last = models[""].asked[-1]
    assert [(each["tool_call_id"], each["content"]) for each in last if each["role"] == "tool"] == [
        ("c1", "5"),
        ("c2", "2"),
    ]
    assert models[""].tools[0] == ["add", "fail"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (call("add", "{"), "error: the arguments are not a JSON object"),
        (call("add", "[1]"), "error: the arguments are not a JSON object"),
        (call("add", '{"a": 1}'), "error: add: Object missing required field `b`"),
        (call("divide", "{}"), "error: there is no tool 'divide'; there are: add, fail"),
        (call("fail", "{}"), "error: RuntimeError: no luck"),
        ({"id": "c1", "type": "odd"}, "error: there is no tool None"),
    ],
)
def test_a_model_sees_what_it_got_wrong(wrong: dict[str, Any], said: str) -> None:
    text, models = survives("react", lambda: {"": Model(scripted(calls(wrong), says("sorry")))}, tools=TOOLS)
    assert text == "sorry"
    assert models[""].asked[-1][-1]["content"].startswith(said)


@pytest.mark.parametrize("limits", [{"turns": 2}, {"tokens": 20}, {"cost_usd": 20.0}, {"seconds": 0.25}])
def test_when_a_limit_is_reached_it_is_asked_once_more_without_tools(limits: dict[str, float]) -> None:
    again = calls(call("add", '{"a": 1, "b": 1}'))
    text, models = survives("react", lambda: {"": Model(scripted(again, again, says("2")))}, tools=TOOLS, **limits)
    assert text == "2"
    assert models[""].tools[-1] == []
    assert "no turns left" in models[""].asked[-1][-1]["content"]


def test_a_long_talk_is_summarised() -> None:
    def reply(messages: list[Message], given: int) -> Answer:
        if "Summarise" in str(messages[-1]["content"]):
            return says("so far so good")
        turn = sum(message["role"] == "tool" for message in messages)
        if turn >= 4 and any("so far so good" in str(message.get("content")) for message in messages):
            return says("done")
        return calls(call("add", json.dumps({"a": turn, "b": len(messages)})))

    _, models = survives("react", lambda: {"": Model(reply)}, tools=TOOLS, compact_tokens=5)
    last = models[""].asked[-1]
    assert last[0]["content"] == "2 + 3"
    assert "so far so good" in last[1]["content"]
    assert len(last) < 2 + 2 * 5


def test_a_scripted_user_says_what_is_written() -> None:
    text, models = survives(
        "conversation", lambda: {"": Model(scripted(says("5"), says("yes"), says("bye")))}, user=["sure?", "thanks"]
    )
    assert text == "bye"
    assert [each["content"] for each in models[""].asked[-1]] == ["2 + 3", "5", "sure?", "yes", "thanks"]


def test_a_simulated_user_sees_the_talk_from_the_other_side() -> None:
    def make() -> dict[str, Model]:
        return {
            "": Model(scripted(says("5"), says("yes"))),
            "user": Model(lambda messages, given: says(f"why {given}")),
        }

    text, models = survives("conversation", make, turns=2)
    assert text == "yes"
    assert models["user"].asked == [[{"role": "assistant", "content": "2 + 3"}, {"role": "user", "content": "5"}]]


def test_a_simulated_user_ends_the_talk() -> None:
    def make() -> dict[str, Model]:
        return {"": Model(scripted(says("5"))), "user": Model(lambda messages, given: says("That is all. DONE"))}

    assert survives("conversation", make, turns=9, until="DONE")[0] == "5"


def test_feedback_is_given_until_it_is_right() -> None:
    text, models = survives(
        "feedback",
        lambda: {"": Model(scripted(says("far too long"), says("5")))},
        check=f"{STAGE}:short",
        max_iterations=4,
    )
    assert text == "5"
    assert models[""].asked[-1][-1]["content"] == "too long"


def test_feedback_ends_after_so_many_iterations() -> None:
    many = scripted(*[says("far too long")] * 3)
    text, models = survives("feedback", lambda: {"": Model(many)}, check=f"{STAGE}:short", max_iterations=2)
    assert (text, len(models[""].asked)) == ("far too long", 2)


def test_a_second_look() -> None:
    text, models = survives("critique", lambda: {"": Model(scripted(says("4"), says("5"), says("5!")))}, rounds=2)
    assert (text, len(models[""].asked)) == ("5!", 3)


def test_majority_and_best_of_ask_the_same_several_times() -> None:
    async def once(name: str, model: Model, **arguments: Any) -> str:
        journal = MemoryJournal()
        steps = Steps(Scope(0, KEY, "solve/1"), journal)
        ctx = Context(
            SAMPLE,
            [{"role": "user", "content": "q"}],
            steps,
            "0/k/1",
            AttemptResources({"": ModelHandle({}, {}, model.send)}),
        )
        answer = await resolve_solver({name: arguments}, "solver").solve(SAMPLE, ctx)
        steps.close()
        return answer.text

    drawn = ("It is 5.", "It is 4.", "So 5", "5", "6")
    assert run(once("majority", Drawing(*drawn), n=5, pattern=r"\d")) == "5"
    assert run(once("majority", Drawing("a", "b", "b"), n=3)) == "b"
    assert run(once("majority", Drawing("x", "y"), n=2, pattern=r"\d")) == ""
    assert run(once("best_of", Drawing("a", "bbb", "cc"), n=3, choose=f"{STAGE}:longest")) == "bbb"
    assert run(once("best_of", Drawing("a", "b", "number 2"), n=2)) == "b"
    assert run(once("best_of", Drawing("a", "b", "neither"), n=2)) == "a"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"react": {"tools": ["no_colon"]}}, "module:function"),
        ({"react": {"tools": [f"{STAGE}:nothing"]}}, "cannot be imported"),
        ({"react": {"tools": [f"{STAGE}:add", f"{STAGE}:add"]}}, "two tools called 'add'"),
        ({"react": {"turn": 3}}, "does not take these arguments"),
        ({"feedback": {"check": "nowhere:nothing"}}, "cannot be imported"),
        ({"best_of": {"choose": f"{STAGE}:DONE"}}, "is not a function"),
        ({"react": {"tools": "mine:add"}}, ".react.tools: expected a list of tools"),
        ({"react": {"tools": [f"{STAGE}:add", 7]}}, ".react.tools[1]: 7"),
        ({"react": {"tools": [{"mcp": {}}]}}, ".react.tools[0].mcp: give either a command"),
        ({"react": {"tools": [{"mcp": {"comand": ["x"]}}]}}, ".react.tools[0].mcp: Object contains unknown field"),
        ({"react": {"turns": 0}}, ".react.turns: expected `int` >= 1; it is 0"),
        ({"react": {"cost_usd": 0}}, ".react.cost_usd: expected `float` > 0.0; it is 0"),
        ({"react": {"seconds": "long"}}, ".react.seconds: expected `float | null`, got `str`; it is 'long'"),
        ({"conversation": {"turns": 0}}, ".conversation.turns: expected `int` >= 1"),
        ({"feedback": {}}, ".feedback: the argument 'check' is missing"),
        (
            {"feedback": {"check": f"{STAGE}:short", "max_iterations": 0}},
            ".feedback.max_iterations: expected `int` >= 1",
        ),
        (
            {"feedback": {"check": f"{STAGE}:short", "iterations": 1}},
            "there is no 'iterations'; it takes check, max_it",
        ),
        ({"best_of": {"n": 0}}, ".best_of.n: expected `int` >= 1"),
        ({"majority": {"n": 0}}, ".majority.n: expected `int` >= 1"),
        ({"majority": {"pattern": "("}}, ".majority.pattern: '(' is not a regular expression"),
    ],
)
def test_what_an_agent_names_is_looked_for_before_anything_is_asked(entry: Any, said: str) -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\].solver") as raised:
        resolve_solver(entry, "tasks[0].solver")
    assert said in str(raised.value)


@tool
async def look(text: str) -> str:
    """Look something up."""
    return text[::-1] * 3


def looks(turns: int) -> Callable[[list[Message], int], Answer]:
    """Calls a tool with 300 bytes in each turn but the last."""

    def reply(messages: list[Message], given: int) -> Answer:
        arguments = json.dumps({"text": f"{given:04}" + "abc " * 74})
        return says("done") if given + 1 == turns else calls(call("look", arguments, 1000 + given))

    return reply


def test_the_bytes_of_a_turn_do_not_grow_with_the_turns() -> None:
    sizes = {}
    for turns in (10, 100, 400):
        entry = {"react": {"tools": [f"{__name__}:look"], "turns": turns}}
        _, recorded = attempt(entry, {"": Model(looks(turns))})
        sizes[turns] = sum(len(msgspec.json.encode(each.step)) for each in recorded)
    early, late = (sizes[100] - sizes[10]) / 90, (sizes[400] - sizes[100]) / 300
    assert 0.98 <= late / early <= 1.02, sizes


@pytest.mark.parametrize(
    ("entry", "roles"),
    [
        ("chat", []),
        ({"conversation": {}}, ["user"]),
        ({"conversation": {"role": "customer"}}, ["customer"]),
        ({"conversation": {"user": ["sure?"]}}, []),
        (
            {"chain": {"solvers": [{"fork": {"solvers": ["chat"], "role": "judge"}}, {"chat": {"role": "editor"}}]}},
            ["judge", "editor"],
        ),
    ],
)
def test_the_roles_that_a_solver_uses_are_known_beforehand(entry: Any, roles: list[str]) -> None:
    assert sorted(resolve_solver(entry, "s").roles()) == sorted(roles)
