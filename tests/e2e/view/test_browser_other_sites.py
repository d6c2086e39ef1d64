"""Pages of other sites in the same browser read nothing from the viewer, write nothing and cannot frame it."""

import http.server
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run, snapshot, write_spec
from tests.e2e.view.browsers import NEEDS_CHROMIUM, REBOUND, Browser
from tests.e2e.view.viewers import Viewer
from tests.servers import serve

pytestmark = [NEEDS_CHROMIUM, pytest.mark.long]

_ATTACK = """
async (home) => {
  const tried = {};
  const settle = (name, promise) => promise.then(
    (value) => { tried[name] = `read: ${value}`; }, (error) => { tried[name] = "refused"; });
  const load = (name, element, attribute, address) => settle(name, new Promise((done, fail) => {
    element.onload = () => done("loaded");
    element.onerror = fail;
    element[attribute] = address;
    document.body.append(element);
  }));
  const send = (name, address, options) => settle(name, fetch(address, {credentials: "include", ...options}).then(
    async (response) => `${response.type} ${(await response.text()).length}`));
  const all = [];
  for (const address of ["/", "/api/runs", "/runs/sums/x", "/api/runs/sums/x", "/static/view.js"]) {
    all.push(send(`fetch ${address}`, home + address, {}));
    all.push(send(`opaque fetch ${address}`, home + address, {mode: "no-cors"}));
    all.push(load(`script ${address}`, document.createElement("script"), "src", home + address));
    all.push(load(`image ${address}`, document.createElement("img"), "src", home + address));
    const style = document.createElement("link");
    style.rel = "stylesheet";
    all.push(load(`style ${address}`, style, "href", home + address));
  }
  all.push(send("post", `${home}/`, {method: "POST", mode: "no-cors", body: "value=1"}));
  all.push(send("post with a header", `${home}/`, {method: "POST", headers: {"X-A": "1"}, body: "value=1"}));
  all.push(settle("events", new Promise((done, fail) => {
    const stream = new EventSource(`${home}/api/runs/sums/x/events`, {withCredentials: true});
    stream.onopen = () => done("open");
    stream.onerror = () => { stream.close(); fail(); };
    for (const name of ["hello", "records"]) stream.addEventListener(name, done);
  })));
  await Promise.all(all);
  return tried;
}
"""


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A site with one empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>elsewhere</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the test's standard error."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sites")
    assert run("run", write_spec(made), "--id", "x", cwd=made).code == 0
    return made


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with Viewer("runs", cwd=folder) as made:
        yield made


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with serve(Elsewhere) as place:
        yield place.partition(":")[2]


@pytest.fixture
def visited(browser: Browser, viewer: Viewer, port: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of another site in a browser that has the viewer's cookie. To a browser, another port of 127.0.0.1 is the
    same site (it sends the cookie along); `localhost` is another one.
    """
    with browser.context() as context:
        page = context.new_page()
        page.goto(viewer.link)
        page.goto(f"http://{request.param}:{port}/")
        yield page


BOTH = pytest.mark.parametrize("visited", ["127.0.0.1", "localhost"], indirect=True)


@BOTH
def test_another_site_reads_nothing_and_writes_nothing(visited: Any, viewer: Viewer, folder: Path) -> None:
    before = snapshot(folder / "runs")
    tried = visited.evaluate(_ATTACK, viewer.url)
    assert len(tried) == 28
    assert {name: outcome for name, outcome in tried.items() if outcome != "refused"} == {}
    assert snapshot(folder / "runs") == before


@BOTH
def test_another_site_cannot_frame_a_page(visited: Any, viewer: Viewer) -> None:
    visited.evaluate(
        """(home) => new Promise((done) => {
            const frame = document.createElement("iframe");
            frame.onload = () => done();
            frame.src = `${home}/`;
            document.body.append(frame);
        })""",
        viewer.url,
    )
    assert len(visited.frames) == 2
    assert "Holdfast" not in visited.frames[1].content()
    assert visited.frames[1].url.startswith("chrome-error:")


@BOTH
def test_a_window_that_another_site_opens_is_out_of_its_reach(visited: Any, viewer: Viewer) -> None:
    with visited.expect_popup() as opened:
        visited.evaluate("(home) => { window.other = window.open(`${home}/`); }", viewer.url)
    opened.value.wait_for_load_state()
    assert opened.value.title() == "Runs · Holdfast"  # a link, to the server
    assert opened.value.evaluate("window.opener") is None
    read = "() => { try { return window.other.document.title; } catch (error) { return error.name; } }"
    assert visited.evaluate(read) in ("SecurityError", "TypeError")
    assert visited.evaluate("window.other.closed") is True


@BOTH
def test_a_form_of_another_site_writes_nothing(visited: Any, viewer: Viewer, folder: Path) -> None:
    before = snapshot(folder / "runs")
    for address in ("/", "/runs/sums/x", "/api/runs/sums/x"):
        with visited.expect_navigation() as went:
            visited.evaluate(
                """(address) => {
                    const form = document.createElement("form");
                    form.method = "post";
                    form.action = address;
                    document.body.append(form);
                    form.submit();
                }""",
                f"{viewer.url}{address}",
            )
        assert went.value.status in (401, 403, 405)
        visited.go_back()
    assert snapshot(folder / "runs") == before


@BOTH
def test_a_plain_link_of_another_site_works(visited: Any, viewer: Viewer) -> None:
    visited.evaluate(
        """(address) => {
            const link = document.createElement("a");
            link.href = address;
            link.textContent = "the run";
            document.body.append(link);
        }""",
        f"{viewer.url}/runs/sums/x",
    )
    visited.click("a")
    visited.wait_for_url(f"{viewer.url}/runs/sums/x")
    assert visited.locator("h1").inner_text() == "sums / x"


def test_a_site_whose_name_is_changed_to_this_machine_gets_nothing(browser: Browser, viewer: Viewer) -> None:
    """DNS rebinding: the page's own name now leads to the viewer, so the browser takes both for one site."""
    with browser.context() as context:
        page = context.new_page()
        for address in ("/", f"/?token={viewer.token}", "/api/runs"):
            response = page.goto(f"http://{REBOUND}:{viewer.port}{address}")
            assert response.status == 421
            assert viewer.token not in page.content()
        assert context.cookies() == []
        status = page.evaluate("fetch('/api/runs', {credentials: 'include'}).then((response) => response.status)")
        assert status == 421
