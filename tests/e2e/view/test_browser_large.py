"""The list of 200,000 samples in a browser: paged, sorted, filtered, searched, and open at any sample."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser
from tests.e2e.view.viewers import Viewer
from tests.unit.view.listed_runs import MODELS, REPEATS, ListedRun

pytestmark = [NEEDS_CHROMIUM, pytest.mark.long]

SAMPLES = 200_000
FAILED_EVERY = 1_000
LIST = "/runs/e/r/samples"
PATIENCE_MS = 600_000
"""For the list, which is made in the background when it is opened first."""


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A run made of records, without the engine: every thousandth sample failed, one answer has a rare word."""
    folder: Path = tmp_path_factory.mktemp("large")
    run = ListedRun(folder, SAMPLES // REPEATS // len(MODELS))
    ends = []
    for o in range(run.count):
        text = "a zebra" if o == SAMPLES // 2 + 1 else f"answer {o}"
        ends.append(
            run.failed(o, "server", f"status {o}") if o % FAILED_EVERY == 0 else run.finished(o, text, o / 1000)
        )
    run.append([*ends, run.ended()])
    with Viewer("runs", cwd=folder) as made:
        yield made


def test_a_list_of_200_000_samples_is_paged_sorted_filtered_and_searched(browser: Browser, viewer: Viewer) -> None:
    with browser.watch(viewer.url, viewer.link) as watched:
        page = watched.page
        page.set_default_timeout(PATIENCE_MS)
        watched.open(f"{LIST}?q=zebra")  # also the words are indexed on request
        page.locator("[data-poll]").wait_for(state="detached")
        watched.open(f"{LIST}?q=zebra")
        assert page.locator("table.samples tbody tr").count() == 1
        assert "a zebra" in page.locator("table.samples tbody").inner_text()

        watched.open(LIST)
        assert f"{SAMPLES:,} samples, 100 on this page" in page.locator("#samples").inner_text()
        first = page.locator("table.samples tbody tr a").first.inner_text()
        page.keyboard.press("n")
        page.wait_for_url("**after=*")
        assert page.locator("table.samples tbody tr").count() == 100
        assert page.locator("table.samples tbody tr a").first.inner_text() != first
        page.keyboard.press("p")
        page.wait_for_url("**before=*")
        assert page.locator("table.samples tbody tr a").first.inner_text() == first

        page.get_by_role("link", name="time", exact=True).click()
        page.wait_for_url("**sort=-seconds*")
        page.locator("[data-poll]").wait_for(state="detached")
        watched.open(f"{LIST}?sort=-seconds")
        assert f"answer {SAMPLES - 1}" in page.locator("table.samples tbody tr").first.inner_text()

        page.locator("select[name=status]").select_option("failed")
        page.get_by_role("button", name="Apply").click()
        page.wait_for_url("**status=failed*")
        assert f"{SAMPLES // FAILED_EVERY:,} match" in page.locator("#samples").inner_text()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/samples/add/**")
        assert "server" in page.locator("#answer").inner_text()
