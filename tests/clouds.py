"""The other clouds, on the loopback: Azure's protocol as Azurite speaks it, Google's in front of a moto server.

Azurite is a program of Node (`npm install azurite`); it is found on PATH, or where HOLDFAST_AZURITE says. No server for
Google's XML protocol can be had as a package. It is that of S3, but for how an object is created only once,
and how a request is signed: that is translated here, so what is tested is our client, and not what Google does.
"""

import base64
import hashlib
import hmac
import logging
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterable
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tests.stores import PATIENCE_SECONDS, Bucket, make_moto_atomic

AZURITE = "HOLDFAST_AZURITE"
_ACCOUNT = "holdfast"
_VERSION = "2021-08-06"
_ANYONE = "AWS4-HMAC-SHA256 Credential=test/20240101/us-east-1/s3/aws4_request"


def find_azurite() -> str | None:
    """Its command for blobs."""
    return os.environ.get(AZURITE) or shutil.which("azurite-blob")


class Azure:
    """An Azurite that keeps everything in memory, with an account of its own."""

    def __init__(self, command: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._key = secrets.token_bytes(32)
        arguments = ["--blobPort", str(self._port), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
        account = f"{_ACCOUNT}:{base64.b64encode(self._key).decode()}"
        self._process = subprocess.Popen(
            [command, *arguments],
            cwd=folder,
            env={**os.environ, "AZURITE_ACCOUNTS": account},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def bucket(self) -> Bucket:
        """A new container, empty."""
        name = f"b-{uuid.uuid4().hex}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        signed = "\n".join(["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items())])
        signed += f"\n/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.digest(self._key, signed.encode(), hashlib.sha256)).decode()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
        url = f"{self._endpoint}/{name}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as answer:
            assert answer.status == 201
        env = {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(self._key).decode(),
            "AZURE_STORAGE_ENDPOINT": self._endpoint,
        }
        return Bucket(f"az://{name}", env)

    @property
    def _endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}/{_ACCOUNT}"

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            assert self._process.poll() is None, "Azurite has ended"
            assert time.monotonic() < end, "Azurite does not answer"
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.05)


class Google:
    """Google's door to a moto server."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        make_moto_atomic()
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()

    def bucket(self) -> Bucket:
        name = f"b-{uuid.uuid4().hex}"
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")) as answer:
            assert answer.status == 200
        return Bucket(f"gs://{name}", {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "test"})

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        environ["HTTP_AUTHORIZATION"] = _ANYONE
        path, mark, query = environ["RAW_URI"].partition("?")
        environ["RAW_URI"] = quote(unquote(path)) + mark + query  # Google's client escapes also what need not be
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        answered: Iterable[bytes] = self._store(environ, start)
        return answered
