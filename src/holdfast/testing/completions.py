"""The test server's `POST …/completions`: log-probabilities of a prompt, by the toy model of `holdfast.models`.

It answers `echo` with `logprobs`, and vLLM's `prompt_logprobs`; `Behaviour.completions` takes them away or makes the
tokens inconvenient. Without either, the answer is the same as in a chat. Like some real servers, it refuses
`max_tokens: 0`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.models import PromptToken, score_toy_tokens, split_toy_tokens
from holdfast.testing.behaviour import CompletionBehaviour
from holdfast.testing.chat import ChatServer
from holdfast.testing.protocols import ServerAnswer, ServerRequest, refuse

_BOS = "<s>"
_PIECE = 5


class _Asked(msgspec.Struct, frozen=True):
    """The fields of a request that this server reads."""

    model: str
    prompt: str
    max_tokens: int = 16
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = False


_decoder = msgspec.json.Decoder(_Asked)


class CompletionServer(ChatServer):
    """OpenAI's `POST …/completions`. Failures are those of chat completions."""

    empty_body = b'{"object":"text_completion","choices":[]}'

    def __init__(self, behaviour: CompletionBehaviour) -> None:
        self._behaviour = behaviour

    def read(self, raw: bytes, path: str) -> ServerRequest:
        asked = _decoder.decode(raw)
        if asked.max_tokens < 1:
            refuse("max_tokens must be at least 1")
        if asked.stream:
            refuse("the test server does not stream completions")
        if asked.echo and self._behaviour.echo == "refused":
            refuse("echo is not supported")
        if asked.prompt_logprobs is not None and self._behaviour.prompt_logprobs == "refused":
            refuse("prompt_logprobs: unknown field")
        # The fields are part of the message, so that both ways to ask for the same prompt are two requests.
        message = {"role": "user", "content": asked.prompt, "asked": msgspec.to_builtins(asked)}
        return ServerRequest(asked.model, [message])

    def choice(self, asked: dict[str, Any], text: str) -> dict[str, Any]:
        """The first choice of a response. `text`: what is generated, of which one token is listed."""
        settings, prompt = self._behaviour, asked["prompt"]
        generated = split_toy_tokens(text)[:1] or ["."]
        choice: dict[str, Any] = {"index": 0, "text": generated[0], "finish_reason": "length", "logprobs": None}
        words = [prompt[at : at + _PIECE] for at in range(0, len(prompt), _PIECE)]
        prompt_words = [_BOS] * settings.bos + (words if settings.straddles else split_toy_tokens(prompt))
        if asked["echo"] and settings.echo == "yes":
            choice["text"] = prompt + generated[0]
            if asked["logprobs"] is not None:
                choice["logprobs"] = _echoed(score_toy_tokens([*prompt_words, *generated]))
        if asked["prompt_logprobs"] is not None and settings.prompt_logprobs == "yes":
            choice["prompt_logprobs"] = list(map(_listed, score_toy_tokens(prompt_words)))
        return choice

    def body(self, reply: ServerAnswer) -> dict[str, Any]:
        counts = {"prompt_tokens": reply.answer.usage.input_tokens, "completion_tokens": 1}
        return {
            "id": f"cmpl-{reply.id}",
            "object": "text_completion",
            "created": 0,
            "model": reply.model,
            "choices": [reply.answer.message["choice"]],
            "usage": {**counts, "total_tokens": sum(counts.values())},
        }

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        raise AssertionError("unreachable: `read` refuses streams")


def _echoed(tokens: list[PromptToken]) -> dict[str, Any]:
    return {
        "tokens": [each.text for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "text_offset": [each.offset for each in tokens],
        "top_logprobs": [None if each.logprob is None else {each.text: each.logprob} for each in tokens],
    }


def _listed(token: PromptToken) -> dict[str, Any] | None:
    """The prompt's own token first, then the likeliest one."""
    if token.logprob is None:
        return None
    own = {"logprob": token.logprob, "rank": 2, "decoded_token": token.text}
    return {"17": own, "1": {"logprob": -0.25, "rank": 1, "decoded_token": " the"}}
