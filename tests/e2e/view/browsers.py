"""A real browser that reports everything that goes wrong on a page: errors, violations, dialogs, foreign requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), "")
NEEDS_CHROMIUM = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: tools/system-packages chromium")
REBOUND = "rebound.example"
"""A name that leads to this machine, as after DNS rebinding."""
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
)
_WATCH = """
(() => {
  window.addEventListener("securitypolicyviolation", (event) => {
    console.error(`violation of ${event.violatedDirective}: ${event.blockedURI}`);
  });
  let value;
  Object.defineProperty(window, "pwned", {
    get: () => value,
    set: (given) => { value = given; console.error(`executed: ${given}`); },
  });
})();
"""
"""Runs before every script of a page."""
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((each) => each / 255)
      .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return channels(getComputedStyle(document.documentElement).colorScheme === "dark" ? "black" : "white");
  };
  const found = {};
  for (const element of document.querySelectorAll("header *, main *")) {
    const own = [...element.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest(".skip, option")) continue;
    const style = getComputedStyle(element);
    const colour = channels(element.ownerSVGElement ? style.fill : style.color);
    const [a, b] = [light(colour), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found[`${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`] = ratio;
  }
  return found;
}"""
"""The texts of a page that stand out too little from their ground, with their contrast."""
Theme = Literal["light", "dark"]


class Watched:
    """A page of the browser that remembers its problems. `home`: the only address that it may load anything from."""

    def __init__(self, context: Any, home: str) -> None:
        self.page = context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of problems that the test expects."""
        self._home = home
        page = self.page
        page.add_init_script(_WATCH)
        page.on("console", lambda message: self._log(message))
        page.on("pageerror", lambda error: self._add(f"error: {error}"))
        page.on("dialog", self._dismiss)
        page.on("popup", lambda popup: self._add(f"popup: {popup.url}"))
        page.on("download", lambda download: self._add(f"download: {download.url}"))
        page.on("websocket", lambda socket: self._add(f"socket: {socket.url}"))
        page.on("request", lambda request: self._see(request.url))
        page.on("requestfailed", self._see_failure)

    def open(self, address: str) -> Any:
        """Load an address of the server, and wait until its scripts have run. Returns the response."""
        return self.page.goto(address if "://" in address else f"{self._home}{address}", wait_until="load")

    def check(self) -> None:
        assert self.problems == []

    def _add(self, problem: str) -> None:
        if not any(part in problem for part in self.expected):
            self.problems.append(problem)

    def _dismiss(self, dialog: Any) -> None:
        self._add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _log(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._add(f"{message.type}: {message.text}")

    def _see(self, address: str) -> None:
        self.requests.append(address)
        if not address.startswith((f"{self._home}/", "data:image/")):
            self._add(f"request to another site: {address}")

    def _see_failure(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page that is left ends its event stream
            self._add(f"failed: {request.url}: {request.failure}")


class Browser:
    """Debian's Chromium, driven by Playwright."""

    def __init__(self, launched: Any) -> None:
        self._launched = launched
        self._admitted: dict[str, Any] = {}
        """The cookies that each link of a server has given."""

    @contextmanager
    def context(
        self, *, width: int = 1400, height: int = 900, theme: Theme = "light", scripts: bool = True, state: Any = None
    ) -> Iterator[Any]:
        """Its own cookies, or those of `state`."""
        made = self._launched.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            java_script_enabled=scripts,
            storage_state=state,
        )
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def watch(self, home: str, link: str = "", **settings: Any) -> Iterator[Watched]:
        """A page that may only load from `home`. `link`: opened first, for its cookie."""
        with self.context(**settings) as context:
            watched = Watched(context, home)
            if link:
                watched.open(link)
            yield watched
            watched.check()

    @contextmanager
    def visit(self, home: str, link: str, **settings: Any) -> Iterator[Watched]:
        """As `watch`, on an empty page: the link is opened once, and later visits have its cookie."""
        if link not in self._admitted:
            with self.watch(home, link) as watched:
                self._admitted[link] = watched.page.context.storage_state()
        with self.watch(home, state=self._admitted[link], **settings) as watched:
            yield watched


@contextmanager
def launch() -> Iterator[Browser]:
    """Not in a fixture of the whole session: while it is open, this thread cannot run another event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        try:
            yield Browser(launched)
        finally:
            launched.close()
