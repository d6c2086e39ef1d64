"""How many requests does a mirror cost in an hour?

A run of 10,000 samples an hour (a sample every 0.36 s, answers of 2 KB), mirror.seconds 5, on a moto server that counts
what it is asked; three minutes of it, scaled to an hour, and, beside it, what the beginning and the end cost once.
Peer: one object for every record, as it comes. Target: fewer than a tenth of that.
"""

import collections
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import yaml

from bench.measure import scratch
from bench.outcome import Verdict, at_most, print_table, print_verdicts, save

SAMPLES_AN_HOUR = 10_000
RECORDS_OF_A_SAMPLE = 3
MINUTES = 3
_WARM_SECONDS = 30
_REQUEST = re.compile(r'"(GET|PUT|DELETE|HEAD|POST) (\S+) HTTP')
Counts = collections.Counter[str]


class _Asked(logging.Handler):
    """What the server was asked, as its log tells."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counts = collections.Counter()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        found = _REQUEST.search(record.getMessage())
        if found is None:
            return
        verb, path = found.groups()
        with self._guard:
            self.counts["LIST" if verb == "GET" and "list-type" in path else verb] += 1


def measure(folder: Path) -> tuple[Counts, Counts]:
    """Requests of the steady minutes, and of all that came before and after them."""
    from moto.server import ThreadedMotoServer

    asked = _Asked()
    logger = logging.getLogger("werkzeug")
    logger.setLevel(logging.INFO)
    logger.addHandler(asked)
    logger.propagate = False
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=True)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/bench", method="PUT")).close()
        asked.counts.clear()
        env = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
        env |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        command = [sys.executable, "-m", "holdfast", "run", str(_spec(folder)), "--id", "x", "--store", str(folder)]
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(_WARM_SECONDS)
            before = Counts(asked.counts)
            time.sleep(MINUTES * 60)
            steady = Counts(asked.counts) - before
            process.wait()
        return steady, Counts(asked.counts) - steady
    finally:
        server.stop()


def _spec(folder: Path) -> Path:
    """Ends half a minute after the steady minutes."""
    every = 3600 / SAMPLES_AN_HOUR
    count = int((2 * _WARM_SECONDS + MINUTES * 60) / every)
    rows = "".join(json.dumps({"id": f"s{i}", "question": f"{i} + 1", "answer": "4"}) + "\n" for i in range(count))
    (folder / "rows.jsonl").write_text(rows)
    options = {"reply": "4 " * 1000, "latency_seconds": every * 4}
    spec = {
        "experiment": "requests",
        "models": [{"name": "m", "provider": "mock", "options": options}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{question}", "scorers": ["numeric"]}],
        "concurrency": {"samples": 4},
        "mirror": {"url": "s3://bench/evals", "seconds": 5},
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def main() -> list[Verdict]:
    with scratch("mirror") as folder:
        steady, once = measure(Path(folder))
    hourly = {verb: steady[verb] * 60 / MINUTES for verb in ("PUT", "LIST", "GET", "DELETE")}
    print_table(
        "requests of a mirror",
        ["", *hourly],
        [["an hour", *(f"{each:.0f}" for each in hourly.values())], ["once", *(str(once[verb]) for verb in hourly)]],
    )
    peer = SAMPLES_AN_HOUR * RECORDS_OF_A_SAMPLE
    verdicts = [at_most("requests of a mirror, to one for each record", sum(hourly.values()) / peer, 0.1)]
    save("mirror_requests", {"hourly": hourly, "once": dict(once)}, verdicts)
    return verdicts


if __name__ == "__main__":
    print_verdicts(main())
