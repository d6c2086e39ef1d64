"""The source of a task's rows and their selection, from its spec. Also pins the revisions of Hub data sets."""

import os
from functools import partial

import msgspec

from holdfast.datasets import (
    ColumnChoice,
    DataSource,
    FetchedFiles,
    JoinedSources,
    LocalFiles,
    RowSelection,
    RowStream,
    convert_rows,
    download,
    fetch_hub_files,
    is_same_revision,
    is_url,
    pinned_revision,
)
from holdfast.errors import DataError, SpecError
from holdfast.plan.benchmarks import find_conversion
from holdfast.spec import Dataset, Spec
from holdfast.state import DOWNLOADS, kind_folder, make_room


def source_of(dataset: Dataset) -> DataSource | None:
    """Return the source of a data set; None if it names none. Nothing is fetched before the source is opened."""
    choice = ColumnChoice(_columns_of(dataset), dataset.files)
    if dataset.hub:
        found = {config: _hub_files(dataset, config, choice) for config in dataset.configs}
        return found[dataset.config] if isinstance(dataset.config, str) else JoinedSources(found, "config")
    paths = dataset.paths
    if paths and is_url(paths[0]):
        fetch = partial(_download, paths[0], dataset.sha256)
        return FetchedFiles(paths[0], fetch, dataset.format, choice)
    return LocalFiles(paths, dataset.format, choice) if paths else None


def _hub_files(dataset: Dataset, config: str, choice: ColumnChoice) -> FetchedFiles:
    where = " ".join(filter(None, ("hub", dataset.hub, config, dataset.split)))
    fetch = partial(_fetch_hub, dataset.hub, config, dataset.split, dataset.revision)
    return FetchedFiles(where, fetch, dataset.format, choice)


def converted(source: DataSource, convert: str) -> RowStream:
    """Return the rows of a source, converted as a benchmark does if one is named."""
    return convert_rows(source.open(), find_conversion(convert), source.where) if convert else source.open()


def selection_of(dataset: Dataset) -> RowSelection:
    """Return which rows of a data set are used, and in which order."""
    shuffle, sample = dataset.shuffle, dataset.sample
    return RowSelection(
        where=dataset.where,
        seed=None if shuffle is None else shuffle.seed,
        balance="" if shuffle is None else shuffle.by,
        count=0 if sample is None else sample.n,
        strata="" if sample is None else sample.by,
        limit=dataset.limit,
    )


def pin_revisions(spec: Spec, stored: Spec | None) -> Spec:
    """Return the spec with the commit of each Hub data set. A data set that the stored spec names too keeps the stored
    commit; others are looked up at the Hub. SpecError if that fails.
    """
    before = {} if stored is None else {task.name: task.dataset for task in stored.tasks}
    tasks = []
    for index, task in enumerate(spec.tasks):
        dataset = task.dataset
        if dataset.hub:
            was = before.get(task.name)
            if was is not None and is_same_source(dataset, was):
                revision = was.revision
            else:
                try:
                    revision = pinned_revision(dataset.hub, dataset.revision, _cache())
                except DataError as error:
                    raise SpecError(f"tasks[{index}].dataset: {error}") from error
            dataset = msgspec.structs.replace(dataset, revision=revision)
        tasks.append(task if dataset is task.dataset else msgspec.structs.replace(task, dataset=dataset))
    return msgspec.structs.replace(spec, tasks=tasks)


def is_same_source(given: Dataset, stored: Dataset) -> bool:
    """Whether two data sets name the same rows of the same remote source, so that stored rows can be used."""
    if given.hub:
        same = (given.hub, given.config, given.split) == (stored.hub, stored.config, stored.split)
        return same and is_same_revision(given.revision, stored.revision)
    return bool(given.sha256) and given.sha256.lower() == stored.sha256.lower()


def has_same_rows(given: Spec, stored: Spec, task: str) -> bool:
    """Whether a spec selects no row of a task that the stored one has not selected, so that stored rows are enough."""
    new, old = (next((each.dataset for each in spec.tasks if each.name == task), None) for spec in (given, stored))
    if new is None or old is None or selection_of(new) != selection_of(old):
        return False
    if (new.columns, new.convert) != (old.columns, old.convert):
        return False
    if not new.is_remote:  # a file that is gone is no reason to refuse a larger limit
        return True
    within = stored.limit is None or (given.limit is not None and given.limit <= stored.limit)
    return within and (stored.samples is None or given.samples == stored.samples)


def _columns_of(dataset: Dataset) -> list[str]:
    """The columns to read; empty: all."""
    if not dataset.columns or dataset.convert:  # a conversion may need any column
        return []
    named = (dataset.id, dataset.input, dataset.target, dataset.group, *dataset.files, *selection_of(dataset).columns)
    return list(dict.fromkeys([*dataset.columns, *filter(None, named)]))


def _fetch_hub(hub: str, config: str, split: str, revision: str) -> list[str]:
    return fetch_hub_files(hub, config, split, revision, _cache())


def _download(url: str, sha256: str) -> list[str]:
    folder = _cache()
    path = download(url, sha256, folder)
    make_room(os.path.dirname(folder), keep=path)
    return [path]


def _cache() -> str:
    """The folder of downloads in the user's cache."""
    folder = kind_folder(DOWNLOADS)
    if folder is None:
        raise DataError("HOLDFAST_CACHE", "no folder for downloads; set it to a local folder that can be written")
    return folder
