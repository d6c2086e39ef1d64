"""Starting the child writer, under strace where a fault is to be injected, and checking what it leaves."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from holdfast.journal import Entry, Reader, journal_folder, verify
from holdfast.journal.appender import Hooks
from holdfast.journal.disk import OS_DISK
from holdfast.journal.opening import OpenRequest, open_to_write

_CHILD = Path(__file__).with_name("child_writer.py")
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Outcome:
    """How a child ended and what it had said until then."""

    returncode: int
    said: tuple[str, ...]

    @property
    def acknowledged(self) -> list[str]:
        return [line.removeprefix("ack ") for line in self.said if line.startswith("ack ")]

    @property
    def events(self) -> list[str]:
        return [line.removeprefix("event ") for line in self.said if line.startswith("event ")]

    @property
    def killed(self) -> bool:
        return self.returncode == -9


@cache
def why_no_strace() -> str:
    """Empty if a process can be traced here; else the reason why not."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False, text=True)
    return "" if probe.returncode == 0 else f"strace cannot trace here: {probe.stderr.strip()}"


@dataclass(frozen=True)
class Work:
    """What a child does. `alone`: in one thread, so that strace, which counts by thread, counts every call."""

    alone: bool = False
    rounds: int = 2
    records: int = 9
    nofile: int = 0
    preload: str = ""


def run_child(run: Path, work: Work, inject: str = "") -> Outcome:
    """Write a journal in a process of its own. `inject` is strace's: `fdatasync:error=EIO:when=3`."""
    run.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        **({"LD_PRELOAD": work.preload} if work.preload else {}),
    }
    way = "alone" if work.alone else "threads"
    command = [sys.executable, str(_CHILD), str(run), way, str(work.rounds), str(work.records), str(work.nofile)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        tracer = _attach(child.pid, inject) if inject else None
        said, _ = child.communicate("go\n", timeout=_TIMEOUT_SECONDS)
        if tracer is not None:
            tracer.wait(timeout=_TIMEOUT_SECONDS)
    return Outcome(child.returncode, tuple(said.splitlines()))


def _attach(pid: int, inject: str) -> "subprocess.Popen[bytes]":
    calls = inject.split(":")[0]
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        os.devnull,
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={inject}",
        "-p",
        str(pid),
    ]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
        assert tracer.poll() is None, f"strace did not attach: {command}"
        time.sleep(0.002)
    return tracer


def kept(run: Path) -> list[str]:
    """The ids of all records that can be read."""
    found = Reader(journal_folder(str(run)), "run-1").read()
    notes = [each.line for each in found if isinstance(each, Entry) and each.line.t == "note"]
    return [msgspec.json.decode(line.d)["id"] for line in notes]


def check_left_behind(run: Path, acknowledged: Sequence[str]) -> None:
    """Everything acknowledged is there, once; the journal opens, continues, and verifies without errors."""
    if os.path.isdir(journal_folder(str(run))):
        before = kept(run)
        assert [identity for identity in acknowledged if identity not in before] == []
        assert len(set(before)) == len(before)
    opened = open_to_write(OS_DISK, journal_folder(str(run)), OpenRequest("run-1"), Hooks(time.time))
    opened.appender.close()
    after = kept(run)
    assert [identity for identity in acknowledged if identity not in after] == []
    assert verify(journal_folder(str(run)), "run-1").errors == ()
