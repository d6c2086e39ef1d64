"""A Hugging Face Hub for tests, on the loopback interface: it serves data sets that the test has put there.

It has what `huggingface_hub` uses to download files: the list of a revision's files, and `resolve`, which redirects
large files to another host name. It counts requests and can refuse, limit, cut and damage what it sends.

    with FakeHub() as hub:
        commit = hub.add("owner/sums", {"test.jsonl": b'{"question": "2 + 2", "answer": "4"}'})
        ...                                     # with the environment variables hub.environment(folder)
"""

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from aiohttp import web

_LARGE_BYTES = 1000
"""Larger files are redirected to another host name, as the Hub redirects files in its large file storage."""
_STOP_SECONDS = 10.0
_MAIN = "main"


class FakeHub:
    """The server. Its event loop runs in a thread of its own."""

    def __init__(self) -> None:
        self._commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._gated: set[str] = set()
        self.requests: Counter[str] = Counter()
        """How often each kind of request was made: `api`, `head`, `content`."""
        self.hosts: set[str] = set()
        """The host names that content was requested from."""
        self.tokens: set[str] = set()
        """The tokens that requests carried, by the kind of request: `api hf_x`."""
        self.refusals: list[int] = []
        """Status codes for the next requests of the list of files."""
        self.cut_after: list[int] = []
        """After how many bytes the next responses with content are cut off."""
        self.damaged = False
        """Send other bytes than those that were added."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-hub", daemon=True)
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables that make `huggingface_hub` use this server, with a cache in `folder`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(folder),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def add(self, repository: str, files: Mapping[str, bytes], branch: str = _MAIN, commit: str = "") -> str:
        """Add a commit with these files, and let a branch point to it. Returns the commit; by default, a digest."""
        content = b"".join(name.encode() + b"\0" + data + b"\0" for name, data in sorted(files.items()))
        commit = commit or hashlib.sha1(repository.encode() + content, usedforsecurity=False).hexdigest()
        self._commits[repository, commit] = dict(files)
        self._names[repository, branch] = commit
        return commit

    def gate(self, repository: str) -> None:
        """Refuse access: 401 without a token, 403 with one."""
        self._gated.add(repository)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_STOP_SECONDS)

    def close(self) -> None:
        """Idempotent."""
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(_STOP_SECONDS)
            self._runner = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)
            self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_get(r"/api/datasets/{owner}/{name}/revision/{revision:.+}", self._list)
        app.router.add_route("HEAD", r"/datasets/{owner}/{name}/resolve/{revision}/{file:.+}", self._head)
        app.router.add_get(r"/datasets/{owner}/{name}/resolve/{revision}/{file:.+}", self._send, allow_head=False)
        app.router.add_get(r"/content/{owner}/{name}/{revision}/{file:.+}", self._send, allow_head=False)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def _count(self, kind: str, request: web.Request) -> None:
        self.requests[kind] += 1
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token:
            self.tokens.add(f"{kind} {token}")

    def _find(self, request: web.Request) -> tuple[str, str, web.Response | None]:
        """The repository and the commit of a request, or the refusal."""
        repository = f"{request.match_info['owner']}/{request.match_info['name']}"
        if repository not in {name for name, _ in self._commits}:
            return repository, "", _refused(404, "RepoNotFound", "Repository not found")
        if repository in self._gated:
            status = 403 if request.headers.get("Authorization") else 401
            return repository, "", _refused(status, "GatedRepo", "Access to this dataset is restricted")
        revision = request.match_info["revision"]
        commit = self._names.get((repository, revision), revision)
        if (repository, commit) not in self._commits:
            return repository, "", _refused(404, "RevisionNotFound", "Invalid rev id")
        return repository, commit, None

    async def _list(self, request: web.Request) -> web.Response:
        self._count("api", request)
        if self.refusals:
            return web.Response(status=self.refusals.pop(0), headers={"Retry-After": "0"})
        repository, commit, refusal = self._find(request)
        if refusal is not None:
            return refusal
        siblings = [{"rfilename": name} for name in sorted(self._commits[repository, commit])]
        return web.json_response({"id": repository, "sha": commit, "siblings": siblings})

    async def _head(self, request: web.Request) -> web.Response:
        self._count("head", request)
        repository, commit, refusal = self._find(request)
        if refusal is not None:
            return refusal
        file = request.match_info["file"]
        data = self._commits[repository, commit].get(file)
        if data is None:
            return _refused(404, "EntryNotFound", "Entry not found", commit)
        etag = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{etag}"'}
        if len(data) > _LARGE_BYTES:
            location = f"http://localhost:{self.port}/content/{repository}/{commit}/{file}"
            return web.Response(status=302, headers={**headers, "Location": location})
        return web.Response(headers={**headers, "ETag": f'"{etag}"', "Content-Length": str(len(data))})

    async def _send(self, request: web.Request) -> web.StreamResponse:
        self._count("content", request)
        self.hosts.add(request.host.partition(":")[0])
        repository, commit, refusal = self._find(request)
        if refusal is not None:
            return refusal
        data = self._commits[repository, commit].get(request.match_info["file"], b"")
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
        sent = (b"\0" * len(data) if self.damaged else data)[start:]
        headers = {"Content-Length": str(len(sent)), "X-Repo-Commit": commit}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        if self.cut_after:
            await response.write(sent[: self.cut_after.pop(0)])
            if request.transport is not None:
                request.transport.close()
            return response
        await response.write(sent)
        await response.write_eof()
        return response


def _refused(status: int, code: str, message: str, commit: str = "") -> web.Response:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return web.json_response(
        {"error": message}, status=status, headers=headers | ({"X-Repo-Commit": commit} if commit else {})
    )
