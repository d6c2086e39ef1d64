"""A run that is dead never says that it is running, one that hangs says so and where, and both can be resumed."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import exported, finish, run
from tests.e2e.live_runs import RUN, alive, begun, mock, stage, wait_for

# Three cases of a runbook for another system, and two of its known defects.


def test_a_case_whose_save_failed_fails_alone_and_is_reported(tmp_path: Path) -> None:
    course = stage(tmp_path, 6, task={"solver": "garbage:solve"})
    (tmp_path / "garbage.py").write_text(
        "from holdfast.records.samples import Answer\n"
        "async def solve(sample, ctx):\n"
        "    answer = await ctx.generate()\n"
        "    return Answer('x', {'role': object()}) if sample.id == 's0003' else answer\n"
    )
    done = run(*course.command, cwd=tmp_path)
    assert done.code == 1, done.err
    found = course.show()
    assert (found["status"], found["finished"], found["failed"], found["unfinished"]) == ("completed", 5, 1, 0)
    assert found["failures"][0]["kind"] == "record"
    saved = [line for line in course.log() if line["event"] == "sample.save_failed"]
    assert [line["key"] for line in saved] == ["sums/arith/s0003/1"]


def test_a_run_whose_last_record_could_not_be_written_is_interrupted_and_a_plain_resume_is_enough(
    tmp_path: Path,
) -> None:
    course = stage(tmp_path, 6)
    patched = tmp_path / "child_no_end.py"
    patched.write_text(
        "import errno\n"
        "from holdfast.journal.appender import Appender\n"
        "plain = Appender.commit\n"
        "def commit(self, records):\n"
        "    if any(b'\"run.' in record.head and b'started' not in record.head for record in records):\n"
        "        raise OSError(errno.EIO, 'Input/output error')\n"
        "    return plain(self, records)\n"
        "Appender.commit = commit\n"
        "from holdfast.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, patched, *map(str, course.command)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 8, done.stderr
    assert "it counts as interrupted" in done.stderr
    assert f"holdfast resume {RUN}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "run.status_write_failed" in course.events()
    found = course.show()
    assert (found["status"], found["finished"], found["unfinished"]) == ("interrupted", 6, 0)
    assert run(*course.resume, cwd=tmp_path).code == 0
    assert course.status() == "completed"


def test_a_process_that_died_is_interrupted_at_the_very_next_look(tmp_path: Path) -> None:
    course = stage(tmp_path, 60, model=mock(1.0, reply="{last}") | {"max_connections": 2})  # half a minute
    with alive(course) as process:
        begun(course, process)
        assert course.status() == "running"
        finish(process, signal.SIGKILL)
        found = course.show()
        told = course.told()
    assert found["status"] == "interrupted"
    assert found["reason"].startswith("killed at")
    assert f"Continue with: holdfast resume {RUN}" in told
    assert run(*course.resume, "--set", "models.arith.max_connections=60", cwd=tmp_path).code == 0
    assert course.status() == "completed"


def test_a_cancelled_sample_never_vanishes_from_the_totals(tmp_path: Path) -> None:
    course = stage(tmp_path, 6, task={"solver": "gone:solve", "sample_retries": 0})
    (tmp_path / "gone.py").write_text(
        "import asyncio\n"
        "async def solve(sample, ctx):\n"
        "    if sample.id == 's0003':\n"
        "        asyncio.current_task().cancel()\n"
        "    return await ctx.generate()\n"
    )
    assert run(*course.command, cwd=tmp_path).code == 1
    found = course.show()
    assert (found["finished"], found["failed"], found["unfinished"], found["planned"]) == (5, 1, 0, 6)
    assert found["failures"][0]["kind"] == "cancelled"


def test_a_time_out_never_leaves_a_sample_running(tmp_path: Path) -> None:
    limits = {"sample": {"seconds": 0.3}}
    course = stage(tmp_path, 4, task={"solver": "mine:wait_for_ever", "sample_retries": 0}, limits=limits)
    assert run(*course.command, cwd=tmp_path).code == 1
    found = course.show()
    assert (found["status"], found["finished"], found["failed"], found["unfinished"]) == ("completed", 3, 1, 0)
    assert found["failures"][0]["kind"] == "timeout"


# Stalls.


def test_code_that_blocks_the_event_loop_is_named_while_it_does(tmp_path: Path) -> None:
    course = stage(tmp_path, 3, task={"solver": "mine:block_the_loop"})
    with alive(course) as process:
        wait_for(lambda: course.has_begun() and course.status() == "stalled", "stalled")
        found, told = course.show(), course.told()
        assert "blocked" in found["reason"]
        assert "mine.py" in told
        assert "block_the_loop" in told
        assert finish(process).code == 0
    assert "run.stalled" in course.events()
    assert course.status() == "completed"


def test_a_sample_that_waits_for_ever_is_named_with_its_code(tmp_path: Path) -> None:
    course = stage(tmp_path, 4, task={"solver": "mine:wait_for_ever"})
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: course.status() == "stalled", "stalled")
        stalled = [line for line in course.log() if line["event"] == "sample.stalled"]
        assert [line["key"] for line in stalled] == ["sums/arith/s0002/1"]
        assert "wait" in stalled[0]["message"]
        told = course.told()
        assert "sums/arith/s0002/1" in told
        assert "mine.py" in told
        assert "wait_for_ever" in told
        assert course.show()["finished"] == 3, "the tail is what is left"


def test_a_model_call_that_takes_long_is_no_stall(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, model=mock(2.0), stall_seconds=0.5)
    with alive(course) as process:
        begun(course, process)
        seen = set()
        while process.poll() is None:
            seen.add(course.status())
            time.sleep(0.1)
    assert seen <= {"running", "completed"}
    assert not {"run.stalled", "sample.stalled"} & set(course.events())


def test_waiting_for_a_rate_limit_is_no_stall(tmp_path: Path) -> None:
    faults = [Fault("429-retry-after", first=2, retry_after="2")]
    with start_server_process(Behaviour(faults=faults)) as server:
        course = stage(tmp_path, 2, server.base_url, stall_seconds=0.5)
        with alive(course) as process:
            begun(course, process)
            seen = set()
            while process.poll() is None:
                seen.add(course.status())
                time.sleep(0.1)
    assert process.returncode == 0
    assert seen <= {"running", "completed"}
    assert "sample.stalled" not in course.events()


def test_a_hanging_sample_is_cancelled_if_so_ordered_and_the_others_finish(tmp_path: Path) -> None:
    task = {"solver": "mine:wait_for_ever", "sample_retries": 0}
    course = stage(tmp_path, 4, task=task, on_stall="cancel-sample", stall_seconds=0.5)
    done = run(*course.command, cwd=tmp_path)
    assert done.code == 1, done.err
    found = course.show()
    assert (found["status"], found["finished"], found["failed"]) == ("completed", 3, 1)
    assert found["failures"][0]["kind"] == "stalled"


def test_only_the_scorer_that_hangs_is_cancelled_not_those_in_line_behind_it(tmp_path: Path) -> None:
    task = {"scorers": ["mine:hanging_scorer"]}
    spec: dict[str, Any] = {"on_stall": "cancel-sample", "stall_seconds": 0.5, "concurrency": {"score": 1}}
    course = stage(tmp_path, 4, task=task, **spec)
    done = run(*course.command, cwd=tmp_path)
    assert done.code == 1, done.err
    scores = {line["sample_id"]: line["scores"].get("hanging_scorer") for line in exported(RUN, course.store)}
    assert "nothing moved while scoring" in scores.pop("s0001")["failure"]["message"]
    assert scores == {"s0002": True, "s0003": True, "s0004": True}


def test_a_run_in_which_one_sample_works_is_not_stalled_by_one_that_hangs(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, task={"solver": "mine:hang_and_work"}, stall_seconds=1.0)
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: "sample.stalled" in course.events(), "the sample that hangs is named")
        end = time.monotonic() + 2
        seen = set()
        while time.monotonic() < end:
            seen.add(course.status())
            time.sleep(0.1)
    assert seen == {"running"}, "a sample that asks again and again moves"


def test_threads_that_are_all_busy_do_not_stop_the_heartbeat(tmp_path: Path) -> None:
    course = stage(tmp_path, 40, model=mock(6.0), task={"solver": "mine:use_threads"}, stall_seconds=0.5)
    with alive(course) as process:
        begun(course, process)
        end = time.monotonic() + 2
        seen = set()
        while time.monotonic() < end:
            found = course.show()
            seen.add((found["status"], found["reason"].partition(": ")[2]))
            time.sleep(0.1)
    assert seen == {("running", "")}, "ten samples wait for a model, and the loop is free"


def test_a_sample_past_its_limit_that_swallows_cancellation_is_named_overdue(tmp_path: Path) -> None:
    limits = {"sample": {"seconds": 0.2}}
    course = stage(tmp_path, 1, task={"solver": "mine:swallow_cancellation"}, limits=limits)
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: "sample.overdue" in course.events(), "named")
        assert "overdue" in course.told()
        assert "swallow_cancellation" in course.told()
