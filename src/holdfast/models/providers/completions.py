"""Likelihood requests to OpenAI-compatible completion servers: `POST …/completions`, without a chat template.

There are two ways to get the log-probabilities of a prompt, tried in this order until one works; that one is used from
then on:

- `echo`: the prompt is a part of the completion, with `tokens`, `token_logprobs` and `text_offset` (vLLM, SGLang,
  OpenAI's base models)
- `prompt_logprobs`: vLLM's own field, for versions and settings that refuse `echo`

One token is generated and dropped, because some servers refuse to generate none. A server that has neither way, or
only chat, cannot be used: the failure (`unsupported`) stops the cell. What works is not stored: a resumed run finds it
out again, with one request more.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
from yarl import URL

from holdfast.models.http.bodies import Values, decode, failure_in_success, malformed, mapping, objects
from holdfast.models.http.endpoint import UNSUPPORTED_ADVICE, ApiKey, Endpoint
from holdfast.models.likelihood import LikelihoodTexts, PromptToken, likelihood_answer, score_continuation
from holdfast.models.provider import Connection, ModelError, Request
from holdfast.models.providers.chat_completions import usage_of
from holdfast.records import Answer, Usage

_WAYS: dict[str, dict[str, Any]] = {
    "echo": {"echo": True, "logprobs": 1},
    "prompt_logprobs": {"prompt_logprobs": 1},
}
_ALWAYS = {"max_tokens": 1, "temperature": 0}
_LEFT_OUT = frozenset(
    {"best_of", "logprobs", "max_completion_tokens", "n", "response_format", "stop", "stream", "stream_options"}
    | {"tool_choice", "tools", "top_logprobs"}
)
"""Parameters of chat requests, or of a generated text that is dropped."""
_REFUSAL_WORDS = ("echo", "logprob", "support")
"""In the text of a 400 they say that the server cannot. Without them, this prompt may be the reason."""
_NO_LOGPROBS = "the server returns no log-probabilities of the prompt"


class CompletionEndpoint:
    """The completion URL of one server, for likelihood requests."""

    def __init__(self, connection: Connection, base: URL, key: ApiKey, headers: Mapping[str, str]) -> None:
        self._model = connection.model
        self._keeps_raw = connection.record_raw
        url = (base / "completions").update_query(base.query)
        whole = msgspec.structs.replace(connection, stream=False)
        self._endpoint = Endpoint(whole, url, key, {"Content-Type": "application/json", **headers})
        self._way = ""
        """The way that works; empty before the first answer."""

    async def score(self, request: Request, texts: LikelihoodTexts) -> Answer:
        """Send once; twice if the first way does not work. Raises ModelError, and nothing else but a cancellation."""
        known, spent, problem = self._way, Usage(), ""
        for way in [known] if known else _WAYS:
            try:
                response = await self._endpoint.post(self._body(request, texts, way))
            except ModelError as error:
                if error.kind != "bad_request" or known:
                    raise
                problem = problem or error.message
                continue
            answer, usage = self._read(response.body, texts, way, spent)
            if answer is not None:
                return answer
            spent += usage
        if not problem:
            return self._endpoint.fail("unsupported", _NO_LOGPROBS)
        if any(word in problem.lower() for word in _REFUSAL_WORDS):
            return self.refuse(problem)
        raise ModelError(
            "bad_request", f"{problem}; if the server has no log-probabilities of a prompt, {UNSUPPORTED_ADVICE}"
        )

    def _read(self, content: bytes, texts: LikelihoodTexts, way: str, spent: Usage) -> tuple[Answer | None, Usage]:
        """The answer in a response, None if it has no log-probabilities of the prompt; and what the response used."""
        try:
            body, values = decode(content), Values()
            choice, usage = _choice(body), usage_of(body.get("usage"), values)
            tokens, generated = _tokens(choice, way, texts, usage)
            if not tokens:
                return None, usage
            self._way = way
            answer = likelihood_answer(score_continuation(tokens, texts, generated), spent + usage, values.dropped)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message, error.status)
        return msgspec.structs.replace(answer, raw=body) if self._keeps_raw else answer, usage

    def refuse(self, problem: str) -> NoReturn:
        """`problem`: the message of the server's refusal, with its address."""
        raise ModelError("unsupported", f"{_NO_LOGPROBS}: {problem}; {UNSUPPORTED_ADVICE}") from None

    async def close(self) -> None:
        await self._endpoint.close()

    def _body(self, request: Request, texts: LikelihoodTexts, way: str) -> dict[str, Any]:
        params = {name: value for name, value in request.params.items() if name not in _LEFT_OUT}
        return {"model": self._model, "prompt": texts.prompt, **params, **_ALWAYS, **_WAYS[way]}


def _choice(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise malformed("the body is not an object", body)
    if body.get("error"):
        raise failure_in_success(body["error"])
    choices = objects(body.get("choices"))
    if not choices:
        raise malformed("the body has no choices", body)
    return choices[0]


def _tokens(choice: dict[str, Any], way: str, texts: LikelihoodTexts, usage: Usage) -> tuple[list[PromptToken], int]:
    """The tokens that a choice lists, and how many of them were generated. Empty if the prompt is not among them."""
    if way == "prompt_logprobs":
        return _listed_tokens(choice.get("prompt_logprobs"), texts.prompt), 0
    found = mapping(choice.get("logprobs"))
    words, logprobs, offsets = (found.get(name) for name in ("tokens", "token_logprobs", "text_offset"))
    if not isinstance(words, list) or not isinstance(logprobs, list) or len(words) != len(logprobs):
        return [], 0
    if not isinstance(offsets, list) or len(offsets) != len(words):
        offsets = [None] * len(words)
    generated = min(usage.output_tokens, 1) if usage.tokens else 1
    tokens = [
        PromptToken(word if isinstance(word, str) else None, _number(logprob), at if isinstance(at, int) else None)
        for word, logprob, at in zip(words, logprobs, offsets, strict=True)
    ]
    is_of_prompt = any(each.logprob is not None for each in tokens[: len(tokens) - generated])
    return (tokens, generated) if is_of_prompt else ([], 0)


def _listed_tokens(listed: Any, prompt: str) -> list[PromptToken]:
    """vLLM's list: null for the first token, then an object by token id whose first entry is the prompt's own token.
    The first token's text is what the others leave of the prompt: nothing, if it is BOS.
    """
    if not isinstance(listed, list) or not any(isinstance(each, dict) for each in listed):
        return []
    entries = [mapping(next(iter(mapping(each).values()), None)) for each in listed]
    tokens = [PromptToken(_word(each), _number(each.get("logprob"))) for each in entries]
    rest = "".join(each.text or "" for each in tokens[1:])
    if tokens[0].text is None and prompt.endswith(rest):
        tokens[0] = PromptToken(prompt[: len(prompt) - len(rest)], tokens[0].logprob)
    return tokens


def _word(entry: dict[str, Any]) -> str | None:
    text = entry.get("decoded_token")
    return text if isinstance(text, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
