"""What the benchmarks save: chat content from a fixed seed, of a wanted size.

Pseudo-English from a skewed word list, with quotes and line breaks, so that escaping costs what it costs in life and
text compresses about as chat text does (random bytes would not; one repeated sentence would far too well).
"""

import itertools
import random

from holdfast.records import draft, line_of, seed_of

RUN_UID = "bench-run"
_WORDS = 6000
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_ENDINGS = {" ": 82, ", ": 7, ". ": 6, ".\n": 2, '" ': 1, ' "': 1, ".\n\n": 1}
_WORD_CHARACTERS = 6
_MESSAGE_CHARACTERS = 1500

Payload = dict[str, object]


class Prose:
    """An endless, repeatable source of text."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        skew = [1 / rank for rank in range(1, len(_LETTERS) + 1)]
        lengths = self._random.choices(range(2, 12), weights=(8, 14, 18, 15, 12, 10, 8, 6, 5, 4), k=_WORDS)
        words = ["".join(self._random.choices(_LETTERS, skew, k=length)) for length in lengths]
        self._tokens = [word + ending for word in words for ending in _ENDINGS]
        weights = (share / (rank + 2) for rank in range(_WORDS) for share in _ENDINGS.values())
        self._weights = list(itertools.accumulate(weights))

    def text(self, characters: int) -> str:
        """Words and punctuation, exactly as many characters as asked."""
        count = characters // (_WORD_CHARACTERS - 1) + 20
        text = "".join(self._random.choices(self._tokens, cum_weights=self._weights, k=count))
        return text[:characters] if len(text) >= characters else self.text(characters)


def payload(prose: Prose, ordinal: int, size: int) -> Payload:
    """The data of a step record whose JSON has about `size` bytes: messages, as an evaluation saves them."""
    usage = {"input": 12 + ordinal % 900, "output": size // 4, "cached": 0}
    messages: list[dict[str, str]] = []
    left = size - 180
    while left > 0:
        text = prose.text(min(left, _MESSAGE_CHARACTERS))
        messages.append({"role": "user" if len(messages) % 2 == 0 else "assistant", "content": text})
        left -= len(text) + 60
    return {"ordinal": ordinal, "scope": "solve/1", "step": 1, "messages": messages, "usage": usage}


def payloads(seed: int, count: int, size: int) -> list[Payload]:
    prose = Prose(seed)
    return [payload(prose, ordinal, size) for ordinal in range(count)]


def key(ordinal: int) -> str:
    return f"sums/local/sample-{ordinal:06d}/1"


def ready_line(data: Payload, ordinal: int) -> bytes:
    """The very bytes that the journal writes for a record, for contestants that are given them ready-made."""
    record = draft("step", data, key(ordinal))
    return line_of(record, ordinal + 1, b"2024-06-07T08:09:10.123456Z", seed_of(RUN_UID))
