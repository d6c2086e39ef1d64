"""`dataset` of a task: short forms, relative paths, and what the types cannot express."""

import os
import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.datasets import FilterError, RowFilter, hub_address, is_url
from holdfast.errors import SpecError
from holdfast.records import NO_CREDENTIALS, holds_credentials
from holdfast.spec.types import Dataset, Task

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_OF_HUB = ("config", "split", "revision")


def expand_dataset(task: dict[str, Any]) -> None:
    """Spell out short forms in place: `shuffle: 7` is `shuffle: {seed: 7}`."""
    dataset = task.get("dataset")
    if isinstance(dataset, dict):
        seed = dataset.get("shuffle")
        if isinstance(seed, int) and not isinstance(seed, bool):
            dataset["shuffle"] = {"seed": seed}


def anchor_paths(path: Any, folder: str) -> Any:
    """Make a path or a list of paths absolute. URLs stay as they are."""
    if isinstance(path, list):
        return [anchor_paths(each, folder) for each in path]
    is_path = isinstance(path, str) and path and not (is_url(path) or hub_address(path))
    return os.path.join(folder, path) if is_path else path


def anchor_dataset(dataset: Dataset, folder: str) -> Dataset:
    """Make the relative paths of a data set absolute: a resume may start in another folder."""
    path, root = anchor_paths(dataset.path, folder), anchor_paths(dataset.files_root, folder)
    return msgspec.structs.replace(dataset, path=path, files_root=root)


def check_dataset(dataset: Dataset, place: str) -> None:
    """SpecError for fields that contradict each other, and for a `where` that is not allowed."""

    def refuse(field: str, problem: str) -> None:
        raise SpecError(f"{place}.{field}: {problem}")

    paths = dataset.paths
    if dataset.hub and paths:
        refuse("hub", "the rows come either from `hub` or from `path`; remove one of the two")
    for name in _OF_HUB:
        if getattr(dataset, name) and not dataset.hub:
            refuse(name, "only a data set of the Hub has one; name it in `hub`, or remove this")
    if isinstance(dataset.config, list) and (not all(dataset.config) or len({*dataset.config}) < len(dataset.config)):
        refuse("config", "an entry of the list is empty or repeated")
    if isinstance(dataset.path, list) and not all(paths):
        refuse("path", "an entry of the list is empty")
    for address in filter(None, map(hub_address, paths)):
        refuse("path", f"a data set of the Hub has no path; write {address}")
    _check_url(dataset, paths, refuse)
    if dataset.where:
        try:
            RowFilter(dataset.where)
        except FilterError as error:
            refuse("where", str(error))


def check_fewshot(task: Task, place: str) -> None:
    """SpecError if the examples have no source, or two."""
    fewshot, dataset = task.fewshot, task.dataset
    if fewshot is None:
        return
    if bool(fewshot.path) == bool(fewshot.split):
        raise SpecError(f"{place}: name either `path` (a file with the examples) or `split` (of the Hub data set)")
    if fewshot.split and not dataset.hub:
        raise SpecError(f"{place}.split: only a data set of the Hub has splits; name a file in `path`")


def _check_url(dataset: Dataset, paths: list[str], refuse: Callable[[str, str], None]) -> None:
    urls = [path for path in paths if is_url(path)]
    if not urls:
        if dataset.sha256:
            refuse("sha256", "only a file at a URL needs one; local files are compared row by row")
        return
    if len(paths) > 1:
        refuse("path", "several URLs are not supported; use one URL for each task, or download the files")
    if holds_credentials(urls[0]):
        refuse("path", NO_CREDENTIALS)
    if not dataset.sha256:
        refuse("sha256", f"{urls[0]} may change; add the SHA-256 of the file (sha256sum FILE)")
    if not _SHA256.fullmatch(dataset.sha256):
        refuse("sha256", "expected 64 hexadecimal digits")
