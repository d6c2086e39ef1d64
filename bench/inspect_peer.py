"""inspect-ai as a peer: the same trivial evaluation, its log with the buffer that it recovers from, and its `recover`.

It is found by HOLDFAST_INSPECT, which names its `inspect` command; TIKTOKEN_CACHE_DIR must be set for its mock model to
work offline. Its buffer database lives in the user's data folder, so it gets a scratch one.
"""

import contextlib
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "HOLDFAST_INSPECT"
_LOOK_SECONDS = 0.2
_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match

@task
def trivial(n: int = 1000) -> Task:
    rows = [Sample(id=i, input=f"Say hello, number {i}.", target="mockllm/model") for i in range(1, n + 1)]
    return Task(dataset=MemoryDataset(rows, name="trivial"), scorer=match(location="any"))
"""


def inspect_command() -> str:
    """Empty if nobody has told where it is."""
    return os.environ.get(VARIABLE, "")


def environment(folder: str) -> dict[str, str]:
    """Its home is in a folder of ours; it is not given our source."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "HOME": folder, "XDG_DATA_HOME": folder}


def evaluation(command: str, folder: str, samples: int, at_once: int = 1000) -> list[str]:
    """The command of an evaluation; its task is put into the folder, in which it must be started."""
    Path(folder, "inspect_task.py").write_text(_TASK)
    what = ["inspect_task.py", "--model", "mockllm/model", "-T", f"n={samples}", "--log-dir", "logs"]
    limits = ["--max-connections", str(at_once), "--max-samples", str(at_once), "--display", "plain"]
    return [command, "eval", *what, *limits]


def crashed_log(command: str, folder: str, samples: int, at_once: int = 1000) -> str:
    """Evaluate, and kill it when its last sample has begun; where its log is. RuntimeError if it ended before."""
    arguments = evaluation(command, folder, samples, at_once)
    with subprocess.Popen(
        arguments, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        try:
            while not _last_has_begun(folder, samples):
                if process.poll() is not None:
                    raise RuntimeError(f"inspect-ai ended with {process.returncode} before it was killed")
                time.sleep(_LOOK_SECONDS)
        finally:
            process.kill()
    (log,) = Path(folder, "logs").glob("*.eval")
    return str(log)


def samples_in(command: str, folder: str, log: str) -> int:
    """How many samples with a result a log holds."""
    python = Path(command).with_name("python")
    look = (
        "import sys; from inspect_ai.log import read_eval_log_sample_summaries as read; "
        "print(sum(each.completed and not each.error for each in read(sys.argv[1])))"
    )
    done = subprocess.run(
        [python, "-c", look, log], cwd=folder, env=environment(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    return int(done.stdout.split()[-1])


def _last_has_begun(folder: str, samples: int) -> bool:
    return any(last >= samples for last in _greatest_ids(folder))


def _greatest_ids(folder: str) -> Iterator[int]:
    for path in Path(folder).rglob("*.db"):
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as buffer,
        ):
            yield buffer.execute("select coalesce(max(cast(id as integer)), 0) from samples").fetchone()[0]
