"""A stage for solvers of several turns: scripted models, tools that write down what they do, and an attempt that is cut
off after every record.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.models import ModelCall
from holdfast.records.samples import Answer, Message, Sample, Usage
from holdfast.solve import AttemptResources, Context, ModelHandle, RecordedStep, Scope, Steps, tool
from holdfast.solve.registry import resolve_solver
from holdfast.spec import Price
from tests.unit.solve.stage import KEY, MemoryJournal, run

ROW = {"question": "2 + 3", "limit": 4}
SAMPLE = Sample("1", "2 + 3", "5", ROW)
PRICE = Price(input=1e6, output=1e6)
"""A dollar for each token."""
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

    async def send(self, call: ModelCall) -> Answer:
        messages = call.messages
        self.asked.append(messages)
        self.tools.append([each["function"]["name"] for each in call.tools])
        await asyncio.sleep(0.1 * len(self.asked))
        return self._reply(messages, sum(message["role"] == "assistant" for message in messages))


def scripted(*answers: Answer) -> Callable[[list[Message], int], Answer]:
    """By the number of answers that were given before in the same talk."""
    return lambda messages, given: answers[given]


def attempt(entry: Any, models: dict[str, Model], recorded: Sequence[RecordedStep] = ()) -> Any:
    """The answer's text, and all that the journal then holds."""
    solver = resolve_solver(entry, "solver")

    async def process() -> tuple[str, list[RecordedStep]]:
        journal = MemoryJournal(recorded[-1].n + 1 if recorded else 1)
        steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded)
        asking = {role: ModelHandle({"model": role}, {}, model.send, PRICE) for role, model in models.items()}
        ctx = Context(SAMPLE, [{"role": "user", "content": "2 + 3"}], steps, "0/key/1", AttemptResources(asking))
        answer = await solver.solve(SAMPLE, ctx)
        await ctx.workplace.close()
        steps.close()
        return answer.text, [*recorded, *journal.steps()]

    return run(process())


def is_done(recorded: RecordedStep) -> bool:
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


class Drawing(Model):
    """Another answer for each time that the same is asked."""

    def __init__(self, *texts: str) -> None:
        super().__init__(lambda messages, given: says(next(self._texts)))
        self._texts = iter(texts)
