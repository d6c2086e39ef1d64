"""Job files that start the workers of a sharded run elsewhere, and workers on this machine.

Each launcher is one module and one line in `LAUNCHERS`. It turns a `LaunchJob` into the text of a job file. Nothing
here keeps state: after a preemption a job runs the same command again, and the journals decide what is left.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.launch.job import ClusterOptions, LaunchJob, find_repository
    from holdfast.launch.local import LocalWorkers, RunProgress, WorkerEnd
    from holdfast.launch.registry import LAUNCHERS, Launcher, submit
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "job": "ClusterOptions LaunchJob find_repository",
            "local": "LocalWorkers RunProgress WorkerEnd",
            "registry": "LAUNCHERS Launcher submit",
        },
    )

__all__ = [
    "LAUNCHERS",
    "ClusterOptions",
    "LaunchJob",
    "Launcher",
    "LocalWorkers",
    "RunProgress",
    "WorkerEnd",
    "find_repository",
    "submit",
]
