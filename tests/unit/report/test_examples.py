"""The examples of a report are few, the same every time, and of every outcome."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.journal import Reader
from holdfast.records import Cell
from holdfast.records.samples import Usage
from holdfast.report import CellReport, RunReport, ScorerReport, examples
from holdfast.report.examples import AnswerSurvey, cut_middle, survey_answers
from holdfast.state import AnswerRow, Index, ScoreRow
from holdfast.stats import BOOL, LABEL, NUMBER, Scale, Summary

Given = dict[str, Any]
"""Scores by scorer."""


class FakeIndex:
    """The parts of an index that a survey reads, from the scores of each answer. `given`: by sample and repeat."""

    def __init__(self, models: tuple[str, ...], samples: int, repeats: int, given: Callable[[str, int, int], Given]):
        count = samples * repeats
        self.story = SimpleNamespace(
            cells=[Cell("t", model, number * count, count, 0, 0) for number, model in enumerate(models)]
        )
        self._rows: dict[int, AnswerRow] = {}
        self._given: dict[int, Given] = {}
        for number, model in enumerate(models):
            for each in range(count):
                o, sample, repeat = number * count + each, each // repeats, each % repeats + 1
                self._given[o] = given(model, sample, repeat)
                self._rows[o] = AnswerRow(o, f"t/{model}/s{sample}/{repeat}", "finished", o, 1, 0, 1, 1, 1, 0.5)

    def answers(self, status: str = "", first: int = 0, count: int = -1) -> Iterator[AnswerRow]:
        return (self._rows[o] for o in range(first, first + count))

    def scores(self, evaluation: str, first: int = 0, count: int = -1) -> Iterator[ScoreRow]:
        for o in range(first, first + count):
            for scorer, value in self._given[o].items():
                failure = "broken" if value == "broken" else ""
                yield ScoreRow(o, scorer, None if failure else value, "why", failure)

    def row(self, o: int) -> AnswerRow:
        return self._rows[o]


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of every answer is its key."""

    def answer(reader: Reader, row: AnswerRow) -> Any:
        return SimpleNamespace(answer=SimpleNamespace(text=row.key))

    monkeypatch.setattr(examples, "recorded_answer", answer)


def survey(index: FakeIndex, *scorers: ScorerReport) -> AnswerSurvey:
    names = dict.fromkeys(cell.model for cell in index.story.cells)
    cells = tuple(CellReport("t", name, 1, 1, 0, 0, {}, Usage(), 0.0, scorers) for name in names)
    report = RunReport("r", "e", "completed", "", "e", cells, {}, Usage(), Usage(), 0)
    return survey_answers(cast(Index, index), report, cast(Reader, None))


def scorer(name: str, scale: Scale, samples: int | None = None) -> ScorerReport:
    return ScorerReport(name, Summary(0 if scale == LABEL else 3, 0.5, samples=samples), 0, 0, {}, scale=scale)


def shown(found: AnswerSurvey) -> dict[str, tuple[int, list[str]]]:
    return {each.outcome: (each.total, [answer.text for answer in each.answers]) for each in found.groups}


def test_of_ten_thousand_answers_few_are_shown_and_all_are_counted() -> None:
    index = FakeIndex(("m",), 10_000, 1, lambda model, sample, repeat: {"exact": sample % 4 == 0})
    found = survey(index, scorer("exact", BOOL))
    right, wrong = shown(found)["right"], shown(found)["wrong"]
    assert (right[0], wrong[0]) == (2_500, 7_500)
    assert (len(right[1]), len(wrong[1])) == (4, 4)
    numbers = [int(text.split("/")[2][1:]) for text in right[1] + wrong[1]]
    assert [number % 4 == 0 for number in numbers] == [True] * 4 + [False] * 4
    assert max(numbers) > 2_000, "the examples are not the first answers of the run"


def test_the_choice_depends_on_the_samples_alone() -> None:
    """It is the same every time, and the same for every model, whatever else there is in the run."""

    def right(model: str, sample: int, repeat: int) -> Given:
        return {"exact": True}

    alone = shown(survey(FakeIndex(("a",), 100, 1, right), scorer("exact", BOOL)))["right"][1]
    both = shown(survey(FakeIndex(("a", "b"), 100, 1, right), scorer("exact", BOOL)))["right"][1]
    assert len(alone) == 4
    assert both == [*alone[:3], *(text.replace("/a/", "/b/") for text in alone[:3])]


def test_many_models_share_the_room() -> None:
    models = tuple(f"m{number}" for number in range(50))
    found = shown(survey(FakeIndex(models, 3, 1, lambda *key: {"exact": True}), scorer("exact", BOOL)))["right"]
    assert found[0] == 150
    assert len(found[1]) == 6
    assert len({text.split("/")[1] for text in found[1]}) == 6


def test_repeats_of_a_sample_are_one_example() -> None:
    found = survey(FakeIndex(("m",), 5, 4, lambda *key: {"exact": True}), scorer("exact", BOOL, samples=5))
    texts = shown(found)["right"][1]
    assert len({text.rpartition("/")[0] for text in texts}) == len(texts) == 4


def test_a_scorer_of_right_or_wrong_decides_before_others() -> None:
    given = {"grade": 5, "exact": False, "kind": "long"}
    scorers = (scorer("grade", NUMBER), scorer("kind", LABEL), scorer("exact", BOOL))
    found = survey(FakeIndex(("m",), 2, 1, lambda *key: given), *scorers)
    assert list(shown(found)) == ["wrong"]
    (answer, _) = found.groups[0].answers
    assert {each.scorer: each.value for each in answer.scores} == given


def test_other_numbers_show_the_highest_and_the_lowest() -> None:
    found = shown(survey(FakeIndex(("m",), 100, 1, lambda m, sample, r: {"f1": sample / 100}), scorer("f1", NUMBER)))
    assert found == {
        "highest": (100, [f"t/m/s{number}/1" for number in (99, 98, 97, 96)]),
        "lowest": (100, [f"t/m/s{number}/1" for number in (0, 1, 2, 3)]),
    }
    few = shown(survey(FakeIndex(("m",), 5, 1, lambda m, sample, r: {"f1": sample}), scorer("f1", NUMBER)))
    assert few["lowest"][1] == ["t/m/s0/1"], "no answer is shown twice"


def test_answers_without_a_deciding_score_are_not_called_wrong() -> None:
    def given(model: str, sample: int, repeat: int) -> Given:
        return {"exact": (True, None, "broken")[sample]}

    assert shown(survey(FakeIndex(("m",), 3, 1, given), scorer("exact", BOOL))) == {"right": (1, ["t/m/s0/1"])}
    plain = shown(survey(FakeIndex(("m",), 2, 1, lambda *key: {"kind": "long"}), scorer("kind", LABEL)))
    assert plain["answered"][0] == 2
    assert shown(survey(FakeIndex(("m",), 2, 1, lambda *key: {})))["answered"][0] == 2


def test_a_vote_of_a_panel_does_not_decide() -> None:
    given = {"rubric": 3, "rubric.a": True}
    found = survey(FakeIndex(("m",), 2, 1, lambda *key: given), scorer("rubric", NUMBER), scorer("rubric.a", BOOL))
    assert list(shown(found)) == ["highest"]


def test_the_survey_has_latencies_and_pass_curves() -> None:
    found = survey(
        FakeIndex(("m",), 4, 2, lambda model, sample, repeat: {"exact": repeat == 1 or sample > 1}),
        scorer("exact", BOOL, samples=4),
    )
    assert [(each.label, each.p50) for each in found.latencies] == [("m", 0.5)]
    assert [(each.label, each.scorer, each.values) for each in found.curves] == [("m", "exact", (0.75, 1.0))]


def test_an_answer_that_is_lost_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "recorded_answer", lambda reader, row: None)
    assert survey(FakeIndex(("m",), 4, 1, lambda *key: {"exact": True}), scorer("exact", BOOL)).groups == ()


def test_long_answers_keep_their_beginning_and_their_end() -> None:
    text = "a" * 100_000 + "b" * 100_000
    found = cut_middle(text)
    assert found.startswith("a" * 2_000)
    assert found.endswith("b" * 500)
    assert "197,000 characters left out" in found
    assert len(found) < 3_100
    assert cut_middle("short") == "short"
