"""A network between a process and a server on the loopback, that can be cut."""

import contextlib
import socket
import threading
from typing import Self


class Cable:
    """Forwards connections to a port. While it is cut, nothing arrives on either side and no connection ends, as in a
    network that has failed; what was sent meanwhile arrives when it is whole again. While it is closed, all connections
    are refused, as by a server that is down.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def close(self) -> None:
        self._closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._closed = False
        self._whole.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._closed:
                    near.close()
                    continue
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._sockets.append(near)
        self._whole.wait()
        with contextlib.suppress(OSError):
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(far)
            threading.Thread(target=self._forward, args=(far, near), daemon=True).start()
            self._forward(near, far)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._whole.set()
        for each in self._sockets:
            each.close()
