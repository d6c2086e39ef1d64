"""Starts a worker under supervision, prints its process id, and prints what it reports until it ends."""

import os
import sys
import time

import msgspec

from holdfast.runs import WorkerCommand
from holdfast.runs.executors.process import WorkerProcess


def main() -> None:
    process = WorkerProcess(WorkerCommand(tuple(sys.argv[1:]), os.getcwd(), {}))
    while True:
        report = process.take_report()
        done = sum(msgspec.json.decode(data)["finished"] for _, data in report.shards)
        print(report.pid, done, report.code, *report.lines, flush=True)
        if report.code is not None:
            break
        time.sleep(0.1)


main()
