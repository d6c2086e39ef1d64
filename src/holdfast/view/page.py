"""What a page is: a function that loads its data, and one that shows it. The data alone is its JSON twin."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.records import Key
from holdfast.spec import nearest
from holdfast.view.computations import Computations, Found, Job, open_result, run_job
from holdfast.view.links import Links, path_part
from holdfast.view.markup import Markup
from holdfast.view.sources import NotFoundError, RunRef, RunStatus, Sources

_DIGITS_MAX = 15
_PARAMS = ("token",)
_RUN_PARAMS = ("uid", "at", "store")


class PageRequest(msgspec.Struct, frozen=True):
    """One request for a page: names from its path, values from its query."""

    sources: Sources
    path: Mapping[str, str]
    query: Mapping[str, str]
    lists: Mapping[str, Sequence[str]] = {}
    """All values of a name that the query has several times."""
    is_data: bool = False
    """Whether the data alone is wanted. A page leaves out conditions that make no sense together, because its own form
    can send them; data never differs from what was requested.
    """
    computations: Computations | None = None
    """Of the server. Without them, as for a static copy, everything is computed at once."""

    @property
    def run(self) -> RunRef:
        """The run that the address names."""
        names = path_part(self.path["experiment"]), path_part(self.path["run"])
        return RunRef(*names, self.query.get("uid", ""), self.number("at"), self.number("store") or 0)

    @property
    def key(self) -> str:
        """The key that the address names. NotFoundError if it cannot be one."""
        repeat = self.path.get("repeat", "1")
        if not (repeat.isascii() and repeat.isdigit()) or len(repeat) > _DIGITS_MAX:
            raise NotFoundError(f"{repeat[:40]!r} is not the number of a repeat")
        task, model, sample = (path_part(self.path[name]) for name in ("task", "model", "sample"))
        return str(Key(task, model, sample, int(repeat)))

    def compute(self, job: Job, states: tuple[Any, ...], keys: int) -> Found:
        """The result of a comparison: see `Computations.find`."""
        if self.computations is None:
            return Found(open_result(run_job(job)), is_current=True, is_running=False)
        return self.computations.find(job, states, keys)

    def number(self, name: str) -> int | None:
        return parse_number(self.query, name)


def parse_number(query: Mapping[str, str], name: str) -> int | None:
    """A whole number of a query; None if it is not given. UsageError if it is no number."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        raise UsageError(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


class Body(msgspec.Struct, frozen=True):
    """What the frame of every page needs."""

    title: str
    content: Markup
    run: RunRef | None = None
    part: str = ""
    """The page of the run: empty for its overview."""
    status: RunStatus = RunStatus()
    durability: Any = None
    evaluation: str = ""
    """The evaluation that is shown, if it is not the current one: the other pages of the run then show it too."""
    scripts: tuple[str, ...] = ()
    """Files in `static` that this page needs besides view.js."""
    is_live: bool = False
    """Whether the page changes by itself: its regions marked `data-live` are then replaced."""


class Page(msgspec.Struct, frozen=True):
    """One page. `load` runs in a thread and may take locks; `render` is pure."""

    path: str
    load: Callable[[PageRequest], Any]
    render: Callable[[Any, Links], Body]
    params: tuple[str, ...] = ()
    """Names in the query, besides those of the run. One that ends with a dot is the beginning of any name."""

    def require_known(self, query: Iterable[str]) -> None:
        """UsageError for a name that the page does not know: a misspelt filter would select everything."""
        known = {*_PARAMS, *(_RUN_PARAMS if "{run}" in self.path else ()), *self.params}
        for name in query:
            if name not in known and f"{name.partition('.')[0]}." not in known:
                raise UsageError(f"{name[:40]!r} is no parameter of this page{nearest(name, known - {*_PARAMS})}")


class FileReply(msgspec.Struct, frozen=True):
    """A file to send: its bytes, or pieces of them."""

    content: bytes | Iterator[bytes]
    type: str = "application/octet-stream"
    name: str = ""
    """The name to save it under. Empty: the browser shows it; only for texts and pictures of known types."""


class FilePage(msgspec.Struct, frozen=True):
    """An address that answers with a file. `load` runs in a thread."""

    path: str
    load: Callable[[PageRequest], FileReply]
