"""Partial evaluations: which evaluation is current, what of a part is reused, and which model's bill it is."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import FormatError
from holdfast.records import Answer, Draft, GivenModel, ScoringStarted, Step, StoredRequest, Usage, draft
from holdfast.spec import Price
from holdfast.state import Index
from holdfast.state.story import role_prices
from tests.unit.state.stories import EVALUATION, finished, fold_of, key, new_run, scoring, started

MODEL = GivenModel("openai", "x", price={"input": 1.0, "output": 2.0})


def part(chosen: str = "--limit 1", evaluation: str = "p", **more: Any) -> Draft:
    return draft("score.started", ScoringStarted(evaluation, [], part=chosen, **more))


def verdict(o: int, evaluation: str) -> Draft:
    asked = StoredRequest([{"role": "user", "content": "?"}], role="judge")
    made = Step(o, f"score/{evaluation}/1", "q", asked=asked, answer=Answer("4", usage=Usage(3, 5)))
    return draft("step", made, key(o))


def test_a_part_does_not_become_the_current_evaluation_until_all_is_scored(tmp_path: Path) -> None:
    records = [started(2), scoring(), finished(0), finished(1), part(), part("--wrong"), part("--wrong")]
    story = fold_of(new_run(tmp_path / "a", records)).story
    assert (story.evaluation, story.partial) == (EVALUATION, {"p": ["--limit 1", "--wrong"]})
    story = fold_of(new_run(tmp_path / "b", [*records, part("")])).story
    assert (story.evaluation, story.partial) == ("p", {})
    story = fold_of(new_run(tmp_path / "c", [*records, part(""), part("--limit 1")])).story
    assert (story.evaluation, story.partial) == ("p", {}), "a whole evaluation stays whole"


def test_verdicts_of_a_part_belong_to_the_evaluation_that_continues_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(2), scoring(), finished(0), finished(1), part(), verdict(0, "p")])
    assert [*fold_of(run, "p").judged] == [0]
    assert [*fold_of(run).judged] == []


def test_requests_of_a_given_model_have_a_bill_and_a_price_of_their_own(tmp_path: Path) -> None:
    records = [started(2), scoring(), finished(0), finished(1), verdict(0, EVALUATION)]
    records += [part(roles={"judge": MODEL}), verdict(0, "p"), part("", evaluation="p"), verdict(1, "p")]
    run = new_run(tmp_path, records)
    fold, index = fold_of(run), Index(run)
    for story in (fold.story, index.story):
        bills = {role: bill.usage.requests for bills in story.bills.values() for role, bill in bills.items() if role}
        assert bills == {"judge": 1, "judge=openai/x": 2}, "also after a start without the model"
        assert role_prices(story)["judge=openai/x"] == Price(input=1.0, output=2.0)
    assert {name: times.answered for name, times in index.profile.roles.items()} == {"judge": 1, "judge=openai/x": 2}
    index.close()


def test_a_forged_price_is_an_error_of_the_format(tmp_path: Path) -> None:
    forged = msgspec.structs.replace(MODEL, price={"input": "much"})
    story = fold_of(new_run(tmp_path, [started(1), part(roles={"judge": forged})])).story
    with pytest.raises(FormatError, match="a price in the journal cannot be read"):
        role_prices(story)
