"""A server on real sockets that writes exactly what a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the requests of all connections with the given bytes, one after another; then closes, if requested."""

    def __init__(self, *responses: bytes, closes: bool = False) -> None:
        self.responses = list(responses)
        self.closes = closes
        self.connections = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                if not self.responses:
                    await asyncio.sleep(3600)
                writer.write(self.responses.pop(0))
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async with await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls) as listening:
        yield f"{'https' if tls else 'http'}://localhost:{listening.sockets[0].getsockname()[1]}/v1/x?a=b"
        for writer in server.writers:
            writer.close()
