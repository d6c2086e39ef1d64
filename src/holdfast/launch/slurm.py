"""Slurm: an array job. Each task is a worker that claims free shards.

- Preemption and failed nodes: Slurm requeues the task (`--requeue`), and the same command continues.
- The time limit: Slurm sends SIGUSR1 to the shell some time before it. The shell stops the worker, then requeues.
- SIGTERM: depending on its configuration, Slurm sends it to the shell alone or to the worker as well. The shell
  forwards it, and the worker takes signals that arrive within a few seconds as one (`HOLDFAST_SIGNAL_GAP`).
"""

import os
import shlex
import sys

from holdfast.errors import UsageError
from holdfast.launch.job import LaunchJob, job_name
from holdfast.runs import require_claims
from holdfast.state import is_networked

_GAP_SECONDS = 5
_SHORT_SECONDS = 60
"""A task that is stopped earlier than this is not requeued: its time limit is too short to do any work."""

_SCRIPT = """\
#!/bin/bash
# {title}
{header}

cd {folder} || exit 2
export HOLDFAST_SIGNAL_GAP={gap}

requeue= signalled= worker=
forward() {{ signalled=1; [ -z "$worker" ] || kill -TERM "$worker" 2>/dev/null; }}
trap 'forward' TERM
trap 'requeue=1; forward' USR1

{command} &
worker=$!
[ -z "$signalled" ] || forward
while :; do
    signalled=
    wait "$worker"
    code=$?
    [ -n "$signalled" ] || break    # else a signal ended the wait, not the worker
done

if [ -n "$requeue" ] && [ "$code" -eq 130 ]; then
    if [ "$SECONDS" -ge {short} ]; then
        echo "stopped before the time limit; requeued to continue"
        # Not $SLURM_JOB_ID: that of the last task is also the id of the whole array.
        scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && exit 0
    else
        echo "stopped {short} s after the start or earlier: the time limit is too short; not requeued" >&2
    fi
fi
exit "$code"
"""


def write_slurm(job: LaunchJob) -> str:
    """The script for `sbatch`."""
    if not job.cluster.this_host and not is_networked(_existing(job.place.store)):
        require_claims("launch slurm", job.place.store, job.spec.mirror)
    for option in job.cluster.scheduler_options:
        if not option.startswith("-") or not option.isprintable():
            raise UsageError(f"--option {option!r}: write one option of sbatch, such as --option=--partition=gpu")
    name = job_name(job)
    seconds = 60 + job.stop_seconds  # Slurm may send the signal up to a minute later or earlier
    options = [
        f"--job-name={name}",
        f"--array=1-{job.workers}",
        "--ntasks=1",
        "--requeue",
        f"--signal=B:USR1@{seconds}",
        "--open-mode=append",
        f"--output={name}-%A_%a.log",
        *job.cluster.scheduler_options,
    ]
    words = [*job.run_words(store=job.place.store), "--shards", str(job.shards)]
    words += ["--this-host"] if job.cluster.this_host else []
    return _SCRIPT.format(
        title=job.title,
        header="\n".join(f"#SBATCH {option}" for option in options),
        folder=shlex.quote(job.folder),
        gap=_GAP_SECONDS,
        command=shlex.join([sys.executable, "-m", "holdfast", *words]),
        short=_SHORT_SECONDS,
    )


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
