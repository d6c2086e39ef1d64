"""Any small run, killed anywhere and resumed any number of times, ends as if it had been run at one go.

What is simulated, and what is not: no process is killed here. When the model gets its k-th request the run's folder is
copied as it lies on the disk, and the test continues with the copy, while the writer that was copied from ends by
itself, unseen. So everything that was only in memory is lost, records that were handed over and not yet written too, as
by kill -9; a record cut off in the middle is added by hand. A moment before the first request, a lost page cache and a
copy in the middle of a seal do not occur: tests/crash has those, and tests/e2e the real signal.
"""

import asyncio
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
import yaml
from hypothesis import given, note, settings
from hypothesis import strategies as st

from holdfast.models import Connection, Request
from holdfast.models.providers.mock import MockProvider, make_mock
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Given, Run
from holdfast.solve import Context
from holdfast.spec import build_spec
from tests.e2e.commands import write_rows
from tests.unit.engine.runs import RUN, go

ROWS = [
    {"id": f"s{i}", "input": f"question {i}", "target": f"question {i}" if i % 2 else "nothing"} for i in range(1, 5)
]
_RESUMED = re.compile(r"^# Resumed by holdfast \S+ at \S+: (\S+): (.*)$", re.MULTILINE)
Mapping = dict[str, Any]


class Moment:
    """When the picture of the run is taken, and the pace of the process that is running."""

    def __init__(self) -> None:
        self.requests = 0
        self.pace = 0
        self.at: int | None = None
        self.take: Callable[[], None] = lambda: None

    async def request(self, content: bytes) -> None:
        self.requests += 1
        if self.requests == self.at:
            self.take()
        for _ in range(xxhash.xxh3_64_intdigest(content, self.pace) % 7):
            await asyncio.sleep(0)


MOMENT = Moment()


class Watched:
    """The mock, whose requests are counted, and which answers in another order in each process."""

    def __init__(self, mock: MockProvider) -> None:
        self._mock = mock

    async def generate(self, request: Request) -> Answer:
        await MOMENT.request(msgspec.json.encode(request.messages))
        return await self._mock.generate(request)

    async def close(self) -> None:
        await self._mock.close()


def make_watched(connection: Connection) -> Watched:
    return Watched(make_mock(connection))


async def twice(sample: Sample, ctx: Context) -> Answer:
    first = await ctx.generate()
    return await ctx.generate([*ctx.messages, first.message, {"role": "user", "content": f"sure of {first.text}?"}])


async def side_by_side(sample: Sample, ctx: Context) -> str:
    answers = await asyncio.gather(*(ctx.generate(f"{sample.input}, {side}") for side in ("left", "right", "right")))
    return " | ".join(answer.text for answer in answers)


async def drawn(sample: Sample, ctx: Context) -> str:
    told = [(await ctx.generate(f"{sample.input} and {ctx.random.random()}")).text for _ in range(2)]
    return f"{ctx.random.choice(told)}, {ctx.random.random()}"


SOLVERS = ["chat", f"{__name__}:twice", f"{__name__}:side_by_side", f"{__name__}:drawn"]
SCORERS = [[], ["exact_match"], ["includes", "exact_match"]]
FAILURES: list[list[Mapping]] = [
    [],
    [{"kind": "server", "every": 2, "times": 1}],
    [{"kind": "context_too_long", "every": 3}],
    [{"kind": "timeout", "every": 4}],
    [{"kind": "content_filter", "every": 5}, {"kind": "connection", "every": 2, "times": 1}],
]
"""Such that a sample that fails fails for good, and one that can be answered is answered by its third attempt."""


class Asked(msgspec.Struct, frozen=True):
    """A small spec, and the settings that each of its processes brings."""

    tasks: list[Mapping]
    models: list[Mapping]
    limit: int

    def given(self, folder: Path, brought: Mapping) -> Given:
        sets = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in brought.items()]
        raw = {"experiment": "tests", "limit": self.limit, "models": self.models, "tasks": self.tasks}
        return Given(build_spec(raw, str(folder / "eval.yaml"), sets))


def draws(asked: Asked) -> bool:
    return any(task["solver"] == SOLVERS[-1] for task in asked.tasks)


def fails(asked: Asked) -> bool:
    return any(model["options"]["failures"] for model in asked.models)


def _task(number: int) -> st.SearchStrategy[Mapping]:
    return st.fixed_dictionaries(
        {
            "name": st.just(f"t{number}"),
            "dataset": st.just({"path": "rows.jsonl", "id": "id", "input": "input", "target": "target"}),
            "prompt": st.just("{input}" if number == 0 else "Say {input}"),
            "solver": st.sampled_from(SOLVERS),
            "scorers": st.sampled_from(SCORERS),
            "repeats": st.integers(1, 3),
        }
    )


def _model(number: int) -> st.SearchStrategy[Mapping]:
    options = {"reply": st.sampled_from(["{last}", "no", ["{last}", "no"]]), "failures": st.sampled_from(FAILURES)}
    return st.fixed_dictionaries(
        {
            "name": st.just(f"m{number}"),
            "provider": st.just(f"{__name__}:make_watched"),
            "options": st.fixed_dictionaries(options),
            "request_retries": st.just(0),
        }
    )


specs = st.builds(
    Asked,
    tasks=st.one_of(st.tuples(_task(0)), st.tuples(_task(0), _task(1))).map(list),
    models=st.one_of(st.tuples(_model(0)), st.tuples(_model(0), _model(1))).map(list),
    limit=st.integers(1, len(ROWS)),
).filter(lambda asked: not (draws(asked) and fails(asked)))
"""Another attempt draws anew: a failed sample that draws may come out otherwise when a resume tries it again."""

SETTINGS: dict[str, tuple[Any, list[Any]]] = {
    "description": ("", ["", "mine", "a: b"]),
    "tags": ([], [[], ["nightly"]]),
    "models.m0.base_url": ("", ["", "http://127.0.0.1:9/v1"]),
    "models.m0.timeout_seconds": (600.0, [600.0, 7.5]),
    "models.m0.max_connections": (64, [64, 1, 2]),
    "tasks.t0.dataset.path": ("rows.jsonl", ["rows.jsonl", "copy.jsonl"]),
    "tasks.t0.max_samples": (None, [None, 1, 3]),
    "concurrency.samples": (256, [256, 1, 2, 5]),
    "concurrency.generate": (None, [None, 1, 2]),
    "concurrency.score": (64, [64, 1]),
}
"""What a resume may bring: the default, and what is drawn."""

brought = st.fixed_dictionaries({}, optional={name: st.sampled_from(every) for name, (_, every) in SETTINGS.items()})


class Kill(msgspec.Struct, frozen=True):
    """After how many requests of a process, how much of one more record gets to the disk, what the process brought, and
    whether somebody looks at what is left, and so leaves an index in it.
    """

    at: int
    torn: float
    brought: Mapping
    looked: bool = False


torn = st.sampled_from([0.0, 0.0, 0.1, 0.9])
kills = st.builds(Kill, at=st.integers(1, 40), torn=torn, brought=brought, looked=st.booleans())


@contextmanager
def folder_of_runs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for data in ("rows.jsonl", "copy.jsonl"):
            write_rows(Path(name, data), ROWS)
        yield Path(name)


def run_at_one_go(folder: Path, asked: Asked) -> list[tuple[Any, ...]]:
    MOMENT.requests, MOMENT.at, MOMENT.pace = 0, None, 0
    go(folder / "whole", asked.given(folder, {}))
    return told(folder / "whole")


def run_until(kill: Kill, folder: Path, number: int, asked: Asked) -> None:
    """One process: it works on store `number`, and leaves store `number + 1` as a kill would."""
    store, left = folder / str(number), folder / str(number + 1)
    MOMENT.requests, MOMENT.at, MOMENT.pace = 0, kill.at, number
    MOMENT.take = lambda: take_picture(store, left, kill.torn)
    go(store, asked.given(folder, kill.brought))
    if MOMENT.requests < kill.at:  # it was through before it could be killed
        shutil.copytree(store, left)
    if kill.looked:
        look_at(left)


def look_at(store: Path) -> None:
    with Run.find(str(store), RUN) as run:
        summary = run.summary()
    assert summary.status in {"interrupted", "completed"}
    assert summary.finished + summary.failed + summary.unfinished == summary.planned


def take_picture(store: Path, left: Path, torn: float) -> None:
    shutil.copytree(store, left)
    (hot,) = left.glob("*/*/journal/*.jsonl")
    content = hot.read_bytes()
    assert content
    if torn and content.endswith(b"\n"):
        last = content.splitlines()[-1]
        hot.write_bytes(content + last[: max(1, int(len(last) * torn))])


def told(store: Path) -> list[tuple[Any, ...]]:
    """Each key with all that must not depend on kills; an error's words may count tries."""
    with Run.find(str(store), RUN) as run:
        lines = run.samples()
        summary = run.summary()
    assert summary.status == "completed"
    assert summary.unfinished == 0
    assert summary.finished + summary.failed == summary.planned == len(lines)
    return [(line.key, line.status, line.output, line.error and line.error.kind, line.scores) for line in lines]


def check_lineage(store: Path, every: list[Mapping]) -> None:
    """Exactly the changes that the processes brought, in the journal and in spec.yaml."""
    effective = [{name: each.get(name, default) for name, (default, _) in SETTINGS.items()} for each in every]
    expected = [{name for name in SETTINGS if was[name] != now[name]} for was, now in itertools.pairwise(effective)]
    with Run.find(str(store), RUN) as run:
        changes = [{change["field"] for change in each["changes"]} for each in run.summary().resumes]
        header = (Path(run.place.folder) / "spec.yaml").read_text()
    assert [each for each in changes if each] == [each for each in expected if each]
    lines = [field for field, _ in _RESUMED.findall(header)]
    assert sorted(lines) == sorted(field for each in expected for field in each)
    body = yaml.safe_load(header)
    assert body["concurrency"]["samples"] == effective[-1]["concurrency.samples"]
    assert body["tasks"][0]["dataset"]["path"].endswith(effective[-1]["tasks.t0.dataset.path"])


def check_story(asked: Asked, story: list[Kill], last: Mapping) -> None:
    note(f"{asked}\n{story}\n{last}")
    with folder_of_runs() as folder:
        wanted = run_at_one_go(folder, asked)
        for number, kill in enumerate(story):
            run_until(kill, folder, number, asked)
        run_until(Kill(10**9, 0.0, last), folder, len(story), asked)
        end = folder / str(len(story) + 1)
        assert told(end) == wanted
        check_lineage(end, [*(kill.brought for kill in story), last])


@given(specs, st.lists(kills, max_size=4), brought)
@settings(max_examples=20)
def test_a_run_killed_anywhere_ends_as_if_it_had_been_run_at_one_go(
    asked: Asked, story: list[Kill], last: Mapping
) -> None:
    check_story(asked, story, last)


@pytest.mark.long
@given(specs, st.lists(kills, min_size=1, max_size=10), brought)
@settings(max_examples=400)
def test_a_run_killed_many_times_anywhere_ends_as_if_it_had_been_run_at_one_go(
    asked: Asked, story: list[Kill], last: Mapping
) -> None:
    check_story(asked, story, last)
