"""Reads, verifies or opens one journal folder under a limit on memory, and tells what it saw as one line of JSON.

python -m tests.crash.child_damage read|verify|open FOLDER MEMORY_BYTES
"""

import json
import resource
import sys

from holdfast.journal import verify
from tests.journals import QUICK, UID, note, read_all, write_session


def main(action: str, folder: str, memory_bytes: str) -> None:
    limit = int(memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps(do(action, folder)))


def do(action: str, folder: str) -> dict[str, object]:
    if action == "verify":
        result = verify(folder, UID, disk=QUICK)
        return {"errors": result.errors, "records": result.records}
    if action == "open":
        write_session(folder, [note("new")])
    seen = read_all(folder)
    return {"keys": seen.keys, "numbers": seen.numbers, "anomalies": len(seen.anomalies)}


if __name__ == "__main__":
    main(*sys.argv[1:])
