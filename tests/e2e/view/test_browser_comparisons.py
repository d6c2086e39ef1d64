"""Compare, lineage and time travel in Debian's Chromium: filters, keys, widths, and nothing that the policy forbids."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run
from tests.e2e.view.served import Served, serving
from tests.e2e.view.test_comparisons import write

CHROMIUM = "/usr/bin/chromium"
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = [
    pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"there is no {CHROMIUM}: apt install chromium"),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("browsed")
    for name, solver in (("first", "steady"), ("second", "shifted")):
        done = run("run", write(folder, solver), "--id", name, cwd=folder)  # Playwright has a loop in this process
        assert done.code == 0, done.said
    with serving(folder / "runs") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, viewer: Served) -> Iterator[Any]:
    """A page that has been let in. Whatever the console says is a failure."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    found = context.new_page()
    said: list[str] = []
    found.on("console", lambda message: said.append(message.text))
    found.on("pageerror", lambda error: said.append(str(error)))
    found.goto(f"{viewer.base}/?token={viewer.token}")
    yield found
    assert said == []
    context.close()


def test_the_table_of_comparisons_fits_a_common_screen_and_shows_that_it_continues_on_a_narrow_one(page: Any) -> None:
    page.goto(page.url.partition("?")[0] + "compare?run=sums/first&run=sums/second")
    table = page.locator(".wide", has=page.locator("table.dense"))
    table.wait_for()
    sizes = table.evaluate("each => [each.scrollWidth, each.clientWidth, each.innerText]")
    assert sizes[0] <= sizes[1], sizes
    page.set_viewport_size({"width": 600, "height": 800})
    assert table.evaluate("each => each.scrollWidth > each.clientWidth")
    assert "local" in table.evaluate("each => getComputedStyle(each).backgroundAttachment"), "shadows at its ends"


PAGES = (
    "/compare?run=sums/first&run=sums/second",
    "/runs/sums/first/compare",
    "/runs/sums/first",
    "/runs/sums/first/lineage?life=1",
    "/runs/sums/first/profile",
    "/runs/sums/first/spec",
    "/runs/sums/first?at=20",
    "/leaderboard",
    "/history",
)


@pytest.mark.parametrize("width", [360, 1200, 2560])
def test_every_page_fits_its_window(page: Any, viewer: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in PAGES:
        page.goto(viewer.base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_filter_shows_its_samples_at_once_and_the_keys_turn_pages(page: Any, viewer: Served) -> None:
    page.goto(viewer.base + "/compare?run=sums/first&run=sums/second")
    with page.expect_navigation():
        page.select_option("select[name=change]", "all")
    assert "change=all" in page.url
    assert page.url.count("run=") == 2
    first = page.inner_text(".changed .name >> nth=0")
    with page.expect_navigation():
        page.keyboard.press("n")
    assert page.inner_text(".changed .name >> nth=0") != first
    with page.expect_navigation():
        page.keyboard.press("p")
    assert page.inner_text(".changed .name >> nth=0") == first


def test_a_number_of_the_matrix_opens_its_samples(page: Any, viewer: Served) -> None:
    page.goto(viewer.base + "/compare?run=sums/first&run=sums/second")
    cell = page.locator(".matrix td.lower a").first
    count = int(cell.inner_text())
    cell.click()
    page.wait_for_url("**before=true**")
    assert page.locator(".changed").count() == count
    assert set(page.locator(".changed .change").all_inner_texts()) == {"right → wrong"}


def test_another_run_is_chosen_from_a_list(page: Any, viewer: Served) -> None:
    page.goto(viewer.base + "/runs/sums/first/compare")
    page.select_option("form.choose select", "sums/second")
    with page.expect_navigation():
        page.click("form.choose button")
    assert page.locator("ol.compared li").count() == 2
    assert page.locator(".sentence").count() > 0


def test_the_past_is_reached_by_a_form_and_left_by_a_link(page: Any, viewer: Served) -> None:
    page.goto(viewer.base + "/runs/sums/first/lineage")
    page.click("#travel summary")
    page.fill("#travel input[name=at]", "20")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "after record 20" in page.inner_text(".travel")
    with page.expect_navigation():
        page.click(".travel a")
    assert page.url.endswith("/runs/sums/first/lineage")
