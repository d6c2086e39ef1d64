"""Few-shot examples of a task: selects them from a file, or from another split of its Hub data set.

A sample is never shown itself, nor a sample of its group, so a few more examples than `n` are kept for each value of
`by`: they replace those that are left out. The run stores all of them, so a resume needs neither file nor network.
"""

import heapq
import itertools
import os
import random
from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from holdfast.datasets import (
    BadFileError,
    Columns,
    FileColumns,
    FileContent,
    Keep,
    ReferenceCache,
    RowStream,
    rows_in_memory,
    samples,
)
from holdfast.errors import DataError, SpecError
from holdfast.plan.sources import converted, source_of
from holdfast.records import Reference, Row, Sample
from holdfast.solve import ShotRule
from holdfast.spec import Dataset, Fewshot, Task

_SPARE = 16
"""Examples for each value of `by` that replace the sample itself and its group."""


def select_examples(task: Task, place: str, stored: Sequence[Row], keep: Keep) -> tuple[tuple[Sample, ...], ShotRule]:
    """Return the examples, and which of them a sample is shown. `stored`: the run's copies; they are used if the source
    is on the network, or if a file is missing. `keep` receives the files that examples name.
    """
    fewshot = task.fewshot
    if fewshot is None:
        return (), ShotRule()
    rule = ShotRule(fewshot.n, fewshot.by, task.dataset.group, fewshot.style, fewshot.answer)
    if _is_fixed(task, fewshot, stored):
        rule = ShotRule()
    if stored and (fewshot.split or not os.path.exists(fewshot.path)):
        return _restore(task, stored), rule
    try:
        if rule == ShotRule():
            return _fixed(task, fewshot, place, keep), rule
        return _by_value(task, fewshot, place, keep), rule
    except DataError as error:
        if stored and isinstance(error.__cause__, BadFileError):
            return _restore(task, stored), rule
        raise SpecError(f"{place}.fewshot: {error}") from error


def recording_sources(digests: ReferenceCache, found: dict[Reference, FileContent]) -> Keep:
    """Return a `Keep` that stores nothing, and records in `found` where content comes from."""

    def keep(content: FileContent | Reference) -> Reference:
        reference = digests.reference(content)
        if isinstance(content, FileContent):
            found[reference] = content
        return reference

    return keep


def _is_fixed(task: Task, fewshot: Fewshot, stored: Sequence[Row]) -> bool:
    """Whether all samples are shown the same `n` rows of a file. Earlier versions did so even if it is the evaluated
    file; their runs stored no replacements.
    """
    is_plain = bool(fewshot.path) and fewshot == Fewshot(path=fewshot.path, n=fewshot.n, seed=fewshot.seed)
    return is_plain and (fewshot.path not in task.dataset.paths or len(stored) == fewshot.n)


def _fixed(task: Task, fewshot: Fewshot, place: str, keep: Keep) -> tuple[Sample, ...]:
    every = list(_read(task, fewshot, keep))
    if len(every) < fewshot.n:
        problem = f"n is {fewshot.n}, but {fewshot.path} has only {len(every)} rows"
        raise SpecError(f"{place}.fewshot.n: {problem}; lower n, or add rows")
    return tuple(random.Random(fewshot.seed).sample(every, fewshot.n))


def _by_value(task: Task, fewshot: Fewshot, place: str, keep: Keep) -> tuple[Sample, ...]:
    """The candidates for each value of `by`, in the order in which they are shown."""
    kept = fewshot.n + _SPARE
    is_first = fewshot.pick == "first"
    pools: dict[str, list[tuple[int, int, Sample]]] = {}  # a heap of the last one to be shown, and its position
    for number, sample in enumerate(_read(task, fewshot, keep)):
        if fewshot.by and fewshot.by not in sample.row:
            raise SpecError(f"{place}.fewshot.by: the examples have no column {fewshot.by!r}")
        pool = pools.setdefault(str(sample.row[fewshot.by]) if fewshot.by else "", [])
        rank = number if is_first else xxhash.xxh3_64_intdigest(f"{fewshot.seed}:{sample.id}".encode())
        if len(pool) < kept:
            heapq.heappush(pool, (-rank, -number, sample))
        elif -rank > pool[0][0]:
            heapq.heapreplace(pool, (-rank, -number, sample))
        elif is_first and not fewshot.by:
            break
    for value, pool in pools.items():
        if len(pool) < fewshot.n:
            which = f" with {fewshot.by} {value!r}" if fewshot.by else ""
            raise SpecError(f"{place}.fewshot.n: n is {fewshot.n}, but there are only {len(pool)} examples{which}")
    ordered = (sorted(pool, key=lambda each: (-each[0], -each[1])) for pool in pools.values())
    return tuple(each[2] for each in itertools.chain.from_iterable(ordered))


def _read(task: Task, fewshot: Fewshot, keep: Keep) -> Iterator[Sample]:
    dataset = task.dataset
    # The id column of the data set need not exist in the examples.
    columns = Columns(input=dataset.input, target=dataset.target)
    if fewshot.split:
        same = Dataset(hub=dataset.hub, config=dataset.config, revision=dataset.revision, convert=dataset.convert)
        source = source_of(msgspec.structs.replace(same, split=fewshot.split))
    else:
        source = source_of(Dataset(path=fewshot.path))
    if source is None:  # the loader refuses this; a stored spec may have been forged
        raise DataError(f"the examples of {task.name}", "name either `path` or `split`")
    rows: RowStream = converted(source, dataset.convert)
    if dataset.files:
        folder = os.path.dirname(fewshot.path)
        rows = FileColumns(dataset.files, folder, keep, source.where, dataset.files_root, optional=True).apply(rows)
    return samples(rows, columns, source.where)


def _restore(task: Task, stored: Sequence[Row]) -> tuple[Sample, ...]:
    columns = Columns(input=task.dataset.input, target=task.dataset.target)
    return tuple(samples(rows_in_memory(stored), columns, f"the stored examples of {task.name}"))
