"""Merges the records of several journals of one plan into one journal.

Each source numbers its records and its keys on its own. In the merged journal both have one numbering: ordinals are
those of the whole plan, and references to other records (a score to its answer, a request to the step before it) get
the new numbers. Records about single processes (starts, resumes and ends of shards) are left out: the merged journal
has one beginning, that of the whole run.

If several sources answered the same key, the first answer counts, as in any journal; what the others cost is counted
too. Nothing here decides which records are read, or when.
"""

import array
import os
import re
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from holdfast.errors import FormatError
from holdfast.journal import CopyWriter, Entry
from holdfast.plan import planned_lines
from holdfast.records import (
    Anomaly,
    BatchJob,
    Block,
    Draft,
    FactDecoder,
    Line,
    ScoringStarted,
    Shard,
    Step,
    decode,
    draft,
    draft_fact,
    shard_index,
)
from holdfast.state import ENDS, RecordHandlers, looked_data

_ITEM = array.array("Q").itemsize
_ORDINAL = re.compile(rb'\{"o":(\d{1,18})')
_ANSWER = re.compile(rb'\{"o":(\d{1,18}),"of":(\d{1,18})')
_RECORDS: RecordHandlers["Merger", Line] = RecordHandlers()
_step = FactDecoder(Step)


class NumberFile:
    """A list of numbers in a file: item i belongs to number `i + 1` of a source. It is only appended to."""

    def __init__(self, path: str, length: int) -> None:
        """`length`: how many items are known to be right; what a crash left behind them is cut."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._handle, length * _ITEM)
        self._written = length
        self._new = array.array("Q")

    def __len__(self) -> int:
        return self._written + len(self._new)

    def append(self, number: int) -> None:
        self._new.append(number)

    def extend(self, numbers: "array.array[int]") -> None:
        self._new.extend(numbers)

    def __getitem__(self, index: int) -> int:
        """0 if there is no such item."""
        if index >= self._written:
            index -= self._written
            return self._new[index] if index < len(self._new) else 0
        if index < 0:
            return 0
        return int.from_bytes(os.pread(self._handle, _ITEM, index * _ITEM), "little")

    def flush(self) -> None:
        if self._new:
            os.pwrite(self._handle, self._new.tobytes(), self._written * _ITEM)
            self._written += len(self._new)
            self._new = array.array("Q")

    def close(self) -> None:
        os.close(self._handle)


class MergeSource(msgspec.Struct, frozen=True):
    """One journal that is merged. `ordinals`: of the whole plan, by the ordinals of this journal; None: the same."""

    name: str
    """For messages, such as `shard 3/8`."""
    numbers: NumberFile
    """The new number of each record; 0 for one that was left out or lost."""
    ordinals: NumberFile | None = None
    is_root: bool = False
    """Whether its records about the run as a whole are copied. Those of others are about single processes."""


class Merger:
    """Appends records of sources to one journal."""

    def __init__(self, writer: CopyWriter, evaluations: dict[str, str]) -> None:
        """`evaluations`: by id, a digest of the last record that began each evaluation. It is updated."""
        self._writer = writer
        self._evaluations = evaluations
        self._source: MergeSource

    def add(self, source: MergeSource, entry: Entry) -> None:
        """Append a record with its new number, ordinal and references; or leave it out."""
        line, numbers = entry.line, source.numbers
        if entry.is_copy or len(numbers) >= line.n:
            return  # of started.jsonl, or read before
        while len(numbers) < line.n - 1:
            numbers.append(0)  # lost, or void
        self._source = source
        _RECORDS.get(line.t, Merger._copy)(self, line)
        if len(numbers) < line.n:
            numbers.append(0)

    def _keep(self, record: Draft, line: Line) -> None:
        self._source.numbers.append(self._writer.append(record, line.at))

    def _copy(self, line: Line) -> None:
        self._keep(draft(line.t, line.d, line.k), line)

    @_RECORDS.on("segment", "totals")
    def _leave_out(self, line: Line) -> None:
        """The merged journal has its own segments. `totals` are of a shard whose steps were removed."""

    @_RECORDS.on("run.started", "run.resumed", "run.extended", *ENDS)
    def _copy_of_root(self, line: Line) -> None:
        if self._source.is_root:
            self._copy(line)

    @_RECORDS.on("score.started")
    def _copy_evaluation(self, line: Line) -> None:
        """Every shard begins every evaluation."""
        started, digest = decode(line, ScoringStarted), xxhash.xxh3_128_hexdigest(bytes(line.d))
        if self._evaluations.get(started.evaluation) != digest:
            self._evaluations[started.evaluation] = digest
            self._copy(line)

    @_RECORDS.on("sample.finished", "sample.failed", "step.started")
    def _copy_with_ordinal(self, line: Line) -> None:
        """The ordinal is the first field. It is replaced without decoding the answer behind it."""
        data = bytes(line.d)
        found = _ORDINAL.match(data)
        if found is None:
            raise FormatError(f"a {line.t} record of {line.k} does not begin with its ordinal: it was edited")
        data = b'{"o":%d%b' % (self._ordinal(int(found[1])), data[found.end() :])
        self._keep(draft(line.t, msgspec.Raw(data), line.k), line)

    @_RECORDS.on("score")
    def _copy_score(self, line: Line) -> None:
        data = bytes(line.d)
        found = _ANSWER.match(data)
        if found is None:
            raise FormatError(f"a score of {line.k} does not begin with its ordinal and answer: it was edited")
        o, of = self._ordinal(int(found[1])), self._number(int(found[2]))
        self._keep(draft(line.t, msgspec.Raw(b'{"o":%d,"of":%d%b' % (o, of, data[found.end() :])), line.k), line)

    @_RECORDS.on("step")
    def _copy_step(self, line: Line) -> None:
        step = _step.decode(line)
        asked = step.asked
        if asked is not None:
            asked = asked.renumbered({n: self._number(n) for n in asked.needs})
        self._keep(
            draft_fact(line.t, msgspec.structs.replace(step, o=self._ordinal(step.o), asked=asked), line.k), line
        )

    @_RECORDS.on("batch")
    def _copy_job(self, line: Line) -> None:
        job = decode(line, BatchJob)
        requests = tuple(msgspec.structs.replace(each, o=self._ordinal(each.o)) for each in job.requests)
        self._keep(draft(line.t, msgspec.structs.replace(job, requests=requests), line.k), line)

    @_RECORDS.on("anomaly")
    def _copy_anomaly(self, line: Line) -> None:
        """A loss keeps its numbers only in its text: a reader would take them for positions in the merged journal."""
        if line.k is not None:
            looked = looked_data.decode(line)
            looked = msgspec.structs.replace(looked, o=self._ordinal(looked.o), of=self._number(looked.of))
            self._keep(draft(line.t, looked, line.k), line)
            return
        loss = decode(line, Anomaly)
        detail = f"{self._source.name}: {loss.detail} (records {loss.n_first} to {loss.n_last} of its journal)"
        loss = msgspec.structs.replace(loss, first=0, last=0, n_first=0, n_last=-1, detail=detail)
        self._keep(draft(line.t, loss), line)

    def _ordinal(self, local: int) -> int:
        ordinals = self._source.ordinals
        if ordinals is None:
            return local
        if not local < len(ordinals):
            raise FormatError(f"{self._source.name} has records of key {local}, and its plan has {len(ordinals)} keys")
        return ordinals[local]

    def _number(self, local: int) -> int:
        return self._source.numbers[local - 1] if local else 0


def divide_ordinals(
    run: str, blocks: Sequence[Block], count: int, is_wanted: Callable[[int], bool]
) -> dict[Shard, list[int]]:
    """Ordinals in the plan of the whole run, as ordinals in the plans of its shards; without shards that have none."""
    every = ordinals_by_shard(run, blocks, count)
    found = ([local for local, o in enumerate(ordinals) if is_wanted(o)] for ordinals in every)
    return {Shard(number, count): own for number, own in enumerate(found, 1) if own}


def ordinals_by_shard(run: str, blocks: Sequence[Block], count: int) -> "list[array.array[int]]":
    """The ordinals in these blocks of the whole plan, by shard. A shard plans its keys in the same order."""
    found = [array.array("Q") for _ in range(count)]
    for cell in (cell for block in blocks for cell in block.cells):
        for line in planned_lines(run, cell):
            found[shard_index(line.k.rpartition("/")[0], count)].append(line.o)
    return found
