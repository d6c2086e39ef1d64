"""Addresses of pages. Pages never write an address themselves, so a static copy can use file names instead."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote, urlencode

import msgspec

from holdfast.records import parse_key
from holdfast.view.sources import NotFoundError, RunRef


class Editing(msgspec.Struct, frozen=True):
    """What forms that write need: the token of this server, and the name of its user."""

    form_token: str
    author: str = ""


class Links:
    """The addresses of a server."""

    editing: Editing | None = None
    """Set if pages may contain forms that write."""

    is_static = False
    """Whether the pages are files: nothing is live, and nothing can be asked of a server."""

    def has(self, part: str) -> bool:
        """Whether runs have such a page, or with a slash before its name, whether there is one about several runs: a
        static copy may lack some.
        """
        return True

    def runs(self, **query: str) -> str:
        return f"/{_query(query)}"

    def run(self, ref: RunRef, part: str = "", **query: str) -> str:
        """A page of a run; `part` is the last piece of its path, such as `samples`."""
        above = f"/runs/{_quoted(ref.experiment)}/{_quoted(ref.run_id)}"
        return f"{above}{f'/{part}' if part else ''}{_query({**ref.query, **query})}"

    def sample(self, ref: RunRef, key: str, step: int | None = None, **query: str) -> str:
        """A sample, at one of its steps (a record number)."""
        if step is None:
            return self.sample_subpage(ref, key, "", **query)
        return f"{self.sample_subpage(ref, key, '', **{**query, 'step': str(step)})}#step-{step}"

    def sample_subpage(self, ref: RunRef, key: str, part: str, **query: str) -> str:
        """A page or a file of a sample, such as `records`."""
        path = "/".join(map(_quoted, map(str, parse_key(key))))
        return self.run(ref, f"samples/{path}{f'/{part}' if part else ''}", **query)

    def text(self, ref: RunRef, key: str, n: int, pointer: str) -> str:
        """One long text: `pointer` is a JSON pointer into the data of record `n`; 0 for the row of the sample."""
        return self.sample_subpage(ref, key, "text", record=str(n), pointer=pointer)

    def blob(self, ref: RunRef, digest: str, name: str = "") -> str:
        """The content of a file. `name`: for saving it."""
        return self.run(ref, f"blobs/{_quoted(digest)}", name=name)

    def repeats(self, ref: RunRef, key: str, **query: str) -> str:
        """All repeats of the sample of a key, side by side."""
        parts = parse_key(key)
        return self.run(ref, f"repeats/{'/'.join(map(_quoted, parts[:3]))}", **query)

    def page(self, path: str, **query: str | Sequence[str]) -> str:
        """A page about several runs, such as `compare`. A list gives one value for each of its texts."""
        return f"/{path}{_query(query)}"

    def data(self, address: str) -> str:
        """The JSON twin of a page."""
        return f"/api/runs{address[1:]}" if address.startswith("/?") or address == "/" else f"/api{address}"

    def file(self, name: str) -> str:
        """A file of the viewer itself."""
        return f"/static/{name}"


_DOTS = ("", ".", "..")
_DIGITS_MAX = 15


def _quoted(text: str) -> str:
    return quote(as_path_part(text), safe="")


def as_path_part(text: str) -> str:
    """A part of a path, before it is quoted. Browsers remove `.`, `..` and empty parts, so these get a prefix."""
    return f"~{text}" if text.lstrip("~") in _DOTS else text


def path_part(text: str) -> str:
    """The text that `as_path_part` was given, from a part of a path that the server has decoded."""
    return text[1:] if text.startswith("~") and text.lstrip("~") in _DOTS else text


def _query(query: Mapping[str, str | Sequence[str]]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def run_name(ref: RunRef) -> str:
    """A run in one value of a query: `experiment/id`, then its uid, the record to show it at, and the number of its
    store, as far as these are given.
    """
    parts = [f"{_quoted(ref.experiment)}/{_quoted(ref.run_id)}"]
    parts += [ref.query.get(name, "") for name in ("uid", "at", "store")]
    return ":".join(parts).rstrip(":")


def parse_run_name(text: str) -> RunRef:
    """The reverse of `run_name`. NotFoundError if the text is none."""
    names, uid, at, store, *more = [*text.split(":"), "", "", ""]
    experiment, _, run_id = names.partition("/")
    numbers = at + store
    if not experiment or not run_id or any(more) or (numbers and not (numbers.isascii() and numbers.isdigit())):
        raise NotFoundError(f"{text[:200]!r} does not name a run: write experiment/id")
    if max(len(at), len(store)) > _DIGITS_MAX:
        raise NotFoundError(f"{text[:200]!r} does not name a run: a number is too long")
    found = RunRef(path_part(unquote(experiment)), path_part(unquote(run_id)), uid)
    return msgspec.structs.replace(found, at=int(at) if at else None, store=int(store or 0))
