"""A model that runs offline: deterministic, as cheap as possible, with configurable latency and failures.

Invariant: its response depends only on the request, the options and how often this provider has seen that request
before; not on the clock, the order of requests or Python's hash seed. So two runs, or a run and its resume, get the
same answers.

`MockOptions` are its options; unknown ones are refused. Without latency it neither waits nor yields to the event loop.

Of several failures the first that applies wins. A failure applies when all its conditions hold; without conditions,
always: `every: n` one request in n, by hash, equal on each try · `rate: r` this share of tries, drawn again each time ·
`times: n` only the first n tries of a request. So with `{kind: server, every: 10, times: 2}` one request in ten fails
twice, and with `{kind: auth, every: 10}` always. `kind` is a kind of ModelError.

Usage counts the parts between spaces as tokens.

A likelihood request is answered by the toy model of `holdfast.models.toy_model`; latency and failures apply to it too.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import xxhash

from holdfast.models.likelihood import (
    LikelihoodTexts,
    PromptToken,
    likelihood_answer,
    likelihood_texts,
    score_continuation,
)
from holdfast.models.provider import BadConnectionError, Connection, Kind, ModelError, Request
from holdfast.models.toy_model import score_toy_tokens, split_toy_tokens
from holdfast.records import Answer, Message, Usage
from holdfast.spec import described, nearest

_LAST = "{last}"
_HASHES = 2**64
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_encoder = msgspec.json.Encoder(order="deterministic")

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class MockFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tries fail, and how: see the module's docstring."""

    kind: Kind
    every: _AtLeastOne | None = None
    rate: _Share | None = None
    times: _AtLeastOne | None = None
    retry_after: _Seconds | None = None
    message: str = ""


class MockOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the provider."""

    reply: Annotated[
        str | Annotated[list[str], msgspec.Meta(min_length=1)],
        described("The answer; `{last}` is the last user message. Of a list, the request decides which."),
    ] = _LAST
    latency_seconds: Annotated[_Seconds, described("How long an answer takes.")] = 0.0
    latency_jitter: Annotated[_Seconds, described("Up to this many seconds more; the request decides.")] = 0.0
    failures: Annotated[
        list[MockFailure],
        described(
            "Requests that fail: a `kind` such as `server` or `rate_limit`, with `every` (one request in n), `rate` "
            "(a share of tries), `times` (the first n tries), `retry_after` and `message`."
        ),
    ] = []
    seed: Annotated[int, described("Changes which requests fail, wait and get which reply.")] = 0


def make_mock(connection: Connection) -> "MockProvider":
    try:
        return MockProvider(msgspec.convert(connection.options, MockOptions))
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$.")
        place = at.removesuffix("`")
        if unknown := _UNKNOWN.search(message):
            valid = MockFailure if place.startswith("failures") else MockOptions
            message = f"there is no {unknown[1]!r}{nearest(unknown[1], set(valid.__struct_fields__))}"
        problem = ": ".join(filter(None, (place, f"{message[:1].lower()}{message[1:]}")))
        raise BadConnectionError(f"wrong options for the mock provider: {problem}") from error


class MockProvider:
    """See the module's docstring. It counts tries only if failures are configured."""

    def __init__(self, options: MockOptions, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._options = options
        self._sleep = sleep
        self._seed = options.seed % _HASHES
        self._tries: Counter[int] = Counter()
        self._plain = not (
            options.failures or options.latency_seconds or options.latency_jitter or isinstance(options.reply, list)
        )

    async def generate(self, request: Request) -> Answer:
        if self._plain:
            return _answer(str(self._options.reply), request.messages)
        asked = {"messages": request.messages, "params": request.params, "tools": request.tools}
        digest = xxhash.xxh3_64_intdigest(_encoder.encode(asked), self._seed)
        tries = self._count(digest)
        await self._wait(digest, tries)
        for number, failure in enumerate(self._options.failures):
            if _applies(failure, _draw(digest, "fails", number), _draw(digest, "fails", number, tries), tries):
                raise ModelError(
                    failure.kind, failure.message or f"mock failure on try {tries}, as ordered", failure.retry_after
                )
        reply = self._options.reply
        return _answer(reply if isinstance(reply, str) else reply[digest % len(reply)], request.messages)

    async def close(self) -> None:
        """Nothing is open."""

    def _count(self, digest: int) -> int:
        if not self._options.failures:
            return 1
        self._tries[digest] += 1
        return self._tries[digest]

    async def _wait(self, digest: int, tries: int) -> None:
        options = self._options
        seconds = options.latency_seconds
        if options.latency_jitter:
            seconds += options.latency_jitter * _draw(digest, "waits", tries) / _HASHES
        if seconds:
            await self._sleep(seconds)


def _applies(failure: MockFailure, of_request: int, of_try: int, tries: int) -> bool:
    return (
        (failure.times is None or tries <= failure.times)
        and (failure.every is None or of_request % failure.every == 0)
        and (failure.rate is None or of_try < failure.rate * _HASHES)
    )


def _draw(digest: int, *about: str | int) -> int:
    """A pseudo-random number, equal for equal requests."""
    return xxhash.xxh3_64_intdigest(repr(about).encode(), digest)


def _score(texts: LikelihoodTexts) -> Answer:
    words = split_toy_tokens(texts.prompt)
    tokens = score_toy_tokens(["", *words])  # begins with BOS, so that a context may be empty
    unplaced = [PromptToken(each.text, each.logprob) for each in tokens]
    return likelihood_answer(score_continuation(unplaced, texts, 0), Usage(len(words), 1))


def _answer(reply: str, messages: list[Message]) -> Answer:
    is_usual = not messages or messages[-1].get("role") == "user"
    if not is_usual and (texts := likelihood_texts(messages)) is not None:
        return _score(texts)
    last, tokens = "", 0
    for message in messages:
        text = _text(message)
        tokens += text.count(" ") + 1 if text else 0
        if message.get("role") == "user":
            last = text
    said = reply.replace(_LAST, last)
    usage = Usage(tokens, said.count(" ") + 1 if said else 0)
    return Answer(said, {"role": "assistant", "content": said}, [], "stop", usage)


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
