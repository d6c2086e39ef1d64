"""A page of a run that is going on: it changes by itself, nothing jumps, and it survives a kill of the server."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import finish, start, wait_until
from tests.e2e.live_runs import RUN, alive, gate, stage, wait_for
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser
from tests.e2e.view.test_events import write_live_spec
from tests.e2e.view.viewers import PATIENCE_SECONDS, Viewer

pytestmark = NEEDS_CHROMIUM

PAGE = "/runs/sums/live"
_MILLISECONDS = 1000 * PATIENCE_SECONDS
_BOXES = """() => ["header", ".crumbs", ".tabs", "main", "main h1", "#head", "#head dd"].map((name) => {
  const box = document.querySelector(name).getBoundingClientRect();
  return [name, Math.round(box.x), Math.round(box.y), name === "header" ? Math.round(box.height) : 0];
})"""
_HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@contextmanager
def live_run(folder: Path, rows: int = 300) -> "Iterator[tuple[Viewer, subprocess.Popen[str]]]":
    """A run that is going on, and a server that shows it."""
    with start("run", write_live_spec(folder, rows), "--id", "live", cwd=folder) as process:
        assert wait_until(lambda: any((folder / "runs").glob("sums/live/journal/*.jsonl")), process)
        with Viewer("runs", cwd=folder) as viewer:
            yield viewer, process
        if process.poll() is None:
            process.kill()


def wait_for_text(page: Any, selector: str, part: str) -> None:
    page.wait_for_function(
        "([selector, part]) => document.querySelector(selector)?.textContent.includes(part)",
        arg=[selector, part],
        timeout=_MILLISECONDS,
    )


def wait_for_change(page: Any, selector: str) -> None:
    before = page.locator(selector).first.inner_text()
    page.wait_for_function(
        "([selector, before]) => document.querySelector(selector)?.innerText !== before",
        arg=[selector, before],
        timeout=_MILLISECONDS,
    )


@pytest.mark.parametrize("width", [400, pytest.param(1400, marks=pytest.mark.long)])
def test_a_live_page_changes_by_itself_and_nothing_jumps(browser: Browser, tmp_path: Path, width: int) -> None:
    with live_run(tmp_path) as (viewer, process), browser.watch(viewer.url, viewer.link, width=width) as watched:
        page = watched.page
        watched.open(PAGE)
        wait_for_text(page, "#state", "running")
        wait_for_change(page, "#state .durability")
        boxes = page.evaluate(_BOXES)
        page.evaluate("document.querySelector('main details').open = true")
        page.evaluate("window.marker = 1")
        for _ in range(3):
            wait_for_change(page, "#state .durability")
            assert page.evaluate(_BOXES) == boxes
        wait_for_text(page, "#state", "completed")
        assert page.evaluate(_BOXES)[:5] == boxes[:5]
        assert page.evaluate("window.marker") == 1  # the page was never loaded again
        assert page.evaluate("document.querySelector('main details').open") is True
        assert finish(process).code == 0
        wait_for_text(page, "#head", "300 finished")


def test_a_live_page_continues_after_the_server_was_killed(browser: Browser, tmp_path: Path) -> None:
    with live_run(tmp_path, 400) as (viewer, process), browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        watched.open(PAGE)
        wait_for_change(page, "#state .durability")
        watched.expected = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY")  # while the server is not there
        viewer.kill()
        page.wait_for_timeout(1500)
        assert page.locator("h1").is_visible()
        viewer.restart()
        wait_for_change(page, "#state .durability")
        assert finish(process, signal.SIGINT).code == 130
        wait_for_text(page, "#state", "interrupted")


def test_a_field_keeps_its_text_and_the_window_its_place(browser: Browser, tmp_path: Path) -> None:
    with live_run(tmp_path) as (viewer, _), browser.watch(viewer.url, viewer.link, height=300) as watched:
        page = watched.page
        page.clock.install()
        watched.open("/")  # the list of runs is loaded again every few seconds
        page.fill("input[type=search]", "a text that is not sent")
        loads = len(watched.requests)
        page.clock.run_for(10_000)
        page.wait_for_timeout(500)
        assert len(watched.requests) > loads
        assert page.input_value("input[type=search]") == "a text that is not sent"
        watched.open(PAGE)
        wait_for_change(page, "#state .durability")
        page.evaluate("window.scrollTo(0, 200)")
        place = page.evaluate("window.scrollY")
        assert place > 100
        wait_for_change(page, "#state .durability")
        assert page.evaluate("window.scrollY") == place


def test_the_form_for_hand_set_scores_appears_when_the_sample_is_scored(browser: Browser, tmp_path: Path) -> None:
    door = gate(tmp_path, free=1)
    course = stage(tmp_path, 3, model=door.model, concurrency={"samples": 1})
    with alive(course) as process:
        wait_for(course.has_begun, "the run")  # `view` refuses a store without runs
        with (
            Viewer(str(course.store), "--edit", cwd=tmp_path) as viewer,
            browser.watch(viewer.url, viewer.link) as watched,
        ):
            page = watched.page
            watched.open(f"/runs/sums/{RUN}/samples/sums/arith/s0002/1")
            assert page.locator("#edit").count() == 0
            door.open()
            wait_for_text(page, "#hand-score", "Set a score by hand")
            assert page.locator("#hand-score[data-live]").count() == 0, "what a person types is not replaced"
        process.wait(60)


@pytest.mark.long
def test_the_focus_the_chosen_line_and_scrolled_tables_stay(browser: Browser, tmp_path: Path) -> None:
    with live_run(tmp_path) as (viewer, _), browser.watch(viewer.url, viewer.link, width=400) as watched:
        page = watched.page
        watched.open(PAGE)
        wait_for_change(page, "#state .durability")
        page.evaluate("document.querySelector('#results .wide').scrollLeft = 80")
        page.locator("#head a").nth(1).focus()
        focused = "document.activeElement.getAttribute('href')"
        link = page.evaluate(focused)
        for _ in range(2):
            wait_for_change(page, "#head")
            wait_for_change(page, "#results")
            assert page.evaluate(focused) == link
            assert page.evaluate("document.querySelector('#results .wide').scrollLeft") == 80
        watched.open(f"{PAGE}/samples?status=finished&sort=-seconds&limit=1000")
        page.click("#samples .wide")  # keys work wherever the focus is
        page.keyboard.press("j")
        page.keyboard.press("j")
        chosen = page.evaluate(focused)
        assert "/samples/sums/" in chosen
        for _ in range(2):
            wait_for_change(page, "#samples")
            assert page.evaluate(focused) == chosen
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{chosen}")


def test_text_that_is_selected_stays_selected(browser: Browser, tmp_path: Path) -> None:
    with live_run(tmp_path) as (viewer, _), browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        watched.open(PAGE)
        wait_for_change(page, "#head")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#head'))")
        selected = page.evaluate("String(getSelection())")
        assert "finished" in selected
        for _ in range(2):
            wait_for_change(page, "#state .durability")
        assert page.evaluate("String(getSelection())") == selected
        before = page.locator("#head").inner_text()
        page.evaluate("getSelection().removeAllRanges()")
        page.wait_for_function(
            "(before) => document.querySelector('#head').innerText !== before", arg=before, timeout=_MILLISECONDS
        )


@pytest.mark.long
def test_a_hidden_page_leaves_the_connection_to_others(browser: Browser, tmp_path: Path) -> None:
    """A browser opens at most six connections to one server."""
    with live_run(tmp_path, 600) as (viewer, _), browser.context() as context:
        first = context.new_page()
        first.goto(viewer.link)
        pages = []
        for _ in range(7):
            page = context.new_page()
            page.goto(f"{viewer.url}{PAGE}", timeout=_MILLISECONDS)
            wait_for_change(page, "#state .durability")
            page.evaluate(_HIDE, True)
            pages.append(page)
        asked: list[str] = []
        pages[0].on("request", lambda request: asked.append(request.url))
        pages[0].wait_for_timeout(2500)
        assert asked == []
        pages[0].evaluate(_HIDE, False)
        wait_for_change(pages[0], "#state .durability")
        assert any(each.endswith("/events") for each in asked)
