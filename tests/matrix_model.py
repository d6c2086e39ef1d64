"""The model of the damage matrix: answers sums, counts its requests, and kills its process when it is configured to."""

import asyncio
import os
import re
import signal
from collections import Counter
from pathlib import Path

import msgspec

from holdfast.models import Connection, ModelError, Request
from holdfast.records.samples import Answer, Usage

PROVIDER = f"{__name__}:make_provider"
KILL_AT = "MATRIX_KILL_AT"
"""In the environment: the number of the request at which the process is killed."""
LEASE = "MATRIX_LEASE"
"""In the environment: the path of the lease. Requests wait once, until it has acknowledged enough records: those that
follow are behind the last heartbeat when the process dies."""
WAIT_AT = 22
ACKNOWLEDGED_MIN = 60
asked: Counter[str] = Counter()
"""By model and question: how often it was asked in this process."""
SUM = re.compile(r"(\d+) \+ (\d+)")


def make_provider(connection: Connection) -> "SumModel":
    return SumModel(connection.model)


class SumModel:
    """Gets two of three sums right; refuses one in fifteen for good."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def generate(self, request: Request) -> Answer:
        question = _text_of(request)
        asked[f"{self._name}: {question}"] += 1
        kill_at = int(os.environ.get(KILL_AT, 0))
        if kill_at and asked.total() >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if kill_at and asked.total() >= WAIT_AT:
            await _wait_for_lease()
        told = reply_to(self._name, question)
        if told is None:
            raise ModelError("content_filter", "this sum is refused")
        return Answer(told, {"role": "assistant", "content": told}, usage=Usage(len(question), len(told)))

    async def close(self) -> None:
        """Nothing is open."""


def reply_to(name: str, question: str) -> str | None:
    """None if the model refuses the sum."""
    first, second = map(int, SUM.findall(question)[0])
    return None if first % 15 == 7 else str(first + second + (len(name) + first) % 3 // 2)


def _text_of(request: Request) -> str:
    content = request.messages[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def _wait_for_lease() -> None:
    while True:
        lease = msgspec.json.decode(Path(os.environ[LEASE]).read_bytes())  # noqa: ASYNC240 - a small local file
        if lease.get("acknowledged", 0) >= ACKNOWLEDGED_MIN:
            return
        await asyncio.sleep(0.02)
