"""An S3 server on the loopback for benchmarks: moto's, which may take its time for each request."""

import contextlib
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class S3:
    """A server that is up."""

    def __init__(self, port: int) -> None:
        self._endpoint = f"http://127.0.0.1:{port}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
        }

    def bucket(self, name: str) -> str:
        """Make one; its URL."""
        urllib.request.urlopen(urllib.request.Request(f"{self._endpoint}/{name}", method="PUT")).close()
        return f"s3://{name}"


@contextlib.contextmanager
def moto_server(delay_seconds: float = 0.0) -> Iterator[S3]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    backend: Application = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        time.sleep(delay_seconds)
        return backend(environ, start)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield S3(server.server_port)
    finally:
        server.shutdown()
        thread.join()
