"""The actor of a worker on a Ray cluster: starts an ordinary worker process on its node and passes on its reports.

User code never shares a process with Ray. If the actor dies, its worker process stops by itself (`process`). Invariant:
this module imports nothing heavy, because every actor would pay for it in memory and start-up time.
"""

import asyncio
import socket

from holdfast.runs.executors.process import WorkerCommand, WorkerProcess, WorkerReport

_REPORT_SECONDS = 0.5
_LOOK_SECONDS = 0.05


class RayWorker:
    """The actor. It answers while its worker process works, because its calls are coroutines."""

    def __init__(self, command: WorkerCommand) -> None:
        self._command = command
        self._process: WorkerProcess | None = None

    async def report(self) -> WorkerReport:
        """What is new, after a moment or at the end of the process. The first call starts it."""
        here = socket.gethostname()
        if self._command.host not in ("", here):
            return WorkerReport(here, lines=(f"--this-host: {here} is not {self._command.host}",), code=2)
        if self._process is None:
            try:
                self._process = WorkerProcess(self._command)
            except OSError as error:
                same = "the spec, its data and its code must have the same path on all nodes"
                return WorkerReport(here, lines=(f"{error.filename or 'worker'}: {error.strerror}; {same}",), code=2)
            return self._process.take_report()
        for _ in range(round(_REPORT_SECONDS / _LOOK_SECONDS)):
            if self._process.has_ended:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return await asyncio.to_thread(self._process.take_report)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
