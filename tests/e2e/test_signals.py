"""Random signals at random moments: the status is right at every look, and at the end nothing is missing or doubled."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.commands import exported, finish, run, start
from tests.e2e.live_runs import RUN, Stage, mock, stage, wait_for

STALL_SECONDS = 0.5
IN_MAIN = ", in main\n"  # without this frame, the interpreter was still starting or importing
ENDED = {-signal.SIGINT, -signal.SIGTERM}  # everything was saved and reported, and the interpreter was ending
LIVE = {"running", "stalled"}


class Tormentor:
    """Sends signals to one run, process after process, and looks each time."""

    def __init__(self, course: Stage, seed: int) -> None:
        self._course = course
        self._chance = random.Random(seed)
        self._process: subprocess.Popen[str] | None = None
        self.sent: Counter[str] = Counter()

    def torment(self, signals: int) -> None:
        """Until so many have been sent; a run that has completed ends it."""
        while sum(self.sent.values()) < signals and not self._is_complete():
            process = self._process = start(*self._course.command, cwd=self._course.folder)
            if not self._at_work(process):
                continue
            time.sleep(self._chance.uniform(0, 0.4))
            getattr(self, f"_{self._chance.choice(['kill', 'term', 'interrupt', 'stop', 'two'])}")(process)
            self.end()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
            self._check_dead()

    def _at_work(self, process: "subprocess.Popen[str]") -> bool:
        """False if it ended, complete."""

        wait_for(lambda: is_at_work(self._course, process), "at work")
        if process.poll() is None:
            return True
        done = finish(process)
        assert done.code == 0, done.err
        return False

    def _is_complete(self) -> bool:
        return self._course.has_begun() and self._course.status() == "completed"

    def _count(self, name: str) -> None:
        self.sent[name] += 1

    def _kill(self, process: "subprocess.Popen[str]") -> None:
        self._count("KILL")
        process.kill()
        process.communicate()
        self._check_dead()

    def _term(self, process: "subprocess.Popen[str]", number: signal.Signals = signal.SIGTERM) -> None:
        self._count(number.name.removeprefix("SIG"))
        done = finish(process, number)
        assert "Traceback" not in done.err, done.err
        if self._is_complete() and done.code in {0, *ENDED}:
            return  # it had ended
        assert done.code == 130, (done.code, done.err)
        found = self._course.show()
        assert found["status"] == "interrupted", found
        assert found["reason"] == f"stopped by {number.name}", found

    def _interrupt(self, process: "subprocess.Popen[str]") -> None:
        self._term(process, signal.SIGINT)

    def _stop(self, process: "subprocess.Popen[str]") -> None:
        self._count("STOP")
        process.send_signal(signal.SIGSTOP)
        if self._chance.random() < 0.3:  # killed while stopped
            self._kill(process)
            return
        wait_for(lambda: self._course.status() == "stalled", "stalled")
        self._count("CONT")
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: self._course.status() != "stalled", "moving again")
        self._kill(process)

    def _two(self, process: "subprocess.Popen[str]") -> None:
        """Two at once."""
        self._count("TERM")
        process.send_signal(signal.SIGTERM)
        time.sleep(self._chance.uniform(0, 0.05))
        self._count("INT")
        done = finish(process, signal.SIGINT)
        assert done.code in {0, 130, *ENDED}, (done.code, done.err)
        self._check_dead()

    def _check_dead(self) -> None:
        assert self._course.status() not in LIVE, "a dead process is running"


def is_at_work(course: Stage, process: "subprocess.Popen[str]") -> bool:
    """It has begun, or it has ended."""
    if process.poll() is not None:
        return True
    try:
        return bool(json.loads((course.run / "lease.json").read_text())["holder"]["pid"] == process.pid)
    except (OSError, json.JSONDecodeError):
        return False


@pytest.mark.parametrize(
    ("signals", "rows"), [(4, 16), pytest.param(200, 500, marks=pytest.mark.long)], ids=["4 signals", "200 signals"]
)
def test_random_signals_never_leave_a_wrong_status_and_lose_nothing(tmp_path: Path, signals: int, rows: int) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(10**6)))
    told = f"HOLDFAST_SEED={seed}"
    model = mock(0.15, reply="{last}") | {"max_connections": 2}
    course = stage(tmp_path, rows, model=model, stall_seconds=STALL_SECONDS, grace_seconds=0.3)
    tormentor = Tormentor(course, seed)
    try:
        tormentor.torment(signals)
        done = run(*course.command, cwd=tmp_path)
    except AssertionError as error:
        error.add_note(f"replay with {told}; sent {dict(tormentor.sent)}")
        raise
    finally:
        tormentor.end()
    assert done.code == 0, (told, done.err)
    found = course.show()
    assert (found["status"], found["finished"], found["unfinished"]) == ("completed", rows, 0), told
    assert found["anomalies"] == [], told
    lines = exported(RUN, course.store)
    assert len({line["key"] for line in lines}) == len(lines) == rows, told
    assert all(line["output"].startswith("Compute: ") for line in lines), told


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)], ids=["SIGTERM", "SIGINT"]
)
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_signal_at_any_moment_of_the_start_ends_in_good_order(
    tmp_path: Path, number: signal.Signals, step: int
) -> None:
    """Before, while and after the journal is opened."""
    course = stage(tmp_path, 40, model=mock(0.2) | {"max_connections": 1})
    codes = []
    for moment in range(1, 6, step):
        process = start(*course.command, cwd=tmp_path, fresh=True)
        time.sleep(0.4 + 0.3 * moment)
        if moment == 5:
            wait_for(lambda process=process: is_at_work(course, process), "at work")  # type: ignore[misc] # binds it
        done = finish(process, number)
        assert "Traceback" not in done.err or IN_MAIN not in done.err, done.err
        codes.append(done.code)
        if course.run.exists() and (course.run / "journal").exists():
            assert course.status() == "interrupted"
    assert set(codes) <= {130, -number}, codes
    assert codes[-1] == 130, "it was at work by then"
