"""The watch: beats, names what hangs once, says when it moves again, and is stopped by nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.engine import Engine, Progress, Watchdog, WatchdogOptions
from holdfast.engine.in_flight import InFlightSample
from holdfast.journal.ownership.lease import Lease, read_lease

STALL_SECONDS = 0.1


class Stub:
    """As much of an engine as a watch looks at."""

    def __init__(self, spec: SimpleNamespace) -> None:
        self.spec = spec
        self.progress = Progress(planned=3)
        self.flights: list[InFlightSample] = []
        self.tasks: list[asyncio.Task[object]] = []

    def begin(
        self, key: str, code: Callable[[], Coroutine[Any, Any, object]], limit: float | None = None
    ) -> InFlightSample:
        task = asyncio.ensure_future(code())
        flight = InFlightSample(key, task, asyncio.get_running_loop().time(), limit)
        self.tasks.append(task)
        self.flights.append(flight)
        return flight


async def hang() -> None:
    await asyncio.Event().wait()


async def nothing() -> None: ...


class Watched:
    """A watch over a stub, and what it told."""

    def __init__(self, run: Path, cancel: bool = False, **orders: Any) -> None:
        stall = {"stall_seconds": STALL_SECONDS, "on_stall": "cancel-sample" if cancel else "warn"}
        self.engine = Stub(SimpleNamespace(**stall, mirror=None))
        self.told: list[tuple[str, str]] = []
        self.run = run
        self.tell: Callable[[str, str], None] = self.note
        given: dict[str, Any] = {
            "run": str(run),
            "epoch": 1,
            "acknowledged": lambda: 7,
            "tell": lambda event, message, **facts: self.tell(event, message),
            "execute_requests": nothing,
            **orders,
        }
        self.watch = Watchdog(cast(Engine, self.engine), WatchdogOptions(**given))

    def note(self, event: str, message: str) -> None:
        self.told.append((event, message))

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.told]

    def lease(self) -> Lease:
        found = read_lease(str(self.run))
        assert found is not None
        return found

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not happened():  # noqa: ASYNC110 - looks at files
                await asyncio.sleep(0.01)

    async def beats(self, count: int) -> None:
        first = self.lease().beat
        await self.until(lambda: self.lease().beat >= first + count)


def watched(run: Path, story: Callable[[Watched], Awaitable[None]], **given: Any) -> Watched:
    made: list[Watched] = []

    async def process() -> None:
        stage = Watched(run, **given)
        made.append(stage)
        stage.watch.start()
        await stage.until(lambda: read_lease(str(run)) is not None)
        try:
            await story(stage)
        finally:
            await stage.watch.end()
            for task in stage.engine.tasks:
                task.cancel()
            await asyncio.gather(*stage.engine.tasks, return_exceptions=True)

    asyncio.run(process())
    return made[0]


def test_a_watch_beats_and_its_last_beat_says_that_the_run_was_let_go(tmp_path: Path) -> None:
    async def story(stage: Watched) -> None:
        await stage.beats(3)
        assert not stage.lease().released

    stage = watched(tmp_path, story)
    assert (stage.lease().released, stage.lease().acknowledged, stage.lease().planned) == (True, 7, 3)
    assert stage.told == []


def test_a_sample_that_hangs_is_named_once_and_the_run_is_stalled_until_it_moves(tmp_path: Path) -> None:
    async def story(stage: Watched) -> None:
        flight = stage.engine.begin("t/m/1/1", hang)
        await stage.until(lambda: stage.lease().stall is not None)
        await stage.beats(5)
        assert stage.events == ["sample.stalled", "run.stalled"]
        stall = stage.lease().stall
        assert stall is not None
        assert [each.key for each in stall.samples] == ["t/m/1/1"]
        assert any("in hang" in line for line in stall.samples[0].stack)
        stage.engine.flights.remove(flight)
        stage.engine.progress.finished += 1
        await stage.until(lambda: stage.lease().stall is None)

    assert watched(tmp_path, story).events == ["sample.stalled", "run.stalled", "run.moving_again"]


def test_a_sample_that_hangs_is_cancelled_if_so_ordered(tmp_path: Path) -> None:
    async def story(stage: Watched) -> None:
        flight = stage.engine.begin("t/m/1/1", hang)
        await stage.until(flight.task.done)
        assert flight.stalled
        assert flight.task.cancelled()

    assert "sample.stalled" in watched(tmp_path, story, cancel=True).events


def test_a_sample_that_saves_is_no_stall(tmp_path: Path) -> None:
    async def story(stage: Watched) -> None:
        stage.engine.begin("t/m/1/1", hang).doing = "saving"
        await stage.beats(10)
        assert stage.lease().stall is None

    assert watched(tmp_path, story).told == []


def test_a_sample_past_its_limit_is_named_once(tmp_path: Path) -> None:
    async def story(stage: Watched) -> None:
        flight = stage.engine.begin("t/m/1/1", hang, limit=1.0)
        flight.since -= 100
        await stage.until(lambda: "sample.overdue" in stage.events)
        await stage.beats(4)
        assert stage.lease().oldest[0].overdue

    assert watched(tmp_path, story).events.count("sample.overdue") == 1


FAILURES = {
    "the system": OSError(28, "No space left on device"),
    "a value": ValueError("x"),
    "a run-time error": RuntimeError("x"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_wish_that_fails_unforeseen_does_not_stop_the_heartbeat(tmp_path: Path, name: str) -> None:
    async def fail() -> None:
        raise FAILURES[name]

    async def story(stage: Watched) -> None:
        await stage.beats(3)

    assert watched(tmp_path, story, execute_requests=fail).lease().beat >= 4


def test_a_log_that_fails_does_not_stop_the_heartbeat(tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("x")

    async def story(stage: Watched) -> None:
        stage.tell = fail
        stage.engine.begin("t/m/1/1", hang)
        await stage.beats(12)

    assert watched(tmp_path, story).lease().released


def test_a_mirror_that_is_late_shows_in_the_progress_and_one_that_is_not_does_not(tmp_path: Path) -> None:
    behind = [0.0]

    async def story(stage: Watched) -> None:
        stage.engine.spec.mirror = SimpleNamespace(seconds=5.0)
        for late, shown in ((4.0, 0.0), (15.0, 0.0), (21.04, 21.0), (0.0, 0.0)):
            behind[0] = late
            await stage.beats(2)
            assert (stage.lease().mirrored, stage.lease().mirror_behind) == (7, round(late, 1))
            assert stage.engine.progress.mirror_behind == shown

    assert watched(tmp_path, story, mirrored=lambda: (7, behind[0])).told == []
