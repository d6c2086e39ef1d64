"""Addresses of pages. Pages never write an address themselves, so a static copy can use file names instead."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from holdfast.records import parse_key
from holdfast.view.sources import RunRef


class Links:
    """The addresses of a server."""

    is_static = False
    """Whether the pages are files: nothing is live, and nothing can be asked of a server."""

    def has(self, part: str) -> bool:
        """Whether there is such a page: a static copy may lack some."""
        return True

    def runs(self, **query: str) -> str:
        return f"/{_query(query)}"

    def run(self, ref: RunRef, part: str = "", **query: str) -> str:
        """A page of a run; `part` is the last piece of its path, such as `samples`."""
        above = f"/runs/{_quoted(ref.experiment)}/{_quoted(ref.run_id)}"
        return f"{above}{f'/{part}' if part else ''}{_query({**_of(ref), **query})}"

    def sample(self, ref: RunRef, key: str, step: int | None = None, **query: str) -> str:
        """A sample, at one of its steps (a record number)."""
        parts = parse_key(key)
        path = "/".join(map(_quoted, (parts.task, parts.model, parts.sample_id, str(parts.repeat))))
        return self.run(ref, f"samples/{path}", **query) + (f"#step-{step}" if step is not None else "")

    def repeats(self, ref: RunRef, key: str) -> str:
        """All repeats of the sample of a key, side by side."""
        parts = parse_key(key)
        return self.run(ref, f"repeats/{'/'.join(map(_quoted, parts[:3]))}")

    def page(self, path: str, **query: str) -> str:
        """A page about several runs, such as `compare`."""
        return f"/{path}{_query(query)}"

    def data(self, address: str) -> str:
        """The JSON twin of a page."""
        return f"/api/runs{address[1:]}" if address.startswith("/?") or address == "/" else f"/api{address}"

    def file(self, name: str) -> str:
        """A file of the viewer itself."""
        return f"/static/{name}"


def _of(ref: RunRef) -> dict[str, str]:
    uid = {"uid": ref.uid} if ref.uid else {}
    return uid if ref.at is None else {**uid, "at": str(ref.at)}


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _query(query: Mapping[str, str]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"?{urlencode(given)}" if given else ""
