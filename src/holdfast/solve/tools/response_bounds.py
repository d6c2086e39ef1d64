"""Limits the size of responses of MCP servers over HTTP, to the limit for model servers.

The client of the `mcp` package reads a whole response into memory first, so the limit is in the byte stream below it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from holdfast.models.http import connection


def bounding_hook(http: Any) -> Callable[[Any], Awaitable[None]]:
    """Return a response hook for a client of `http`, which is httpx or a compatible package."""

    class TooLargeError(http.SSEError, http.StreamError):  # type: ignore[misc] # the package is imported on use
        """Both base classes are needed: the `mcp` package turns only these into results; else a call would wait
        forever.
        """

    class Bounded(http.AsyncByteStream):  # type: ignore[misc] # as above
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            received = 0
            async for piece in self._stream:
                received += len(piece)
                if received > connection.BODY_BYTES_MAX:
                    raise TooLargeError(f"the response has more than {connection.BODY_BYTES_MAX >> 20} MiB")
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise TooLargeError("the response is compressed, though it was asked for as it is")
        response.stream = Bounded(response.stream)

    return bound
