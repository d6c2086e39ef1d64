"""Attacks in every text that models, data and servers can write: nothing executes, nothing loads, all of it is text."""

import http.server
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

from tests.e2e.view.addresses import EACH_PATH, every_address
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser
from tests.e2e.view.hostile import EXPERIMENT, LONG, RUN, attacks, make_store
from tests.e2e.view.viewers import Viewer
from tests.servers import serve

pytestmark = NEEDS_CHROMIUM


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another site that remembers what was asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not on the test's standard error."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serve(Elsewhere) as place:
        yield f"http://{place.replace('127.0.0.1', 'localhost')}"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, site: str) -> tuple[Path, str]:
    """The folder of a hostile store, and a key in it."""
    folder = tmp_path_factory.mktemp("hostile")
    return folder, make_store(folder, site)


@pytest.fixture(scope="module")
def viewer(stage: tuple[Path, str]) -> Iterator[Viewer]:
    with Viewer("runs", cwd=stage[0]) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(stage: tuple[Path, str]) -> dict[str, str]:
    return every_address(stage[0] / "runs", EXPERIMENT, RUN, stage[1])


@pytest.mark.parametrize("path", EACH_PATH)
def test_a_page_with_hostile_texts_executes_and_loads_nothing(
    browser: Browser, viewer: Viewer, addresses: dict[str, str], path: str
) -> None:
    Elsewhere.asked.clear()
    with browser.visit(viewer.url, viewer.link) as watched:
        page = watched.page
        assert watched.open(addresses[path]).status == 200
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        for found in page.locator("main a, main td, main pre, main summary").all()[:12]:
            if found.is_visible():
                found.hover(force=True)
        page.wait_for_timeout(200)
        assert page.evaluate("window.pwned") is None
        foreign = "script, img:not([src^='/']), iframe, object, embed, style, base, video, form[action^='http']"
        assert page.locator(f"main :is({foreign})").count() == 0
        assert page.evaluate("[...document.links].every((each) => each.origin === location.origin)")
        named = "[...document.querySelectorAll('*')].flatMap((each) => each.getAttributeNames())"
        assert not [each for each in page.evaluate(named) if each.startswith("on")]
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, "a long word makes the page wider than the window"
    assert Elsewhere.asked == []


def test_hostile_names_lead_to_their_own_pages(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        watched.page.locator("table.rows a").first.click()
        watched.page.wait_for_url("**/runs/**")
        assert watched.page.locator("h1").inner_text() == f"{EXPERIMENT} / {RUN}"


@pytest.mark.parametrize("path", EACH_PATH)
def test_hidden_characters_are_shown_and_never_sent(viewer: Viewer, addresses: dict[str, str], path: str) -> None:
    text = viewer.get(addresses[path]).text
    for hidden in ("\u202e", "\u2066", "\u200b", "\x00", "\x1b", "\x9b", "\x07"):
        assert hidden not in text, repr(hidden)


def test_an_address_with_an_attack_is_one_sentence(browser: Browser, viewer: Viewer) -> None:
    places = ("/?q=", "/?status=", "/?sort=", "/?experiment=", "/?tag=", "/runs/sums/x?at=", "/runs/sums/")
    with browser.watch(viewer.url, viewer.link) as watched:
        watched.expected = ("status of 404", "status of 400")
        every = attacks("http://localhost:9")
        for attack in (" ".join(every[:10]), " ".join(every[10:]), LONG[:4000]):
            for place in places:
                assert watched.open(f"{place}{quote(attack, safe='')}").status in (200, 400, 404)
                assert watched.page.evaluate("window.pwned") is None
                assert watched.page.locator("main").count() == 1


def test_a_page_that_is_not_careful_would_be_found_out(browser: Browser, site: str) -> None:
    """The proof that these tests can fail."""
    Elsewhere.asked.clear()
    with browser.context() as context:
        page = context.new_page()
        page.set_content("".join(attacks(site)[:5]))
        page.wait_for_timeout(300)
        assert page.evaluate("window.pwned") is not None
    assert Elsewhere.asked
