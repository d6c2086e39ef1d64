"""What only many answers tell together, and what the spec leaves of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.records import Draft, draft
from holdfast.records.facts import AnomaliesRechecked, Cell, RunStarted, SampleFinished, ScoreGiven, Spent, StoredFile
from holdfast.records.samples import Answer
from holdfast.report.anomalies import Anomalies, unlooked
from holdfast.score.anomalies import ANOMALIES_VERSION
from holdfast.state import AnswerRow, Index, index_pages
from holdfast.state.rows import MadeRow
from tests.unit.state.stories import EVALUATION, fold_of, new_run, scoring, write

LONG = "a long answer that nobody would give twice by chance, word by word, without a cache in between: " * 2


def begun(samples: int, repeats: int = 1, several: int = 1, **spec: Any) -> Draft:
    count = samples * repeats
    cells = tuple(Cell("t", f"m{i}", i * count, count, 0, 0) for i in range(several))
    warm = [{"name": f"m{i}", "params": {"temperature": 0.7}} for i in range(several)]
    told = {"models": warm, **spec}
    return draft("run.started", RunStarted("run", told, StoredFile(count * several, ""), StoredFile(count, ""), cells))


def answered(o: int, key: str, text: str = "yes", seconds: float = 0.1, **about: Any) -> Draft:
    finished = SampleFinished(o, 1, Answer(text), Spent(seconds=seconds), 1, **{"looked": ANOMALIES_VERSION, **about})
    return draft("sample.finished", finished, key)


def found(run: str) -> dict[str, list[str]]:
    """The keys that have each kind."""
    index = Index(run)
    try:
        anomalies = Anomalies(index, EVALUATION)
        told = [(kind, row.key) for row in index.answers() for kind in anomalies.of(row)]
    finally:
        index.close()
    return {kind: [key for each, key in told if each == kind] for kind, _ in told}


def repeated(texts: dict[str, list[str]], **spec: Any) -> list[Draft]:
    repeats = len(next(iter(texts.values())))
    keys = [(f"t/m0/{sample}/{n}", text) for sample, said in texts.items() for n, text in enumerate(said, 1)]
    return [begun(len(texts), repeats, **spec), *(answered(o, key, text) for o, (key, text) in enumerate(keys))]


def test_a_long_answer_that_is_the_same_in_all_repeats_at_a_temperature_is_found(tmp_path: Path) -> None:
    run = new_run(tmp_path, repeated({"a": [LONG, LONG], "b": [LONG, LONG + "."], "c": ["yes", "yes"]}))
    assert found(run) == {"identical": ["t/m0/a/1", "t/m0/a/2"]}


def test_equal_short_answers_are_found_only_if_no_sample_of_the_cell_differs(tmp_path: Path) -> None:
    same = {name: ["yes", "yes"] for name in "abcdef"}
    (tmp_path / "all").mkdir()
    (tmp_path / "some").mkdir()
    assert len(found(new_run(tmp_path / "all", repeated(same)))["identical"]) == 12
    assert found(new_run(tmp_path / "some", repeated(same | {"g": ["yes", "no"]}))) == {}


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"temperature": None}])
def test_without_a_temperature_equal_answers_are_as_they_should_be(tmp_path: Path, params: dict[str, Any]) -> None:
    records = repeated({"a": [LONG, LONG]}, models=[{"name": "m0", "params": params}])
    assert found(new_run(tmp_path, records)) == {}


def test_an_answer_that_took_far_longer_than_the_others_is_found(tmp_path: Path) -> None:
    times = [2.0 + (i % 7) / 5 for i in range(39)]
    records = [begun(40), *(answered(o, f"t/m0/{o}/1", str(o), each) for o, each in enumerate([*times, 60.0]))]
    assert found(new_run(tmp_path, records)) == {"slow": ["t/m0/39/1"]}


@pytest.mark.parametrize(
    "times",
    [
        [0.001] * 39 + [0.4],
        [2.0**i for i in range(40)],
        [1.0] * 5 + [99.0],
        [0.0] * 40,
        [1 + i / 10 for i in range(40)],
    ],
    ids=["by less than a person cares for", "widely spread", "too few to tell", "no times", "evenly spread"],
)
def test_other_times_are_not_called_slow(tmp_path: Path, times: list[float]) -> None:
    records = [begun(len(times)), *(answered(o, f"t/m0/{o}/1", str(o), each) for o, each in enumerate(times))]
    assert found(new_run(tmp_path, records)) == {}


def scores(*values: Any) -> list[Draft]:
    """Of answers in the records 2, 3, …, behind the one that began the run and that of the evaluation."""
    keys = ["t/m0/a/1", "t/m0/b/1", "t/m1/a/1", "t/m1/b/1"]
    return [draft("score", ScoreGiven(o, o + 4, EVALUATION, "right", value), keys[o]) for o, value in enumerate(values)]


def two_models(*texts: str) -> list[Draft]:
    keys = ["t/m0/a/1", "t/m0/b/1", "t/m1/a/1", "t/m1/b/1"]
    return [begun(2, several=2), scoring(), *(answered(o, keys[o], text) for o, text in enumerate(texts))]


def test_equal_answers_to_a_sample_with_different_scores_are_found_in_every_model(tmp_path: Path) -> None:
    run = new_run(tmp_path, [*two_models("yes", "yes", "yes", "yes"), *scores(1.0, 0.0, 0.0, 0.0)])
    assert found(run) == {"scores_differ": ["t/m0/a/1", "t/m1/a/1"]}


def test_only_pages_that_have_changed_are_searched_for_different_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_pages, "PAGE_KEYS", 1)
    run = new_run(tmp_path, [*two_models("yes", "yes", "yes", "yes"), *scores(1.0, 0.0, 0.0, 0.0)])
    before = found(run)
    searched: list[list[int]] = []
    made = Index.made

    def noted(index: Index, evaluation: str, pages: list[int]) -> Iterator[tuple[AnswerRow, MadeRow]]:
        searched.append(pages)
        return made(index, evaluation, pages)

    monkeypatch.setattr(Index, "made", noted)
    assert found(run) == before == {"scores_differ": ["t/m0/a/1", "t/m1/a/1"]}
    assert searched == []
    write(run, [draft("score", ScoreGiven(3, 7, EVALUATION, "right", 1.0), "t/m1/b/1")])
    assert found(run)["scores_differ"] == ["t/m0/a/1", "t/m0/b/1", "t/m1/a/1", "t/m1/b/1"]
    assert {page for pages in searched for page in pages} == {1, 3}


def test_different_answers_other_samples_and_missing_scores_are_no_reason_to_wonder(tmp_path: Path) -> None:
    run = new_run(tmp_path, [*two_models("yes", "yes", "no", "yes"), *scores(1.0, 0.0, 0.0, None)])
    assert found(run) == {}


def test_what_the_spec_leaves_out_is_not_told_and_switched_off_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "less").mkdir()
    records = repeated({"a": [LONG, LONG]}, anomalies_except=["identical"])
    odd = answered(2, "t/m0/b/1", anomalies={"loop": "again"})
    assert found(new_run(tmp_path / "less", [*records, odd])) == {"loop": ["t/m0/b/1"]}
    off = new_run(tmp_path, [*repeated({"a": [LONG, LONG]}, anomalies=False), odd])
    assert found(off) == {}
    assert unlooked(Index(off)) == 0


def test_what_a_newer_list_finds_stands_in_place_of_what_was_found_before(tmp_path: Path) -> None:
    records = [begun(2), answered(0, "t/m0/a/1", anomalies={"loop": "again"}), answered(1, "t/m0/b/1", looked=0)]
    run = new_run(tmp_path, records)
    assert found(run) == {"loop": ["t/m0/a/1"]}
    assert [o for o in range(2) if o in fold_of(run).unlooked] == [1]
    seen = [AnomaliesRechecked(0, 3, ANOMALIES_VERSION, {"refusal": "no"}), AnomaliesRechecked(1, 4, ANOMALIES_VERSION)]
    write(run, [draft("anomaly", each, f"t/m0/{'ab'[each.o]}/1") for each in seen])
    assert found(run) == {"refusal": ["t/m0/a/1"]}
    assert fold_of(run).unlooked.count == 0
    assert unlooked(Index(run)) == 0


def test_what_was_found_in_an_answer_that_does_not_count_is_not_told(tmp_path: Path) -> None:
    run = new_run(tmp_path, [begun(1), answered(0, "t/m0/a/1")])
    write(run, [draft("anomaly", AnomaliesRechecked(0, 99, ANOMALIES_VERSION, {"refusal": "no"}), "t/m0/a/1")])
    assert found(run) == {}


def test_an_anomaly_of_an_answer_is_no_loss_of_the_journal(tmp_path: Path) -> None:
    run = new_run(tmp_path, [begun(1), answered(0, "t/m0/a/1")])
    write(run, [draft("anomaly", AnomaliesRechecked(0, 3, ANOMALIES_VERSION, {"refusal": "no"}), "t/m0/a/1")])
    assert fold_of(run).story.anomalies == []
    assert Index(run).story.anomalies == []
