"""What is asked of a live run is met or answered, once; and nothing that is asked can hurt the run."""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.commands.control import cancel_run, note_run, tag_run, tune_run
from holdfast.errors import UsageError
from holdfast.journal.ownership.lease import read_lease
from holdfast.runs import RunLocation
from holdfast.runs.control import ControlRequest, pending_requests, send_control_request, write_control_reply
from holdfast.state import standing_of
from tests.unit.engine.runs import records
from tests.unit.runs.stores import completed, listed, while_live

BEATS = 2
PATIENCE_SECONDS = 300.0
"""Only a failing test waits so long."""


def noted(store: Path, run_id: str = "live") -> list[str]:
    return [data["text"] for kind, data in records(store, run_id) if kind == "note"]


def wish_file(place: RunLocation, content: bytes, name: str = "aa") -> Path:
    folder = Path(place.folder, "control")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.wish"
    path.write_bytes(content)
    return path


async def beats(place: RunLocation, count: int = BEATS) -> None:
    """Until the run has read its control requests so many times more."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        first = await first_beat(place)
        while True:
            lease = read_lease(place.folder)
            if lease is not None and lease.beat >= first + count:
                return
            await asyncio.sleep(0.02)


async def first_beat(place: RunLocation) -> int:
    while True:
        lease = read_lease(place.folder)
        if lease is not None and not lease.released:
            return lease.beat
        await asyncio.sleep(0.01)


async def answer_to(path: Path) -> Any:
    done = path.with_name(f"{path.name}.done")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    return json.loads(done.read_bytes())


def asking(*wanted: ControlRequest) -> tuple[Callable[[RunLocation], Awaitable[None]], list[Any]]:
    said: list[Any] = []

    async def ask(place: RunLocation) -> None:
        said.extend(
            await asyncio.gather(
                *(asyncio.to_thread(send_control_request, place.folder, wish, PATIENCE_SECONDS) for wish in wanted)
            )
        )

    return ask, said


def test_notes_and_tags_of_a_live_run_are_written_by_the_run_itself(tmp_path: Path) -> None:
    async def ask(place: RunLocation) -> None:
        await first_beat(place)
        await asyncio.to_thread(note_run, "live", "looks good", str(tmp_path))
        await asyncio.to_thread(tag_run, "live", ["nightly", "x"], str(tmp_path))
        await asyncio.to_thread(tag_run, "live", ["-x"], str(tmp_path))
        assert os.listdir(os.path.join(place.folder, "control")) == []

    while_live(tmp_path, "live", ask)
    summary = listed(tmp_path)["live"]
    assert (summary.status, summary.tags) == ("completed", ["nightly"])
    assert [note["text"] for note in summary.notes] == ["looks good"]


def test_two_wishes_at_once_are_both_met(tmp_path: Path) -> None:
    ask, said = asking(ControlRequest("note", text="one"), ControlRequest("note", text="two"))
    while_live(tmp_path, "live", ask)
    assert said == [(True, "done")] * 2
    assert sorted(noted(tmp_path)) == ["one", "two"]


def test_a_wish_that_this_version_does_not_know_is_answered(tmp_path: Path) -> None:
    ask, said = asking(ControlRequest("dance"))
    while_live(tmp_path, "live", ask)
    assert said == [(False, "this version of Holdfast does not know 'dance'")]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"do": 5}', b"\xff\xfe\x00", b'{"do": "note", "text": 5}', b'"note"', b"[" * 5000],
    ids=lambda value: repr(value[:12]),
)
def test_garbage_is_answered_and_the_heartbeats_continue(tmp_path: Path, content: bytes) -> None:
    async def ask(place: RunLocation) -> None:
        path = wish_file(place, content)
        assert await answer_to(path) == [False, "it cannot be read"]
        await beats(place)

    while_live(tmp_path, "live", ask)
    assert listed(tmp_path)["live"].status == "completed"


def test_a_text_that_cannot_be_saved_is_refused_and_the_heartbeats_continue(tmp_path: Path) -> None:
    """A lone surrogate is valid JSON and no valid text."""

    async def ask(place: RunLocation) -> None:
        path = wish_file(place, b'{"do": "note", "text": "\\ud800"}')
        answered = await answer_to(path)
        assert answered[0] is False
        await beats(place)

    while_live(tmp_path, "live", ask)
    assert noted(tmp_path) == []


def test_a_folder_called_like_a_wish_is_passed_over(tmp_path: Path) -> None:
    async def ask(place: RunLocation) -> None:
        os.makedirs(os.path.join(place.folder, "control", "aa.wish"))
        assert await asyncio.to_thread(
            send_control_request, place.folder, ControlRequest("note", text="seen"), PATIENCE_SECONDS
        ) == (
            True,
            "done",
        )

    while_live(tmp_path, "live", ask)
    assert noted(tmp_path) == ["seen"]


def test_a_wish_whose_answer_cannot_be_written_is_met_only_once(tmp_path: Path) -> None:
    """The folder may belong to somebody else, or the disk be full."""

    async def ask(place: RunLocation) -> None:
        path = wish_file(place, b'{"do": "note", "text": "once"}')
        path.with_name("aa.wish.done.tmp").mkdir()
        await beats(place, 4)

    while_live(tmp_path, "live", ask)
    assert noted(tmp_path) == ["once"]


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), ValueError("a mistake of ours")])
def test_a_wish_that_fails_in_an_unforeseen_way_does_not_end_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.runs.execution.session.write_spec_file", fail)
    asked = []

    async def ask(place: RunLocation) -> None:
        await first_beat(place)
        wish_file(place, b'{"do": "tune", "sets": ["concurrency.samples=7"]}')
        await beats(place, 4)
        asked.append(True)

    while_live(tmp_path, "live", ask)
    assert asked == [True], "the heartbeat has ended: the run would be called stalled, and cancel would do nothing"


def test_a_tuned_run_says_so_and_other_fields_are_refused(tmp_path: Path) -> None:
    async def ask(place: RunLocation) -> None:
        await first_beat(place)
        await asyncio.to_thread(tune_run, "live", ["concurrency.samples=7"], str(tmp_path))
        for sets in ("seed=5", "concurrency.samples=0", "no.such=1", "concurrency.samples=7", "nonsense"):
            with pytest.raises(UsageError):
                await asyncio.to_thread(tune_run, "live", [sets], str(tmp_path))
        await beats(place)

    while_live(tmp_path, "live", ask)
    summary = listed(tmp_path)["live"]
    assert [each["changes"][0]["field"] for each in summary.resumes] == ["concurrency.samples"]


def test_a_run_that_is_cancelled_answers_before_it_ends(tmp_path: Path) -> None:
    """With no grace and nothing to wait for, it ends at once."""
    said: list[Any] = []

    def cancel(place: RunLocation) -> None:
        said.append(send_control_request(place.folder, ControlRequest("cancel"), PATIENCE_SECONDS))

    threads = []

    async def ask(place: RunLocation) -> None:
        await first_beat(place)
        threads.append(threading.Thread(target=cancel, args=[place]))
        threads[0].start()
        await asyncio.sleep(PATIENCE_SECONDS)

    while_live(tmp_path, "live", ask)
    threads[0].join()
    summary = listed(tmp_path)["live"]
    assert (summary.status, summary.unfinished) == ("cancelled", 2)
    assert said == [(True, "the run stops")]


def test_a_run_at_rest_cannot_be_cancelled_or_tuned(tmp_path: Path) -> None:
    completed(tmp_path)
    with pytest.raises(UsageError, match=r"^done is completed: no process is working on it$"):
        cancel_run("done", str(tmp_path))
    with pytest.raises(UsageError, match=r"^done is completed: no process is working on it$"):
        tune_run("done", ["concurrency.samples=7"], str(tmp_path))
    assert listed(tmp_path)["done"].status == "completed"


def test_a_wish_that_nobody_meets_is_taken_back(tmp_path: Path) -> None:
    place = completed(tmp_path)
    ticks = iter(range(100))
    assert send_control_request(place.folder, ControlRequest("cancel"), 2.0, lambda: float(next(ticks))) is None
    assert os.listdir(os.path.join(place.folder, "control")) == []


def test_an_answer_to_a_wish_that_was_taken_back_leaves_nothing_behind(tmp_path: Path) -> None:
    place = completed(tmp_path)
    path = wish_file(place, b'{"do": "cancel"}')
    assert [wish for _, wish in pending_requests(place.folder)] == [ControlRequest("cancel")]
    path.unlink()
    write_control_reply(str(path), True, "done")
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("looks", [1, 2])
def test_a_note_for_a_run_that_ends_while_it_waits_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """It was live when it was asked, and has let go of the journal by the time that nobody answers."""
    place = completed(tmp_path)
    live = iter([True] * looks)

    def standing(run: str) -> Any:
        found = standing_of(run)
        return type("Live", (), {"held": True, "lease": found.lease}) if next(live, False) else found

    monkeypatch.setattr("holdfast.runs.requests.standing_of", standing)
    monkeypatch.setattr("holdfast.runs.requests.send_control_request", lambda *_: None)
    note_run("done", "kept", str(tmp_path))
    assert noted(tmp_path, "done") == ["kept"]
    assert place.run_id == "done"


def test_a_wish_that_waits_when_the_run_ends_is_met_before_it_lets_go(tmp_path: Path) -> None:
    """The last samples end between two beats."""

    async def ask(place: RunLocation) -> None:
        await beats(place, 1)
        wish_file(place, b'{"do": "note", "text": "just in time"}')

    while_live(tmp_path, "live", ask)
    assert noted(tmp_path) == ["just in time"]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    place = completed(tmp_path)
    Path(place.folder, "control").write_text("a file, not a folder")
    with pytest.raises(OSError, match="control"):
        send_control_request(place.folder, ControlRequest("cancel"))
    assert list(pending_requests(place.folder)) == []
