"""Verifies a run beyond the bytes of its journal: the files that it refers to, its derived state, and its scores.

- `verify_files` is the whole of `holdfast verify`: every byte of journal, plan, data and files, then what follows.
- `check_content`: every blob (file content) that rows and steps refer to is there and undamaged.
- `check_scores` and `check_index` rebuild the index from the journal and compare it, and the reports, with the cached
  one. The rebuilt index is an unlinked temporary file, so a crash leaves nothing. A cached index that differs is
  removed, and the next reader rebuilds it.
- `rescore` scores recorded answers again and compares the result with the recorded scores. Only for built-in scorers
  whose version and arguments are unchanged and that read one answer alone: they are deterministic. The others are
  listed with the reason. No model is called.

Nothing in the run's folder changes.
"""

import asyncio
import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine import AnswerToScore, Ticket, apply_scorer
from holdfast.errors import DamagedError, JournalError
from holdfast.journal import Entry, Reader, Verification, check_blob_files, journal_folder, verify
from holdfast.plan import check_blobs, data_lines, planned_lines
from holdfast.records import (
    Cell,
    FactDecoder,
    Sample,
    SampleFinished,
    ScoreGiven,
    Step,
    check_fact,
    decode,
    normalized,
    parse_shard,
)
from holdfast.report import StoredSpec, counted
from holdfast.runs.execution.resume import read_fold, stored_spec
from holdfast.runs.mirror.remote import fetch_all
from holdfast.runs.opened import report_of
from holdfast.runs.shards.copy import readable
from holdfast.runs.shards.layout import begun_shards, is_sharded
from holdfast.runs.shards.merger import ordinals_by_shard
from holdfast.runs.store.damage import check_every_byte
from holdfast.runs.store.lookup import RunLocation
from holdfast.score import EXTRACTORS, SCORERS, Extractor, Scorer, identity
from holdfast.state import Fold, Index, MadeRow, standing_of

_MAY_DIFFER = {SCORERS[name].function for name in ("code_tests", "bert_score", "embedding_similarity")}
_TRANSIENT = frozenset({"stalled", "cancelled", "record", "too_large"})
"""Failures caused by the process, not by the answer: scoring again may succeed."""
_SHOWN = 5
_finished = FactDecoder(SampleFinished)
_given = FactDecoder(ScoreGiven)


class Rescored(msgspec.Struct):
    """The outcome."""

    again: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many of its scores were computed again."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why its scores were not computed again."""
    differences: list[str] = msgspec.field(default_factory=list)


async def rescore(index: Index, evaluation: str) -> Rescored:
    """Score every answer that counts again, in plan order, one at a time."""
    found = Rescored()
    counts: Counter[str] = Counter()
    spec, started = index.story.spec, index.story.evaluations.get(evaluation)
    scorers = _usable([] if started is None else started.scorers, found.skipped)
    if scorers and not spec.get("record_data", True):
        found.skipped |= {each.name: "the run does not hold its data" for every in scorers.values() for each in every}
        return found
    with contextlib.closing(Reader(journal_folder(index.folder))) as reader:
        for cell in (each for each in index.story.cells if each.task in scorers):
            for answer in _answers(index, reader, cell, evaluation):
                recorded = {each.scorer: each for each in index.made_of(answer.ticket.o, answer.of, evaluation)}
                for scorer in scorers[cell.task]:
                    (given,) = await apply_scorer([answer], scorer)
                    for each in given:
                        counts[each.scorer] += 1
                        found.differences += _differs(reader, answer, each, recorded.get(each.scorer))
    found.again = dict(counts)
    return found


def _usable(recorded: Sequence[Mapping[str, Any]], skipped: dict[str, str]) -> dict[str, list[Scorer]]:
    """The scorers that can be used again, by task. Fills `skipped` with the reason for the others."""
    found: dict[str, list[Scorer]] = {}
    for stored in map(normalized, recorded):
        try:
            made = _rebuild(stored)
            why = _why_not(made, stored)
        except KeyError:
            why = "it does not come with Holdfast, or a part of it does not"
        if why:
            skipped[str(stored.get("name", ""))] = why
        else:
            found.setdefault(str(stored.get("task", "")), []).append(made)
    return found


def _rebuild(stored: Any, known: Mapping[str, Scorer | Extractor] = SCORERS) -> Any:
    """A scorer or an extractor as it was recorded, with its parts. KeyError if one does not come with Holdfast."""
    if isinstance(stored, list):
        return [_rebuild(each, known) for each in stored]
    if not isinstance(stored, Mapping):
        return stored
    if not {"name", "function", "args"} <= stored.keys():
        return {name: _rebuild(each) for name, each in stored.items()}
    found = known[str(stored["function"])]
    parts = {name: tuple(_rebuild(stored.get(name, []), EXTRACTORS)) for name in ("extract", "extract_target")}
    more: dict[str, Any] = parts if isinstance(found, Scorer) else {}
    return msgspec.structs.replace(found, name=stored["name"], args=_rebuild(stored["args"]), **more)


def _why_not(made: Scorer, stored: Mapping[str, Any]) -> str:
    """Why a scorer cannot be used again; empty if it can."""
    if made.roles():
        return "it calls a judge"
    every = _with_parts(made)
    if any(each.group for each in every):
        return "it looks at all repeats of a sample at once"
    if any(each.function in _MAY_DIFFER for each in every):
        return "it runs code or a model, which may come out otherwise on another machine"
    if any(stored.get(name) != value for name, value in identity(made).items()):
        return "its version, or that of a package that it computes with, has changed since"
    return ""


def _with_parts(scorer: Scorer) -> Iterator[Scorer]:
    yield scorer
    for part in scorer.parts():
        yield from _with_parts(part)


def _answers(index: Index, reader: Reader, cell: Cell, evaluation: str) -> Iterator[AnswerToScore]:
    """The finished answers of a cell, each with its sample. Index and plan are read side by side."""
    counts = StoredSpec.of(index.story.spec).counts(cell.task)
    rows = index.answers("finished", cell.first, cell.count)
    row = next(rows, None)
    for ticket in _tickets(index.folder, cell):
        while row is not None and row.o < ticket.o:
            row = next(rows, None)
        if row is None:
            return
        entry = reader.record_at(row.segment, row.at_byte) if row.o == ticket.o else None
        if entry is not None:
            yield AnswerToScore(ticket, _finished.decode(entry.line).answer, row.n, evaluation, (), counts)


def _tickets(run: str, cell: Cell) -> Iterator[Ticket]:
    """The keys of a cell with their samples. Plan and data are read side by side."""
    rows = data_lines(run, cell)
    row = next(rows, None)
    made: Sample | None = None
    for line in planned_lines(run, cell):
        while row is not None and row.r < line.r:
            row, made = next(rows, None), None
        if row is None:
            return
        made = made or row.sample()
        yield Ticket(line.o, line.k, made, cell)


def _differs(reader: Reader, answer: AnswerToScore, now: ScoreGiven, recorded: MadeRow | None) -> Iterator[str]:
    if recorded is None or not recorded.position.n:
        return  # not scored, or only set by hand
    before = ""
    if recorded.failure:  # its kind is in the journal: the index has only its message
        entry = reader.record_at(recorded.position.segment, recorded.position.offset)
        given = None if entry is None else _given.decode(entry.line)
        before = given.failure.kind if given is not None and given.failure is not None else "unknown"
    failure = now.failure.kind if now.failure is not None else ""
    if before in _TRANSIENT:
        return
    same_value = recorded.value == now.value and isinstance(recorded.value, bool) == isinstance(now.value, bool)
    if bool(before) != bool(failure) or not same_value:
        text = f"recorded is {_shown(recorded.value, before)}, scored again {_shown(now.value, failure)}"
        yield f"{answer.ticket.key}: {now.scorer}: {text}"


def _shown(value: Any, failure: str) -> str:
    return f"a failure ({failure})" if failure else repr(value)


_NAMES = (("task", "model"), ("scorer",), ("reducer",), ("name",))
"""The fields that identify the entries of lists in a report: cells, scorers, reducers, models."""


class ScoresChecked(msgspec.Struct):
    """The output of `verify --scores --json`. A contract: fields are only ever added."""

    records: int = 0
    numbers: int = 0
    """How many numbers of reports were compared, over all evaluations."""
    differences: list[str] = msgspec.field(default_factory=list)
    rescored: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many recorded scores were recomputed."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why its scores were not recomputed."""
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Always empty: every part of the reports is compared."""


def check_scores(place: RunLocation) -> ScoresChecked:
    """Compare the reports of the cached index with those of a rebuilt index, and recompute scores where possible."""
    found = ScoresChecked()
    with (
        contextlib.closing(Index(place.folder)) as cached,
        contextlib.closing(Index(place.folder, kept=False, last=cached.last_n)) as rebuilt,
    ):
        found.records = rebuilt.last_n
        evaluations = [*rebuilt.story.evaluations] or [""]
        for evaluation in evaluations:
            where = f"evaluation {evaluation}: " if len(evaluations) > 1 else ""
            reported, expected = (dict(_values(report_of(place, each, evaluation))) for each in (cached, rebuilt))
            again = asyncio.run(rescore(rebuilt, evaluation))
            found.differences += [f"{where}{each}" for each in (*_differences(reported, expected), *again.differences)]
            found.numbers += sum(type(value) in (int, float) for value in expected.values())
            for name, count in again.again.items():
                found.rescored[name] = found.rescored.get(name, 0) + count
            found.skipped |= again.skipped
    return found


def check_index(place: RunLocation, *, is_wrong: bool = False) -> list[str]:
    """Compare all rows and totals of the cached index with those of a rebuilt one. Returns a sentence if they differ.
    An index that differs, or that the caller knows to be wrong (`is_wrong`), is removed.
    """
    with contextlib.closing(Index(place.folder)) as index:
        index.check()
        with contextlib.closing(Index(place.folder, kept=False, last=index.last_n)) as fresh:
            wrong = index.differences(fresh)
        if wrong or is_wrong:
            index.remove()
    shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
    return [f"the index was wrong and is rebuilt by the next command: {shown}"] if wrong else []


def _values(report: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Every value of a report with its path, as in `cells[sums/gpt-x].scorers[numeric].summary.mean`."""
    todo: list[tuple[str, Any]] = [("", msgspec.to_builtins(report))]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{path}.{name}" if path else name, each) for name, each in reversed(value.items())]
        elif isinstance(value, list | tuple):
            for at, each in reversed([*enumerate(value)]):
                known = each.keys() if isinstance(each, dict) else ()
                fields = next((names for names in _NAMES if set(names) <= set(known)), ())
                name = "/".join(str(each[field]) for field in fields) if fields else str(at)
                role = " (role)" if fields and each.get("role") else ""  # a role may have the name of a model
                todo.append((f"{path}[{name}{role}]", each))
        else:
            yield path, value


def _differences(reported: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for path in {**expected, **reported}:
        actual, right = reported.get(path), expected.get(path)
        is_close = isinstance(actual, float) and isinstance(right, float) and math.isclose(actual, right, rel_tol=1e-9)
        if actual != right and not is_close:
            yield f"{path}: the report says {_format(actual)}, the journal {_format(right)}"


def _format(value: Any) -> str:
    return "nothing" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def check_content(place: RunLocation, fold: Fold) -> Iterator[str]:
    """Yield a sentence for each missing or damaged blob. Data files that cannot be read are reported elsewhere."""
    if fold.story.started is None:
        return
    try:
        spec = stored_spec(fold)
    except msgspec.ValidationError as error:
        yield f"the run's spec is not one that this version of Holdfast knows ({error}); its files were not checked"
        return
    with contextlib.suppress(JournalError, OSError):
        yield from check_blobs(place.folder, spec, fold.story.cells, fold.story.inputs)
        yield from check_blob_files(place.folder, _step_blobs(place))


def _step_blobs(place: RunLocation) -> Iterator[str]:
    """Digests of the sandbox files that steps refer to."""
    for each in Reader(place.journal).read(live=True):
        # the byte test avoids decoding the many steps without files
        if isinstance(each, Entry) and each.line.t == "step" and b'"files":' in bytes(each.line.d):
            files = decode(each.line, Step).files
            yield from (file.blob for file in (files.changed.values() if files else ()) if file.blob)


class RunVerification(msgspec.Struct, frozen=True):
    """The result of `verify`: every byte of the journal, the plan, the data and the files, and the index."""

    run_id: str
    journal: Verification
    errors: list[str]
    """Damage, one sentence each."""
    index: list[str]
    """What was wrong in the cached index, which the next command rebuilds."""
    scores: ScoresChecked | None = None

    @property
    def ok(self) -> bool:
        return not self.errors and not self.index and (self.scores is None or not self.scores.differences)

    def as_json(self) -> dict[str, Any]:
        """The output of `verify --json`."""
        scores = {} if self.scores is None else {"scores": self.scores}
        judged = {"errors": self.errors, "index": self.index, "ok": self.ok}
        return {**msgspec.to_builtins(self.journal), **judged, **scores}

    def __str__(self) -> str:
        differences = self.scores.differences if self.scores is not None else []
        size = f"{counted(self.journal.records, 'record')} in {counted(self.journal.segments, 'segment')}"
        verdict = "no damage" if not self.errors else f"damaged: {counted(len(self.errors), 'error')}"
        return "\n".join((f"{self.run_id}: {size}: {verdict}", *self.errors, *self.index, *differences))

    __repr__ = __str__


Stage = Callable[[str], contextlib.AbstractContextManager[Any]]
"""Shows what a block does; the block may get an object with `update(done, total)`."""


def verify_files(
    place: RunLocation, wrong: Sequence[str] = (), *, scores: bool = False, stage: Stage = contextlib.nullcontext
) -> RunVerification:
    """Check every byte of a run, and of all of its shards. Otherwise as `_verify_journal`."""
    place = place.whole
    if not is_sharded(place):
        return _verify_journal(place, wrong, scores=scores, stage=stage)
    found = _verify_journal(place, wrong, stage=stage)
    every = [(each, _verify_journal(each, stage=stage)) for each in begun_shards(place)]
    errors = list(found.errors)
    for shard, checked in every:
        errors += [f"shard {shard.shard}: {error}" for error in checked.errors]
    if not errors:
        with stage("comparing the plans of the shards with that of the run"):
            errors += check_cover(place)
    journals = [found.journal, *(checked.journal for _, checked in every)]
    journal = msgspec.structs.replace(
        found.journal,
        segments=sum(each.segments for each in journals),
        records=sum(each.records for each in journals),
        errors=tuple(errors),
        warnings=tuple(warning for each in journals for warning in each.warnings),
        keys=tuple(dict.fromkeys(key for each in journals for key in each.keys)),
    )
    index, checked_scores = [problem for _, each in every for problem in each.index], None
    if scores and not errors:
        with stage("rebuilding the index and rescoring"):
            checked_scores = check_scores(readable(place))
    return RunVerification(place.run_id, journal, errors, index, checked_scores)


def check_cover(place: RunLocation) -> Iterator[str]:
    """Whether the shards that have begun have the keys of the plan that belong to them, each once."""
    story = read_fold(place).story
    count = story.started.shards if story.started is not None else 0
    expected = ordinals_by_shard(place.folder, story.blocks, count)
    for shard in begun_shards(place):
        part = parse_shard(shard.shard)
        own = read_fold(shard).story
        if part.count != count:
            yield f"shard {part} does not belong to a run with {count} shards"
        elif len(own.blocks) == len(story.blocks) and own.planned != len(expected[part.number - 1]):
            yield f"shard {part} has {own.planned} keys, and the plan has {len(expected[part.number - 1])} for it"


def _verify_journal(
    place: RunLocation, wrong: Sequence[str] = (), *, scores: bool = False, stage: Stage = contextlib.nullcontext
) -> RunVerification:
    """Check every byte of a run. `wrong`: errors that are known already. `scores`: also compare the reports with a
    rebuilt index, and recompute scores. Needs a thread without a running event loop.
    """
    with stage("verifying the journal") as shown:
        found = verify(place.journal, progress=getattr(shown, "update", None), check=check_fact)
    with stage("verifying plan, data and files"):
        standing = standing_of(place.folder)  # before reading: a live writer may append to the journal meanwhile
        errors = [*wrong, *found.errors]
        try:
            fold = read_fold(place)
            errors += check_every_byte(place, fold, found.last_n, standing)
            errors += check_content(place, fold)
        except DamagedError as error:
            errors += [str(error)] if str(error) not in errors else []
    checked = None
    if scores:
        with stage("rebuilding the index and rescoring"):
            checked = check_scores(place)
    index: list[str] = []
    if not place.url and not errors:  # a fetched copy has no index; a damaged journal proves nothing about one
        with stage("comparing the index with the journal"):
            index = check_index(place, is_wrong=checked is not None and bool(checked.differences))
    return RunVerification(place.run_id, found, errors, index, checked)


def verify_mirrored(
    place: RunLocation, *, scores: bool = False, stage: Stage = contextlib.nullcontext
) -> RunVerification:
    """Fetch every object of a run in a mirror and check it: a cached copy proves nothing."""
    with stage("fetching from the mirror") as shown:
        folder, wrong = fetch_all(place, getattr(shown, "update", None))
    try:
        return verify_files(msgspec.structs.replace(place, folder=folder), wrong, scores=scores, stage=stage)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
