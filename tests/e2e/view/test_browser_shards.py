"""A sharded run in a browser: it grows on one page while several workers write, and every page of it opens."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import finish, wait_until
from tests.e2e.sharded_runs import SAMPLES, SHARDS, write_run
from tests.e2e.test_shards import worker
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser
from tests.e2e.view.served import links_in
from tests.e2e.view.test_browser_live import wait_for_text
from tests.e2e.view.viewers import Viewer

pytestmark = [NEEDS_CHROMIUM, pytest.mark.long]

PAGE = "/runs/sums/x"


def test_a_sharded_run_grows_on_its_page_and_all_its_pages_open(browser: Browser, tmp_path: Path) -> None:
    # It takes a quarter of a minute, so that the page is open before the run has ended.
    with start_server_process(Behaviour(latency_seconds=0.5)) as server, ExitStack() as stack:
        spec = write_run(tmp_path, server)
        workers = [stack.enter_context(worker(tmp_path, spec)) for _ in range(2)]
        for each in workers:
            stack.callback(each.kill)
        assert wait_until(lambda: server.stats().requests > 10, workers[0])
        with Viewer("runs", cwd=tmp_path) as viewer, browser.watch(viewer.url, viewer.link) as watched:
            page = watched.page
            watched.open(PAGE)
            page.evaluate("window.marker = 1")
            wait_for_text(page, "#state", "running")
            assert [finish(each).code for each in workers] == [0, 0]
            wait_for_text(page, "#state", "completed")
            wait_for_text(page, "#head", f"{SAMPLES} finished")
            wait_for_text(page, "#shards", f"12/{SHARDS}")
            assert page.locator("#shards tbody tr").count() == SHARDS
            assert page.evaluate("window.marker") == 1  # the page was never loaded again
            links = {each for each in links_in(page.content()) if each.startswith("/") and "download" not in each}
            assert any(each.startswith(f"{PAGE}/samples") for each in links)
            for address in sorted(links):
                assert watched.open(address).status == 200, address
            watched.open(f"{PAGE}/samples?limit=200")
            rows = page.locator("main tbody tr")
            assert rows.count() == SAMPLES
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            page.wait_for_url("**/samples/sums/arith/**")
            assert "finished" in page.locator("main").inner_text()
