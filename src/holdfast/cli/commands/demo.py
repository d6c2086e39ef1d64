"""`demo`: a real server, a real run, a real SIGKILL, and the same command again.

Prints how many requests the server received: at most those in flight at the kill are sent twice.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from holdfast.cli.output import print_line, print_table
from holdfast.records import Answer, Sample
from holdfast.report import counted, report_table, tokens
from holdfast.runs import Run, find_run
from holdfast.solve import Context
from holdfast.testing import Behaviour, ServerProcess, start_server_process

_RUN_ID = "demo"
_STEPS = 2
_KILL_AT = 0.4
_CONNECTIONS = 16


async def ask_twice(sample: Sample, ctx: Context) -> Answer:
    """The demo's solver: two turns, and no code for crashes."""
    first = await ctx.generate()
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])


def run_demo(samples: int, keep: bool) -> int:
    folder = tempfile.mkdtemp(prefix="holdfast-demo-")
    behaviour = Behaviour(latency_seconds=0.05, jitter_seconds=0.05, wrong_rate=0.1, seed=3)
    try:
        with start_server_process(behaviour) as server:
            return _kill_and_repeat(folder, samples, server)
    finally:
        if keep:
            print_line(f"The demo's files are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _kill_and_repeat(folder: str, samples: int, server: ServerProcess) -> int:
    store = os.path.join(folder, "runs")
    spec = _write_spec(folder, samples, server.base_url)
    command = [sys.executable, "-m", "holdfast", "run", spec, "--id", _RUN_ID, "--store", store]
    print_line(
        f"1. {samples} sums, {_STEPS} turns each, a model at {server.base_url}, {_CONNECTIONS} requests at a time:"
    )
    print_line(f"   holdfast run eval.yaml --id {_RUN_ID}")
    received = _run_and_kill(command, server, int(samples * _STEPS * _KILL_AT))
    with Run(find_run(store, _RUN_ID)) as run:
        before = run.summary()
    saved = counted(before.steps["live"], "response")
    print_line(f"2. kill -9 after {counted(received, 'request')}. The journal holds {saved},")
    print_line(f"   finished samples: {before.finished}. Status, derived from the journal: {before.status}.")
    print_line("3. The same command again:")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    if again.returncode not in (0, 1):
        sys.stderr.write(again.stderr)
        return again.returncode
    requests = server.stats().requests
    with Run(find_run(store, _RUN_ID)) as run:
        report = run.report()
    repeats = requests - samples * _STEPS
    print_table(report_table(report))
    print_line("")
    print_line(f"finished before the kill    {before.finished} of {samples} samples")
    replayed = counted(report.steps["replayed"], "step")
    print_line(f"replayed from the journal   {replayed} ({tokens(report.saved)} not paid for again)")
    print_line(f"requests at the server      {requests} for {samples * _STEPS} steps")
    kept = repeats <= _CONNECTIONS
    verdict = "as promised" if kept else "NOT as promised"
    print_line(f"sent twice                  {repeats} ({_CONNECTIONS} could be in flight at the kill): {verdict}")
    return 0 if kept else 1


def _write_spec(folder: str, samples: int, base_url: str) -> str:
    with open(os.path.join(folder, "sums.jsonl"), "w", encoding="utf-8") as file:
        file.write(_sums(samples))
    spec = {
        "experiment": "demo",
        "models": [
            {
                "name": "arith",
                "provider": "openai",
                "model": "arith-1",
                "base_url": base_url,
                "max_connections": _CONNECTIONS,
            }
        ],
        "tasks": [
            {
                "name": "sums",
                "dataset": {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer"},
                "prompt": "Compute: {question}",
                "solver": "holdfast.cli.commands.demo:ask_twice",
                "scorers": ["numeric"],
            }
        ],
    }
    path = os.path.join(folder, "eval.yaml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file, indent=2)  # JSON is YAML
    return path


def _sums(count: int) -> str:
    """Rows of small sums, always the same."""
    chance = random.Random(7)
    rows = []
    for number in range(1, count + 1):
        left, right = chance.randrange(2, 100), chance.randrange(2, 100)
        sign, value = chance.choice([("+", left + right), ("-", left - right), ("*", left * right)])
        rows.append(json.dumps({"id": f"s{number:04d}", "question": f"{left} {sign} {right}", "answer": str(value)}))
    return "\n".join(rows) + "\n"


def _run_and_kill(command: list[str], server: ServerProcess, after: int) -> int:
    """Start the run; kill it when the server has received `after` requests. Returns how many it received."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        while server.stats().requests < after:
            if process.poll() is not None:
                sys.stderr.write(process.stderr.read())
                sys.exit(process.returncode)
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return server.stats().requests
