"""Live updates over plain HTTP: every record is counted once, also across kills of the server."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.journal import Entry, Reader
from tests.e2e.commands import finish, run, start, wait_until, write_spec
from tests.e2e.view.viewers import Event, Viewer, stream

ADDRESS = "/api/runs/sums/live/events"
FIRST = "0.0.0."
"""The id before the first record."""


def write_live_spec(folder: Path, rows: int = 300) -> Path:
    """A run of several seconds."""
    options = {"options": {"reply": "8", "latency_seconds": 0.05}}
    return write_spec(folder, rows, model=options, concurrency={"samples": 2})


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    (tmp_path / "runs").mkdir()
    with Viewer("runs", cwd=tmp_path) as made:
        yield made


def records_of(folder: Path) -> int:
    with closing(Reader(str(folder / "journal"))) as reader:
        return sum(isinstance(each, Entry) for each in reader.read())


def check_order(events: list[Event], first: int = 0) -> int:
    """Each event begins where the one before it ended. Returns how many records they count."""
    last = first
    for event in events:
        if event.name == "records":
            assert event.data["n"] == last + event.data["count"]
            assert sum(event.data["types"].values()) == event.data["count"]
            last = event.data["n"]
    return last - first


def test_no_record_is_missing_or_sent_twice_across_kills_of_the_server(viewer: Viewer, tmp_path: Path) -> None:
    spec, folder = write_live_spec(tmp_path, 120), tmp_path / "runs" / "sums" / "live"
    with start("run", spec, "--id", "live", cwd=tmp_path) as process:
        assert wait_until(lambda: any(folder.glob("journal/*.jsonl")), process)
        seen: list[Event] = []
        kills, last_id = 0, FIRST
        while not seen or seen[-1].data.get("live", True):
            with stream(viewer, ADDRESS, last_id) as events:
                for event in events:
                    last_id = event.id
                    if event.name == "records":
                        seen.append(event)
                        if not event.data["live"]:
                            break
                        if kills < 3 and event.data["n"] > 20 * (kills + 1):
                            kills += 1
                            viewer.kill()
                            missed = records_of(folder) + 10
                            assert wait_until(lambda: records_of(folder) >= missed, process)  # noqa: B023 - now
                            process.send_signal(signal.SIGSTOP)  # it must not end while the server starts
                            viewer.restart()
                            process.send_signal(signal.SIGCONT)
                            break
        assert finish(process).code == 0
    assert kills == 3
    assert check_order(seen) == records_of(folder) > 360
    assert sum(event.data["types"].get("sample.finished", 0) for event in seen) == 120


def test_a_kill_of_the_run_and_its_resume_are_seen(viewer: Viewer, tmp_path: Path) -> None:
    spec, folder = write_live_spec(tmp_path, 80), tmp_path / "runs" / "sums" / "live"
    seen: list[Event] = []
    with start("run", spec, "--id", "live", cwd=tmp_path) as process:
        assert wait_until(lambda: any(folder.glob("journal/*.jsonl")), process)
        with stream(viewer, ADDRESS, FIRST) as events:
            for event in events:
                seen.append(event)
                if event.name == "records" and event.data["n"] > 60 and process.poll() is None:
                    finish(process, signal.SIGKILL)
                if event.name == "records" and not event.data["live"]:
                    break
            with start("resume", "live", cwd=tmp_path) as resumed:
                for event in events:
                    seen.append(event)
                    if event.data["types"].get("run.completed"):
                        break
                assert finish(resumed).code == 0
    lives = [event.data["live"] for event in seen if event.name == "records"]
    assert lives[0] is True
    assert False in lives
    assert True in lives[lives.index(False) :]
    assert check_order(seen) == records_of(folder)


def test_a_stream_begins_at_the_end_and_reads_once_for_all(viewer: Viewer, tmp_path: Path) -> None:
    assert run("run", write_spec(tmp_path), "--id", "live", cwd=tmp_path).code == 0
    count = records_of(tmp_path / "runs" / "sums" / "live")
    with stream(viewer, ADDRESS) as one, stream(viewer, ADDRESS) as two, stream(viewer, ADDRESS, FIRST) as three:
        for events in (one, two):
            assert next(events).name == "hello"
            assert next(events).data == {"n": count, "count": 0, "types": {}, "keys": [], "live": False}
        assert next(three).id == FIRST.removesuffix(".") + "."
        assert next(three).data["count"] == count
        assert run("note", "live", "a note", cwd=tmp_path).code == 0
        for events in (one, two, three):
            found = next(each for each in events if each.data.get("count"))
            assert found.data["n"] == count + found.data["count"] == records_of(tmp_path / "runs" / "sums" / "live")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A server that shows a run that has ended."""
    folder = tmp_path_factory.mktemp("finished")
    assert run("run", write_spec(folder), "--id", "live", cwd=folder).code == 0
    with Viewer("runs", cwd=folder) as made:
        yield made


@pytest.mark.parametrize(
    "given",
    ["5.1.10.abc", "999999.1.99999.abc", "9" * 5000, "1.1", "x", "1.99999999.0.a", "-1.-1.-1.a", "1.1.1.../..", "²"],
)
def test_an_id_that_no_stream_has_sent_resets_the_page_or_starts_at_the_end(finished: Viewer, given: str) -> None:
    with stream(finished, ADDRESS, given) as events:
        assert next(events).name == "hello"
        event = next(events)
        assert event.name == "reset" or (event.name, event.data["count"]) == ("records", 0)


def test_a_run_that_was_replaced_resets_the_page(viewer: Viewer, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert run("run", spec, "--id", "live", cwd=tmp_path).code == 0
    with stream(viewer, ADDRESS) as events:
        next(events)
        last = next(events).id
        (tmp_path / "runs" / "sums" / "live").rename(tmp_path / "before")
        assert run("run", spec, "--id", "live", cwd=tmp_path).code == 0
        assert next(events).name == "reset"
        assert list(events) == []  # the page opens another one
    with stream(viewer, ADDRESS, last) as events:
        assert [next(events).name, next(events).name] == ["hello", "reset"]


def test_a_run_that_is_not_there_has_no_events(viewer: Viewer) -> None:
    reply = viewer.get("/api/runs/no/such/events")
    assert reply.status == 404
    assert "there is no run no/such" in reply.text
    assert viewer.get("/api/runs/no/such/events", method="HEAD").status in (404, 405)


def test_a_mirrored_run_is_live_too(tmp_path: Path) -> None:
    mirror = f"file://{tmp_path / 'mirror'}"
    options = {"options": {"reply": "8", "latency_seconds": 0.05}}
    spec = write_spec(tmp_path, 100, model=options, concurrency={"samples": 1}, mirror={"url": mirror, "seconds": 0.5})
    with start("run", spec, "--id", "live", cwd=tmp_path) as process:
        found = tmp_path / "mirror" / "sums" / "live"
        assert wait_until(lambda: found.exists() and len(list(found.rglob("*"))) > 4, process)
        with Viewer(mirror, cwd=tmp_path) as viewer:
            with stream(viewer, ADDRESS, FIRST) as events:
                seen = []
                for event in events:
                    if event.name == "records":
                        seen.append(event)
                        if not event.data["live"]:
                            break
            assert finish(process).code == 0
    assert len([event for event in seen if event.data["count"]]) > 1
    assert check_order(seen) > 100
