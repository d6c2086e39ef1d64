"""How long does a user wait before anything happens? `holdfast --help` and `import holdfast`, beside Python's own
start.
"""

import resource
import subprocess
import sys
import time

from bench.measure import Spread
from bench.outcome import Verdict, at_most, print_table, save

ROUNDS = 11
_COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import holdfast": [sys.executable, "-c", "import holdfast"],
    "holdfast --help": [sys.executable, "-m", "holdfast", "--help"],
}


def main() -> list[Verdict]:
    wall: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    cpu: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for _ in range(ROUNDS):
        for name, command in _COMMANDS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            wall[name].append(1000 * (time.perf_counter() - began))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu[name].append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    rows = [[name, Spread.of(wall[name]).show(), Spread.of(cpu[name]).show()] for name in _COMMANDS]
    print_table("Starting", ["what", "wall ms", "CPU ms"], rows)
    verdicts = [at_most("startup: holdfast --help, CPU ms", Spread.of(cpu["holdfast --help"]).median, 300)]
    save("startup", {"wall_ms": wall, "cpu_ms": cpu}, verdicts)
    return verdicts


if __name__ == "__main__":
    main()
