"""Types that all packages share: a sample, a model's answer, its token usage, a score.

Numbers in records have ranges (`Count`, `Seconds`, …). Decoding refuses numbers outside of them, because Holdfast
cannot have written them.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.errors import HoldfastError

COUNT_MAX = 2**53
"""The largest count that is accepted, of tokens or of anything else. Every JSON reader and SQLite can hold it."""
ORDINALS_MAX = 1 << 30
"""The limit for plan ordinals. Readers keep a bitmap by ordinal, so this bounds what a forged journal can allocate."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
CountOrMinusOne = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
Ordinal = Annotated[int, Meta(ge=0, lt=ORDINALS_MAX)]
Seconds = Annotated[float, Meta(gt=-1, le=1e12)]
"""A duration, longer than any run takes. Not below zero by more than a clock's inaccuracy."""
Total = Annotated[float, Meta(gt=-1, le=1e15)]
"""A sum of durations."""
EpochSeconds = Annotated[float, Meta(ge=0, le=1e12)]
Mode = Annotated[int, Meta(ge=0, le=0o7777)]


Message = dict[str, Any]
"""A chat message in the OpenAI shape: plain JSON, because that is what goes over the wire and into the journal."""

Row = dict[str, Any]
"""One row of a data set, as it was read."""


_SHOWN = 100
MARKS = ("filtered", "empty", "truncated")
"""Marks of unusual answers, the worst first."""
_FILTERED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii"})
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


TEXT_ONCE_CHARACTERS = 1024
"""The text of an answer that is at least so long is stored only once in a record, not in `text` and in `message`."""


class NotJsonError(HoldfastError):
    """An answer that should be JSON and is not."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of one or more requests. Zero means none, or that the server did not report it.

    Every count is between 0 and `COUNT_MAX`. Providers drop other values before they are recorded; journals of older
    versions contain some, so decoding drops them too. Sums stop at `COUNT_MAX`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """A part of `output_tokens`."""
    cache_write_tokens: int = 0
    """A part of the input, like `cached_tokens`: stored in the server's cache for later requests."""
    requests: int = 0
    """In a sum: the number of responses. 0 in the usage of a single response."""
    batched: "Usage | None" = None
    """The part of all this that was answered by jobs of a batch API, which costs less."""

    def __post_init__(self) -> None:
        # One comparison instead of twelve, because every sum and every decoded record gets here: the bits of all counts
        # together are negative if one count is, and not less than the largest.
        bits = (
            self.input_tokens
            | self.output_tokens
            | self.cached_tokens
            | self.reasoning_tokens
            | self.cache_write_tokens
            | self.requests
        )
        if not 0 <= bits <= COUNT_MAX:
            for name in _COUNTS:
                if not 0 <= getattr(self, name) <= COUNT_MAX:
                    msgspec.structs.force_setattr(self, name, 0)

    def __add__(self, other: "Usage") -> "Usage":
        if other == _NO_USAGE:  # most sums: nothing was replayed, saved or orphaned
            return self
        if self == _NO_USAGE:
            return other
        batched = self.batched if other.batched is None else (self.batched or Usage()) + other.batched
        counts = (
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.requests + other.requests,
        )
        first, second, third, fourth, fifth, sixth = counts
        if first | second | third | fourth | fifth | sixth > COUNT_MAX:  # one of them may be too large
            first, second, third, fourth, fifth, sixth = (min(each, COUNT_MAX) for each in counts)
        return Usage(first, second, third, fourth, fifth, sixth, batched)

    def with_response(self, response: "Usage", *, batched: bool = False) -> "Usage":
        """The sum with one more response: one object less than `self + response.of_one(batched)`, because readers do
        this twice for every step of a run.
        """
        first = self.input_tokens + response.input_tokens
        second = self.output_tokens + response.output_tokens
        third = self.cached_tokens + response.cached_tokens
        fourth = self.reasoning_tokens + response.reasoning_tokens
        fifth = self.cache_write_tokens + response.cache_write_tokens
        if batched or first | second | third | fourth | fifth | self.requests >= COUNT_MAX:
            return self + response.of_one(batched)
        return Usage(first, second, third, fourth, fifth, self.requests + 1, self.batched)

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cached_tokens - other.cached_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.requests - other.requests,
            self.batched if other.batched is None else _left(self.batched or Usage(), other.batched),
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def of_one(self, batched: bool = False) -> "Usage":
        """The usage of one response as a part of a sum."""
        one = Usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.reasoning_tokens,
            self.cache_write_tokens,
            1,
        )
        return one.as_batched() if batched else one

    def at_least(self, other: "Usage") -> "Usage":
        """The greater of each number. Batched only if both are."""
        pairs = zip(msgspec.structs.astuple(self)[:-1], msgspec.structs.astuple(other)[:-1], strict=True)
        most = Usage(*(max(pair) for pair in pairs))
        return most.as_batched() if self.batched is not None and other.batched is not None else most

    def as_batched(self) -> "Usage":
        """The same usage, all of it batched."""
        return msgspec.structs.replace(self, batched=msgspec.structs.replace(self, batched=None))


_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens", "requests")


def _left(whole: Usage, part: Usage) -> Usage | None:
    return None if whole == part else whole - part


_NO_USAGE = Usage()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's response, or the answer that a solver made from responses."""

    text: str
    message: Message = msgspec.field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    finish_reason: str = ""
    usage: Usage = Usage()
    logprobs: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """For each token, if requested: `token`, `logprob`, `top_logprobs`."""
    raw: Any = None
    """The server's response if the model has `record_raw`: the body, or a list of the events of a stream."""
    dropped: tuple[str, ...] = ()
    """Impossible values of the server's response that were dropped, as `usage.prompt_tokens: -1`."""
    text_once: bool = False
    """Only in records, never in memory: `message.content` is stored as null because it equals `text`."""

    def __post_init__(self) -> None:
        if self.text_once:
            self.message["content"] = self.text
            msgspec.structs.force_setattr(self, "text_once", False)

    def as_stored(self) -> "Answer":
        """The answer as a record stores it: without `message.content` if that equals `text`. Only for encoding."""
        text, message = self.text, self.message
        if not isinstance(message, dict) or message.get("content") != text:  # a solver's answer may contain anything
            return self
        fields = msgspec.structs.asdict(self)
        # The key keeps its position: digests of later requests depend on the order of a message's keys.
        return _StoredAnswer(**{**fields, "message": {**message, "content": None}, "text_once": True})

    @property
    def reasoning(self) -> str:
        """The model's reasoning text; empty if the server did not send one."""
        text = self.message.get("reasoning_content") or self.message.get("reasoning")
        return text if isinstance(text, str) else ""

    @property
    def marks(self) -> tuple[str, ...]:
        """What is unusual about the answer, the worst first: `filtered`, `empty`, `truncated`. Computed from fields
        that every version has recorded, so it works for old runs too.
        """
        return marks_of(self.text, self.finish_reason, self.tool_calls or self.message.get("tool_calls"))

    def json(self) -> Any:
        """The text parsed as JSON, for structured output. NotJsonError, with the start of the text, if it is not."""
        try:
            return msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError) as error:
            shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
            cut = " (it was cut off: raise max_tokens)" if self.finish_reason == "length" else ""
            raise NotJsonError(f"the answer is not JSON: {error}{cut}; it says: {shown!r}") from error


def marks_of(text: str, finish_reason: str, calls: object) -> tuple[str, ...]:
    """See `Answer.marks`. `calls`: the tool calls of the answer, if it has any."""
    why = finish_reason.lower()
    is_empty = not text or text.isspace()
    if why == "stop" and not is_empty:  # fast path: nearly all answers
        return ()
    found = (why in _FILTERED, not calls and is_empty, why in _CUT)
    return tuple(mark for mark, is_so in zip(MARKS, found, strict=True) if is_so)


class _StoredAnswer(Answer, frozen=True, omit_defaults=True):
    """An answer as a record stores it. Decoding the record gives the complete `Answer`."""

    def __post_init__(self) -> None:
        """Do not restore the text in `message`: this object is about to be encoded."""


class Sample(msgspec.Struct, frozen=True):
    """One data row in one cell, as solvers and scorers receive it."""

    id: str
    input: Any
    target: Any
    row: Row


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scorer's result for one answer. `value` None means "no score": counted and shown, but not averaged."""

    value: bool | int | float | str | dict[str, Any] | None
    reason: str = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    unreadable: bool = False
    """Counts as wrong because the answer lacks what the scorer compares: no number, no letter. Reports count it."""
