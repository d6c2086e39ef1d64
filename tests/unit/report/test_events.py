"""An export with events holds every step of every key, once, and the whole conversation; memory holds one key."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.models import Request
from holdfast.records.samples import Answer, Message, Sample
from holdfast.report.lines import EventLine
from holdfast.runs import Run
from holdfast.solve import Context, tool
from holdfast.state import index_pages
from tests.unit.engine.runs import RUN, Asked, cut_after, given, go, model, records, rows

LONG = 20_000


@tool
async def look(text: str) -> str:
    """Look something up."""
    return f"found {text}"


async def talks(sample: Sample, ctx: Context) -> str:
    """Three turns with a call after each; s1 fails in the end."""
    messages = list(ctx.messages)
    for turn in range(3):
        answer = await ctx.generate(messages)
        found = await ctx.call(look, {"text": f"{sample.id} {turn}"})
        messages += [answer.message, {"role": "user", "content": found}]
    if sample.id == "s1":
        raise ValueError("no")
    return str(found)


async def long_talk(sample: Sample, ctx: Context) -> str:
    messages = list(ctx.messages)
    for turn in range(5):
        answer = await ctx.generate(messages)
        messages += [answer.message, {"role": "user", "content": f"{sample.id} {turn} " * (LONG // 6)}]
    return "done"


class Said:
    """A model that numbers its answers, and remembers the last request of each sample."""

    def __init__(self) -> None:
        self.last: dict[str, list[Message]] = {}

    async def __call__(self, request: Request) -> Answer:
        text = f"answer {len(request.messages)}"
        message: Message = {"role": "assistant", "content": text}
        self.last[str(request.messages[0]["content"])] = [*request.messages, message]
        return Answer(text, message)


def exported(store: Path, *, of_finished: bool = True) -> list[EventLine]:
    with Run.find(str(store), RUN) as run:
        return list(run.events(run.lines(), of_finished=of_finished))


def run_talks(store: Path) -> Said:
    said = Said()
    task = Asked(rows=rows(4), solver=talks, fields={"sample_retries": 1})
    go(store, given([task], [model("m", said)]))
    return said


def test_every_step_is_in_the_line_of_its_key_and_nowhere_else(tmp_path: Path) -> None:
    run_talks(tmp_path)
    told = [event.d for line in exported(tmp_path) for event in line.events or ()]
    written = [data for kind, data in records(tmp_path) if kind in ("step", "sample.failed")]
    assert sorted(map(str, told)) == sorted(map(str, written))
    for line in exported(tmp_path):
        numbers = [event.n for event in line.events or ()]
        assert numbers == sorted(numbers)
        assert [event.t for event in line.events or ()].count("step") == (12 if line.sample_id == "s1" else 6)


def test_the_messages_are_the_whole_last_conversation(tmp_path: Path) -> None:
    said = run_talks(tmp_path)
    for line in exported(tmp_path):
        assert line.messages is not None
        assert line.messages == said.last[str(line.messages[0]["content"])]
        assert len(line.messages) == 6


def test_steps_of_finished_keys_can_be_left_out_while_the_others_keep_theirs(tmp_path: Path) -> None:
    run_talks(tmp_path)
    cut_after(tmp_path, lambda kind, data: kind != "sample.finished" or data["o"] not in (2, 3))
    lines = exported(tmp_path, of_finished=False)
    assert {line.status for line in lines} == {"finished", "unfinished"} | {line.status for line in lines}
    for line in lines:
        assert (line.events is None) == (line.messages is None) == (line.status == "finished")
    left = {line.sample_id: len(line.events) for line in lines if line.events is not None}
    whole = {line.sample_id: len(line.events or ()) for line in exported(tmp_path)}
    assert left
    assert left == {sample: whole[sample] for sample in left}
    assert all(left.values())


def test_a_line_can_be_written_and_read_again(tmp_path: Path) -> None:
    run_talks(tmp_path)
    line: dict[str, Any] = json.loads(msgspec.json.encode(exported(tmp_path)[0]))
    assert line["key"] == "task/m/s0/1"
    assert line["events"][0]["d"]["asked"]["new"] == line["messages"][:1]
    assert line["events"][1]["d"]["called"] == {"tool": "look", "arguments": {"text": "s0 0"}}


async def forgets(sample: Sample, ctx: Context) -> str:
    """Each request keeps the first message and what was said last, as an agent that summarises does."""
    messages = list(ctx.messages)
    for turn in range(4):
        answer = await ctx.generate(messages)
        cut = messages[:1] if turn % 2 else messages
        messages = [*cut, answer.message, {"role": "user", "content": f"turn {turn}"}]
    return "done"


def test_the_messages_of_a_conversation_that_left_some_out_are_those_of_its_last_request(tmp_path: Path) -> None:
    said = Said()
    go(tmp_path, given([Asked(rows=rows(2), solver=forgets)], [model("m", said)]))
    for line in exported(tmp_path):
        assert line.messages is not None
        assert line.messages == said.last[str(line.messages[0]["content"])]


def peak_bytes(store: Path, keys: int) -> int:
    go(store, given([Asked(rows=rows(keys), solver=long_talk)], [model("m", Said())], concurrency={"samples": 8}))
    with Run.find(str(store), RUN) as run:
        lines = run.events(run.lines())
        tracemalloc.start()
        try:
            assert sum(len(line.events or ()) for line in lines) == 5 * keys
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.long
def test_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MB of steps fill what is kept in memory; 80 MB need no more. Nor do more pages of the index."""
    monkeypatch.setattr(index_pages, "PAGE_KEYS", 20)
    few, many = peak_bytes(tmp_path / "few", 400), peak_bytes(tmp_path / "many", 800)
    assert many < 1.1 * few, (few, many)
