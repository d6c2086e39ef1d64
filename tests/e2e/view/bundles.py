"""Static copies for tests, with a page for each sample even while the viewer has none."""

from pathlib import Path

from holdfast.records import Key
from holdfast.report import KeyStory
from holdfast.view import Sources
from holdfast.view.bundle import BundleSummary, write_bundle
from holdfast.view.links import Links
from holdfast.view.markup import h, join
from holdfast.view.page import Body, Page, PageRequest
from holdfast.view.pages import PAGES

_SAMPLE = "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}"


def _load(request: PageRequest) -> tuple[PageRequest, KeyStory]:
    path = request.path
    key = str(Key(path["task"], path["model"], path["sample"], int(path["repeat"])))
    with request.sources.open(request.run) as run:
        return request, run.show(key)


def _render(found: tuple[PageRequest, KeyStory], links: Links) -> Body:
    request, story = found
    content = join(
        [
            h("h1", story.key),
            h("p", h("a", "the run", href=links.run(request.run))),
            h("p", h("a", "itself", href=links.sample(request.run, story.key))),
            h("pre", str(story), class_="story"),
            h("svg", h("title", story.key), h("circle", r="4"), viewBox="0 0 9 9", role="img", aria_label="a figure"),
        ]
    )
    return Body(story.key, content, request.run, "samples")


def pages() -> tuple[Page, ...]:
    return PAGES if any(page.path == _SAMPLE for page in PAGES) else (*PAGES, Page(_SAMPLE, _load, _render))


def make_bundle(store: Path, folder: Path) -> BundleSummary:
    sources = Sources([str(store)], str(store), frozen=True)
    try:
        return write_bundle(sources, str(folder), pages=pages())
    finally:
        sources.close()
