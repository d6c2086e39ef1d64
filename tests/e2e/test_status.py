"""A run's status, seen from another process: forks, copies, containers, take-overs, nonsense in the lease, crowds."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.runs import Run, find_run
from holdfast.runs import opened as opened_module
from holdfast.state import standing_of
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import call, finish, run
from tests.e2e.live_runs import RUN, Stage, alive, begun, gate, mock, stage, wait_for


def test_a_second_process_is_refused_while_the_first_lives_and_takes_over_when_it_is_killed(tmp_path: Path) -> None:
    course = stage(tmp_path, 10, model=mock(1.0) | {"max_connections": 1})
    with alive(course) as process:
        begun(course, process)
        refused = run(*course.resume, cwd=tmp_path)
        assert refused.code == 4
        assert f"process {process.pid}" in refused.err
        process.kill()
        process.wait()
        assert run(*course.resume, "--set", "models.arith.max_connections=10", cwd=tmp_path).code == 0
    assert course.status() == "completed"


def test_a_copy_of_a_live_run_is_interrupted_and_can_be_resumed(tmp_path: Path) -> None:
    door = gate(tmp_path, free=2)
    course = stage(tmp_path, 8, model=door.model | {"max_connections": 4})
    elsewhere = Stage(tmp_path / "elsewhere")
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: course.show()["finished"] >= 2, "two answers")
        shutil.copytree(course.store, elsewhere.store)
        assert elsewhere.status() == "interrupted"
        assert course.status() == "running"
        door.open()
        done = run(*elsewhere.resume, cwd=tmp_path)
        assert done.code == 0, done.err
        assert finish(process).code == 0
    assert (elsewhere.status(), elsewhere.show()["finished"]) == ("completed", 8)
    assert (course.status(), course.show()["finished"]) == ("completed", 8)


FORKER = """\
import os, sys, time, multiprocessing
def wait():
    while not os.path.exists("over"):
        time.sleep(0.05)
async def solve(sample, ctx):
    await ctx.generate()
    if not os.path.exists("forked"):
        if {how!r} == "os.fork":
            if os.fork() == 0:
                wait()
                os._exit(0)
        else:
            multiprocessing.get_context("fork").Process(target=wait, daemon=False).start()
        open("forked", "w").close()
        time.sleep(60)
    return await ctx.generate([{{"role": "user", "content": "again"}}])
"""


@pytest.mark.parametrize("how", ["os.fork", pytest.param("multiprocessing", marks=pytest.mark.long)])
def test_a_forked_child_does_not_keep_a_killed_run_alive(tmp_path: Path, how: str) -> None:
    course = stage(tmp_path, 2, task={"solver": "forking:solve"})
    (tmp_path / "forking.py").write_text(FORKER.format(how=how))
    with alive(course) as process:
        wait_for((tmp_path / "forked").exists, "forked")
        process.kill()
        process.wait()
        assert course.status() == "interrupted"
        done = run(*course.resume, cwd=tmp_path)
        (tmp_path / "over").touch()  # before the pipes are read, which the child holds too
        assert done.code == 0, done.err


def test_a_run_that_ends_while_it_is_looked_at_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is read before the lock is looked at: what was written between must not be missed."""
    course = stage(tmp_path, 2, model=mock(1.0))
    plain = standing_of
    with alive(course) as process:
        begun(course, process)

        def later(folder: str) -> Any:
            process.wait()
            return plain(folder)

        monkeypatch.setattr(opened_module, "standing_of", later)
        with Run(find_run(str(course.store), RUN)) as looked_at:
            status, reason = looked_at.status()
    assert (status, reason) == ("completed", "")


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs a process name space of its own")
def test_a_run_in_a_container_of_the_same_host_name_is_running(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, model=mock(20.0))
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "holdfast"]
    process = subprocess.Popen([*command, *map(str, course.command)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_for((course.run / "lease.json").exists, "at work")
        assert course.status() == "running"
    finally:
        process.kill()
        process.wait()


def test_a_process_that_has_just_taken_over_is_running_before_its_first_beat(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, model=mock(20.0))
    with alive(course) as process:
        begun(course, process)
        finish(process, signal.SIGKILL)
    program = (
        "import sys, time\n"
        "from holdfast.journal import Lock\n"
        f"lock = Lock({str(course.run)!r})\n"
        "print('mine', flush=True)\n"
        "time.sleep(30)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as opening:
        assert opening.stdout is not None
        assert opening.stdout.readline() == "mine\n"
        status = course.status()
        opening.kill()
    assert status == "running", "a live process holds it and repairs the journal"


GARBAGE = {
    "nothing": b"",
    "text": b"hello",
    "a list": b"[]",
    "half": b'{"holder":{"pid":1',
    "not UTF-8": b"\xff\xfe\x00",
    "a far time": b'{"holder":{"pid":1,"host":"HOST"},"epoch":1,"beat":1,"at":1e300,"began":1,"stall_seconds":1}',
    "a far past": b'{"holder":{"pid":1,"host":"HOST"},"epoch":1,"beat":1,"at":-1e18,"began":1,"stall_seconds":1}',
    "a far process": b'{"holder":{"pid":99999999999999999999,"host":"HOST"},"epoch":1,"beat":1,"at":1,"began":1,'
    b'"stall_seconds":1}',
    "no process": b'{"holder":{"pid":-1,"host":"HOST"},"epoch":1,"beat":1,"at":1,"began":1,"stall_seconds":1}',
    "another host": b'{"holder":{"pid":1,"host":"elsewhere"},"epoch":1,"beat":1,"at":1,"began":1,"stall_seconds":1}',
    "much acknowledged": b'{"holder":{"pid":1,"host":"HOST"},"epoch":1,"beat":1,"at":1,"began":1,"stall_seconds":1,'
    b'"acknowledged":-5}',
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run that was killed."""
    course = stage(tmp_path_factory.mktemp("killed"), 3, model=mock(0.3) | {"max_connections": 1})
    with alive(course) as process:
        begun(course, process)
        finish(process, signal.SIGKILL)
    return course


QUICK_GARBAGE = ("half", "not UTF-8", "a far time", "a far process", "another host")
"""Of bytes that cannot be read and of absurd values; tests/unit/journal/test_lease.py reads the others too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_GARBAGE else pytest.mark.long) for name in GARBAGE]
)
def test_a_lease_that_says_nonsense_is_never_a_traceback(killed: Stage, tmp_path: Path, name: str) -> None:
    course = Stage(tmp_path / "copy")
    shutil.copytree(killed.folder, course.folder)
    (course.run / "lease.json").write_bytes(GARBAGE[name].replace(b"HOST", os.uname().nodename.encode()))
    assert course.status() == "interrupted"
    assert f"Continue with: holdfast resume {RUN}" in course.told()
    assert call("ls", "--store", course.store, cwd=tmp_path).code == 0
    done = call(*course.resume, cwd=tmp_path)
    assert done.code == 0, done.err
    assert course.show()["finished"] == 3
    assert course.show()["anomalies"] == []


def test_a_lease_that_is_a_folder_is_neither_read_nor_written_nor_a_traceback(tmp_path: Path) -> None:
    course = stage(tmp_path, 3)
    course.run.mkdir(parents=True)
    (course.run / "lease.json").mkdir()
    assert call(*course.command, cwd=tmp_path).code == 0
    assert course.status() == "completed"


READER = """\
import sys
from holdfast.state import is_held
print("ready", flush=True)
while True:
    is_held(sys.argv[1])
"""


@pytest.mark.long
def test_readers_that_look_all_the_time_do_not_keep_a_writer_from_starting(tmp_path: Path) -> None:
    course = stage(tmp_path, 2)
    assert run(*course.command, cwd=tmp_path).code == 0
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, course.run], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    program = (
        f"import sys\nfrom holdfast.journal import Lock\nfor _ in range(5):\n    Lock({str(course.run)!r}).release()\n"
    )
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("many", [3, pytest.param(50, marks=pytest.mark.long)])
def test_of_many_that_continue_one_run_at_once_one_does(tmp_path: Path, many: int) -> None:
    with start_server_process(Behaviour(latency_seconds=0.5)) as server:
        course = stage(tmp_path, 16, server.base_url, model={"max_connections": 4})
        with alive(course) as process:
            wait_for(lambda: server.stats().requests >= 6, "at work")
            finish(process, signal.SIGKILL)
        wait_for(lambda: server.stats().in_flight == 0, "the server is through")
        before = server.stats().requests
        kept = course.show()["finished"]
        racers = [
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", *map(str, course.command if number % 2 else course.resume)],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(many)
        ]
        said = [racer.communicate()[1] for racer in racers]
        codes = [racer.returncode for racer in racers]
        assert set(codes) <= {0, 4}, said
        assert 0 in codes
        assert server.stats().requests == before + 16 - kept, "nothing is asked by two of them"
    found = course.show()
    assert (found["status"], found["finished"]) == ("completed", 16)
    assert len(found["resumes"]) == 1


@pytest.mark.parametrize("many", [3, pytest.param(50, marks=pytest.mark.long)])
def test_of_many_that_begin_one_run_at_once_one_does(tmp_path: Path, many: int) -> None:
    with start_server_process(Behaviour(latency_seconds=0.5)) as server:
        course = stage(tmp_path, 16, server.base_url, model={"max_connections": 4})
        racers = [
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", *map(str, course.command)],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(many)
        ]
        said = [racer.communicate()[1] for racer in racers]
        assert {racer.returncode for racer in racers} <= {0, 4}, said
        assert (server.stats().requests, server.stats().repeats) == (16, 0)
    found = course.show()
    assert (found["status"], found["finished"], found["resumes"]) == ("completed", 16, [])
