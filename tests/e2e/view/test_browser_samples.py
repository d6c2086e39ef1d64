"""The page of a sample in a real browser: nothing hostile runs, parts load on demand, links to steps, hand scores."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run, write_rows, write_spec
from tests.e2e.view.viewer import Viewer, viewing

CHROMIUM = shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
]
SAMPLE = "/runs/sums/r/samples/sums/arith/x/1"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>javascript:alert(4)"
SOLVER = """
async def many(sample, ctx):
    for turn in range(60):
        answer = await ctx.generate([{"role": "user", "content": f"turn {turn} {sample.input}"}])
    return answer
"""


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder: Path = tmp_path_factory.mktemp("browser")
    (folder / "mine.py").write_text(SOLVER)
    write_spec(folder, 1, model={"options": {"reply": EVIL}}, task={"solver": "mine:many", "scorers": ["exact_match"]})
    write_rows(folder / "sums.jsonl", [{"id": "x", "question": EVIL, "answer": EVIL, EVIL: EVIL}])
    # In a process of its own: the browser is driven by an event loop of this one.
    assert run("run", "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder).code == 0
    with viewing(folder / "runs", "--edit") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, viewer: Viewer) -> Iterator[Any]:
    """A page that may not run anything hostile, report a violation, or ask another server."""
    context = browser.new_context()
    found, wrong = context.new_page(), list[str]()

    def refuse(dialog: Any) -> None:
        wrong.append(f"dialog {dialog.message}")
        dialog.dismiss()

    found.on("dialog", refuse)
    found.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "request", lambda asked: None if asked.url.startswith((viewer.origin, "data:")) else wrong.append(asked.url)
    )
    found.goto(f"{viewer.origin}/?token={viewer.token}")
    yield found
    context.close()
    assert wrong == []


def test_hostile_texts_are_shown_as_texts(page: Any, viewer: Viewer) -> None:
    page.goto(f"{viewer.origin}{SAMPLE}")
    assert EVIL in page.inner_text("#question")
    assert EVIL in page.inner_text("#answer")
    page.click("#row summary")
    assert page.inner_text("#row").count(EVIL) == 4


def test_the_request_is_loaded_when_it_is_opened(page: Any, viewer: Viewer) -> None:
    page.goto(f"{viewer.origin}{SAMPLE}")
    details = page.locator("details.raw").first
    assert details.locator("pre").count() == 0
    details.locator("summary").click()
    details.locator("pre").first.wait_for()
    assert '"messages"' in details.inner_text()


def test_a_hash_alone_leads_to_the_window_of_its_step(page: Any, viewer: Viewer) -> None:
    steps = viewer.get(f"/api{SAMPLE}?step=last").json()["story"]["attempts"][0]["steps"]
    name = f"step-{steps[-1]['n']}"
    page.goto(f"{viewer.origin}{SAMPLE}#{name}")
    page.wait_for_url(f"**{SAMPLE}?step={steps[-1]['n']}#{name}")
    assert page.locator(f"#{name}").is_visible()


@pytest.mark.parametrize("width", [360, 2560])
@pytest.mark.parametrize("path", ["", "/records", "?step=last"])
def test_a_page_never_scrolls_sideways(page: Any, viewer: Viewer, width: int, path: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{viewer.origin}{SAMPLE}{path}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_score_is_set_by_hand_with_and_without_scripts(browser: Any, viewer: Viewer, scripts: bool) -> None:
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(f"{viewer.origin}/?token={viewer.token}")
    page.goto(f"{viewer.origin}{SAMPLE}")
    page.click("#edit summary")
    page.fill("input[name=value]", "false")
    page.fill("textarea[name=reason]", f"seen with scripts: {scripts} {EVIL}")
    page.click("form.edit button")
    page.wait_for_url(f"**{SAMPLE}#scores")
    assert f"seen with scripts: {scripts} {EVIL}" in page.inner_text("#scores")
    assert "tester, " in page.inner_text("#scores")
    context.close()
