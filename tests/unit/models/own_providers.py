"""Providers as a user writes them, to be named as module:function."""

from holdfast.models import Connection, Request
from holdfast.records.samples import Answer

WORD = "not a function"


async def shout(request: Request) -> str:
    return str(request.messages[-1]["content"]).upper()


async def whole(request: Request) -> Answer:
    return Answer("whole", finish_reason="length")


async def nothing(request: Request) -> None:
    return None


async def late(request: Request) -> str:
    raise TimeoutError("too late")


async def cut_off(request: Request) -> str:
    raise ConnectionResetError("gone")


class Named:
    def __init__(self, connection: Connection) -> None:
        self._model = connection.model

    async def generate(self, request: Request) -> Answer:
        return Answer(self._model)

    async def close(self) -> None: ...


def make_named(connection: Connection) -> Named:
    return Named(connection)


def make_nothing(connection: Connection) -> str:
    return "no provider"
