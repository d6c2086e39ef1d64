"""A model server for tests, on the loopback interface: it counts every request and can simulate faults.

It serves the APIs of OpenAI (chat completions, completions, responses), Anthropic and Google.
`holdfast.testing.contract` has the tests that every provider must pass.

    async with ModelServer(Behaviour(faults=[Fault("429", first=2)])) as server:   # in this event loop
        ...                                                                        # server.base_url, server.stats()

    with start_server_process(Behaviour(latency_seconds=0.02)) as server:          # in a process of its own
        ...

    python -m holdfast.testing --latency-ms 20 --fault 429:rate=0.1                # its first line is the base URL

`FakeHub` is a Hugging Face Hub for tests of data sets. Importing this package imports no HTTP server; the first use of
`ModelServer` or `FakeHub` does.
"""

from typing import TYPE_CHECKING, Any

from holdfast.testing.behaviour import (
    BatchBehaviour,
    BatchStats,
    Behaviour,
    CompletionBehaviour,
    Fault,
    Load,
    Seen,
    Stats,
    Storm,
)
from holdfast.testing.process import ServerProcess, ServerStartError, start_server_process
from holdfast.testing.protocols import digest_of, foretell

if TYPE_CHECKING:
    from holdfast.testing.hub import FakeHub
    from holdfast.testing.server import ModelServer

__all__ = [
    "BatchBehaviour",
    "BatchStats",
    "Behaviour",
    "CompletionBehaviour",
    "FakeHub",
    "Fault",
    "Load",
    "ModelServer",
    "Seen",
    "ServerProcess",
    "ServerStartError",
    "Stats",
    "Storm",
    "digest_of",
    "foretell",
    "start_server_process",
]


def __getattr__(name: str) -> Any:
    if name == "FakeHub":
        from holdfast.testing.hub import FakeHub

        return FakeHub
    if name == "ModelServer":
        from holdfast.testing.server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
