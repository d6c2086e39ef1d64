"""What do small independent frames cost in size and in reading speed?

Sealed segments consist of independent zstd frames of 64 KiB, so that a flipped byte costs at most one frame. Larger
frames compress better: text that comes again (a few-shot prompt, an answer in its step and in `sample.finished`) is
found only within a frame. Five real runs with answers that take 0.2 to 1 s, 64 at a time, are sealed with frames of
64 KiB, and with frames of 1 MiB (what Holdfast used before) and as one frame (the limit of zstd at this level).
Target: at most 1.20 times the size with frames of 1 MiB.
"""

import asyncio
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from bench.content import Prose
from bench.measure import SEED, Spread, scratch, take_turns
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from holdfast.api import Task, run_async
from holdfast.journal import frames as frames_module
from holdfast.models import Request

SAMPLES = 1_500
FEWER_SAMPLES = 300
CONCURRENCY = 64
LATENCY_SECONDS = (0.2, 1.0)
LEVEL = 3
MIB = 1 << 20
ROUNDS = 5
_TURNS = 12
_prose = Prose(SEED)


class Workload(msgspec.Struct, frozen=True):
    """How long the shared prompt, the question and the answer are, in characters."""

    shared: int
    question: int
    answer: int
    samples: int = SAMPLES
    turns: int = 1


WORKLOADS = {
    "short answers": Workload(40, 60, 4),
    "chat": Workload(300, 400, 1_200),
    "few-shot, 4 KB": Workload(4_000, 200, 300),
    "answers of 20 KB": Workload(300, 400, 20_000, FEWER_SAMPLES),
    "agents, 12 turns": Workload(1_500, 400, 600, FEWER_SAMPLES, _TURNS),
}


class Sizes(msgspec.Struct, frozen=True):
    plain: int
    sealed: int
    frames_of_1_mib: int
    one_frame: int
    unpack_seconds: Spread
    unpack_seconds_1_mib: Spread


async def answer(request: Request) -> str:
    """Text of the length that the workload wants, after a while."""
    await asyncio.sleep(random.uniform(*LATENCY_SECONDS))
    return _prose.text(int(request.params["answer_characters"]))


async def converse(sample: Any, ctx: Any) -> Any:
    """An agent: each turn sends the whole conversation, as agents do."""
    said = await ctx.generate()
    for turn in range(1, WORKLOADS[str(sample.row["workload"])].turns):
        said = await ctx.generate(f"Result of call {turn}: {sample.row['question'][:200]}")
    return said


def run(name: str, store: str) -> list[bytes]:
    """The plain bytes of each sealed segment of a real run."""
    wanted, prose = WORKLOADS[name], Prose(SEED + 1)
    shared = prose.text(wanted.shared).replace("{", "(").replace("}", ")")
    rows = [{"id": n, "workload": name, "question": prose.text(wanted.question)} for n in range(wanted.samples)]
    task = Task("t", rows, shared + "\n{question}", **({"solver": converse} if wanted.turns > 1 else {}))
    model = {
        "name": "m",
        "provider": "bench.sealed_size:answer",
        "params": {"answer_characters": wanted.answer},
        "max_connections": CONCURRENCY,
    }
    done = asyncio.run(run_async(task, [model], id="r", store=store, concurrency={"samples": CONCURRENCY}))
    if failed := len(done.failed()):
        raise RuntimeError(f"{name}: {failed} samples failed")
    segments = sorted(Path(store).glob("*/r/journal/*.jsonl.zst"))
    if not segments:
        raise RuntimeError(f"{name}: the run has no sealed segment")
    return [unpack_all(path.read_bytes()) for path in segments]


def unpack_all(packed: bytes) -> bytes:
    """As readers do: frame by frame, by the seek table."""
    frames = frames_module.read_table(lambda at, size: packed[at : at + size], len(packed))
    if frames is None:
        raise RuntimeError("a sealed segment has no seek table")
    parts = [frames_module.unpack(packed[frame.at : frame.at + frame.length], frame.size) for frame in frames]
    if None in parts:
        raise RuntimeError("a frame cannot be unpacked")
    return b"".join(part for part in parts if part is not None)


def pack(segments: list[bytes], frame_bytes: int) -> list[bytes]:
    before, frames_module.FRAME_BYTES = frames_module.FRAME_BYTES, frame_bytes
    try:
        return [b"".join(frames_module.pack([segment])) for segment in segments]
    finally:
        frames_module.FRAME_BYTES = before


def time_unpacking(packed: list[bytes]) -> float:
    cpu = time.process_time()
    for each in packed:
        unpack_all(each)
    return time.process_time() - cpu


def measure(name: str) -> Sizes:
    with scratch("sealed-size") as folder:
        segments = run(name, os.path.join(folder, "runs"))
    small, large = pack(segments, frames_module.FRAME_BYTES), pack(segments, MIB)
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    times = take_turns(ROUNDS, {"small": partial(time_unpacking, small), "large": partial(time_unpacking, large)})
    return Sizes(
        sum(map(len, segments)),
        sum(map(len, small)),
        sum(map(len, large)),
        sum(len(compressor.compress(segment)) for segment in segments),
        Spread.of(times["small"]),
        Spread.of(times["large"]),
    )


def main() -> list[Verdict]:
    found = {name: measure(name) for name in WORKLOADS}
    rows = [
        [
            name,
            f"{each.plain / 1e6:.2f}",
            f"{each.plain / each.sealed:.2f}",
            f"{each.sealed / each.frames_of_1_mib:.2f}",
            f"{each.sealed / each.one_frame:.2f}",
            f"{each.unpack_seconds.median / each.unpack_seconds_1_mib.median:.2f}",
        ]
        for name, each in found.items()
    ]
    heads = ["run", "plain MB", "times smaller", "size / 1 MiB frames", "size / one frame", "CPU to unpack / 1 MiB"]
    print_table("Sealed segments with frames of 64 KiB", heads, rows)
    verdicts = [
        at_most(f"sealed size, {name}: / frames of 1 MiB", each.sealed / each.frames_of_1_mib, 1.2)
        for name, each in found.items()
    ]
    print_verdicts(verdicts)
    save("sealed_size", found, verdicts)
    return verdicts


if __name__ == "__main__":
    main()
