"""What people need who use a keyboard, a screen reader, or a screen with little contrast."""

import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.commands import run, write_spec
from tests.e2e.view.addresses import EACH_PATH, every_address
from tests.e2e.view.browsers import CONTRASTS, NEEDS_CHROMIUM, Browser, Theme, Watched
from tests.e2e.view.viewers import Viewer

pytestmark = NEEDS_CHROMIUM

_UNNAMED = """() => {
  const name = (each) => each.getAttribute("aria-label") || each.title || (each.labels && each.labels.length)
    || each.getAttribute("aria-labelledby") || each.textContent.trim();
  const fields = [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
    .filter((each) => !(each.getAttribute("aria-label") || (each.labels && each.labels.length)));
  const others = [...document.querySelectorAll("a[href], button, summary, dialog, nav, meter, svg[role=img]")]
    .filter((each) => !name(each));
  const images = [...document.querySelectorAll("img:not([alt])")];
  return [...fields, ...others, ...images].map((each) => each.outerHTML.slice(0, 200));
}"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several states, so that pages show all of their colours."""
    folder = tmp_path_factory.mktemp("accessible")
    (folder / "own.py").write_text(
        "async def answer(request):\n"
        "    if '2 + ' in str(request.messages[-1]['content']):\n"
        "        raise ValueError('no')\n"
        "    return '8'\n"
    )
    assert run("run", write_spec(folder, tags=["nightly"], description="a try"), "--id", "one", cwd=folder).code == 0
    spec = write_spec(folder, model={"provider": "own:answer", "options": {}}, task={"sample_retries": 0})
    assert run("run", spec, "--id", "two", cwd=folder).code == 1
    assert run("run", write_spec(folder), "--id", "bad", cwd=folder).code == 0
    for segment in (folder / "runs" / "sums" / "bad" / "journal").iterdir():
        segment.write_bytes(b"damaged")
    return folder / "runs"


@pytest.fixture(scope="module")
def viewer(store: Path) -> Iterator[Viewer]:
    with Viewer("runs", cwd=store.parent) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(store: Path) -> dict[str, str]:
    return every_address(store, "sums", "one", "sums/arith/s0001/1")


@pytest.fixture(scope="module", params=EACH_PATH)
def opened(
    request: pytest.FixtureRequest, browser: Browser, viewer: Viewer, addresses: dict[str, str]
) -> Iterator[Watched]:
    """Each page, loaded once for the tests that only look at it."""
    with browser.visit(viewer.url, viewer.link) as watched:
        watched.open(addresses[request.param])
        yield watched


def test_every_control_has_a_name(opened: Watched) -> None:
    assert opened.page.evaluate(_UNNAMED) == []
    assert opened.page.evaluate("document.documentElement.lang") == "en"
    opened.check()


def test_headings_are_in_order_and_landmarks_are_there(opened: Watched) -> None:
    read = "[...document.querySelectorAll('main :is(h1, h2, h3, h4)')].map((each) => Number(each.tagName[1]))"
    levels = opened.page.evaluate(read)
    assert levels[:1] == [1]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    for landmark in ("header", "main", "nav"):
        assert opened.page.locator(landmark).count() >= 1
    twice = "[...document.querySelectorAll('[id]')].map((each) => each.id)"
    ids = opened.page.evaluate(twice)
    assert len(ids) == len(set(ids))
    opened.check()


def test_the_focus_is_visible_wherever_tab_leads(opened: Watched) -> None:
    read = """() => {
      const style = getComputedStyle(document.activeElement);
      return [document.activeElement.tagName, style.outlineStyle, parseFloat(style.outlineWidth)];
    }"""
    for _ in range(25):
        opened.page.keyboard.press("Tab")
        name, style, width = opened.page.evaluate(read)
        assert name == "BODY" or (style != "none" and width >= 1), (name, style, width)
    opened.check()


@pytest.mark.parametrize("path", EACH_PATH)
def test_every_text_stands_out_from_its_ground(
    browser: Browser, viewer: Viewer, addresses: dict[str, str], path: str
) -> None:
    every = [addresses[path], addresses[path].replace("/one", "/two"), addresses[path].replace("/one", "/bad")]
    with browser.visit(viewer.url, viewer.link) as watched:
        watched.expected = ("status of 4",)  # a page of a run that cannot be read
        for address in dict.fromkeys(every):
            watched.open(address)
            watched.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            for theme in ("light", "dark"):
                watched.page.emulate_media(color_scheme=theme)
                assert watched.page.evaluate(CONTRASTS) == {}, (address, theme)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pair_of_the_palette_has_enough_contrast(theme: Theme) -> None:
    """Also the pairs that no page of these tests shows."""
    css = (files("holdfast.view") / "static" / "view.css").read_text()
    dark = "".join(re.findall(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n\}", css, re.S))
    light = re.sub(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}", "", css, flags=re.S)
    roots = re.findall(r":root \{(.*?)\}", dark if theme == "dark" else light, re.S)
    palette = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", "".join(roots)))
    grounds = [name for name in palette if name.endswith("ground")] + ["raised"]
    for ink in ("ink", "quiet", "accent"):
        for ground in ("ground", "raised", "info-ground"):
            assert contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
    for name in ("good", "bad", "warn"):
        for ground in (f"{name}-ground", "ground", "info-ground"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
    for name in palette:
        if re.fullmatch(r"s\d", name):  # the lines and marks of charts
            assert contrast(palette[name], palette["ground"]) >= 3, name
    for ground in grounds:
        assert contrast(palette["ink"], palette[ground]) >= 4.5, ground


def contrast(one: str, other: str) -> float:
    """As the guidelines for accessible pages (WCAG) define it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
