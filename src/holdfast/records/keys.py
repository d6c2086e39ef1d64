"""Keys: the identity of one answer, `task/model/sample_id/repeat`.

Each part is escaped, so that a key can always be split into its parts again, whatever names people use:
`Qwen/Qwen3-8B`, `a%b`, ids with slashes and line breaks.

References to the content of files: `blob:sha256-<64 hex digits>;<type>`. Rows, messages and records contain only
these, never the content.

Invariant: a reference depends only on the content and its type, never on the path of the file. It is short, so
pictures do not enlarge the journal. The content replaces it when a request is sent.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import xxhash

SHARDS_MAX = 100_000
_REPEAT_DIGITS_MAX = 9
_ESCAPE = re.compile(r"[/%\x00-\x1f\x7f-\x9f\u2028\u2029]")

_PLAIN_KEY = re.compile(rf"[^/%]*/[^/%]*/[^/%]*/[0-9]{{1,{_REPEAT_DIGITS_MAX}}}")


class Key(NamedTuple):
    task: str
    model: str
    sample_id: str
    repeat: int

    def __str__(self) -> str:
        return f"{escape(self.task)}/{escape(self.model)}/{escape(self.sample_id)}/{self.repeat}"


def is_key(text: str) -> bool:
    """Whether `parse_key` can read it."""
    if _PLAIN_KEY.fullmatch(text):  # fast path: nearly all keys
        return True
    cell, _, repeat = text.rpartition("/")
    if cell.count("/") != 2 or not (repeat.isascii() and repeat.isdigit()) or len(repeat) > _REPEAT_DIGITS_MAX:
        return False
    if "%" in cell:
        try:
            unescape(cell)
        except UnicodeDecodeError:
            return False
    return True


def parse_key(text: str) -> Key:
    """The parts of a key. ValueError if the text is not a key."""
    parts = text.split("/")
    if len(parts) != 4 or not parts[3].isascii() or not parts[3].isdigit():
        raise ValueError(f"{text!r} is not a key: expected task/model/sample_id/repeat")
    if "%" not in text:  # fast path: nearly all keys; `Key(…)` would take twice as long
        return tuple.__new__(Key, (parts[0], parts[1], parts[2], int(parts[3])))
    return Key(unescape(parts[0]), unescape(parts[1]), unescape(parts[2]), int(parts[3]))


def cell_of(key: str) -> str:
    """The cell (`task/model`) of a key, still escaped."""
    return key.rsplit("/", 2)[0]


def cell_names(cell: str) -> tuple[str, str]:
    """The task and the model of a cell, unescaped."""
    task, _, model = cell.partition("/")
    return unescape(task), unescape(model)


def with_model(cell: str, names: Mapping[str, str]) -> str:
    """The cell with the new name of its model, if `names` has one."""
    task, model = cell_names(cell)
    return f"{escape(task)}/{escape(names.get(model, model))}"


class Shard(msgspec.Struct, frozen=True, order=True):
    """Part `number` (from 1) of the `count` parts of a plan. Written `3/8`; its folder is `3-of-8`."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def folder(self) -> str:
        return f"{self.number}-of-{self.count}"

    def has(self, sample: str) -> bool:
        """Whether a sample belongs to this part. `sample`: its key without the repeat, so that repeats stay together.
        The rule is part of the format: it never changes.
        """
        return shard_index(sample, self.count) == self.number - 1


def shard_index(sample: str, count: int) -> int:
    """The shard of a sample, from 0."""
    return xxhash.xxh3_64_intdigest(sample.encode("utf-8", "surrogatepass")) % count


_SHARD = re.compile(r"([1-9][0-9]{0,5})(?:/|-of-)([1-9][0-9]{0,5})", re.ASCII)


def parse_shard(text: str) -> Shard:
    """Reads `3/8` or `3-of-8`. ValueError if it is neither, or there is no such part."""
    match = _SHARD.fullmatch(text)
    shard = Shard(int(match[1]), int(match[2])) if match is not None else None
    if shard is None or shard.number > shard.count or shard.count > SHARDS_MAX:
        raise ValueError(
            f"{text!r} is not a shard: write I/N, such as 3/8, with I from 1 to N (at most {SHARDS_MAX:,})"
        )
    return shard


def escape(part: str) -> str:
    """Percent-escape (UTF-8) the characters that would split a key into other parts or lines."""
    if not _ESCAPE.search(part):
        return part
    return _ESCAPE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), part)


def unescape(part: str) -> str:
    if "%" not in part:
        return part
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), part.encode())
    return raw.decode()


_PREFIX = "blob:sha256-"
_REFERENCE = re.compile(r"blob:sha256-([0-9a-f]{64});([\w.+-]+/[\w.+-]+)", re.ASCII)


class Reference(msgspec.Struct, frozen=True):
    """The SHA-256 of a content in hex, and its media type, such as `image/png`."""

    digest: str
    type: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.digest};{self.type}"


def parse_reference(text: object) -> Reference | None:
    """The reference; None if the value is not exactly one reference."""
    if not isinstance(text, str) or not text.startswith(_PREFIX):
        return None
    match = _REFERENCE.fullmatch(text)
    return Reference(match[1], match[2]) if match is not None else None


def references_in(value: Any) -> Iterator[str]:
    """Every reference in plain data, as text."""
    if isinstance(value, str):
        if parse_reference(value) is not None:
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from references_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from references_in(each)


def with_strings(value: Any, change: Callable[[str, str], str], name: str = "") -> Any:
    """A copy of plain data with every text replaced by `change(text, name)`; `name` is its key in the mapping."""
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, dict):
        return {each: with_strings(inner, change, str(each)) for each, inner in value.items()}
    if isinstance(value, list):
        return [with_strings(each, change, name) for each in value]
    return value
