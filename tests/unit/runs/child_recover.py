"""A recovery in a process of its own. Prints how many samples are finished, and the process's peak memory in bytes.

usage: python -m tests.unit.runs.child_recover URL STORE
"""

import sys

from holdfast.runs.maintenance.recovery import RecoveryOptions, recover
from tests.unit.engine.child_many import peak_bytes


def main(url: str, store: str) -> None:
    found = recover(url, RecoveryOptions(output=store))
    assert not found.warnings, found.warnings
    print(found.finished, peak_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
