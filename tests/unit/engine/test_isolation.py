"""Whatever the user's code does to one sample, that sample alone fails, with a kind, and the others go on."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.records import line
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Given, RunOutcome
from holdfast.score import scorer
from holdfast.solve import Context
from tests.unit.engine import runs

BAD = "s1"
ROWS = 4
Deed = Callable[[Context | None], Awaitable[Any]]


class Abort(BaseException):
    """Not an Exception, as those of pytest, trio and others."""


class SpeechlessError(Exception):
    """One that cannot be told."""

    def __str__(self) -> str:
        raise ValueError("no words")


async def raise_error(_: Context | None) -> None:
    raise ValueError("of the user")


async def raise_cancelled(_: Context | None) -> None:
    raise asyncio.CancelledError


async def raise_keyboard_interrupt(_: Context | None) -> None:
    raise KeyboardInterrupt


async def raise_system_exit(_: Context | None) -> None:
    sys.exit(7)


async def raise_base_exception(_: Context | None) -> None:
    raise Abort("stop everything")


async def raise_generator_exit(_: Context | None) -> None:
    raise GeneratorExit


async def raise_base_group(_: Context | None) -> None:
    raise BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")])


async def raise_speechless(_: Context | None) -> None:
    raise SpeechlessError


async def raise_surrogates(_: Context | None) -> None:
    raise FileNotFoundError("there is no file \udcff.txt")


async def raise_in_own_task(_: Context | None) -> None:
    async def leave() -> None:
        sys.exit(7)

    await asyncio.gather(leave())


async def raise_in_task_group(_: Context | None) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async with asyncio.TaskGroup() as group:
        group.create_task(interrupt())


async def cancel_own_task(_: Context | None) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_own_task_and_go_on(_: Context | None) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "as if nothing were"


async def return_nothing(_: Context | None) -> None:
    return None


async def return_an_object(_: Context | None) -> object:
    return object()


DEEDS: dict[str, tuple[Deed, str]] = {
    "raises": (raise_error, "solver"),
    "raises CancelledError": (raise_cancelled, "cancelled"),
    "raises KeyboardInterrupt": (raise_keyboard_interrupt, "solver"),
    "raises SystemExit": (raise_system_exit, "solver"),
    "raises a BaseException": (raise_base_exception, "solver"),
    "raises GeneratorExit": (raise_generator_exit, "solver"),
    "raises a BaseExceptionGroup": (raise_base_group, "solver"),
    "raises what cannot be told": (raise_speechless, "solver"),
    "raises a text with surrogates": (raise_surrogates, "solver"),
    "exits in a task of its own": (raise_in_own_task, "solver"),
    "interrupts in a task group": (raise_in_task_group, "solver"),
    "cancels its own task": (cancel_own_task, "cancelled"),
    "cancels its own task and goes on": (cancel_own_task_and_go_on, "cancelled"),
    "returns nothing": (return_nothing, "solver"),
    "returns an object": (return_an_object, "solver"),
}


def solving(deed: Deed) -> Callable[[Sample, Context], Awaitable[Any]]:
    async def solve(sample: Sample, ctx: Context) -> Any:
        await ctx.generate()
        return await deed(ctx) if sample.id == BAD else "fine"

    return solve


def go(store: Path, wanted: Given) -> RunOutcome:
    """A run that gets out of hand must not take the tests with it."""
    try:
        return runs.go(store, wanted)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Abort) as error:
        raise AssertionError(f"one sample has ended the whole run: {error!r}") from None


def outcome(store: Path, **asked: Any) -> tuple[RunOutcome, dict[str, str]]:
    """How each sample ended: `finished`, or the kind of its failure."""
    fields = asked.pop("spec", {})
    task = runs.Asked(rows=runs.rows(ROWS), fields={"sample_retries": 0}, **asked)
    ended = go(store, runs.given([task], fail_on_error=ROWS, **fields))
    found = {each.sample_id: each.error.kind if each.error else each.status for each in runs.lines(store)}
    assert ended.finished + ended.failed + ended.unfinished == ROWS
    return ended, found


@pytest.mark.parametrize("name", DEEDS)
def test_a_solver_that_misbehaves_fails_its_own_sample_alone(tmp_path: Path, name: str) -> None:
    deed, kind = DEEDS[name]
    ended, found = outcome(tmp_path, solver=solving(deed))
    assert found == {"s0": "finished", BAD: kind, "s2": "finished", "s3": "finished"}
    assert (ended.finished, ended.failed, ended.interrupted) == (3, 1, False)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(text=5),  # type: ignore[arg-type] # garbage, on purpose
        Answer("x", {"role": object()}),
        Answer("\udcff"),
        Answer("x", usage="many"),  # type: ignore[arg-type] # garbage, on purpose
    ],
    ids=["a number as text", "an object", "a surrogate", "a text as usage"],
)
def test_an_answer_that_cannot_be_saved_fails_with_the_kind_record(tmp_path: Path, answer: Answer) -> None:
    async def garbage(_: Context | None) -> Answer:
        return answer

    _, found = outcome(tmp_path, solver=solving(garbage))
    assert found == {"s0": "finished", BAD: "record", "s2": "finished", "s3": "finished"}


def test_an_answer_that_is_too_large_fails_with_a_kind_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "LINE_BYTES_MAX", 20_000)

    async def much(_: Context | None) -> str:
        return "x" * 50_000

    _, found = outcome(tmp_path, solver=solving(much))
    assert found == {"s0": "finished", BAD: "too_large", "s2": "finished", "s3": "finished"}


async def hang(_: Context | None) -> None:
    await asyncio.Event().wait()


async def hang_and_clean_up(_: Context | None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("deed", [hang, hang_and_clean_up])
def test_a_solver_that_never_returns_fails_at_its_limit(tmp_path: Path, deed: Deed) -> None:
    ended, found = outcome(tmp_path, solver=solving(deed), spec={"limits": {"sample": {"seconds": 0.1}}})
    assert found == {"s0": "finished", BAD: "timeout", "s2": "finished", "s3": "finished"}
    assert ended.unfinished == 0, "a time-out leaves nothing running"


def scoring(deed: Deed, wild: list[bool]) -> Any:
    @scorer
    async def judged(sample: Sample, answer: Answer) -> Any:
        return await deed(None) if sample.id == BAD and wild else True

    return judged


_HARMLESS = {"returns nothing", "cancels its own task and goes on"}
SCORER_DEEDS = {name: deed for name, (deed, _) in DEEDS.items() if name not in _HARMLESS}


@pytest.mark.parametrize("name", SCORER_DEEDS)
def test_a_scorer_that_misbehaves_fails_that_score_alone(tmp_path: Path, name: str) -> None:
    ended, found = outcome(tmp_path, scorers=[scoring(SCORER_DEEDS[name], [True])])
    assert found == {"s0": "finished", BAD: "finished", "s2": "finished", "s3": "finished"}
    assert (ended.finished, ended.failed, ended.interrupted) == (4, 0, False)
    scores = [data for kind, data in runs.records(tmp_path) if kind == "score"]
    assert sum(bool(each.get("failure")) for each in scores) == 1
    assert sum(each.get("value") is True for each in scores) == 3


@pytest.mark.parametrize("name", SCORER_DEEDS)
def test_a_scorer_that_misbehaves_after_a_resume_fails_that_score_alone(tmp_path: Path, name: str) -> None:
    """Answers that a killed process left without scores are scored first; there, too, one must not end the run."""
    wild: list[bool] = []
    task = runs.Asked(rows=runs.rows(ROWS), scorers=[scoring(SCORER_DEEDS[name], wild)])
    wanted = runs.given([task], fail_on_error=ROWS)
    runs.go(tmp_path, wanted)
    runs.cut_after(tmp_path, lambda kind, data: kind not in {"score", "run.completed"})
    wild.append(True)
    ended = go(tmp_path, wanted)
    assert (ended.finished, ended.failed, ended.unfinished, ended.interrupted) == (ROWS, 0, 0, False)
    scores = [data for kind, data in runs.records(tmp_path) if kind == "score"]
    assert sum(bool(each.get("failure")) for each in scores) == 1


def test_a_scorer_that_cancels_its_task_and_goes_on_takes_no_worker_with_it(tmp_path: Path) -> None:
    scorers = [scoring(cancel_own_task_and_go_on, [True])]
    ended, found = outcome(tmp_path, scorers=scorers, spec={"concurrency": {"samples": 1}})
    assert set(found.values()) == {"finished"}
    assert (ended.finished, ended.unfinished, ended.interrupted) == (ROWS, 0, False)
