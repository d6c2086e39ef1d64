"""Reads a spec's file and the files that it includes, and merges them into one mapping.

`include: base.yaml`, or a list of files, at the top of a spec. A name is relative to the file that it is written in.
Mappings are merged field by field; any other value, a list too, is replaced as a whole. Later files of a list win over
earlier ones, and a file wins over those that it includes. What is recorded is the merged spec: a resume needs none of
the files.

Nothing is validated here and no variable is replaced. The number, depth and total size of the files are bounded.
"""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.messages import kind_of, nearest_file
from holdfast.spec.source.origins import Origins
from holdfast.spec.source.text import TEXT_BYTES_MAX, parse_yaml

INCLUDE = "include"
_DEPTH_MAX = 10
_FILES_MAX = 100
_EXPECTED = "expected a file name or a list of file names"


class SpecFile(msgspec.Struct, frozen=True):
    """A spec as it was read. `path` is its file, for errors and relative paths; empty for a spec without a file."""

    path: str
    raw: object
    origins: Origins = msgspec.field(default_factory=Origins)
    included: tuple[str, ...] = ()
    """The absolute paths of all files that it includes."""


def read_spec(path: str) -> SpecFile:
    """Parse a spec's file and the files that it includes."""
    reader = _Reader()
    raw, files = reader.read(path, ())
    return SpecFile(path, raw, Origins(files) if reader.included else Origins(), tuple(reader.included))


class _Reader:
    """Reads the files of one spec."""

    def __init__(self) -> None:
        self.included: dict[str, None] = {}
        self._count = 0
        self._characters = 0

    def read(self, path: str, above: tuple[str, ...]) -> tuple[object, dict[str, Any]]:
        """Return the merged content of a file, and the file of each value. `above`: the files that lead to it."""
        raw = parse_yaml(self._text(path, above), path)
        if not isinstance(raw, dict):
            if not above:
                return raw, {}  # the loader says what a spec looks like
            problem = f"expected a mapping of fields, as in a spec, got {kind_of(raw)}"
            raise SpecError(f"{path} (included by {above[-1]}): {problem}")
        own, files = _copy(raw), _name_files(raw, path if above else "")
        if INCLUDE not in own:
            return own, files
        del files[INCLUDE]
        merged: dict[str, Any] = {}
        origins: dict[str, Any] = {}
        for name in _names(own.pop(INCLUDE), path):
            _merge(merged, *self._include(name, (*above, path)), origins)
        _merge(merged, own, files, origins)
        return merged, origins

    def _include(self, name: str, above: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
        place = f"{above[-1]}: {INCLUDE}: {name}"
        if "://" in name:
            raise SpecError(f"{place}: only files can be included; download it first")
        path = os.path.join(os.path.dirname(above[-1]), name)
        if _is_same_file(os.path.normpath(path), path):  # not if `..` leaves a folder that is a link
            path = os.path.normpath(path)
        if any(_is_same_file(path, each) for each in above):
            raise SpecError(f"{place}: a file cannot include itself: {' -> '.join((*above, path))}")
        if len(above) > _DEPTH_MAX:
            raise SpecError(f"{place}: more than {_DEPTH_MAX} levels of included files; include fewer")
        self._count += 1
        if self._count > _FILES_MAX:
            raise SpecError(f"{place}: more than {_FILES_MAX} included files; a file counts each time it is included")
        content, files = self.read(path, above)
        assert isinstance(content, dict)
        self.included[os.path.abspath(path)] = None
        return content, files

    def _text(self, path: str, above: tuple[str, ...]) -> str:
        place = f"{above[-1]}: {INCLUDE}: {path}" if above else path
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(TEXT_BYTES_MAX + 1)
        except FileNotFoundError:
            raise SpecError(f"{place}: no such file{nearest_file(path)}") from None
        except IsADirectoryError:
            example = os.path.join(path, "eval.yaml")
            hint = f"; did you mean {example}?" if os.path.isfile(example) else "; name the spec's file"
            raise SpecError(f"{place} is a folder{hint}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{place}: cannot be read: {error}") from error
        self._characters += len(text)
        if above and self._characters > TEXT_BYTES_MAX:
            most = f"{TEXT_BYTES_MAX >> 20} MiB"
            raise SpecError(f"{place}: with it, the spec is longer than {most}; put rows and long texts in data files")
        return text


def _names(given: object, path: str) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list):
        raise SpecError(f"{path}: {INCLUDE}: {_EXPECTED}, got {kind_of(given)}")
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            place = f"{INCLUDE}[{index}]" if isinstance(given, list) else INCLUDE
            got = kind_of(name) if not isinstance(name, str) else repr(name)
            raise SpecError(f"{path}: {place}: {_EXPECTED}, got {got}")
    return names


def _is_same_file(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _copy(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Copy all mappings. YAML aliases make one mapping appear in several places: each gets its own."""
    return {name: _copy(value) if isinstance(value, dict) else value for name, value in mapping.items()}


def _name_files(mapping: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The same mappings, with the file for each other value."""
    return {name: _name_files(value, file) if isinstance(value, dict) else file for name, value in mapping.items()}


def _merge(base: dict[str, Any], over: dict[str, Any], of_over: dict[str, Any], of_base: dict[str, Any]) -> None:
    """Merge `over` into `base`, in place. `of_over` and `of_base`: the files of their values, merged likewise."""
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value, of_over[name], of_base[name])
        else:
            base[name], of_base[name] = value, of_over[name]
