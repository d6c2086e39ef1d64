"""Which files of a Hub repository belong to a configuration and a split. Pure.

The card of a data set (the front matter of README.md) may declare it under `configs`. Without that, the usual layouts
are recognised: `CONFIG/SPLIT-*.parquet`, `data/SPLIT-*.parquet`, `SPLIT.jsonl`, `CONFIG/SPLIT.jsonl`,
`CONFIG_SPLIT.csv`, `CONFIG/SPLIT/0000.parquet`, `name_SPLIT_name.csv` and the like. One split has files of one format.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import DataError

DEFAULT = "default"
_FORMATS = (".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".json")
"""In the order in which they are preferred."""
_PACKED = (".gz", ".zst")
_NO_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "state.json", "metadata.json"})
_SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation", "prompt")
_SHARD = re.compile(r"[-_.]\d{1,6}(?:-of-(\d{1,6}))?$")
_SHARD_COUNT = re.compile(r"-(\d+)-of-(\d+)(?=[.-])")
_LISTED_MAX = 12
_STARS_MAX = 6


class HubSplit(msgspec.Struct, frozen=True):
    """The files of one split of one configuration, in order."""

    config: str
    split: str
    files: tuple[str, ...]
    is_default: bool = False
    """Whether the card declares the configuration as the default one."""


def find_splits(files: Sequence[str], card: Mapping[str, Any], split: str = "") -> list[HubSplit]:
    """Return every configuration and split of a repository. `split`: a name that the user has given."""
    declared = card.get("configs")
    if isinstance(declared, list):
        found = [each for config in declared if isinstance(config, Mapping) for each in _declared(config, files, split)]
        if found:
            return found
    return _inferred(files, split)


def choose_split(splits: Sequence[HubSplit], config: str, split: str, hub: str, files: Sequence[str]) -> HubSplit:
    """Return the split that is meant. DataError lists what there is."""
    if not splits:
        raise DataError(hub, _no_data(files))
    configs = list(dict.fromkeys(each.config for each in splits))
    flagged = [each.config for each in splits if each.is_default]
    if not config:
        known = flagged[:1] or [name for name in configs if name == DEFAULT] or configs
        if len(known) > 1:
            raise DataError(hub, f"there are several configs; set dataset.config to one of: {_listed(configs)}")
        config = known[0]
    mine = {each.split: each for each in splits if each.config == config}
    if not mine:
        raise DataError(hub, f"there is no config {config!r}; {_hint(config, configs)}")
    if not split and len(mine) > 1:
        raise DataError(hub, f"there are several splits; set dataset.split to one of: {_listed(mine)}")
    found = mine.get(split or next(iter(mine)))
    if found is None:
        where = f" in the config {config!r}" if len(configs) > 1 else ""
        raise DataError(hub, f"there is no split {split!r}{where}; {_hint(split, mine)}")
    if not found.files:
        raise DataError(hub, f"no file matches the split {found.split!r}; the files are: {_listed(files)}")
    return found


def refuse_incomplete(found: HubSplit, hub: str) -> None:
    """DataError if the names of the files say that there are more of them: a cache may hold only some."""
    counts = [match for match in map(_SHARD_COUNT.search, found.files) if match is not None]
    if counts and len({(each[1], each.string[: each.start()]) for each in counts}) < int(counts[0][2]):
        raise DataError(hub, f"only some files of the split {found.split!r} are there; download all of them")


def _declared(config: Mapping[str, Any], files: Sequence[str], split: str) -> Iterator[HubSplit]:
    """The splits of one entry of `configs`."""
    name, is_default = str(config.get("config_name") or DEFAULT), config.get("default") is True
    folder = str(config.get("data_dir") or "").strip("/")
    below = [file for file in files if not folder or file.startswith(f"{folder}/")]
    given = config.get("data_files")
    if given is None:
        for each in _inferred([file.removeprefix(f"{folder}/") for file in below], split):
            paths = tuple(f"{folder}/{file}" if folder else file for file in each.files)
            yield HubSplit(name, each.split, paths, is_default)
        return
    for label, patterns in _patterns(given):
        matches = (file for pattern in patterns for file in _matching(pattern, folder, files))
        yield HubSplit(name, label, tuple(dict.fromkeys(matches)), is_default)


def _patterns(given: Any) -> Iterator[tuple[str, list[str]]]:
    """The patterns of each split: `data_files` is a text, a list of texts, a list of {split, path}, or a mapping."""
    if isinstance(given, Mapping):
        entries: Iterable[tuple[Any, Any]] = given.items()
    elif isinstance(given, list) and any(isinstance(each, Mapping) for each in given):
        entries = [(each.get("split", "train"), each.get("path")) for each in given if isinstance(each, Mapping)]
    else:
        entries = [("train", given)]
    for label, paths in entries:
        yield str(label), [str(path) for path in (paths if isinstance(paths, list) else [paths])]


def _matching(pattern: str, folder: str, files: Sequence[str]) -> list[str]:
    """The files that match a pattern, sorted. `*` matches no slash, `**` matches any number of folders."""
    pattern = pattern.removeprefix("./")
    if folder and not pattern.startswith(f"{folder}/"):
        pattern = f"{folder}/{pattern}"
    if pattern.count("*") > _STARS_MAX:  # matching takes a time that grows with this power
        return []
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(known.get(part) or (_choice(part) if part.startswith("[") else re.escape(part)) for part in parts)
    try:
        return sorted(file for file in files if re.fullmatch(text, file))
    except re.error:
        return []


def _choice(part: str) -> str:
    """`[abc]` or `[!abc]` as a regular expression."""
    return f"[^{part[2:]}" if part.startswith("[!") else part


def _inferred(files: Sequence[str], split: str) -> list[HubSplit]:
    known = {*_SPLITS, *([split] if split else [])}
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for file in sorted(files):
        format = _format_of(file)
        if format:
            found.setdefault(_place_of(file, known, split), {}).setdefault(format, []).append(file)
    return [
        HubSplit(config, label, tuple(next(formats[each] for each in _FORMATS if each in formats)))
        for (config, label), formats in found.items()
    ]


def _format_of(file: str) -> str:
    """The ending of a data file; empty for other files."""
    folders, _, name = file.lower().rpartition("/")
    if name in _NO_DATA or name.startswith(".") or folders.startswith("."):
        return ""
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return next((ending for ending in _FORMATS if name.endswith(ending)), "")


def _place_of(file: str, known: set[str], split: str) -> tuple[str, str]:
    """The configuration and the split that a path means. `known`: names of splits. `split`: the one that is wanted; a
    name may contain it as a word: `simple_qa_test_set.csv`.
    """
    *folders, name = file.split("/")
    if folders[:1] == ["data"]:
        folders = folders[1:]
    ending = name.lower().find(_format_of(file))
    stem = _SHARD.sub("", name[:ending])
    config, label = "", ""
    if stem in known:
        label = stem
    elif folders and folders[-1].removeprefix("partial-") in known:
        label, folders = folders[-1], folders[:-1]
    else:
        match = re.fullmatch(rf"(.+)[-_.]({'|'.join(map(re.escape, sorted(known, key=len, reverse=True)))})", stem)
        named = ("", split) if split and split in re.split("[-_. ]", stem) else (stem, "")
        config, label = (match[1], match[2]) if match else named
    if folders:
        return "/".join(folders), label or "train"
    return config or DEFAULT, label or "train"


def _no_data(files: Sequence[str]) -> str:
    if any(file.endswith(".py") for file in files):
        return (
            "the rows are made by a script, which Holdfast does not run; the Hub's own copy has files: set "
            "dataset.revision to refs/convert/parquet"
        )
    return f"there are no Parquet, JSONL, CSV or JSON files; the files are: {_listed(files) or 'none'}"


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"there are: {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f", … ({len(every)} in all)" if len(every) > _LISTED_MAX else ""
    return ", ".join(every[:_LISTED_MAX]) + more
