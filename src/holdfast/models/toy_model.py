"""A toy language model with log-probabilities that can be computed by hand, for the mock provider and the test server.

A token is a word or a sign, with the space before it. A word that occurred before has the log-probability -0.5, every
other token -1 and -0.25 for each of its characters. So the toy model prefers choices that repeat the context, and short
ones. The first token has none.
"""

import re

from holdfast.models.likelihood import PromptToken

_TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s")


def split_toy_tokens(text: str) -> list[str]:
    """The tokens of a text; together they are the text."""
    return _TOKEN.findall(text)


def score_toy_tokens(words: list[str]) -> list[PromptToken]:
    """The tokens with their log-probabilities and offsets."""
    seen: set[str] = set()
    tokens: list[PromptToken] = []
    at = 0
    for word in words:
        bare = word.strip().lower()
        logprob = -0.5 if bare in seen else -1 - 0.25 * len(bare)
        tokens.append(PromptToken(word, logprob if tokens else None, at))
        seen.add(bare)
        at += len(word)
    return tokens
