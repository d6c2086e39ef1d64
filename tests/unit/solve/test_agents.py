"""Solvers of several turns, each cut off after every record: nothing is asked or done twice."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.records.exchange import Answer, Message, Sample, Usage
from holdfast.solve import Asking, Context, Means, Recorded, Scope, Steps, tool
from holdfast.solve.solvers import resolve_solver
from tests.unit.solve.stage import KEY, MemoryJournal, run

ROW = {"question": "2 + 3", "limit": 4}
SAMPLE = Sample("1", "2 + 3", "5", ROW)
DONE: list[tuple[str, Any]] = []


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    DONE.append(("add", (a, b)))
    return a + b


@tool
async def fail() -> None:
    """Fail."""
    DONE.append(("fail", ()))
    raise RuntimeError("no luck")


async def short(text: str, target: str, row: dict[str, Any]) -> str:
    """What is wrong with a text: it is too long."""
    return "too long" if len(text) > row["limit"] else ""


async def longest(texts: list[str], row: dict[str, Any]) -> int:
    return max(range(len(texts)), key=lambda index: len(texts[index]))


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def says(text: str) -> Answer:
    return Answer(text, {"role": "assistant", "content": text}, usage=Usage(10, 5))


def calls(*wanted: dict[str, Any]) -> Answer:
    message = {"role": "assistant", "content": None, "tool_calls": list(wanted)}
    return Answer("", message, list(wanted), "tool_calls", Usage(10, 5))


class Model:
    """Says what a script says next; counts what it is asked."""

    def __init__(self, reply: Callable[[list[Message], int], Answer]) -> None:
        self.asked: list[list[Message]] = []
        self.tools: list[list[str]] = []
        self._reply = reply

    async def ask(
        self, messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]
    ) -> tuple[Answer, int]:
        self.asked.append(messages)
        self.tools.append([each["function"]["name"] for each in tools])
        await asyncio.sleep(0.1 * len(self.asked))
        return self._reply(messages, sum(message["role"] == "assistant" for message in messages)), 1


def scripted(*answers: Answer) -> Callable[[list[Message], int], Answer]:
    """By the number of answers that were given before in the same talk."""
    return lambda messages, given: answers[given]


def attempt(entry: Any, models: dict[str, Model], recorded: Sequence[Recorded] = ()) -> Any:
    """The answer's text, and all that the journal then holds."""
    solver = resolve_solver(entry, "solver")

    async def process() -> tuple[str, list[Recorded]]:
        journal = MemoryJournal(recorded[-1].n + 1 if recorded else 1)
        steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded, asyncio.get_running_loop().time)
        asking = {role: Asking({"model": role}, {}, model.ask) for role, model in models.items()}
        ctx = Context(SAMPLE, [{"role": "user", "content": "2 + 3"}], steps, "0/key/1", Means(asking))
        answer = await solver.solve(SAMPLE, ctx)
        await ctx.workplace.close()
        steps.close()
        return answer.text, [*recorded, *journal.steps()]

    return run(process())


def is_done(recorded: Recorded) -> bool:
    """Whether a step is a tool of ours that was called, and not only refused."""
    step = recorded.step
    ours = step.called is not None and step.called.tool in {"add", "fail"}
    return ours and (step.failure is None or "no luck" in step.failure.message)


def survives(name: str, make: Callable[[], dict[str, Model]], **arguments: Any) -> tuple[str, dict[str, Model]]:
    """Run it whole, and cut off after each record: the same answer, nothing recorded asked or done again."""
    models = make()
    DONE.clear()
    text, recorded = attempt({name: arguments}, models)
    done = list(DONE)
    for count in range(len(recorded) + 1):
        left, again = recorded[:count], make()
        DONE.clear()
        found, _ = attempt({name: arguments}, again, left)
        assert found == text
        asked = sum(each.step.kind == "generate" for each in left)
        assert sum(len(model.asked) for model in again.values()) == sum(len(m.asked) for m in models.values()) - asked
        assert len(DONE) == len(done) - sum(map(is_done, left))
    DONE[:] = done
    return text, models


TOOLS = [f"{__name__}:add", f"{__name__}:fail"]


def test_react_calls_tools_at_once_and_goes_on_until_an_answer() -> None:
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
def test_what_a_model_gets_wrong_is_told_to_it(wrong: dict[str, Any], said: str) -> None:
    text, models = survives("react", lambda: {"": Model(scripted(calls(wrong), says("sorry")))}, tools=TOOLS)
    assert text == "sorry"
    assert models[""].asked[-1][-1]["content"].startswith(said)


@pytest.mark.parametrize("limits", [{"turns": 2}, {"tokens": 20}])
def test_when_a_limit_is_reached_it_is_asked_once_more_without_tools(limits: dict[str, int]) -> None:
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
        check=f"{__name__}:short",
        max_iterations=4,
    )
    assert text == "5"
    assert models[""].asked[-1][-1]["content"] == "too long"


def test_feedback_ends_after_so_many_iterations() -> None:
    many = scripted(*[says("far too long")] * 3)
    text, models = survives("feedback", lambda: {"": Model(many)}, check=f"{__name__}:short", max_iterations=2)
    assert (text, len(models[""].asked)) == ("far too long", 2)


def test_a_second_look() -> None:
    text, models = survives("critique", lambda: {"": Model(scripted(says("4"), says("5"), says("5!")))}, rounds=2)
    assert (text, len(models[""].asked)) == ("5!", 3)


class Drawing(Model):
    """Another answer for each time that the same is asked."""

    def __init__(self, *texts: str) -> None:
        super().__init__(lambda messages, given: says(next(self._texts)))
        self._texts = iter(texts)


def test_majority_and_best_of_ask_the_same_several_times() -> None:
    async def once(name: str, model: Model, **arguments: Any) -> str:
        journal = MemoryJournal()
        steps = Steps(Scope(0, KEY, "solve/1"), journal, (), asyncio.get_running_loop().time)
        ctx = Context(
            SAMPLE, [{"role": "user", "content": "q"}], steps, "0/k/1", Means({"": Asking({}, {}, model.ask)})
        )
        answer = await resolve_solver({name: arguments}, "solver").solve(SAMPLE, ctx)
        steps.close()
        return answer.text

    drawn = ("It is 5.", "It is 4.", "So 5", "5", "6")
    assert run(once("majority", Drawing(*drawn), n=5, pattern=r"\d")) == "5"
    assert run(once("majority", Drawing("a", "b", "b"), n=3)) == "b"
    assert run(once("majority", Drawing("x", "y"), n=2, pattern=r"\d")) == ""
    assert run(once("best_of", Drawing("a", "bbb", "cc"), n=3, choose=f"{__name__}:longest")) == "bbb"
    assert run(once("best_of", Drawing("a", "b", "number 2"), n=2)) == "b"
    assert run(once("best_of", Drawing("a", "b", "neither"), n=2)) == "a"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"react": {"tools": ["no_colon"]}}, "module:function"),
        ({"react": {"tools": [f"{__name__}:nothing"]}}, "cannot be imported"),
        ({"react": {"tools": [f"{__name__}:add", f"{__name__}:add"]}}, "two tools called 'add'"),
        ({"react": {"turn": 3}}, "does not take these arguments"),
        ({"feedback": {"check": "nowhere:nothing"}}, "cannot be imported"),
        ({"best_of": {"choose": f"{__name__}:TOOLS"}}, "is not a function"),
    ],
)
def test_what_an_agent_names_is_looked_for_before_anything_is_asked(entry: Any, said: str) -> None:
    from holdfast.errors import SpecError

    with pytest.raises(SpecError, match=r"tasks\[0\].solver") as raised:
        resolve_solver(entry, "tasks[0].solver")
    assert said in str(raised.value)
