"""The order of the list of samples: columns of the row, other evaluations, and the neighbours of a sample."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.report import ExportLine
from holdfast.score import as_number
from holdfast.view.links import Links
from holdfast.view.page import PageRequest
from holdfast.view.pages.list_state import encode_list
from holdfast.view.pages.sample import page as sample_page
from holdfast.view.pages.sample import repeats
from holdfast.view.sources import RunRef, Sources
from holdfast.view.table import queries
from holdfast.view.table.words import column_rank
from tests.unit.view.listed_runs import MODELS, ListedRun, exported, page
from tests.unit.view.test_sample_table import read_all, read_backwards

SAMPLES = 30
ALL = SAMPLES * 2 * len(MODELS)


@pytest.fixture
def run(tmp_path: Path) -> ListedRun:
    made = ListedRun(tmp_path, SAMPLES)
    made.fill(1, range(0, ALL, 1))
    return made


@pytest.fixture
def sources(run: ListedRun) -> Iterator[Sources]:
    opened = Sources([], str(run.store))
    yield opened
    opened.close()


def test_samples_are_sorted_by_the_kind_of_their_error(sources: Sources) -> None:
    kinds = [line.kind for line in read_all(sources, 7, sort="-kind")]
    assert len(kinds) == ALL
    runs = [kind for at, kind in enumerate(kinds) if not at or kinds[at - 1] != kind]
    assert sorted(runs) == ["", "server", "timeout"], "samples of the same kind are beside each other"
    assert runs[-1] == "", "samples without an error come last"


# Other evaluations.


def test_the_scores_of_any_evaluation_are_listed_filtered_and_sorted(run: ListedRun, sources: Sources) -> None:
    first = [line.key for line in read_all(sources, 50, scorer="right", score="right")]
    done = [o for o, line in enumerate(exported(sources)) if line.status == "finished"]
    run.append([run.scoring("second")])
    run.append([run.score(o, "grade", o % 4, "second", last=True) for o in done])
    assert page(sources).choices.scorers == ["grade"]
    earlier: dict[str, Any] = {"evaluation": "evaluation-1"}
    found = page(sources, **earlier)
    assert found.choices.scorers == ["length", "right"]
    assert (found.evaluation, found.is_current) == ("evaluation-1", False)
    assert [line.key for line in read_all(sources, 50, scorer="right", score="right", **earlier)] == first
    lines = {line.key: line.scores for line in read_all(sources, 50, **earlier)}
    with sources.open(RunRef("e", "r")) as viewed:
        told = {line.key: line.values for line in viewed.lines("evaluation-1")}
    right = {key: scores["right"] for key, scores in lines.items() if "right" in scores}
    assert right == {key: values["right"] for key, values in told.items() if "right" in values}
    lengths = [line.scores["length"] for line in read_all(sources, 50, sort="-score:length", **earlier)]
    assert lengths == sorted(lengths, reverse=True)
    assert {line.key for line in read_all(sources, 50, wrong=1, **earlier)} == {
        key for key, values in told.items() if any(as_number(value) == 0 for value in values.values())
    }
    grades = [line.scores["grade"] for line in read_all(sources, 50, sort="score:grade", evaluation="second")]
    assert grades == sorted(o % 4 for o in done)
    with pytest.raises(UsageError, match="has no evaluation"):
        page(sources, evaluation="third")


def test_the_list_of_an_earlier_evaluation_follows_scores_that_are_set_by_hand(
    run: ListedRun, sources: Sources
) -> None:
    o = next(o for o, line in enumerate(exported(sources)) if line.values.get("right") is False)
    run.append([run.scoring("second")])
    given: dict[str, Any] = {"evaluation": "evaluation-1", "scorer": "right", "score": "right"}
    assert run.keys[o] not in {line.key for line in read_all(sources, 50, **given)}
    run.append([run.score(o, "right", True, author="me", at="2026-01-01T00:00:00Z")])
    assert run.keys[o] in {line.key for line in read_all(sources, 50, **given)}


def test_repeats_are_shown_with_the_scores_of_a_chosen_evaluation(run: ListedRun, sources: Sources) -> None:
    line = next(line for line in exported(sources) if line.values)
    run.append([run.scoring("second")])
    run.append([run.score(run.keys.index(line.key), "grade", 7, "second", last=True)])
    names = dict(zip(("task", "model", "sample"), line.key.split("/"), strict=False))

    def scores(**query: str) -> dict[str, Any]:
        path = {"experiment": "e", "run": "r", **names}
        found = repeats.load(PageRequest(sources, path, query))
        return next(each.scores for each in found.models[0].repeats if each.key == line.key)

    assert scores() == {"grade": 7}
    assert scores(evaluation="evaluation-1").keys() == line.scores.keys()


# Neighbours.


def sample(sources: Sources, key: str, listed: str, **query: str) -> sample_page.SampleView:
    names = dict(zip(("task", "model", "sample", "repeat"), key.split("/"), strict=True))
    path = {"experiment": "e", "run": "r", **names}
    return sample_page.load(PageRequest(sources, path, {"list": listed, **query}))


@pytest.mark.parametrize(
    "query",
    [
        {"status": "failed"},
        {"sort": "-seconds", "model": "large"},
        {"sort": "score:length", "scorer": "right", "wrong": "1"},
        {"sort": "-row.answer", "status": "finished"},
        {"q": "gamma", "sort": "tokens"},
        {"row.level": "3"},
        {},
    ],
)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_previous_and_next_follow_the_list_that_the_reader_comes_from(
    sources: Sources, query: dict[str, str], is_indexed: bool
) -> None:
    if is_indexed:
        page(sources, index="answer")
        page(sources, index="level")
    keys = [line.key for line in read_all(sources, 50, **{name.replace(".", "__"): v for name, v in query.items()})]
    assert len(keys) > 5
    listed = encode_list(query)
    for at in (0, 1, len(keys) // 2, len(keys) - 1):
        found = sample(sources, keys[at], listed).neighbours
        assert found.previous == (keys[at - 1] if at else "")
        assert found.next == (keys[at + 1] if at + 1 < len(keys) else "")


def test_a_sample_that_has_left_its_list_still_leads_to_its_neighbours(run: ListedRun, sources: Sources) -> None:
    keys = [line.key for line in read_all(sources, 50, status="unfinished")]
    run.append([run.finished(run.keys.index(keys[1]), "done")])
    found = sample(sources, keys[1], "status=unfinished").neighbours
    assert (found.previous, found.next) == (keys[0], keys[2])


def test_links_of_a_sample_keep_its_list_and_its_evaluation(run: ListedRun, sources: Sources) -> None:
    run.append([run.scoring("second")])
    keys = [line.key for line in read_all(sources, 50, status="finished", evaluation="evaluation-1")]
    found = sample(sources, keys[1], "status=finished&columns=sample", evaluation="evaluation-1")
    shown = str(sample_page.render(found, Links()).content)
    address = Links().sample(found.ref, keys[2], evaluation="evaluation-1", list="status=finished&columns=sample")
    assert f'href="{escape(address)}" rel="next"' in shown
    assert "samples?evaluation=evaluation-1&amp;status=finished&amp;columns=sample" in shown
    assert f'href="{escape(Links().repeats(found.ref, keys[1], evaluation="evaluation-1"))}"' in shown
    assert "right, length #1" in shown
    assert "right, length #2" in shown


@pytest.mark.parametrize("listed", ["sort=size", "status=done", "limit=x", "sort=score:nothing"])
def test_a_list_that_makes_no_sense_is_refused(sources: Sources, listed: str) -> None:
    with pytest.raises(UsageError):
        sample(sources, "add/small/q1/1", listed)


# Columns of the row.


def sorted_keys(lines: list[ExportLine], column: str, *, is_down: bool, **given: str) -> list[str]:
    found = [
        (column_rank((line.row or {})[column]), o, line.key)
        for o, line in enumerate(lines)
        if all(getattr(line, name) == value for name, value in given.items())
        and (line.row or {}).get(column) is not None
    ]
    found.sort(key=lambda each: (isinstance(each[0], str), *each), reverse=is_down)
    return [key for _, _, key in found]


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("column", ["answer", "question", "sparse", "mixed", "odd"])
def test_samples_are_sorted_by_a_column_of_the_row_with_numbers_as_numbers(
    run: ListedRun, sources: Sources, column: str, is_indexed: bool
) -> None:
    if is_indexed:
        page(sources, index=column)
    lines = exported(sources)
    for sign in ("", "-"):
        for given in ({}, {"status": "failed"}, {"model": "large", "status": "finished"}):
            keys = sorted_keys(lines, column, is_down=bool(sign), **given)
            assert keys
            query = {"sort": f"{sign}row.{column}", **given}
            assert [line.key for line in read_all(sources, 17, **query)] == keys, query
            assert [line.key for line in read_backwards(sources, 17, **query)] == keys, query
            found = page(sources, limit=17, **query)
            assert (found.total, found.exact) == (len(keys), True)


def test_an_order_by_a_column_goes_with_filters_and_a_search(sources: Sources) -> None:
    for index in ("", "answer", "level"):
        found = read_all(sources, 5, index=index, sort="-row.answer", row__level=3, q="what")
        numbers = [int(line.target) for line in found]
        assert numbers == sorted(numbers, reverse=True)
        assert len(found) == ALL // 5


def test_without_an_index_the_first_matches_are_sorted_and_the_page_says_so(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LOOKED_MAX", 20)
    found = page(sources, sort="-row.answer")
    assert [line.o for line in found.samples] == [o for pair in range(9, -1, -1) for o in (2 * pair + 1, 2 * pair)]
    assert (found.total, found.exact) == (20, False)
    assert any("only the first 20 matches" in note for note in found.notes)
    filtered = page(sources, sort="row.answer", row__level=3)
    assert (filtered.total, filtered.exact) == (20, False)
    assert not any("looks further" in note for note in filtered.notes)
    page(sources, index="answer")
    assert len(read_all(sources, 50, sort="-row.answer")) == ALL
    assert not any("first 20" in note for note in page(sources, sort="-row.answer").notes)


def test_a_column_that_no_row_has_lists_nothing_and_is_not_indexed(sources: Sources) -> None:
    found = page(sources, sort="row.nothing")
    assert (found.samples, found.total, found.next) == ([], 0, None)
    with pytest.raises(UsageError, match="no row has a column 'nothing'"):
        page(sources, index="nothing")
    assert page(sources).choices.indexed == []


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (3, 3.0),
        (True, 1.0),
        ("12", 12.0),
        ("-1.5e3", -1500.0),
        ("1_0", "1_0"),
        ("nan", "nan"),
        ("٣", "٣"),
        (10**400, f"{'1' + '0' * 198}…"),
        ("1e999", "1e999"),
        (["a"], '["a"]'),
    ],
)
def test_numbers_in_texts_rank_as_numbers(value: Any, rank: float | str) -> None:
    assert column_rank(value) == rank
