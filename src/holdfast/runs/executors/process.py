"""A worker as a process of its own: started, watched and stopped by the process that supervises it.

Both ends of one socket: the worker sends its progress as lines of JSON. If the supervisor dies, the kernel closes its
end; the worker reads the end of the stream and stops in good order, as after SIGTERM. So no worker outlives the driver
for long, also where the system has no other means of telling a process that its parent died.
"""

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # an actor imports this module, and needs neither
    from holdfast.engine import Progress
    from holdfast.runs.store.lookup import RunLocation

SUPERVISOR_VARIABLE = "HOLDFAST_SUPERVISOR_FD"
"""The number of the inherited socket. Only set for worker processes that a driver starts."""
_OWN = "HOLDFAST_"
_NODE_ONLY = ("RAY_", "CUDA_", "HIP_", "ROCR_", "NEURON_", "TPU_", "SLURM_")
"""Variables about the machine of the driver: another machine has its own or none."""
_LINES_MAX = 200
_SEND_SECONDS = 10.0
_EXIT_SECONDS = 20.0
"""More than the grace period, after which a worker without a supervisor ends itself even if user code blocks it."""
_INTERRUPTED = 130


class WorkerCommand(msgspec.Struct, frozen=True):
    """What a worker executes, wherever it is."""

    arguments: tuple[str, ...]
    """Of `holdfast`."""
    folder: str
    """Where relative paths begin. The same path on all machines."""
    environment: dict[str, str]
    """Of the driver."""
    secrets: tuple[str, ...] = ()
    """Names of variables of which the driver's value counts: the keys of models."""
    host: str = ""
    """With --this-host: the machine on which all workers must be."""


class ShardMessage(msgspec.Struct, frozen=True):
    """What a worker has done in the shard on which it works."""

    shard: str
    progress: msgspec.Raw
    """A `Progress`. Only the driver decodes it: actors pass it on and import no more than they need."""


class WorkerReport(msgspec.Struct, frozen=True):
    """What became known about one worker since the last report."""

    host: str = ""
    pid: int = 0
    shards: tuple[tuple[str, bytes], ...] = ()
    """For each shard that was reported, its `Progress` as JSON."""
    lines: tuple[str, ...] = ()
    """What it wrote to standard error."""
    code: int | None = None
    """Its exit code; None while it runs."""
    lost: str = ""
    """Why it is gone without an exit code: the process around it, or its machine, died."""


def worker_environment(command: WorkerCommand, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: that of its machine, and what only the driver has. The driver's value counts for
    Holdfast's own variables, the search path of Python and the keys of models.
    """
    sent = {name: value for name, value in command.environment.items() if not name.startswith(_NODE_ONLY)}
    chosen = {
        name: value
        for name, value in sent.items()
        if name.startswith(_OWN) or name == "PYTHONPATH" or name in command.secrets
    }
    return {**sent, **own, **chosen}


class WorkerProcess:
    """A running worker. Its methods return at once."""

    def __init__(self, command: WorkerCommand) -> None:
        """OSError if the process cannot be started."""
        here, there = socket.socketpair()
        environment = worker_environment(command, os.environ)
        environment[SUPERVISOR_VARIABLE] = str(there.fileno())
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast", *command.arguments],
                cwd=command.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the driver prints the report
                stderr=subprocess.PIPE,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C is for the driver, which stops its workers in good order
            )
        self._socket = here
        self._lock = threading.Lock()
        self._shards: dict[str, bytes] = {}
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES_MAX)
        self._readers = [
            threading.Thread(target=each, name="holdfast-worker", daemon=True)
            for each in (self._read_progress, self._read_lines)
        ]
        for reader in self._readers:
            reader.start()

    def take_report(self) -> WorkerReport:
        """What is new since the last call."""
        code = self._process.poll()
        if code is not None:
            for reader in self._readers:
                reader.join(timeout=1.0)  # a process that the worker left behind may hold its end open
        with self._lock:
            shards, lines = tuple(self._shards.items()), tuple(self._lines)
            self._shards.clear()
            self._lines.clear()
        return WorkerReport(socket.gethostname(), self._process.pid, shards, lines, code)

    def stop(self) -> None:
        """The first call lets requests in flight finish, the second does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _read_progress(self) -> None:
        decoder = msgspec.json.Decoder(ShardMessage)
        with contextlib.suppress(OSError), self._socket.makefile("rb") as stream:
            for line in stream:
                with contextlib.suppress(msgspec.DecodeError):  # of a worker that died while it was writing
                    found = decoder.decode(line)
                    with self._lock:
                        self._shards[found.shard] = bytes(found.progress)

    def _read_lines(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._lock:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))


class Supervisor:
    """The process that supervises this worker, as the worker sees it."""

    def __init__(self, descriptor: int, grace_seconds: float) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=descriptor)
        self._socket.settimeout(_SEND_SECONDS)
        self._grace_seconds = grace_seconds
        threading.Thread(target=self._watch, args=(self._socket,), name="holdfast-supervisor", daemon=True).start()

    @staticmethod
    def encode(place: "RunLocation", progress: "Progress") -> bytes:
        """The message about the shard on which this worker works."""
        return msgspec.json.encode(ShardMessage(place.shard, msgspec.Raw(msgspec.json.encode(progress)))) + b"\n"

    def send(self, message: bytes) -> None:
        """Send a message. A supervisor that does not read for long gets no more; that never stops the worker."""
        if self._socket is None:
            return
        try:
            self._socket.sendall(message)
        except OSError:
            self._socket = None

    def _watch(self, stream: socket.socket) -> None:
        """Stop this process when the supervisor has died."""
        while True:
            try:
                if not stream.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace_seconds + _EXIT_SECONDS)
        os._exit(_INTERRUPTED)


def find_supervisor(grace_seconds: float) -> Supervisor | None:
    """The supervisor of this process; None if it was not started by one. Call it once."""
    descriptor = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if not descriptor:
        return None
    os.set_inheritable(int(descriptor), False)  # tools that a solver starts must not keep it open
    # Ray blocks SIGINT in its processes, and so in their children: tools of a solver may need it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return Supervisor(int(descriptor), grace_seconds)
