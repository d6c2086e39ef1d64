"""Likelihood requests: the log-probability of a continuation after a context, token by token. Pure.

A likelihood request has two messages, with the roles `context` and `continuation`. No chat template is applied: the
prompt is both texts, one after the other. So it is recorded, replayed and shown like every other request. Its answer
holds in `logprobs` the tokens of the continuation alone, each with `token` and `logprob`.

Servers return the tokens of the whole prompt. `score_continuation` finds those of the continuation:

1. By the tokens' offsets, if the tokens end where the prompt ends. A token before the prompt (BOS) may have a length.
2. Else by the tokens' texts, if together they are the prompt.
3. Else by the texts of one side. Tokens that hold a part of a character have no text of their own, and servers without
   offsets send such prompts too.

Invariant: it returns exactly the tokens of the continuation, or raises. A token that belongs to both texts, a second
BOS and a token without a log-probability are refused.
"""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from holdfast.models.provider import ModelError
from holdfast.records import Answer, Message, Usage

_CONTEXT, _CONTINUATION = "context", "continuation"
_UNREADABLE = "\ufffd"
"""A server's text for a token that holds only a part of a character."""
_SHOWN_CHARACTERS = 40


class LikelihoodTexts(msgspec.Struct, frozen=True):
    """The two texts of a likelihood request."""

    context: str
    continuation: str

    @property
    def prompt(self) -> str:
        return self.context + self.continuation


class PromptToken(msgspec.Struct, frozen=True):
    """One token of a prompt as a server returned it; None for what it did not say."""

    text: str | None
    logprob: float | None
    offset: int | None = None
    """Where it begins, in characters, by the server's count."""


class Likelihood(msgspec.Struct, frozen=True):
    """How likely a continuation is."""

    logprob: float
    """The sum of the log-probabilities of its tokens."""
    tokens: int


def likelihood_messages(context: str, continuation: str) -> list[Message]:
    return [{"role": _CONTEXT, "content": context}, {"role": _CONTINUATION, "content": continuation}]


def likelihood_texts(messages: Sequence[Any]) -> LikelihoodTexts | None:
    """The texts of a likelihood request; None for every other request."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != _CONTINUATION:
        return None
    contents = [each.get("content") for each in messages if isinstance(each, dict)]
    texts = [each for each in contents if isinstance(each, str)]
    if len(contents) != 2 or len(texts) != 2 or not texts[1]:
        raise ModelError(
            "bad_request", "a likelihood request has a context and a continuation that is not empty; nothing was sent"
        )
    return LikelihoodTexts(*texts)


def likelihood_answer(scored: Sequence[PromptToken], usage: Usage, dropped: tuple[str, ...] = ()) -> Answer:
    """The answer to a likelihood request. Its text is the sum, for people who read the record."""
    logprobs: list[dict[str, Any]] = [{"token": each.text or "", "logprob": each.logprob} for each in scored]
    text = f"{math.fsum(each['logprob'] for each in logprobs):.4f}"
    return Answer(text, {"role": "assistant", "content": text}, [], "stop", usage, logprobs, dropped=dropped)


def likelihood_of(answer: Answer) -> Likelihood | None:
    """The likelihood in the answer to a likelihood request; None if the provider returned another answer."""
    found = [each.get("logprob") for each in answer.logprobs]
    numbers = [each for each in found if isinstance(each, int | float)]
    return Likelihood(math.fsum(numbers), len(numbers)) if numbers and len(numbers) == len(found) else None


def score_continuation(tokens: Sequence[PromptToken], texts: LikelihoodTexts, generated: int) -> list[PromptToken]:
    """The tokens of the continuation. `generated`: how many of the last tokens are not of the prompt, as far as is
    known. ModelError (`bad_request`) with one sentence if they cannot be separated.
    """
    first = _skip_bos(tokens, texts.prompt)
    starts = _starts_by_offset(tokens, first, texts.prompt, generated) or _starts_by_text(tokens, first, texts.prompt)
    end = len(tokens) - generated
    if starts is not None:
        end = next((index for index in range(first, len(tokens)) if starts[index] >= len(texts.prompt)), len(tokens))
        before = [index for index in range(first, end) if starts[index] < len(texts.context)]
        begin = before[-1] + 1 if before else first
        if begin == end or starts[begin] != len(texts.context):
            _refuse_straddling(tokens[begin - 1])
    else:
        begin = _begin_by_one_side(tokens, first, end, texts)
    scored = list(tokens[begin:end])
    for each in scored:
        if each.logprob is None:
            raise _refused(
                f"the token {_shown(each)} of the continuation has no log-probability: begin the prompt with some "
                "text, because the first token of a sequence has none"
            )
    return scored


def _skip_bos(tokens: Sequence[PromptToken], prompt: str) -> int:
    """How many tokens stand before the prompt: 0, or 1 for the beginning of the sequence (BOS)."""
    head = tokens[0].text
    after = [each.text or "" for each in tokens[1:]]
    if head is None:  # not known: then a second one shows as one token more than the prompt
        is_twice = bool(after) and not prompt.startswith(after[0]) and "".join(after) == after[0] + prompt
    else:
        is_twice = bool(head) and after[:1] == [head] and _UNREADABLE not in head and not prompt.startswith(head * 2)
    if is_twice:
        raise _refused(
            f"the prompt begins with two BOS tokens ({_shown(tokens[1])}), which lowers every likelihood: remove it "
            "from the prompt, or set add_special_tokens: false in the model's params"
        )
    return 0 if head and prompt.startswith(head) else 1


def _starts_by_offset(tokens: Sequence[PromptToken], first: int, prompt: str, generated: int) -> list[int] | None:
    """Where each token begins in the prompt; None if the server's offsets do not end where the prompt ends."""
    offsets = [each.offset for each in tokens if each.offset is not None]
    if len(offsets) < len(tokens) or first >= len(tokens):
        return None
    starts = [offset - offsets[first] for offset in offsets]
    end = starts[-1] + len(tokens[-1].text or "") if not generated else starts[-generated]
    return starts if end == len(prompt) and starts == sorted(starts) else None


def _starts_by_text(tokens: Sequence[PromptToken], first: int, prompt: str) -> list[int] | None:
    """The same by the texts of the tokens; None if they are not the prompt."""
    starts, at = [0] * first, 0
    for each in tokens[first:]:
        starts.append(at)
        if at < len(prompt):
            if not each.text or not prompt.startswith(each.text, at):
                return None
            at += len(each.text)
    return starts if at == len(prompt) else None


def _begin_by_one_side(tokens: Sequence[PromptToken], first: int, end: int, texts: LikelihoodTexts) -> int:
    """The first token of the continuation, if the texts of all tokens on one side of it are known."""
    joined = ""
    for index in range(end - 1, first - 1, -1):
        joined = (tokens[index].text or _UNREADABLE) + joined
        if joined == texts.continuation:
            return index
        if len(joined) > len(texts.continuation):
            if joined.endswith(texts.continuation) and texts.prompt.endswith(joined):
                _refuse_straddling(tokens[index])
            break
    joined = ""
    for index in range(first, end):
        if joined == texts.context:
            return index
        joined += tokens[index].text or _UNREADABLE
    raise _refused("the tokens of the response do not add up to the prompt, so those of the continuation are not known")


def _refuse_straddling(token: PromptToken) -> NoReturn:
    raise _refused(
        f"the token {_shown(token)} holds the end of the context and the beginning of the continuation, so the "
        "continuation has no likelihood of its own: move a space from the end of the context to the continuation, or "
        "change `delimiter`"
    )


def _shown(token: PromptToken) -> str:
    text = token.text or ""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _refused(what: str) -> ModelError:
    return ModelError("bad_request", what)
