"""Servers on the loopback, in threads of this process: the model server, and a plain one for other answers."""

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator

from holdfast.testing import Behaviour, ModelServer


@contextlib.contextmanager
def serve(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Its host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serve_model(behaviour: Behaviour) -> Iterator[ModelServer]:
    """The model server. Its replies may be functions of the test."""
    begun, loop = threading.Event(), asyncio.new_event_loop()
    server = ModelServer(behaviour)

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start())
        begun.set()
        loop.run_forever()
        loop.run_until_complete(server.close())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
