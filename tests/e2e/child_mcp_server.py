"""An MCP server with a few tools, over standard input or, with a port, over HTTP. It writes down what it does.

`child_mcp_server.py FOLDER [PORT]`
"""

import asyncio
import base64
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

FOLDER = Path(sys.argv[1])
server = MCPServer("notes")


def write(name: str, text: object) -> None:
    with open(FOLDER / name, "a") as file:
        file.write(f"{text}\n")


@server.tool()
def note(n: int) -> str:
    """Write a number down."""
    write("done.txt", n)
    return f"noted {n}"


@server.tool()
def fail(n: int) -> str:
    """Fail, and say why."""
    raise ToolError(f"no luck with {n}")


@server.tool()
async def sleep(n: int) -> str:
    """Sleep for an hour."""
    await asyncio.sleep(3600)
    return "awake"


@server.tool()
def die(n: int) -> str:
    """End the server."""
    print("I die now", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def whisper(n: int) -> str:
    """Say what was entrusted."""
    raise ToolError(f"it is {os.environ.get('ENTRUSTED')}")


@server.tool()
def talk(n: int) -> str:
    """Say very much."""
    return "x" * 3_000_000


@server.tool()
def picture(n: int) -> Image:
    """Draw."""
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")


if __name__ == "__main__":
    write("started.txt", os.getpid())
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        try:
            server.run("stdio")
        finally:  # also if the runner died before it had read a response
            write("ended.txt", os.getpid())
