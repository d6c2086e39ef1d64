"""Does a mirror slow a run down?

The same run with no mirror, with one in a folder, in S3 (moto on the loopback), and in an S3 that takes 200 ms for each
request; in turns. 10,000 samples of a model that answers at once, which is all CPU, and 640 over HTTP against a server
that takes 100 ms, 16 in flight, which is all waiting, as most runs are. The mirror looks every half second, ten times
as often as it does unless told otherwise. Dispatch is from the first record of the run to its last; what comes before
and after (claiming the run, sending the rest) is in the wall time. The CPU of the mirror's own threads is counted
apart. On a machine with other work wall times differ by more than a mirror could make out, so the lowest is compared
with the lowest. The store's library is loaded before anything is counted, with a mirror or without. Target: dispatch,
and the CPU of all other threads, as without a mirror, within the machine's noise.
"""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from bench.measure import Spread, paired_ratio, scratch, take_turns
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save
from bench.stores import S3, moto_server
from holdfast.api import Task, run_async
from holdfast.journal import Entry, Reader, journal_folder
from holdfast.testing import Behaviour, start_server_process

ROUNDS = 5
SLOW_SECONDS = 0.2
_SECONDS = 0.5
_LOOK_SECONDS = 0.02
_OFF = "off"


class Wanted(msgspec.Struct, frozen=True):
    """One run in a process of its own. `base_url` empty: a model that answers at once."""

    samples: int
    at_once: int
    base_url: str = ""
    mirror: str = ""
    env: dict[str, str] = {}


class Took(msgspec.Struct, frozen=True):
    """What it came to. `mirror_cpu`: of the thread that keeps the mirror, and of the store's library."""

    dispatch_seconds: float
    wall_seconds: float
    cpu_seconds: float
    mirror_cpu_seconds: float

    @property
    def own_cpu_seconds(self) -> float:
        return self.cpu_seconds - self.mirror_cpu_seconds


def main() -> list[Verdict]:
    verdicts: list[Verdict] = []
    figures: dict[str, dict[str, list[Took]]] = {}
    with (
        scratch("slowdown") as folder,
        moto_server() as s3,
        moto_server(SLOW_SECONDS) as slow,
        start_server_process(Behaviour(latency_seconds=0.1)) as server,
    ):
        runs = {"a mock": Wanted(10_000, 256), "HTTP": Wanted(640, 16, server.base_url)}
        for name, wanted in runs.items():
            figures[name] = take_turns(ROUNDS, _contestants(wanted, folder, s3, slow))
            verdicts += _told(f"{name}, {wanted.samples:,} samples", figures[name])
    save("mirror_slowdown", figures, verdicts)
    return verdicts


def _contestants(wanted: Wanted, folder: str, s3: S3, slow: S3) -> dict[str, Callable[[], Took]]:
    """Each time a new place: what a mirror holds already is not sent again."""

    def with_mirror(place: Callable[[], str], env: dict[str, str]) -> Callable[[], Took]:
        return lambda: _measure(msgspec.structs.replace(wanted, mirror=place(), env=env))

    def new() -> str:
        return f"b-{uuid.uuid4().hex}"

    return {
        _OFF: lambda: _measure(wanted),
        "folder": with_mirror(lambda: f"file://{folder}/{new()}", {}),
        "S3": with_mirror(lambda: s3.bucket(new()), s3.env),
        "S3, 200 ms": with_mirror(lambda: slow.bucket(new()), slow.env),
    }


def _told(title: str, took: dict[str, list[Took]]) -> list[Verdict]:
    rows, verdicts = [], []
    off = took[_OFF]
    for name, each in took.items():
        dispatch = min(one.dispatch_seconds for one in each) / min(one.dispatch_seconds for one in off)
        cpu = paired_ratio([one.own_cpu_seconds for one in each], [one.own_cpu_seconds for one in off])
        rows.append(
            [
                name,
                Spread.of([one.dispatch_seconds for one in each]).show(2),
                f"{dispatch:.2f}",
                Spread.of([one.wall_seconds for one in each]).show(2),
                Spread.of([one.own_cpu_seconds for one in each]).show(2),
                cpu.show(2),
                Spread.of([one.mirror_cpu_seconds for one in each]).show(2),
            ]
        )
        if name != _OFF:
            verdicts += [
                at_most(f"mirror: dispatch of {title}, {name}, lowest to lowest without", dispatch, 1.1),
                at_most(f"mirror: CPU of {title}, {name}, without its own threads, to off", cpu.median, 1.1),
            ]
    header = ["mirror", "dispatch s", "lowest to lowest", "wall s", "CPU s", "to off", "CPU s of the mirror"]
    print_table(title, header, rows)
    return verdicts


def _measure(wanted: Wanted) -> Took:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mirror_slowdown", msgspec.json.encode(wanted).decode()],
        env={**os.environ, **wanted.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Took)


def _be_child(wanted: Wanted) -> Took:
    for name in ("obstore.store", "obstore.exceptions"):
        importlib.import_module(name)
    meter = _MirrorMeter()
    with scratch("slowdown-run") as folder:
        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(_run(wanted, folder))
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        return Took(_dispatch_seconds(folder), wall, used, meter.stop())


async def _run(wanted: Wanted, folder: str) -> None:
    rows = [{"id": n, "question": f"{n} + 1", "answer": n + 1} for n in range(wanted.samples)]
    task = Task("sums", rows, "{question}", scorers=["numeric"])
    model: dict[str, object] = {"name": "m", "provider": "mock"}
    if wanted.base_url:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": wanted.base_url}
    mirror = {"url": wanted.mirror, "seconds": _SECONDS} if wanted.mirror else None
    limits = {"samples": wanted.at_once}
    models = [{**model, "max_connections": wanted.at_once}]
    await run_async(task, models, id="r", store=folder, concurrency=limits, mirror=mirror)


def _dispatch_seconds(store: str) -> float:
    (journal,) = Path(store).glob(f"*/r/{journal_folder('')}")
    times = [each.line.at for each in Reader(str(journal)).read() if isinstance(each, Entry)]
    first, last = (datetime.fromisoformat(at) for at in (times[0], times[-1]))
    return (last - first).total_seconds()


class _MirrorMeter:
    """Looks how much CPU the mirror's thread, which ends with the run, and the threads of the store's library took."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return sum(self._seen.values())

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        ours = {each.native_id for each in threading.enumerate() if each.name == "holdfast-mirror"}
        for task in Path("/proc/self/task").iterdir():
            try:
                if int(task.name) in ours or (task / "comm").read_text().startswith("tokio"):
                    self._seen[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended


if __name__ == "__main__":
    if sys.argv[1:]:
        print(msgspec.json.encode(_be_child(msgspec.json.decode(sys.argv[1], type=Wanted))).decode())
    else:
        print_verdicts(main())
