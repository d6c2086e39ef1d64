"""The HTML report in a browser: light, dark, on a phone and on paper. It is a file, and loads nothing."""

from pathlib import Path

import pytest

from tests.e2e.commands import run, write_spec
from tests.e2e.view.browsers import CONTRASTS, NEEDS_CHROMIUM, Browser, Theme

pytestmark = NEEDS_CHROMIUM

_TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with right, wrong and failed answers of two models."""
    made = tmp_path_factory.mktemp("report")
    (made / "own.py").write_text(
        "async def answer(request):\n"
        "    if '2 + ' in str(request.messages[-1]['content']):\n"
        "        raise ValueError('no <b>' + 'x' * 300)\n"
        "    return '8'\n"
    )
    models = [{"name": "own", "provider": "own:answer"}, {"name": "mock", "provider": "mock"}]
    spec = write_spec(made, models=models, task={"sample_retries": 0}, description="A report for the team")
    assert run("run", spec, "--id", "r", cwd=made).code == 1
    assert run("report", "r", "--output", "r.html", cwd=made).code == 0
    return made


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_can_be_read_in_light_and_dark_and_on_a_phone(
    browser: Browser, folder: Path, theme: Theme, width: int
) -> None:
    with browser.watch(f"file://{folder}", theme=theme, width=width) as watched:
        watched.open("/r.html")
        page = watched.page
        assert page.locator("h2").all_inner_texts()[:3] == ["Summary", "Scores", "Comparison"]
        assert page.evaluate(CONTRASTS) == {}
        assert page.evaluate(_TOO_WIDE) == 0
        is_dark = page.evaluate(_GROUND) != "rgb(255, 255, 255)"
        assert is_dark == (theme == "dark")
        assert watched.requests == [f"file://{folder}/r.html"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_paper_is_light(browser: Browser, folder: Path, theme: Theme) -> None:
    with browser.watch(f"file://{folder}", theme=theme, width=794) as watched:
        watched.open("/r.html")
        watched.page.emulate_media(media="print", color_scheme=theme)
        assert watched.page.evaluate(_GROUND) == "rgb(255, 255, 255)"
        assert watched.page.evaluate(CONTRASTS) == {}
        assert watched.page.evaluate(_TOO_WIDE) == 0
        assert watched.page.pdf(format="A4")[:5] == b"%PDF-"


def test_what_is_folded_opens_with_the_keyboard(browser: Browser, folder: Path) -> None:
    with browser.watch(f"file://{folder}") as watched:
        watched.open("/r.html")
        folded = watched.page.locator("details.provenance")
        assert folded.get_attribute("open") is None
        folded.locator("summary").first.focus()
        watched.page.keyboard.press("Enter")
        assert folded.get_attribute("open") is not None
        assert watched.page.locator(".provenance table").first.is_visible()
