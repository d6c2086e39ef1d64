"""Whether an id was used before, for a million ids in a few megabytes.

Only an 8-byte hash of each id is kept. When a hash is met again, the source is read again to compare the ids
themselves, so two ids that merely share a hash are not taken for one. A source that can be read only once leaves no
such way: then the ids are kept.
"""

from array import array
from collections.abc import Callable, Iterable

import xxhash

_SLOTS_AT_FIRST = 1024

Hash = Callable[[bytes], int]


class Ids:
    """The ids of one data set. `again` gives (number, id) of the source from its start, None if it cannot."""

    def __init__(
        self, again: Callable[[], Iterable[tuple[int, str]]] | None, hash: Hash = xxhash.xxh3_64_intdigest
    ) -> None:
        self._again = again
        self._hash = hash
        self._hashes = _Hashes()
        self._kept: dict[str, int] = {}

    def add(self, id: str, number: int) -> int | None:
        """Remember an id; the number where it was used before, if it was."""
        if self._again is None:
            first = self._kept.setdefault(id, number)
            return None if first == number else first
        if self._hashes.add(self._hash(id.encode("utf-8", "surrogatepass"))):
            return None
        return self._find(id, number)

    def _find(self, id: str, number: int) -> int | None:
        assert self._again is not None
        for earlier, other in self._again():
            if earlier == number:
                break
            if other == id:
                return earlier
        return None


class _Hashes:
    """A set of 64-bit numbers in one array, at most half full: 16 to 32 bytes a number, where a set of int takes 80."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _SLOTS_AT_FIRST))  # 0 is a free slot
        self._mask = _SLOTS_AT_FIRST - 1
        self._count = 0

    def add(self, value: int) -> bool:
        """False if it is there already."""
        slots, mask = self._slots, self._mask
        value = value or 1
        at = value & mask
        while slots[at]:
            if slots[at] == value:
                return False
            at = (at + 1) & mask
        slots[at] = value
        self._count += 1
        if self._count * 2 > mask:
            self._grow()
        return True

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(16)) * len(old)
        self._mask = len(self._slots) - 1
        self._count = 0
        for value in old:
            if value:
                self.add(value)
