"""Every page of the viewer in a real browser: light and dark, narrow and wide, without scripts, by keyboard."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from holdfast.view.layout import RUN_PARTS
from holdfast.view.pages import PAGES
from tests.e2e.commands import run, write_spec
from tests.e2e.view.addresses import PATHS, every_address, is_page
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser, Theme, Watched
from tests.e2e.view.served import links_in
from tests.e2e.view.viewers import Viewer

pytestmark = NEEDS_CHROMIUM

KEY = "sums/arith/s0001/1"
MISSING = [part for part, _ in RUN_PARTS if not is_page(f"/runs/e/r/{part}".rstrip("/"))]
_FOLLOWED_MAX = 150


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one experiment, and one of another."""
    folder = tmp_path_factory.mktemp("pages")
    price = {"price": {"input": 1.0, "output": 2.0}}
    for name, experiment in (("one", "sums"), ("two", "sums"), ("three", "other")):
        spec = write_spec(
            folder, experiment=experiment, model=price, task={"repeats": 2}, tags=["nightly"], description="a try"
        )
        assert run("run", spec, "--id", name, cwd=folder).code == 0
    return folder / "runs"


@pytest.fixture(scope="module")
def viewer(store: Path) -> Iterator[Viewer]:
    with Viewer("runs", cwd=store.parent) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(store: Path) -> dict[str, str]:
    return every_address(store, "sums", "one", KEY)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_opens_without_errors_violations_or_foreign_requests(
    browser: Browser, viewer: Viewer, addresses: dict[str, str], path: str
) -> None:
    with browser.visit(viewer.url, viewer.link) as watched:
        response = watched.open(addresses[path])
        assert response.status == 200
        assert response.header_value("content-type").startswith("text/html")
        assert watched.page.title().endswith(" · Holdfast")
        assert watched.page.locator("main h1, main p").first.is_visible()


@pytest.mark.parametrize("path", PATHS)
def test_a_page_has_a_json_twin(viewer: Viewer, addresses: dict[str, str], path: str) -> None:
    reply = viewer.get("/api/runs" if path == "/" else f"/api{addresses[path]}")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert isinstance(reply.json(), dict)


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (360, "light"),
        (1400, "dark"),
        *(
            pytest.param(width, theme, marks=pytest.mark.long)
            for width in (360, 768, 1400, 2560)
            for theme in ("light", "dark")
            if (width, theme) not in ((360, "light"), (1400, "dark"))
        ),
    ],
)
def test_every_page_fits_the_window(
    browser: Browser, viewer: Viewer, addresses: dict[str, str], width: int, theme: Theme
) -> None:
    with browser.visit(viewer.url, viewer.link, width=width, theme=theme) as watched:
        for address in addresses.values():
            watched.open(address)
            wide = watched.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, (address, _too_wide(watched))


def _too_wide(watched: Watched) -> Any:
    """The elements that stick out, for the message of a failure."""
    return watched.page.evaluate(
        """() => [...document.querySelectorAll("main *, header *")].filter((each) =>
            !each.closest(".wide, pre") && each.getBoundingClientRect().right > window.innerWidth + 1
        ).slice(0, 5).map((each) => each.outerHTML.slice(0, 120))"""
    )


def test_every_page_works_without_scripts(browser: Browser, viewer: Viewer, addresses: dict[str, str]) -> None:
    with browser.context(scripts=False) as context:
        page = context.new_page()
        page.goto(viewer.link)
        for address in addresses.values():
            assert page.goto(f"{viewer.url}{address}").status == 200
            assert page.locator("main h1").count() == 1, address
        page.goto(f"{viewer.url}/")
        page.fill("input[type=search]", "three")
        page.click("form.filters button")
        assert page.locator("table.rows tbody tr").count() == 1
        assert "q=three" in page.url


def test_a_reader_follows_a_sorted_and_filtered_list_by_keyboard(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        watched.open("/runs/sums/one/samples?columns=sample,repeat,row.question&status=finished")
        page.click("th >> text=row.question")
        page.wait_for_selector("th[aria-sort=descending]")
        listed = page.url
        keys = page.eval_on_selector_all("table.rows td a", "found => found.map((each) => each.title)")
        questions = page.locator("table.rows td.text").all_inner_texts()
        assert questions == sorted(questions, reverse=True, key=lambda text: text.split())
        assert len(keys) > 3
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        for key in keys[:3]:
            page.wait_for_url(f"**/samples/{key}?*")
            page.keyboard.press("n")
        page.wait_for_url(f"**/samples/{keys[3]}?*")
        page.keyboard.press("p")
        page.wait_for_url(f"**/samples/{keys[2]}?*")
        page.keyboard.press("u")
        page.wait_for_url("**/samples?*")
        assert set(urlsplit(page.url).query.split("&")) == set(urlsplit(listed).query.split("&"))


@pytest.mark.skipif(bool(MISSING), reason=f"pages are missing: {', '.join(MISSING)}")
def test_every_link_leads_to_a_page(viewer: Viewer) -> None:
    def read(address: str) -> list[str]:
        reply = viewer.get(address)
        assert reply.status == 200, address
        return links_in(reply.text)

    follow_links(viewer, read)


@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason=f"pages are missing: {', '.join(MISSING)}")
def test_every_link_leads_to_a_page_that_opens_in_a_browser(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:

        def read(address: str) -> list[str]:
            assert watched.open(address).status == 200, address
            found: list[str] = watched.page.eval_on_selector_all(
                "a[href]", "found => found.map((each) => each.getAttribute('href'))"
            )
            return found

        follow_links(viewer, read)


def follow_links(viewer: Viewer, read: Callable[[str], list[str]]) -> None:
    """From the list of runs on, breadth first, and not the same page with other words of a filter again and again.

    `read`: the links of the page at an address.
    """
    seen, waiting, shapes = set[str](), ["/"], dict[tuple[str, ...], int]()
    while waiting and len(seen) < _FOLLOWED_MAX:
        address = waiting.pop(0)
        seen.add(address)
        if not is_page(urlsplit(address).path):  # a file, or data
            assert viewer.get(address).status == 200, address
            continue
        for link in read(address):
            found = urljoin(f"{viewer.url}{address}", link)
            parts = urlsplit(found)
            assert found.startswith(f"{viewer.url}/"), found
            place = f"{parts.path}{f'?{parts.query}' if parts.query else ''}"
            shape = (parts.path.split("/")[-1], *sorted(each.partition("=")[0] for each in parts.query.split("&")))
            if place not in seen and place not in waiting and shapes.get(shape, 0) < 4:
                shapes[shape] = shapes.get(shape, 0) + 1
                waiting.append(place)
    assert len(seen) > len(PAGES)


def test_the_token_leaves_the_address_with_the_first_page(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url) as watched:
        watched.open(viewer.link)
        assert watched.page.url == f"{viewer.url}/"
        (cookie,) = watched.page.context.cookies()
        kept = {name: cookie[name] for name in ("name", "value", "httpOnly", "sameSite", "path")}
        assert kept == {
            "name": f"holdfast_{viewer.port}",
            "value": viewer.token,
            "httpOnly": True,
            "sameSite": "Lax",
            "path": "/",
        }
        assert watched.page.evaluate("document.cookie") == ""
        assert watched.page.evaluate("document.referrer") == ""
        assert watched.page.evaluate("performance.getEntriesByType('navigation')[0].name") == f"{viewer.url}/"


def test_the_browser_enforces_trusted_types_and_the_policy(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        watched.expected = ("violation of", "Content Security Policy", "Trusted", "TrustedHTML", "TrustedScript")
        tries = {
            "html": "document.body.innerHTML = '<p>x</p>'",
            "insert": "document.body.insertAdjacentHTML('beforeend', '<p>x</p>')",
            "script": "document.createElement('script').textContent = 'window.pwned = 1'",
            "source": "document.createElement('script').src = 'data:text/javascript,window.pwned=1'",
            "parser": "new DOMParser().parseFromString('<p>x</p>', 'text/html')",
            "handler": "document.body.setAttribute('onclick', 'window.pwned = 1')",
            "timer": "setTimeout('window.pwned = 1')",
            "policy": "window.trustedTypes.createPolicy('x', {createHTML: (text) => text})",
        }
        for name, code in tries.items():
            tried = f"() => {{ try {{ {code}; return ''; }} catch (error) {{ return error.name; }} }}"
            assert watched.page.evaluate(tried) == "TypeError", name
        watched.page.evaluate("() => { const image = document.createElement('img'); image.src = '//localhost:9/'; }")
        watched.page.wait_for_timeout(100)
        assert watched.page.evaluate("window.pwned") is None
        assert not [each for each in watched.problems if "executed" in each]
        watched.problems.clear()  # the picture of another site was tried: the policy has stopped it


def test_lines_are_chosen_and_opened_by_keyboard(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        chosen = "table.rows tr:focus-within"
        place = "[...document.querySelectorAll('table.rows tbody tr')].findIndex((row) => row.matches(':focus-within'))"
        assert page.locator(chosen).count() == 0
        for key, line in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
            page.keyboard.press(key)
            assert page.evaluate(place) == line
        name = page.locator(f"{chosen} a").first.inner_text()
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/**")
        assert page.locator("h1").inner_text() == name
        page.keyboard.press("u")
        page.wait_for_url(f"{viewer.url}/")


def test_keys_search_and_help_and_are_text_inside_fields(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        page.keyboard.press("?")
        assert page.locator("dialog#help").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("dialog#help").is_visible()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.type") == "search"
        page.keyboard.type("jku?/three")
        assert page.input_value("input[type=search]") == "jku?/three"
        assert page.locator("table.rows tr:focus-within").count() == 0
        page.fill("input[type=search]", "three")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=three**")
        assert "status=" not in page.url  # empty fields are not in the address
        page.keyboard.press("Control+j")
        assert page.locator("table.rows tr:focus-within").count() == 0


def test_the_page_is_used_by_tab_alone(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('table.rows') && document.activeElement.tagName === 'A'"):
                break
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/**")
