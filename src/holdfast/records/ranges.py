"""The ranges of numbers in records. Decoding refuses others: Holdfast cannot have written them."""

from typing import Annotated

from msgspec import Meta

COUNT_MAX = 2**53
"""The largest count that is accepted, of tokens or of anything else. Every JSON reader and SQLite can hold it."""
ORDINALS_MAX = 1 << 30
"""Of the keys of a run. What a stranger's journal says takes no more memory than so many bits."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
CountOrMinusOne = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
Ordinal = Annotated[int, Meta(ge=0, lt=ORDINALS_MAX)]
Seconds = Annotated[float, Meta(gt=-1, le=1e12)]
"""A duration, longer than any run takes. Not below zero by more than a clock's inaccuracy."""
Total = Annotated[float, Meta(gt=-1, le=1e15)]
"""A sum of durations."""
EpochSeconds = Annotated[float, Meta(ge=0, le=1e12)]
Mode = Annotated[int, Meta(ge=0, le=0o7777)]
