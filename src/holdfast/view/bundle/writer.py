"""Writes the static copy: every page of the table that needs no server, the list of samples, and each sample.

Pages about one sample are kept in packed files of many samples, about a tenth of the size of one HTML file each; a
script shows the one that the address names. The runs are read once and do not change while the copy is written.
"""

import contextlib
import importlib.resources
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, UsageError
from holdfast.journal import cache_frames
from holdfast.records import parse_key
from holdfast.report import WITHHELD
from holdfast.view.bundle.folder import BundledRun, BundleFolder, new_bundle
from holdfast.view.bundle.links import INDEX, MISSING, SAMPLES, BundledKeys, BundleLinks, sample_file
from holdfast.view.bundle.rows import PER_FILE, RowChoices, make_rows, pack, render_samples
from holdfast.view.layout import render_page
from holdfast.view.links import as_path_part
from holdfast.view.markup import h
from holdfast.view.page import Body, Page, PageRequest
from holdfast.view.pages import PAGES
from holdfast.view.pages.evaluations import evaluation_labels, evaluation_note
from holdfast.view.pages.sample.page import SampleView
from holdfast.view.sources import ListedRun, RunRef, Sources
from holdfast.view.web.files import load_blob

_STATIC = importlib.resources.files("holdfast.view") / "static"
_RUN = "/runs/{experiment}/{run}"
_SAMPLE = f"{_RUN}/samples/{{task}}/{{model}}/{{sample}}/{{repeat}}"
_COMPARE = "/compare"
"""It shows nothing until the reader chooses runs, which needs a server."""
_SAMPLES_PER_FILE = 50
_SAMPLE_FILES_MAX = 1_000
_SLUG_MAX = 60
Report = Callable[[int, int], None]
"""Called with the samples written so far, and the total."""


class BundleSummary(msgspec.Struct, frozen=True):
    """What was written."""

    runs: int
    samples: int
    files: int
    bytes: int


class _Listed(NamedTuple):
    """What the first pass over a run's samples has found."""

    keys: list[str]
    choices: RowChoices
    files: int


def write_bundle(
    sources: Sources,
    folder: str,
    report: Report | None = None,
    pages: Sequence[Page] = PAGES,
    *,
    evaluation: str = "",
) -> BundleSummary:
    """Write a copy of all runs of the sources, with the scores of an evaluation (by default the newest of each run).
    Raises UsageError if the folder is in use for something else, there is no run, or one lacks the evaluation.
    """
    listed = [each for each in sources.list() if each.summary.run_id]
    if not listed:
        raise UsageError(f"there are no runs in {', '.join(sources.names)}")
    with new_bundle(folder) as made, cache_frames():
        writer = _Writer(sources, made, pages, report or (lambda done, total: None), evaluation)
        runs = writer.write(listed)
        made.write_manifest(runs)
        return BundleSummary(
            len(runs),
            sum(each.samples for each in runs),
            len(made.files) + 1,
            sum(f.bytes for f in made.files.values()),
        )


class _Writer:
    """Writes the files of one copy."""

    def __init__(
        self, sources: Sources, made: BundleFolder, pages: Sequence[Page], report: Report, evaluation: str
    ) -> None:
        self._sources = sources
        self._made = made
        self._report = report
        self._evaluation = evaluation
        self._pages = {page.path: page for page in pages}
        self._of_run = {
            page.path.removeprefix(_RUN).removeprefix("/"): page
            for page in pages
            if page.path.startswith(_RUN) and "{" not in page.path.removeprefix(_RUN)
        }
        # Those about several runs have the newest evaluations, so a copy of another one lacks them.
        of_all = [page for page in pages if page.path not in ("/", _COMPARE) and "{" not in page.path]
        self._of_all = {page.path[1:]: page for page in of_all if not evaluation}
        self._runs: dict[RunRef, BundledKeys] = {}
        self._parts: set[str] = set()
        self._blobs: dict[tuple[RunRef, str], str | None] = {}
        self._written = 0
        self._total = 0

    def write(self, listed: Sequence[ListedRun]) -> list[BundledRun]:
        for each in _STATIC.iterdir():
            self._made.write(f"files/{each.name}", each.read_bytes())
        refs = [each.ref for each in listed]
        readable = [ref for ref, each in zip(refs, listed, strict=True) if each.summary.status != "unreadable"]
        for ref in readable if self._evaluation else ():
            with self._sources.open(ref) as run:
                run.evaluation_id(self._evaluation)  # raises if there is none
        for ref, folder in _folders(readable).items():
            self._runs[ref] = BundledKeys(folder, (), 1)
        self._total = sum(each.summary.planned for each in listed)
        loaded = self._load_pages_of_all()
        self._parts = {"", SAMPLES, *self._of_run, *(f"/{name}" for name in loaded)}
        runs = [self._write_run(ref) for ref in readable]  # one after the other: only a few runs stay open
        links = self._links("./")
        for name, data in loaded.items():  # last: they may link to samples of all runs
            self._made.write(f"{name}.html", render_page(self._of_all[name].render(data, links), links).encode())
        text = "This page is not part of the copy. Open the run with: holdfast view RUN"
        body = Body("Not in this copy", h("p", text, class_="problem"))
        self._made.write(MISSING, render_page(body, links).encode())
        self._write_page(INDEX, self._pages["/"], {}, links)
        return runs

    def _query(self, ref: RunRef) -> dict[str, str]:
        return {**ref.query, "evaluation": self._evaluation}

    def _links(self, base: str) -> BundleLinks:
        return BundleLinks(base, self._runs, self._parts, self._copy_blob)

    def _list_samples(self, ref: RunRef, folder: str) -> _Listed:
        """Write the rows, and find out in which file each sample will be."""
        with self._sources.open(ref) as run:
            scorers = run.scorers(self._evaluation)
            choices, keys, files = RowChoices.of(scorers), list[str](), 0
            for batch in _batches(make_rows(run.lines(self._evaluation, ["*"]), scorers), PER_FILE):
                for row in batch:
                    keys.append(row.key)
                    choices.add(row)
                self._made.write(f"{folder}/rows-{files:04d}.js", pack(batch))
                files += 1
            first = min((cell.first for cell in run.index.story.cells), default=0)
            run.ordinals = {key: number for number, key in enumerate(keys, first)}
        per_file = max(_SAMPLES_PER_FILE, -(-len(keys) // _SAMPLE_FILES_MAX))
        has_samples = _SAMPLE in self._pages
        self._runs[ref] = BundledKeys(folder, keys if has_samples else (), per_file)
        return _Listed(keys, choices, files)

    def _load_pages_of_all(self) -> dict[str, Any]:
        """The data of pages about several runs, without those that cannot be read."""
        loaded: dict[str, Any] = {}
        for name, page in self._of_all.items():
            with contextlib.suppress(HoldfastError):
                loaded[name] = page.load(PageRequest(self._sources, {}, {}))
        return loaded

    def _write_run(self, ref: RunRef) -> BundledRun:
        found = self._list_samples(ref, self._runs[ref].folder)
        place, links = self._runs[ref], self._links("../../")
        names = _run_names(ref)
        for part, page in self._of_run.items():
            if part != SAMPLES:
                self._write_page(f"{place.folder}/{part or 'index'}.html", page, names, links, ref)
        with self._sources.open(ref) as run:
            status, cursor, uid = run.shown_status(), run.index.cursor, run.uid
            note = evaluation_note(evaluation_labels(run), run.evaluation_id(self._evaluation), ref.run_id)
        body = render_samples(ref, status, found.choices, found.files, place.per_file, note)
        self._made.write(f"{place.folder}/{SAMPLES}.html", render_page(body, links).encode())
        if _SAMPLE in self._pages:
            self._write_samples(ref, found.keys, links)
        return BundledRun(ref.experiment, ref.run_id, uid, status[0], cursor.n, cursor.x, len(found.keys), place.folder)

    def _write_samples(self, ref: RunRef, keys: Sequence[str], links: BundleLinks) -> None:
        place, page = self._runs[ref], self._pages[_SAMPLE]
        for number, batch in enumerate(_batches(keys, place.per_file)):
            packed, scripts = {}, tuple[str, ...]()
            for key in batch:
                parts, last, body = self._windows(page, ref, key, links)
                packed[key] = (body.title, parts, last)
                scripts = scripts or body.scripts
                self._written += 1
                self._report(self._written, self._total)
            data = f"samples-{number:04d}.js"
            self._made.write(f"{place.folder}/{data}", pack(packed))
            first, per_file = number * place.per_file, place.per_file
            without_script = h("noscript", h("p", "This page needs JavaScript.", class_="problem"))
            shell = Body(
                "Sample",
                h("div", without_script, id="bundle-sample", data_first=first, data_per_file=per_file),
                ref,
                SAMPLES,
                body.status,
                body.durability,
                scripts=("bundle.js", data, "bundle_sample.js", *scripts),
            )
            file = f"{place.folder}/{sample_file(number)}"
            self._made.write(file, render_page(shell, links).encode())

    def _windows(self, page: Page, ref: RunRef, key: str, links: BundleLinks) -> tuple[list[str], int, Body]:
        """The page of a sample, in parts if it has many steps; which part has the last step; and a part as a whole."""
        parts: list[str] = []
        last = 0

        def show(step: int | None) -> tuple[Any, Body]:
            query = {**self._query(ref), "step": "" if step is None else str(step)}
            found = page.load(PageRequest(self._sources, _names(ref, key), query))
            body = page.render(found, links)
            parts.append(str(body.content))
            return found, body

        with self._sources.open(ref) as run:
            is_withheld = bool(run.withheld_tasks) and parse_key(key).task in run.withheld_tasks
        try:
            if is_withheld:
                raise UsageError(f"{WITHHELD} To include it: holdfast view RUN --bundle DIR --include-restricted")
            first, body = show(None)
            if isinstance(first, SampleView):
                after = first.window.after
                while after is not None:
                    after = show(after)[0].window.after
                last, after = len(parts) - 1, first.judges.after
                while after is not None:
                    after = show(after)[0].judges.after
        except HoldfastError as error:
            body = _problem(error, ref)
            parts.append(str(body.content))
        return parts, last, body

    def _copy_blob(self, ref: RunRef, digest: str) -> str | None:
        """Put a stored file into the copy, once. Only pictures get a name that a browser shows: what else a file is
        called or claims to be decides nothing.
        """
        if (ref, digest) not in self._blobs:
            self._blobs[ref, digest] = None
            names = {**_run_names(ref), "digest": digest}
            with contextlib.suppress(HoldfastError):
                found = load_blob(PageRequest(self._sources, names, ref.query))
                content = found.content if isinstance(found.content, bytes) else b"".join(found.content)
                suffix = found.type.partition("/")[2] if found.type.startswith("image/") else "bin"
                path = f"{self._runs[ref].folder}/blobs/{digest}.{suffix}"
                self._made.write(path, content)
                self._blobs[ref, digest] = path
        return self._blobs[ref, digest]

    def _write_page(
        self, path: str, page: Page, names: dict[str, str], links: BundleLinks, ref: RunRef | None = None
    ) -> None:
        self._made.write(path, render_page(self._body(page, names, links, ref), links).encode())

    def _body(self, page: Page, names: dict[str, str], links: BundleLinks, ref: RunRef | None) -> Body:
        """A page; one that cannot be read says why."""
        query = self._query(ref) if ref is not None else {}
        try:
            return page.render(page.load(PageRequest(self._sources, names, query)), links)
        except HoldfastError as error:
            return _problem(error, ref)


def _problem(error: HoldfastError, ref: RunRef | None) -> Body:
    return Body("Problem", h("p", str(error), class_="problem", role="alert"), ref)


def _run_names(ref: RunRef) -> dict[str, str]:
    return {"experiment": as_path_part(ref.experiment), "run": as_path_part(ref.run_id)}


def _names(ref: RunRef, key: str) -> dict[str, str]:
    parts = parse_key(key)
    sample = {"task": parts.task, "model": parts.model, "sample": parts.sample_id}
    return {
        **_run_names(ref),
        **{name: as_path_part(text) for name, text in sample.items()},
        "repeat": str(parts.repeat),
    }


def _folders(refs: Sequence[RunRef]) -> dict[RunRef, str]:
    """A readable name for the folder of each run, safe on every file system and in every address."""
    found: dict[RunRef, str] = {}
    for ref in refs:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", f"{ref.experiment}-{ref.run_id}").strip("-")[:_SLUG_MAX].lower() or "run"
        name, number = slug, 2
        while f"runs/{name}" in found.values():
            name, number = f"{slug}-{number}", number + 1
        found[ref] = f"runs/{name}"
    return found


def _batches(items: Any, size: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for each in items:
        batch.append(each)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
