"""The child process of `computations`: reads a job from standard input, writes its result to standard output."""

import os
import sys

import msgspec

from holdfast.view.computations import Job, run_job


def main() -> None:
    os.nice(10)  # a run on the same machine comes first
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(run_job(job))


if __name__ == "__main__":
    main()
