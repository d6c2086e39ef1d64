"""What a command that runs in a process of its own takes: CPU seconds, wall time, and its own peak memory."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_LOOK_SECONDS = 0.02


class Taken(msgspec.Struct, frozen=True):
    """What one process used, from its start to its end."""

    cpu_seconds: float
    wall_seconds: float
    peak_mb: float


def taken_by(command: Sequence[str], env: Mapping[str, str], cwd: str) -> Taken:
    """Run it to its end; RuntimeError, with what it said, if it fails. The peak is that of the program itself (VmHWM,
    looked at until it ends): what getrusage tells begins with the memory of the process that started it.
    """
    said = Path(cwd, "said.txt")
    with said.open("wb") as file:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        peak = 0
        while True:
            peak = max(peak, _peak_kb(process.pid))
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(_LOOK_SECONDS)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said.read_text()[-2000:]}")
    return Taken(used.ru_utime + used.ru_stime, wall, peak / 1024)


def _peak_kb(pid: int) -> int:
    """0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
