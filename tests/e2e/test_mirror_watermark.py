"""How far the mirror is can be seen, while it is behind, when it has come back, and when a run ends without it."""

import functools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.mirror.pieces import MirrorSource
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import take_epoch
from holdfast.journal.writer import MirrorOptions
from tests.e2e.commands import call, finish
from tests.e2e.live_runs import Stage, alive, begun, mock, stage, wait_for
from tests.stores import S3

QUICK = functools.partial(MirrorOptions, last_seconds=0.3)
"""A process that ends does not wait for a store that is gone."""


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server of this test alone, which may stop."""
    server = S3()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def mirrored(course: Stage) -> dict[str, Any]:
    found: dict[str, Any] = course.show()["mirror"]
    return found


def test_an_outage_shows_while_it_lasts_and_its_end_is_reported(tmp_path: Path, outage: S3) -> None:
    url = outage.bucket().url
    course = stage(
        tmp_path,
        400,
        model=mock(0.2),
        concurrency={"samples": 2},
        mirror={"url": url, "seconds": 0.2},
        stall_seconds=30,
    )
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: mirrored(course)["mirrored"] > 5, "the mirror has something")
        outage.stop()
        wait_for(lambda: "mirror.failed" in course.events(), "the outage is told")
        wait_for(lambda: mirrored(course)["behind_seconds"] > 1, "the mirror is behind")
        stuck = mirrored(course)
        assert stuck["mirrored"] < stuck["acknowledged"]
        assert f"mirror: {url}, durable there up to record {stuck['mirrored']} of " in course.told()
        assert course.show()["status"] == "running"
        outage.go_on()
        wait_for(lambda: "mirror.restored" in course.events(), "the end of the outage is told")
        wait_for(lambda: mirrored(course)["mirrored"] > stuck["acknowledged"], "the mirror has caught up")
        done = finish(process, signal.SIGINT)
    assert done.code == 130, done.err
    assert sum(line.startswith("s3://") for line in done.err.splitlines()) == 1
    assert "127.0.0.1" in done.err
    assert "cannot be reached: Connection refused; the run continues, and the upload is retried" in done.err
    last = mirrored(course)
    assert last["mirrored"] == last["acknowledged"]
    assert "which is all" in course.told()


def test_a_run_that_ends_without_its_mirror_says_what_to_do_and_the_next_start_does_it(
    tmp_path: Path, outage: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runs.mirror.claim.MirrorOptions", QUICK)
    url = outage.bucket().url
    course = stage(tmp_path, 6, mirror={"url": url, "seconds": 30.0})

    def look_once_more(objects: Objects) -> MirrorSource:
        source = MirrorSource(objects)
        outage.stop()
        return source

    def take_and_look(*arguments: Any) -> int:
        monkeypatch.setattr("holdfast.runs.mirror.claim.MirrorSource", look_once_more)
        return take_epoch(*arguments)

    monkeypatch.setattr("holdfast.runs.mirror.claim.take_epoch", take_and_look)
    done = call(*course.command, cwd=tmp_path)
    assert done.code == 0, done.err
    (warned,) = {line for line in done.err.splitlines() if "records are not in" in line}
    assert f"records are not in {url}/sums/x yet; they are safe here" in warned
    assert warned.endswith(f"holdfast resume {course.run}")
    assert "mirror.behind" in course.events()
    assert "the next start on the run's machine sends the rest" in course.told()
    monkeypatch.undo()
    outage.go_on()
    again = call("resume", course.run, cwd=tmp_path, env=outage.env)
    assert again.code == 0, again.err
    assert "which is all" in course.told()
    listed = call("ls", "--store", url, "--json", cwd=tmp_path, env=outage.env)
    assert [(each["status"], each["finished"]) for each in json.loads(listed.out)] == [("completed", 6)]
    assert "no damage" in call("verify", f"{url}/sums/x", cwd=tmp_path, env=outage.env).out


def test_a_process_that_ends_says_what_it_waits_for_and_a_second_signal_ends_the_waiting(
    tmp_path: Path, outage: S3
) -> None:
    url = outage.bucket().url
    course = stage(tmp_path, 40, model=mock(0.2), concurrency={"samples": 2}, mirror={"url": url, "seconds": 0.2})
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: mirrored(course)["mirrored"] > 5, "the mirror has something")
        outage.stop()
        wait_for(lambda: "mirror.waiting" in course.events(), "the end waits for the mirror")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "run.shutdown_requested" in course.events(), "the first signal was heard")
        done = finish(process, signal.SIGINT)
    assert done.code == 0, done.err
    assert "waiting for at most 60 s, they are safe here" in done.err
    assert f"records are not in {url}/sums/x yet; they are safe here" in done.err
    again = call(*course.command, cwd=tmp_path, env=outage.env)
    assert again.code == 0, again.err
    (warned,) = {line for line in again.err.splitlines() if "Connection refused" in line}
    assert "the run is complete here, and its mirror may not be" in warned


def test_a_resume_restores_a_damaged_segment_from_the_mirror(tmp_path: Path, outage: S3) -> None:
    course = stage(tmp_path, 20, model=mock(0.1), concurrency={"samples": 1}, mirror={"url": outage.bucket().url})
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: course.show()["finished"] > 5, "something is answered")
        assert finish(process, signal.SIGINT).code == 130
    with alive(course) as process:  # which seals what the first one wrote
        sealed = course.run / "journal" / "000001.jsonl.zst"
        wait_for(sealed.exists, "the first segment is sealed")
        assert finish(process, signal.SIGINT).code == 130
    data = bytearray(sealed.read_bytes())
    data[len(data) // 2] ^= 1
    sealed.write_bytes(data)
    assert call("verify", course.run, cwd=tmp_path).code == 5
    done = call(*course.command, cwd=tmp_path, env=outage.env)
    assert done.code == 0, done.err
    assert call("verify", course.run, cwd=tmp_path).code == 0
    assert course.show()["anomalies"] == []
    assert course.show()["steps"]["live"] == 20, "no answer was bought twice"
