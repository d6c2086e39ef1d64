"""Several stores with runs of the same name: each row of the list opens its own run."""

import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.e2e.commands import call, write_spec
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser
from tests.e2e.view.served import Served, links_in, serving
from tests.e2e.view.viewers import Viewer
from tests.mirrors import RUN, SAMPLES, run_and_mirror

_NAME = f"/runs/sums/{RUN}"
_OTHERS = 5
"""Samples of the other run of that name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mirror`: of the run. `others`: another run of its name. `copies`: a copy; `cut`: a damaged one."""
    made = tmp_path_factory.mktemp("several")
    kept = run_and_mirror(made)
    spec = write_spec(made, _OTHERS)
    done = call("run", spec, "--id", RUN, "--store", made / "others", cwd=made)
    assert done.code == 0, done.said
    shutil.copytree(kept.store, made / "copies")
    shutil.copytree(kept.store, made / "cut")
    for path in (made / "cut" / "sums" / RUN / "journal").iterdir():
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + b"\0" + content[len(content) // 2 + 1 :])
    return made


def rows(viewer: Served) -> dict[str, str]:
    """The address of the run in the row of each store."""
    found = {}
    for row in viewer.html("/").split("<tr>"):
        address = next((each for each in links_in(row) if each.startswith(_NAME)), "")
        if address:
            found[re.findall(r"<td>([^<]+)</td>", row)[-1]] = address
    return found


def planned(viewer: Served, address: str) -> int:
    return int(viewer.json(address)["summary"]["planned"])


def test_a_mirrored_run_opens_beside_another_run_of_its_name(folder: Path) -> None:
    url = f"file://{folder / 'mirror'}"
    with serving(folder / "others", url) as viewer:
        found = rows(viewer)
        assert planned(viewer, found[str(folder / "others")]) == _OTHERS
        assert planned(viewer, found[url]) == SAMPLES
        assert viewer.get(_NAME)[0] == 404


def test_a_run_and_its_copy_in_a_mirror_are_opened_from_where_they_are(folder: Path) -> None:
    url = f"file://{folder / 'mirror'}"
    with serving(folder / "runs", url) as viewer:
        found = rows(viewer)
        folders = {each: viewer.json(address)["summary"]["folder"] for each, address in found.items()}
        assert folders[str(folder / "runs")].startswith(str(folder / "runs"))
        assert not folders[url].startswith(str(folder / "runs"))


def test_the_copy_that_was_clicked_opens_and_links_stay_with_it(folder: Path) -> None:
    with serving(folder / "copies", folder / "cut") as viewer:
        found = rows(viewer)
        for _ in range(2):  # also when both are open already
            for name in ("copies", "cut"):
                summary = viewer.json(found[str(folder / name)])["summary"]
                assert summary["folder"].startswith(str(folder / name))
                assert bool(summary["damage"] or summary["anomalies"]) == (name == "cut")
        links = [each for each in links_in(viewer.html(found[str(folder / "copies")])) if each.startswith("/runs/")]
        store = re.findall(r"store=\d", found[str(folder / "copies")])[0]
        assert links
        assert all(store in each for each in links)
        samples = viewer.html(next(each for each in links if each.startswith(f"{_NAME}/samples")))
        assert re.search(rf'type="hidden" name="store" value="{store[-1]}"', samples)


def test_runs_of_one_name_are_ranked_and_compared_each_with_its_own_samples(folder: Path) -> None:
    """Three runs of the same experiment and id: one is a copy, one has fewer samples."""
    with serving(folder / "runs", folder / "others", folder / "copies") as viewer:
        stores = {each["source"]: each for each in viewer.json("/runs")["runs"]}
        own = {f"{each['summary']['folder']}": _planned(each) for each in stores.values()}
        board = viewer.json("/leaderboard")
        ranked = board["result"]["boards"][0]["ranked"]
        assert {each["run"] for each in ranked} == own.keys(), "each run has a name of its own"
        page = viewer.html("/leaderboard")
        for name, count in own.items():
            address = next(unescape(each) for each in re.findall(rf'href="([^"]+)">{re.escape(name)}</a>', page))
            assert viewer.json(address)["summary"]["folder"] == name, "the link opens the run of the row"
            assert planned(viewer, address) == count
        assert all(name in board["command"] for name in list(own)[1:]), "each run can be found by the command"
        addresses = {each: rows(viewer)[each] for each in stores}
        names = [_run_name(addresses[str(folder / each)]) for each in ("runs", "copies", "others")]
        found = viewer.json(f"/compare?{urlencode({'run': names, 'change': 'all'}, doseq=True)}")
        second = [each["second"]["run"] for each in found["result"]["comparisons"]]
        assert sorted(second) == sorted(str(folder / each / "sums" / RUN) for each in ("copies", "others"))
        assert len({sum(each["counts"].values()) for each in found["changes"]}) == 2, "each has its own counts"


def _planned(listed: Any) -> int:
    return int(listed["summary"]["planned"])


def _run_name(address: str) -> str:
    """A run as the query of a comparison names it."""
    path, _, query = unescape(address).partition("?")
    given = dict(parse_qsl(query))
    return f"{path.removeprefix('/runs/')}:{given.get('uid', '')}::{given.get('store', '')}".rstrip(":")


def test_an_address_with_the_number_of_a_store_that_is_not_open_shows_no_run(folder: Path) -> None:
    with serving(folder / "copies") as viewer:
        assert viewer.get(f"{_NAME}?store=1")[0] == 200
        assert viewer.get(f"{_NAME}?store=2")[0] == 404


@NEEDS_CHROMIUM
def test_a_mirrored_run_opens_in_a_browser(browser: Browser, folder: Path) -> None:
    url = f"file://{folder / 'mirror'}"
    with (
        Viewer(folder / "others", url, cwd=folder) as viewer,
        browser.watch(viewer.url, viewer.link) as watched,
    ):
        page = watched.page
        page.locator("#runs tbody tr", has_text=url).get_by_role("link").first.click()
        page.wait_for_url(f"**{_NAME}?uid=*")
        assert f"{SAMPLES} finished" in page.locator("#head").inner_text()
        page.get_by_role("link", name="Samples").click()
        page.wait_for_url("**/samples?uid=*")
        assert page.locator("table.samples tbody tr").count() == SAMPLES
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/samples/sums/arith/**")
        assert "finished" in page.locator("main").inner_text()
