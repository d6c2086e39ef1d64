"""Files in requests: the right bytes where the server expects them, in bounded memory, or a failure with a name."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast.datasets import FileContent, ReferenceCache
from holdfast.engine import attachments as attachments_module
from holdfast.engine.attachments import Attachments
from holdfast.engine.client import ModelClient
from holdfast.journal.blobs import BlobError, BlobStore, blob_path
from holdfast.models import ModelCall
from holdfast.models.pacing.queue import Slots
from holdfast.models.provider import AskFailedError
from holdfast.records.keys import Reference
from holdfast.spec import Model
from holdfast.testing import Behaviour, ModelServer

PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 100


def stored(folder: Path, data: bytes = PNG) -> Reference:
    return BlobStore(str(folder)).keep(FileContent(data=data), ReferenceCache())


def said(reference: Reference) -> list[dict[str, Any]]:
    sound = {"type": "input_audio", "input_audio": {"data": str(reference), "format": "wav"}}
    return [
        {"role": "system", "content": f"{reference} is not replaced inside a text"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": str(reference)}}, sound]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]


def test_references_are_replaced_by_content_and_nothing_else_changes(tmp_path: Path) -> None:
    reference = stored(tmp_path)
    messages = said(reference)
    made = asyncio.run(Attachments(str(tmp_path)).put_into(messages))
    encoded = base64.b64encode(PNG).decode()
    assert made[1]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{encoded}"
    assert made[1]["content"][1]["input_audio"] == {"data": encoded, "format": "wav"}
    assert [made[0], made[2]] == [messages[0], messages[2]]
    assert messages == said(reference), "what is recorded stays short"


def test_messages_without_files_are_the_same_object(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert asyncio.run(Attachments(str(tmp_path)).put_into(messages)) is messages


def test_content_that_is_sent_often_is_read_once_and_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = [stored(tmp_path, PNG + bytes([number])) for number in range(3)]
    read: list[str] = []

    def reading(run: str, reference: Reference) -> bytes:
        read.append(reference.digest)
        return PNG

    monkeypatch.setattr(attachments_module, "read_blob", reading)
    size = len(f"data:image/png;base64,{base64.b64encode(PNG).decode()}")

    async def use(*order: int) -> int:
        attachments = Attachments(str(tmp_path), kept_bytes_max=2 * size)
        read.clear()
        for number in order:
            await asyncio.gather(*(attachments.put_into(said(references[number])) for _ in range(5)))
        return len(read)

    assert asyncio.run(use(0, 1, 0, 1)) == 2
    assert asyncio.run(use(0, 1, 0, 2, 0, 1)) == 4, "the one that was used longest ago goes first"


def ask(folder: Path, reference: Reference) -> tuple[str, int]:
    """What failed, by kind and file, and how many requests the server got."""

    async def run() -> tuple[str, int]:
        async with ModelServer() as server:
            model = Model(name="m", provider="openai", model="m", base_url=server.base_url)
            line = ModelClient(model, "models[0]", Slots(10))
            try:
                await line.handle(Attachments(str(folder))).send(ModelCall(said(reference), {}, []))
            except AskFailedError as error:
                named = "its file" if reference.digest in error.failure.message else error.failure.message
                return f"{error.failure.kind}: {named}", server.stats().requests
            finally:
                await line.provider.close()
            return "", server.stats().requests

    return asyncio.run(run())


def test_a_damaged_file_is_never_sent(tmp_path: Path) -> None:
    reference = stored(tmp_path)
    assert ask(tmp_path, reference) == ("", 1)
    Path(blob_path(str(tmp_path), reference)).write_bytes(PNG[:-1])
    assert ask(tmp_path, reference) == ("file: its file", 0)
    Path(blob_path(str(tmp_path), reference)).unlink()
    assert ask(tmp_path, reference) == ("file: its file", 0)


def test_a_solver_reads_content_only_by_reference(tmp_path: Path) -> None:
    reference = stored(tmp_path)
    attachments = Attachments(str(tmp_path))
    assert asyncio.run(attachments.read(str(reference))) == PNG
    with pytest.raises(BlobError, match="no reference"):
        asyncio.run(attachments.read("../spec.yaml"))


def test_extra_headers_and_body_fields_and_structured_output_reach_the_server() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    params = {"temperature": 0.5, "chat_template_kwargs": {"thinking": False}, "response_format": shape}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    async def run() -> tuple[dict[str, str], dict[str, Any]]:
        async with ModelServer(Behaviour(kept=1)) as server:
            headers = {"X-Team": "evals", "User-Agent": "mine"}
            model = Model(
                name="m", provider="openai", model="m", base_url=server.base_url, headers=headers, params=params
            )
            line = ModelClient(model, "models[0]", Slots(10))
            for number in range(2):
                await line.handle().send(ModelCall([{"role": "user", "content": f"{number}"}], params, tools))
            await line.provider.close()
            (seen,) = server.requests()
            return seen.headers, seen.body

    headers, body = asyncio.run(run())
    assert (headers["X-Team"], headers["User-Agent"]) == ("evals", "mine")
    assert body == {"model": "m", "messages": [{"role": "user", "content": "1"}], "tools": tools, **params}
