"""Workers on a Ray cluster: one actor for each, which starts an ordinary worker process on its node.

Ray places actors and notices their death. It repeats nothing: actors are not restarted by Ray (`max_restarts=0`) and
calls are made at most once (`max_task_retries=0`), because a repeated call could pay for answers again.

Actors belong to the driver: if it dies, Ray ends them, and each worker process stops with its actor. Their journals are
whole, and the same command continues. Ray is imported only by the functions that need it.
"""

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.report import first_line
from holdfast.runs.executors.process import WorkerCommand, WorkerReport
from holdfast.runs.executors.ray_worker import RayWorker
from holdfast.spec import WorkerResources

_LOCAL = "local"
_CALLS = 4
"""`stop` must get through while `report` waits."""
_REASON_WIDTH = 200
_LOCAL_TRIES = 2
"""On a busy machine, the servers of Ray may not start in the time that Ray gives them."""
_BYTES_PER_GB = 10**9


class RayChoice(msgspec.Struct, frozen=True):
    """Which cluster, and how many workers; 0: as many as fit."""

    address: str = ""
    workers: int = 0

    @property
    def cluster(self) -> str:
        """The address for Ray: that of the command, that of the environment (`ray job submit` sets it), or a Ray of its
        own on this machine. Never a cluster that Ray happens to find on this machine.
        """
        return self.address or os.environ.get("RAY_ADDRESS", "") or _LOCAL

    @property
    def is_local(self) -> bool:
        return self.cluster == _LOCAL


def check_ray(choice: RayChoice) -> None:
    """Import Ray. UsageError if it cannot be used; before anything is started."""
    # Ray reads these variables when it is imported. It shall send no statistics about its use and, if it is started for
    # this run alone, listen only on loopback.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if choice.is_local:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # A token of its own, so that no other user of this machine can connect. Ray would keep one in the home folder.
        if not any(name.startswith("RAY_AUTH_") for name in os.environ):
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise UsageError("--executor ray needs one more package: pip install 'holdfast[ray]'") from error
    if choice.cluster.startswith("ray://"):
        raise UsageError(
            f"--address {choice.cluster}: Ray Client is not supported, because workers would die with its connection; "
            "run the same command on a node of the cluster with --address auto, or submit it with: ray job submit"
        )


@contextlib.contextmanager
def connected(choice: RayChoice) -> Iterator[None]:
    """Connect to the cluster, or start a Ray on this machine, after `check_ray`. UsageError if that is not possible."""
    import ray

    options: dict[str, Any] = {"address": choice.cluster, "log_to_driver": False, "logging_level": logging.ERROR}
    if choice.is_local:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    # Ray prints messages about dead processes to standard output, which is for the report. We report them ourselves.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        for left in reversed(range(_LOCAL_TRIES if choice.is_local else 1)):
            try:
                ray.init(**options)
                break
            except (ConnectionError, OSError, RuntimeError, TimeoutError, ValueError) as error:
                if not left:
                    reason = first_line(str(error), _REASON_WIDTH)
                    raise UsageError(f"--executor ray: no connection to {choice.cluster}: {reason}") from error
                ray.shutdown()
        try:
            yield
        finally:
            ray.shutdown()


def check_hosts() -> None:
    """UsageError if the cluster has nodes on other machines; for --this-host."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call] # Ray has few types
    others = {str(node["NodeManagerHostname"]) for node in nodes} - {socket.gethostname()}
    if others or len({node["NodeManagerAddress"] for node in nodes}) > 1:
        raise UsageError(
            f"--this-host: the Ray cluster also has nodes on {', '.join(sorted(others)) or 'other machines'}; add a "
            "mirror to the spec, or use a store on a network file system"
        )


def count_places(resources: WorkerResources) -> int:
    """How many workers the cluster has room for; at least 1."""
    import ray

    total = ray.cluster_resources()  # type: ignore[no-untyped-call] # Ray has few types
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory_gb * _BYTES_PER_GB}
    rooms = [int(total.get(name, 0) // amount) for name, amount in wanted.items() if amount]
    return max(min(rooms, default=1), 1)


class RayPool:
    """Actors by the number of their worker."""

    def __init__(self, command: WorkerCommand, resources: WorkerResources) -> None:
        """Inside of `connected`."""
        import ray

        self._ray = ray
        self._resources = resources
        memory = int(resources.memory_gb * _BYTES_PER_GB) or None
        self._actor_class = ray.remote(RayWorker).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=memory,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_CALLS,
            scheduling_strategy="SPREAD",
        )
        self._command = ray.put(command)
        self._actors: dict[int, Any] = {}
        self._reports: dict[Any, int] = {}
        """Pending calls, one for each worker."""

    def start(self, worker: int) -> None:
        self._actors[worker] = self._actor_class.remote(self._command)
        self._ask(worker)

    def wait(self, seconds: float) -> Iterator[tuple[int, WorkerReport]]:
        calls = list(self._reports)
        # Until all have reported or the time is over: a single report is not worth a pass of the driver.
        ready, _ = self._ray.wait(calls, num_returns=max(len(calls), 1), timeout=seconds) if calls else ([], [])
        for call in ready:
            worker = self._reports.pop(call)
            report = self._receive(call)
            if report is None or (report.code is None and not report.lost):
                self._ask(worker)
            else:
                self._ray.kill(self._actors.pop(worker))
            yield worker, report or WorkerReport()

    def stop(self, worker: int) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):  # it died: the next report says so
            self._actors[worker].stop.remote()

    def describe_place(self) -> str:
        needs = self._resources
        parts = [f"{needs.cpus:g} CPUs"] if needs.cpus else []
        parts += [f"{needs.gpus:g} GPUs"] if needs.gpus else []
        parts += [f"{needs.memory_gb:g} GB of memory"] if needs.memory_gb else []
        return ", ".join(parts) or "nothing"

    def _ask(self, worker: int) -> None:
        self._reports[self._actors[worker].report.remote()] = worker

    def _receive(self, call: Any) -> WorkerReport | None:
        """None if the actor could not be reached for a moment."""
        errors = self._ray.exceptions
        try:
            report: WorkerReport = self._ray.get(call)
        except errors.ActorUnavailableError:
            return None
        except errors.RayError as error:
            return WorkerReport(lost=_describe_loss(str(error)))
        return report


def _describe_loss(text: str) -> str:
    """Ray's reason in a few words."""
    if "node" in text and ("died" in text or "dead" in text) and "worker process has died" not in text:
        return "its node died"
    if "worker process has died" in text or "unexpectedly" in text:
        return "the process of its actor died"
    return first_line(text, _REASON_WIDTH)
