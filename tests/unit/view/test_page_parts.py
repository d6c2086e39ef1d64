"""Parts of pages: counts, alignment, advice, and when the form for hand-set scores appears."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from holdfast.records import RunEnded, draft
from holdfast.runs.compare.comparability import of_several
from holdfast.view.layout import badge, table
from holdfast.view.links import Editing, Links
from holdfast.view.page import PageRequest
from holdfast.view.pages import PAGES, errors, history, lineage, runs, samples
from holdfast.view.pages import run as overview
from holdfast.view.pages.evaluations import without_option
from holdfast.view.pages.history import HistoryBoard, HistoryPoint, HistoryRun, HistorySeries, HistoryView
from holdfast.view.pages.sample import page as sample
from holdfast.view.sources import ListedRun as ListedSummary
from holdfast.view.sources import RunRef, Sources
from tests.unit.view.listed_runs import MODELS, SPEC, TASK, ListedRun

NAMES = {"experiment": "e", "run": "r"}


@pytest.fixture
def run(tmp_path: Path) -> ListedRun:
    return ListedRun(tmp_path, 3, {**SPEC, "models": [{"name": name, "provider": "mock"} for name in MODELS]})


@pytest.fixture
def sources(run: ListedRun) -> Iterator[Sources]:
    opened = Sources([], str(run.store))
    yield opened
    opened.close()


def test_columns_are_aligned_by_place_where_users_name_them() -> None:
    point = HistoryPoint(0, 0.5, 0.4, 0.6, 9, None, None)
    board = HistoryBoard("t", "s", [HistorySeries("run", [point]), HistorySeries("status", [point])])
    run = HistoryRun(RunRef("e", "r"), "completed", "2026-01-01T00:00", "", 9, 9, "")
    page = str(history.render(HistoryView("e", ["e"], [run], 1, [board]), Links()).content)
    heads = page[page.index("<thead>") : page.index("</thead>")]
    assert heads.count('<th scope="col">') == 3, "run, started and status of the viewer itself"
    assert heads.count('class="number"') == 4


def test_columns_are_aligned_by_name() -> None:
    assert str(table(["a", "b"], [], numbers={"b"})).count('class="number"') == 1


def test_pages_do_not_advise_options() -> None:
    run: Any = SimpleNamespace(
        run_id="r", evaluation_id=lambda: "e2", evaluation_names=lambda: {"e1": "one", "e2": "two"}
    )
    (warning,) = of_several([run], "")
    assert without_option(warning) == "r: scores of the evaluation e2 (two), one of 2"


def test_the_errors_page_says_first_what_stopped_the_run(run: ListedRun, sources: Sources) -> None:
    run.append([run.finished(0, "a"), draft("run.failed", RunEnded(1, 0, run.count - 1, reason="the disk is full"))])
    page = str(errors.render(errors.load(PageRequest(sources, NAMES, {})), Links()).content)
    first = page[page.index("<p") : page.index("</p>")]
    assert "The run is failed: the disk is full. " in first
    assert f'<a href="/runs/e/r/samples?status=unfinished">{run.count - 1} samples unfinished</a>' in first


def test_times_below_a_second_are_not_rounded_to_nothing(run: ListedRun, sources: Sources) -> None:
    run.append([run.finished(o, "a", seconds=0.02) for o in range(run.count)])
    page = str(overview.render(overview.load(PageRequest(sources, NAMES, {})), Links()).content)
    assert page.count(">20 ms</a>") == len(MODELS)
    assert "0.0 s" not in page


def test_the_life_of_a_run_that_failed_is_not_green(run: ListedRun, sources: Sources) -> None:
    run.append([run.resumed(), draft("run.failed", RunEnded(0, 0, run.count, reason="the disk is full"))])
    page = str(lineage.render(lineage.load(PageRequest(sources, NAMES, {})), Links()).content)
    assert 'class="life failed"' in page
    assert 'class="life ended"' not in page


def test_the_numbers_of_a_run_open_the_samples_behind_them(run: ListedRun, sources: Sources) -> None:
    run.append([run.finished(o, "a") for o in range(run.count - 1)])
    run.append([run.failed(run.count - 1, "server", "no answer")])
    run.append([run.score(o, "right", o % 2 == 0, last=True) for o in range(run.count - 1)])
    listed = str(runs.render(runs.load(PageRequest(sources, {}, {})), Links()).content)
    page = str(overview.render(overview.load(PageRequest(sources, NAMES, {})), Links()).content)
    given = {"status": "finished", "task": TASK, "model": MODELS[0], "scorer": "right"}
    for address in (
        Links().run(RunRef("e", "r"), "samples"),
        Links().run(RunRef("e", "r"), "samples", status="failed"),
        Links().run(RunRef("e", "r"), "samples", **given),
    ):
        assert f'href="{escape(address)}"' in listed
        samples.load(PageRequest(sources, NAMES, dict(parse_qsl(urlsplit(address).query)), is_data=True))
    assert '<a href="/runs/e/r/samples?sort=-tokens">' in page


def test_the_overview_counts_samples_and_repeats_as_the_report_does(run: ListedRun, sources: Sources) -> None:
    run.append([run.finished(o, "four") for o in range(run.count)])
    run.append([run.score(o, "right", True, last=True) for o in range(run.count)])
    page = str(overview.render(overview.load(PageRequest(sources, NAMES, {})), Links()).content)
    assert page.count('<td class="number">3 x 2</td>') == len(MODELS)


def test_the_form_for_hand_set_scores_comes_with_the_first_score_and_is_not_replaced(
    run: ListedRun, sources: Sources
) -> None:
    names = {**NAMES, "task": TASK, "model": MODELS[0], "sample": "q1", "repeat": "1"}
    links = Links()
    links.editing = Editing("token", "me")

    def page() -> str:
        return str(sample.render(sample.load(PageRequest(sources, names, {})), links).content)

    assert '<section id="hand-score" data-live></section>' in page()
    run.append([run.finished(0, "four")])
    run.append([run.score(0, "right", True, last=True)])
    assert '<section id="hand-score"><details id="edit">' in page()


def test_a_completed_run_with_failed_samples_is_not_green() -> None:
    assert str(badge("completed", "", 0, 9)) == '<span class="badge completed">completed</span>'
    assert str(badge("completed", "", 4, 9)) == '<span class="badge interrupted">completed, 4 failed</span>'
    assert str(badge("completed", "", 9, 9)) == '<span class="badge failed">completed, all 9 failed</span>'


def test_every_page_of_a_run_has_its_failed_samples_in_the_badge(run: ListedRun, sources: Sources) -> None:
    run.append([run.failed(o, "server", "no") if o < 4 else run.finished(o, "four") for o in range(run.count)])
    run.append([run.resumed(), *(run.failed(o, "server", "no") for o in range(4)), run.ended()])
    sample_names = {"task": TASK, "model": MODELS[0], "sample": "q1", "repeat": "1", "n": "4"}
    shown = []
    for page in PAGES:
        if page.path.startswith("/runs/{experiment}/{run}") and "{n}" not in page.path:
            body = page.render(page.load(PageRequest(sources, {**NAMES, **sample_names}, {})), Links())
            shown.append((page.path, body.status.failed, body.status.planned))
    assert len(shown) == 10
    assert [each for each in shown if each[1:] != (4, run.count)] == []


def test_live_updates_of_the_lineage_do_not_list_all_runs_each_time(
    run: ListedRun, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lists = sources.list, list[int]()

    def list_runs() -> list[ListedSummary]:
        lists.append(1)
        return real()

    monkeypatch.setattr(sources, "list", list_runs)
    for _ in range(3):
        lineage.load(PageRequest(sources, NAMES, {}))
    assert len(lists) == 1
    monkeypatch.setattr("holdfast.view.sources._PARENTS_SECONDS", -1.0)
    lineage.load(PageRequest(sources, NAMES, {}))
    assert len(lists) == 2
