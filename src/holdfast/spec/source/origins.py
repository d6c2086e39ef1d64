"""Where the values of a spec come from: an included file, `--set` or `defaults`. For errors that refuse a value. Pure.

A place is written as in errors: `models[0].params.temperature`. Values of the spec's own file need no words: the error
names that file already.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLACE = re.compile(r"[a-z_]+(?:\.[^.:\[]+|\[\d+\])*(?=: )")
_UNKNOWN = re.compile(r"unknown field '([^']*)'")
_STEP = re.compile(r"\.[^.\[]+$|\[\d+\]$")


class Origins:
    """`files`: the file of each value that is no mapping, in mappings of the same shape as the spec; empty for the
    spec's own file.
    """

    def __init__(self, files: Mapping[str, Any] | None = None) -> None:
        self._files = files or {}
        self._others: dict[str, str] = {}

    def copy(self) -> "Origins":
        """The files only: what `--set` and `defaults` add is about one reading of the spec."""
        return Origins(self._files)

    def file_of(self, place: str) -> str:
        """The included file that a value comes from; empty for the spec's own file, or if there are several."""
        # Lists are never merged: an entry comes from the same file as its list.
        node: Any = self._files
        for name in place.partition("[")[0].split("."):
            if not isinstance(node, Mapping):
                break
            node = node.get(name, "")
        files = set(_leaves(node))
        return files.pop() if len(files) == 1 else ""

    def note_assignment(self, place: str) -> None:
        """The value at a place comes from `--set`."""
        self._others[place] = "from --set"

    def note_default(self, default: str, place: str) -> None:
        """The value at a place was copied from another one, such as `defaults.params`."""
        file = self.file_of(default)
        words = f"from defaults in {file}" if file else "from defaults"
        self._others[place] = self._assigned(default) or words

    def forget_entries(self) -> None:
        """The numbers of tasks and models have changed: only the origins of whole lists are still known."""
        self._others = {place: words for place, words in self._others.items() if "[" not in place}

    def explain(self, error: str, where: str) -> str:
        """Add to each line of an error where the refused value comes from. `where`: the file that lines begin with."""
        return "\n".join(self._explain(line, where) for line in error.split("\n"))

    def _explain(self, line: str, where: str) -> str:
        lead = f"{where}: " if where and line.startswith(f"{where}: ") else ""
        rest = line[len(lead) :]
        found = _PLACE.match(rest)
        place = found[0] if found else ""
        unknown = _UNKNOWN.match(rest[len(place) :].removeprefix(": "))
        words = self._words(f"{place}.{unknown[1]}".strip(".") if unknown else place)
        return f"{line} ({words})" if words and not line.endswith(f"({words})") else line

    def _words(self, place: str) -> str:
        file = self.file_of(place) if place else ""
        return self._assigned(place) or (f"from {file}" if file else "")

    def _assigned(self, place: str) -> str:
        """The words for a place, or for the nearest part of the spec that contains it."""
        while place:
            if place in self._others:
                return self._others[place]
            place = _STEP.sub("", place) if _STEP.search(place) else ""
        return ""


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for each in node.values():
            yield from _leaves(each)
    else:
        yield str(node)
