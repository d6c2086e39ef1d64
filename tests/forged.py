"""A run whose journal has every type of record, and forged copies of it: one value of one record is replaced by an
absurd one, and the line gets a right checksum. Its seed is the run's uid, which every reader of the run knows.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import xxhash

from holdfast.records.facts import FACTS, AnomaliesRechecked
from holdfast.records.line import Anomaly, seed_of
from holdfast.records.samples import Usage
from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import call, write_spec
from tests.journals import snapshot
from tests.matrix_runs import Copy, Made

RUN = "r"
KEY = "sums/arith/s0001/1"
PARTS = '''
import holdfast

@holdfast.tool(repeatable=False)
async def note(text: str) -> str:
    """Write it down."""
    return text

async def solve(sample, ctx):
    answer = await ctx.generate()
    await ctx.call(note, {"text": "x"})
    if sample.id == "s0003":
        raise ValueError("this one fails")
    return answer
'''
ABSURD: dict[str, str] = {
    "null": "null",
    "-1": "-1",
    "2**70": str(2**70),
    "1e308": "1e308",
    "empty text": '""',
    "long text": json.dumps("x" * 100_000),
    "[]": "[]",
    "{}": "{}",
    "true": "true",
    "nested lists": "[" * 900 + "]" * 900,
    "nested mappings": '{"a":' * 400 + "1" + "}" * 400,
    "deeply nested": "[" * 100_000 + "]" * 100_000,
}
NUMBERS = ("-1", "2**70", "1e308")
RIGHT = ("anomaly d.n_last = -1",)
"""No record was lost, of a file that is none of the journal's."""
TIMES = {
    **{name: ABSURD[name] for name in ("null", "-1", "2**70", "1e308", "empty text", "long text", "[]", "true")},
    "no date": '"yesterday"',
    "month 13": '"2024-13-01T00:00:00.000000Z"',
    "year 0": '"0000-01-01T00:00:00.000000Z"',
    "without a zone": '"2024-01-01T00:00:00.000000"',
}
KEYS = {**TIMES, "no repeat": '"sums/arith/s0001"', "no number": '"sums/arith/s0001/x"', "no UTF-8": '"a/%FF/c/1"'}
_HEADS = {"n": ABSURD, "at": TIMES, "k": KEYS, "d": ABSURD}


class Case(NamedTuple):
    """A value at a path of a line. `is_number`: only a number can be there."""

    kind: str
    line: int
    path: tuple[Any, ...]
    value: str
    is_number: bool

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.path))} = {self.value}"

    @property
    def json(self) -> str:
        return {**KEYS, **ABSURD}[self.value]


class Forgery:
    """The run, and what is in it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._count = 0
        (place / "mine.py").write_text(PARTS)
        with start_server_process(Behaviour(faults=[Fault("400")])) as refusing:
            spec = _write_spec(place, {"provider": "openai", "model": "m", "base_url": refusing.base_url})
            done = call("run", spec, "--id", RUN, cwd=place)
            assert done.code == 1, done.said
        _write_spec(place, {"provider": "mock", "options": {"reply": "8"}})  # corrected before it gave an answer
        for code, command in (
            (1, ("run", spec, "--id", RUN)),
            (1, ("resume", RUN)),
            (0, ("note", RUN, "a text")),
            (0, ("tag", RUN, "a-tag")),
            (0, ("score", RUN, "--set", KEY, "numeric=true", "--reason", "seen", "--by", "me")),
            (1, ("extend", RUN, "--set", "tasks.sums.repeats=2")),
        ):
            done = call(*command, cwd=place)
            assert done.code == code, (command, done.said)
        folder = place / "runs" / "sums" / RUN
        self.made = Made(RUN, spec, folder, folder)
        self.documents = _documents(folder)
        _write(folder, self.documents)
        (folder / "started.jsonl").unlink()  # a second copy of what is forged
        (folder / "lease.json").unlink(missing_ok=True)

    def cases(self) -> Iterator[Case]:
        """Each field of each type of record, in the first record of its type."""
        seen = set()
        for number, document in enumerate(self.documents):
            kind = _kind_of(document)
            if kind in seen:
                continue
            seen.add(kind)
            for name, values in _HEADS.items():
                if name != "k" or "k" in document:
                    yield from (Case(kind, number, (name,), value, name == "n") for value in values)
            for path, numeric in _places(FACTS[kind], document["d"]):
                yield from (Case(kind, number, ("d", *path), value, numeric) for value in ABSURD)

    def copy(self, case: Case | None) -> Copy:
        self._count += 1
        copy = self.made.copy(self._place / f"case-{self._count}")
        shutil.copy(self._place / "mine.py", copy.place)
        if case is not None:
            documents = list(self.documents)
            documents[case.line] = _put(documents[case.line], case.path, "@@")
            _write(copy.folder, documents, case.json)
        return copy


def _write_spec(place: Path, second: dict[str, Any]) -> Path:
    models = [{"name": "arith", "provider": "mock", "options": {"reply": "8"}}, {"name": "other", **second}]
    return write_spec(place, 3, models=models, task={"solver": "mine:solve", "sample_retries": 0})


def _kind_of(document: dict[str, Any]) -> str:
    return "anomaly of a key" if document["t"] == "anomaly" and "k" in document else str(document["t"])


def _documents(folder: Path) -> list[dict[str, Any]]:
    """The lines of a journal, all in one segment, and behind them one of each type that the run has none of."""
    contents = snapshot(str(folder / "journal")).contents
    found = [json.loads(line) for name in sorted(contents) for line in contents[name].splitlines()]
    for document in found[1:]:
        if document["t"] == "segment":  # numbers stay: other records name them
            document.update(t="note", d={"text": ""})
    last = found[-1]
    answer = next(each for each in found if each["t"] == "sample.finished")
    steps = sum(each["t"] == "step" for each in found)
    more = {
        "batch": {"token": "t-1", "line": "models.arith", "requests": [[0, "solve", "q", 0]]},
        "totals": {"steps": steps, "bills": {"sums/arith": {"": {"requests": steps}}}, "profile": {}},
        "anomaly of a key": msgspec.to_builtins(AnomaliesRechecked(answer["d"]["o"], answer["n"], 1)),
        "anomaly": msgspec.to_builtins(Anomaly("torn", 1, 10**6, 10**6, 10**6, 10**6 - 1)),
        "run.interrupted": last["d"],
        "run.cancelled": last["d"],
        "run.failed": last["d"],
        "run.completed": last["d"],
    }
    for kind, data in more.items():
        line = {"n": found[-1]["n"] + 1, "at": last["at"], "t": kind.removesuffix(" of a key")}
        found.append({**line, **({"k": answer["k"]} if kind == "anomaly of a key" else {}), "d": data})
    return found


def _write(folder: Path, documents: list[dict[str, Any]], absurd: str = "") -> None:
    """In one plain segment, each line with its checksum."""
    uid = documents[0]["d"]["run"] if isinstance(documents[0]["d"], dict) else ""
    seed = seed_of(uid)
    journal = folder / "journal"
    shutil.rmtree(journal)
    journal.mkdir()
    lines = []
    for document in documents:
        head = {name: document[name] for name in ("n", "at", "t", "k", "d") if name in document}
        text = json.dumps(head, separators=(",", ":")).replace('"@@"', absurd or '"@@"')
        raw = text.removesuffix("}").encode()
        lines.append(raw + b',"x":"%b"}\n' % xxhash.xxh3_64_hexdigest(raw, seed).encode())
    (journal / "000001.jsonl").write_bytes(b"".join(lines))


def _put(value: Any, path: tuple[Any, ...], token: str) -> Any:
    if not path:
        return token
    copy = list(value) if isinstance(value, list) else dict(value)
    if isinstance(copy, list):
        copy[path[0]] = _put(copy[path[0]], path[1:], token)
    else:
        copy[path[0]] = _put(copy.get(path[0], {}), path[1:], token)
    return copy


def _places(kind: type, document: Any) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Every field that the type has, and those of structs within it, whether or not the record has a value there."""
    if isinstance(document, dict) and "spec" in document:
        yield from ((("spec", *path), False) for path in _places_in_json(document["spec"], 3))
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined] # every fact is a struct
        yield (field.encode_name,), _is_number(field.type)
        inner = _struct_in(field.type)
        if inner is None:
            continue
        struct, wrap = inner
        if struct is Usage:  # impossible token counts of servers are in journals of older versions, and dropped
            yield from (((field.encode_name, name), False) for name in Usage.__struct_fields__)
            continue
        below = document.get(field.encode_name) if isinstance(document, dict) else None
        if wrap == "list":
            if isinstance(below, list) and below and isinstance(below[0], dict):
                yield from (((field.encode_name, 0, *path), n) for path, n in _places(struct, below[0]))
        elif wrap == "dict":
            if isinstance(below, dict) and below:
                name = next(iter(below))
                yield from (((field.encode_name, name, *path), n) for path, n in _places(struct, below[name]))
        elif isinstance(below, dict):
            yield from (((field.encode_name, *path), n) for path, n in _places(struct, below))


def _places_in_json(value: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    each = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in each if depth else ():
        yield (name,)
        yield from ((name, *path) for path in _places_in_json(inner, depth - 1))


def _struct_in(kind: Any) -> tuple[type, str] | None:
    if isinstance(kind, msgspec.inspect.StructType):
        return (kind.cls, "") if not kind.array_like else None
    if isinstance(kind, msgspec.inspect.UnionType):
        return next(filter(None, map(_struct_in, kind.types)), None)
    if isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        found = _struct_in(kind.item_type)
        return (found[0], "list") if found else None
    if isinstance(kind, msgspec.inspect.DictType):
        found = _struct_in(kind.value_type)
        return (found[0], "dict") if found and not found[1] else None
    return None


def _is_number(kind: Any) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return all(isinstance(each, msgspec.inspect.NoneType) or _is_number(each) for each in kind.types)
    return isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType)
