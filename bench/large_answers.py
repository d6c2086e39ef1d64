"""How much memory do a resume and the reading commands need when answers are large?

A run of answers of 20 MB is killed while some samples have a recorded step but no answer, and others have an answer
but no score. Then `resume`, `show`, `export`, `report` and `score` run as processes of their own. Measured: the peak
memory of each, and its growth over the same command on a run of answers of 1 KB, in units of one answer. Target: each
peak is below 300 MB, whatever the number of answers.

    python -m bench.large_answers [MEGABYTES [ANSWERS]]
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.measure import SEED, scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from bench.processes import taken_by
from holdfast.records.samples import Message
from holdfast.testing import Behaviour, ModelServer

MEGABYTES = 20
ANSWERS = 100
CUT_OFF = 32
"""So many samples are in flight when the run is killed: one half is being solved, the other half is being scored."""
LIMIT_MB = 300
_RUN = "large"
_WORDS = ("the", "of", "and", "value", "returns", "zero", "because", "step", "therefore", "answer", "is", "seven")
_CODE = """\
import asyncio, os

async def _wait_if_asked(name):
    if os.path.exists("block") and name in open("block").read().split():
        open(f"waits-{name}", "w").close()
        await asyncio.Event().wait()

async def solve(sample, ctx):
    answer = await ctx.generate()
    await _wait_if_asked(f"solve-{sample.id}")
    return answer

async def score(sample, answer):
    await _wait_if_asked(f"score-{sample.id}")
    return len(answer.text) > 100
"""
_COMMANDS = {
    "show, killed": ("show", _RUN, "--json"),
    "resume": ("resume", _RUN),
    "show": ("show", _RUN, "--json"),
    "report": ("report", _RUN),
    "export": ("export", _RUN, "--format", "jsonl", "--output", "out.jsonl"),
    "score": ("score", _RUN, "--scorers", "includes"),
}


class Peak(msgspec.Struct, frozen=True):
    """The peak memory of one command, in MB."""

    command: str
    small_mb: float
    """With answers of 1 KB."""
    large_mb: float
    growth_per_answer: float
    """How much more memory the large answers take, in units of one answer."""


def main(megabytes: int = MEGABYTES, answers: int = ANSWERS) -> list[Verdict]:
    small = measure(1_000, answers)
    large = measure(megabytes * 1_000_000, answers)
    peaks = [
        Peak(name, round(small[name], 1), round(large[name], 1), round((large[name] - small[name]) / megabytes, 2))
        for name in _COMMANDS
    ]
    rows = [
        (each.command, f"{each.small_mb:.0f}", f"{each.large_mb:.0f}", f"{each.growth_per_answer:.1f}")
        for each in peaks
    ]
    header = ("", "peak MB, answers of 1 KB", f"peak MB, answers of {megabytes} MB", "growth in answers")
    print_table(f"{answers} answers", header, rows)
    verdicts = [at_most(f"{each.command}: peak memory in MB", each.large_mb, LIMIT_MB) for each in peaks]
    save("large_answers", {"megabytes": megabytes, "answers": answers, "cut_off": CUT_OFF, "peaks": peaks}, verdicts)
    return verdicts


def measure(size: int, answers: int) -> dict[str, float]:
    """The peak memory of each command, in MB, on a run of answers of so many bytes that was killed."""
    with scratch("large-answers") as folder, serving(size) as base_url:
        environment = {**os.environ, "HOLDFAST_CACHE": os.path.join(folder, "cache")}
        kill_run(folder, base_url, answers, environment)
        return {
            name: taken_by([sys.executable, "-m", "holdfast", *command], environment, folder).peak_mb
            for name, command in _COMMANDS.items()
        }


def kill_run(folder: str, base_url: str, answers: int, environment: dict[str, str]) -> None:
    """Start a run, and kill it when nothing moves any more because the last samples wait."""
    names = [f"s{number:03}" for number in range(answers)]
    cut_off = names[-min(CUT_OFF, answers) :]
    waiting = [f"{'solve' if number % 2 else 'score'}-{name}" for number, name in enumerate(cut_off)]
    place = Path(folder)
    (place / "parts.py").write_text(_CODE)
    (place / "block").write_text(" ".join(waiting))
    (place / "rows.jsonl").write_text("".join(f'{{"id":"{name}","question":"{name}"}}\n' for name in names))
    spec = {
        "models": [{"name": "m", "provider": "openai", "model": "test-model", "base_url": base_url}],
        "tasks": [
            {
                "name": "t",
                "dataset": {"path": "rows.jsonl", "id": "id", "input": "question", "target": "id"},
                "prompt": "{question}",
                "solver": "parts:solve",
                "scorers": ["parts:score"],
            }
        ],
        "concurrency": {"samples": len(cut_off)},
    }
    (place / "spec.yaml").write_bytes(msgspec.json.encode(spec))
    command = [sys.executable, "-m", "holdfast", "run", "spec.yaml", "--id", _RUN]
    with (place / "run.txt").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        while not all((place / f"waits-{name}").exists() for name in waiting):
            if process.poll() is not None:
                raise RuntimeError(f"the run ended by itself: {(place / 'run.txt').read_text()[-2000:]}")
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (place / "block").unlink()


@contextlib.contextmanager
def serving(size: int) -> Iterator[str]:
    """A model server in a thread of this process whose answers have `size` bytes."""
    chance = random.Random(SEED)
    words = " ".join(chance.choices(_WORDS, k=size // 4))

    def reply(messages: list[Message]) -> str:
        text = str(messages[-1]["content"])
        return f"{text} {words}"[:size]

    loop = asyncio.new_event_loop()
    server = ModelServer(Behaviour(reply=reply))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server.base_url
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


if __name__ == "__main__":
    print_verdicts(main(*map(int, sys.argv[1:3])))
