"""Does the journal of an agent grow with what is said, or with its turns squared? And does a step get dearer?

One sample of `react`: in each turn the model calls a tool with 300 bytes of arguments and gets 1 KB back, until it
answers after 10, 100 or 1,000 turns; five tools are offered in every request. Compared: the journal's bytes (plain, and
sealed), the sum of what was new (each message and the tools once), and what recording every request whole would take.
CPU time of a turn (a request and a call, durable), in the last turns, beside that of serialising the request once,
which sending it costs anyway; and of a turn that is replayed. Target: the bytes of a turn grow by less than 5%.
"""

import asyncio
import json
import os
import random
import time

import msgspec

from bench.measure import SEED, Spread, scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from holdfast.journal import Entry, OpenRequest, Reader, Writer, journal_folder, open_writer
from holdfast.models import ModelCall
from holdfast.records.facts import Step
from holdfast.records.samples import Answer, Message, Sample, Usage
from holdfast.solve import AttemptResources, Context, ModelHandle, RecordedStep, Scope, Steps, tool
from holdfast.solve.registry import resolve_solver

TURNS = (10, 100, 1_000)
ARGUMENT_BYTES = 300
RESULT_BYTES = 1_000
_KEY = "agent/m/1/1"
_LAST = 9
_WORDS = ["the", "of", "and", "error", "file", "line", "value", "returns", "0x1f", "None", "path", "test", "failed"]
_step = msgspec.json.Decoder(Step)


class Figures(msgspec.Struct, frozen=True):
    """Of one sample of so many turns. Times are CPU seconds of one turn."""

    turns: int
    journal: int
    sealed: int
    new: int
    whole: int
    turn_seconds: Spread
    encode_seconds: float
    replay_seconds: float


def text(chance: random.Random, length: int) -> str:
    return " ".join(chance.choices(_WORDS, k=length // 4))[:length]


@tool
async def run_code(code: str) -> str:
    """Run a piece of Python in the sandbox and return what it printed. Files stay from call to call."""
    return text(random.Random(code), RESULT_BYTES)


@tool
async def read_file(path: str, first: int = 1, last: int = 100) -> str:
    """Return lines of a file. Lines are numbered from 1; the last one may lie behind the end."""
    return path


@tool
async def write_file(path: str, content: str) -> str:
    """Write a file, or replace it. Folders on the way are made. Returns how many bytes were written."""
    return path


@tool
async def search(pattern: str, folder: str = ".") -> str:
    """Look for a regular expression in all files of a folder. Returns path, line number and line of each match."""
    return pattern


@tool
async def submit(answer: str, confidence: float = 1.0) -> str:
    """Hand in the final answer. It cannot be changed afterwards."""
    return answer


class Model:
    """Calls a tool in each turn but the last. Notes when it was asked, and how large the request was."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._chance = random.Random(SEED)
        self.at: list[float] = []
        self.whole = 0
        self.new = 0
        self.encode_seconds = 0.0

    async def send(self, call: ModelCall) -> Answer:
        messages, tools = call.messages, call.tools
        began = time.process_time()
        size = len(msgspec.json.encode(messages))
        self.encode_seconds = time.process_time() - began
        self.whole += size + len(msgspec.json.encode(tools))
        answer = self._answer(len(self.at) + 1)
        self.new = size + len(msgspec.json.encode(answer.message)) + len(msgspec.json.encode(tools))
        self.at.append(time.process_time())
        return answer

    def _answer(self, turn: int) -> Answer:
        usage = Usage(300 * turn, 80)
        if turn == self._turns:
            said = text(self._chance, 200)
            return Answer(said, {"role": "assistant", "content": said}, finish_reason="stop", usage=usage)
        arguments = json.dumps({"code": text(self._chance, ARGUMENT_BYTES)})
        call = {"id": f"call-{turn}", "type": "function", "function": {"name": "run_code", "arguments": arguments}}
        message: Message = {"role": "assistant", "content": "I will try it.", "tool_calls": [call]}
        return Answer("I will try it.", message, [call], "tool_calls", usage)


async def solve(model: Model, turns: int, journal: Writer, recorded: list[RecordedStep]) -> None:
    steps = Steps(Scope(0, _KEY, "solve/1"), journal, recorded)
    asking = ModelHandle({"provider": "openai", "model": "m", "options": {}}, {"temperature": 0.0}, model.send)
    first = [{"role": "user", "content": text(random.Random(SEED), 500)}]
    sample = Sample("1", "", "", {})
    ctx = Context(sample, first, steps, f"0/{_KEY}/1", AttemptResources({"": asking}))
    names = [f"bench.agent_size:{each}" for each in ("run_code", "read_file", "write_file", "search", "submit")]
    await resolve_solver({"react": {"tools": names, "turns": turns}}, "bench").solve(sample, ctx)
    steps.close()


async def measure(turns: int, folder: str) -> Figures:
    run = os.path.join(folder, str(turns))
    os.mkdir(run)
    writer = await open_writer(run, OpenRequest("run"))
    model = Model(turns)
    await solve(model, turns, writer, [])
    journal = _size(run)
    await writer.close(seal_last=True)
    recorded = [
        RecordedStep(each.line.n, _step.decode(each.line.d))
        for each in Reader(journal_folder(run)).read()
        if isinstance(each, Entry) and each.line.t == "step"
    ]
    again = Model(turns)
    began = time.process_time()
    await solve(again, turns, writer, recorded)
    replayed = (time.process_time() - began) / turns
    if again.at:
        raise RuntimeError("the replay asked for something that is recorded")
    spread = Spread.of(
        [after - before for before, after in zip(model.at[-_LAST - 1 :], model.at[-_LAST:], strict=False)]
    )
    called = sum(len(msgspec.json.encode(each.step)) for each in recorded if each.step.called is not None)
    answers = sum(len(msgspec.json.encode(each.step.answer)) for each in recorded if each.step.answer is not None)
    whole = model.whole + called + answers
    return Figures(turns, journal, _size(run), model.new, whole, spread, model.encode_seconds, replayed)


def _size(run: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(journal_folder(run)) if entry.is_file())


def _row(each: Figures) -> list[str]:
    return [
        f"{each.turns:,}",
        f"{each.journal:,}",
        f"{each.journal / each.turns:,.0f}",
        f"{each.journal / each.new:.2f}",
        f"{each.whole / each.journal:.1f}",
        f"{each.journal / each.sealed:.1f}",
        each.turn_seconds.show(0, 1e6),
        f"{each.encode_seconds * 1e6:,.0f}",
        f"{each.replay_seconds * 1e6:,.0f}",
    ]


def main() -> list[Verdict]:
    with scratch("agent") as folder:
        figures = [asyncio.run(measure(turns, folder)) for turns in TURNS]
    header = [
        "turns",
        "journal bytes",
        "a turn",
        "/ new",
        "whole /",
        "/ sealed",
        "CPU us of a turn",
        "encode",
        "replay",
    ]
    print_table("One react sample", header, [_row(each) for each in figures])
    first, *_, last = figures
    growth = (last.journal / last.turns) / (first.journal / first.turns)
    verdicts = [at_most("agent_size: bytes of a turn, 1,000 turns / 10 turns", growth, 1.05)]
    print_verdicts(verdicts)
    save("agent_size", figures, verdicts)
    return verdicts


if __name__ == "__main__":
    main()
