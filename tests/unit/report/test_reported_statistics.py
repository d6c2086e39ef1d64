"""Reducers, agreement, anomalies and speeds in reports are those of the oracle, which finds mistakes in them."""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.journal import Entry, OpenRequest, Reader
from holdfast.models import Request as Asking
from holdfast.records import draft
from holdfast.records.facts import AnomaliesRechecked
from holdfast.records.samples import Answer, Sample
from holdfast.report.summaries import agreement
from holdfast.runs import Run, RunLocation, find_run
from holdfast.runs.verification import check_scores
from holdfast.score import scorer
from holdfast.score.anomalies import ANOMALIES_VERSION
from holdfast.score.reduction import Repeat, reduced_value
from holdfast.spec.reductions import Reduction, reductions
from holdfast.state import totals
from holdfast.stats import BOOL, COUNT, NUMBER, Scale, Summary, sum_groups, summarise, summarise_sums
from tests import oracle
from tests.caches import Change, set_row, tamper
from tests.journals import flipped, write_session
from tests.oracle import check_reports, formulas
from tests.oracle.formulas import Defined, Given, Possible
from tests.oracle.formulas import reduced as by_definition
from tests.unit.engine.runs import Asked, cut_after, given, go, model, rows
from tests.unit.report.test_anomalies import answered, begun
from tests.unit.state.stories import new_run, scoring

WAYS = ["mean", "median", "mode", "max", "at_least_2", "pass@2", "pass^2", "cons@2"]
BY_LABEL = {"cons_at_k": {"k": 2, "answer": "panel.tone"}}
LONG = "an answer that is long enough that nobody gives it twice by chance, if the temperature is not zero " * 2


def ran(store: Path) -> RunLocation:
    """Three repeats; judges agree in part, a scorer is moody, one answer declines, one is always the same."""
    turn, mood = Counter[str](), itertools.count()

    async def reply(request: Asking) -> str:
        question = str(request.messages[-1]["content"])
        turn[question] += 1
        said = {"question 0": "I cannot help with that.", "question 1": LONG}
        return said.get(question, question if turn[question] % 2 else "something else")

    def panel(sample: Sample, answer: Answer, roles: Any = ()) -> Any:
        number = int(sample.id[1:])
        if number == 4 and answer.text == "something else":
            raise ValueError("no")
        vote = {"clear": number, "clear.a": number, "clear.b": number if number < 3 else 1}
        return {**vote, "tone": "good" if number % 2 else "bad", "right": answer.text == sample.target}

    def moody(sample: Sample, answer: Answer) -> float | None:
        return None if sample.id == "s2" else next(mood) / 10

    scorers = [scorer(panel).using(roles=["a", "b"]), scorer(moody, scale=(0, 2))]
    task = Asked(rows=rows(5), scorers=scorers, fields={"repeats": 3, "reduce": [*WAYS, BY_LABEL]})
    roles = {name: {"provider": "mock"} for name in "ab"}
    go(store, given([task], [model("warm", reply, params={"temperature": 0.7})], roles=roles))
    return find_run(str(store), "run-1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> RunLocation:
    """Nobody changes it."""
    return ran(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copied(place: RunLocation, tmp_path: Path) -> RunLocation:
    """The same, to be changed."""
    shutil.copytree(place.store, tmp_path / "copy")
    return find_run(str(tmp_path / "copy"), "run-1")


def test_reducers_agreement_anomalies_and_speeds_are_as_reported(place: RunLocation) -> None:
    with Run(place) as run:
        report = run.report()
    (cell,) = report.cells
    assert {len(each.reduced) for each in cell.scorers if each.summary.n} == {8}
    assert [each.scorer for each in cell.agreement] == ["panel.clear"]
    assert {"refusal", "identical", "scores_differ"} <= set(cell.anomalies)
    assert report.models[0].phases["request"] is not None
    found = check_reports(place)
    assert (found.differences, found.unchecked) == ([], [])
    assert found.numbers > 350


def other(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given, **named: change(function(*given, **named))


@pytest.mark.parametrize("way", [each.name for each in reductions([*WAYS[1:], BY_LABEL])])
def test_a_mistake_in_a_reducer_is_found(
    place: RunLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:

    def half(how: Reduction, *rest: Any) -> Any:
        value = reduced_value(how, *rest)
        return value / 2 if how.name == way and isinstance(value, float) else value

    monkeypatch.setattr(totals, "reduced_value", half)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))  # the usual one has the right values
    (label,) = {each.label for each in reductions([*WAYS, BY_LABEL]) if each.name == way} - {"cons@2 by panel.tone"}
    found = check_reports(place).differences
    assert any(f"panel.right: {label}: mean" in each for each in found), found
    assert all(f": {label}" in each for each in found)


@pytest.mark.parametrize("name", ["krippendorff_alpha", "cohens_kappa", "percent_agreement"])
def test_a_mistake_in_an_agreement_is_found(
    place: RunLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))  # the usual one has the right values
    monkeypatch.setattr(agreement, name, other(getattr(agreement, name), lambda value: value / 2))
    (found,) = check_reports(place).differences
    assert "agreement on panel.clear" in found


def own_digest(row: Any) -> Any:
    return msgspec.structs.replace(row, said=row.o)


TAMPERED: list[tuple[str, Change, Callable[[Any], bool], str]] = [
    ("answers", set_row(anomalies=b"{}"), lambda row: row.anomalies != b"{}", "anomalies.refusal"),
    ("answers", own_digest, lambda row: True, "anomalies.identical"),
    ("answers", own_digest, lambda row: True, "anomalies.scores_differ"),
    ("answers", set_row(looked=0), lambda row: row.o < 2, "unlooked: the report says 2, the journal 0"),
    (
        "scores",
        set_row(encoded=b"true"),
        lambda row: row.scorer == "panel.right",
        "scorers[panel.right].reduced[pass@2].summary.mean",
    ),
    ("scores", set_row(encoded=b"5"), lambda row: row.scorer == "panel.clear.b", "agreement[panel.clear].alpha"),
    ("scores", set_row(failure=""), lambda row: row.failure != "", "scorers[panel].failures"),
]


@pytest.mark.parametrize(("table", "change", "where", "path"), TAMPERED)
def test_an_index_that_was_tampered_with_is_found(
    copied: RunLocation, table: str, change: Change, where: Callable[[Any], bool], path: str
) -> None:
    tamper(copied.folder, table, change, where)
    for found in (check_reports(copied).differences, check_scores(copied).differences):
        assert found
    assert any(path in each for each in found), found


def test_a_model_that_is_said_to_be_faster_than_it_was_is_found(
    place: RunLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(place) as run:
        report = run.report()
    (told,) = report.models
    phase = told.phases["request"]
    assert phase is not None
    quicker = {**told.phases, "request": msgspec.structs.replace(phase, p50=phase.p50 / 2 + 1)}
    wrong = msgspec.structs.replace(told, phases=quicker, answered=1, output_tokens_per_second=1e6)
    monkeypatch.setattr(oracle, "report_of", lambda *_: msgspec.structs.replace(report, models=(wrong,)))
    found = [each.partition(": the report")[0] for each in check_reports(place).differences]
    assert found == ["warm: answered", "warm: output tokens a second", "warm: request, p50"]


def test_what_is_found_by_looking_again_counts(copied: RunLocation) -> None:
    place = copied
    entries = (entry for entry in Reader(place.journal).read() if isinstance(entry, Entry))
    answer = next(entry for entry in entries if entry.line.t == "sample.finished")
    data = msgspec.json.decode(answer.line.d)
    again = AnomaliesRechecked(data["o"], answer.line.n, ANOMALIES_VERSION, {"loop": "again and again"})
    uid = Reader(place.journal).uid
    write_session(place.journal, [draft("anomaly", again, answer.line.k)], wanted=OpenRequest(uid))
    with Run(place) as run:
        assert run.report().cells[0].anomalies["loop"] == 1
    assert check_reports(place).differences == []


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
def test_a_slow_answer_is_counted_again(tmp_path: Path) -> None:
    drafts = [
        begun(30),
        scoring(),
        *(answered(o, f"t/m0/s{o}/1", f"{o}", 30.0 if o == 7 else 1 + o / 99) for o in range(30)),
    ]
    place = RunLocation(str(tmp_path), "exp", "run", new_run(tmp_path, drafts))
    with Run(place) as run:
        assert run.report().cells[0].anomalies == {"slow": 1}
    assert check_reports(place).differences == []
    tamper(place.folder, "answers", set_row(seconds=1.0), lambda row: row.o == 7)
    assert any("anomaly slow: the report says 0, the journal 1" in each for each in check_reports(place).differences)


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
def test_losses_of_the_journal_are_counted_again_also_after_a_resume(tmp_path: Path) -> None:
    place = ran(tmp_path)
    cut_after(tmp_path, lambda kind, data: kind != "run.completed")
    path = Path(place.journal, "000001.jsonl")
    content = path.read_bytes()
    path.write_bytes(flipped(content, content.index(b'"sample.finished"') + 60))
    with Run(place) as run:
        assert run.report().anomalies == 1
    assert check_reports(place).differences == []
    ran(tmp_path)
    assert check_reports(place).differences == []


def test_both_ways_to_reduce_come_to_the_same() -> None:
    draw = random.Random(7)
    for _ in range(1_000):
        n, k = draw.randint(0, 7), draw.randint(1, 5)
        names = ("median", "mode", "majority", "max", "at_least", "pass_at_k", "pass_power_k", "cons_at_k")
        how = Reduction(draw.choice(names), k, draw.choice([1.0, 0.5]))
        answers = [draw.choice("abc") for _ in range(n)]
        values = {each: draw.choice([True, False, 0.5, 1, None]) for each in "abc"}
        told = [Repeat(values[each], each) for each in answers]
        mine = reduced_value(how, told, 6)
        theirs = by_definition(how, [Given(values[each], each) for each in answers], 6)
        assert theirs == (mine if mine is None else pytest.approx(mine, abs=1e-12)), (how, told)


SCALES = [(NUMBER, formulas.ANY), (COUNT, Possible(lowest=0.0)), (Scale("range", -9.0, 4.0), Possible(-9.0, 4.0))]
RIGHT = (BOOL, formulas.RIGHT_OR_WRONG)


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [0.0] * 3, [1.0] * 7, [1.0, 0.0] * 9, [1.0] * 999 + [0.0], [0.5, 0.25, 3.5], [0.1] * 3, [2.0, -9.0]],
)
def test_a_summary_by_definition_is_that_of_a_report(values: list[float]) -> None:
    scales = [*SCALES, RIGHT] if set(values) <= {0.0, 1.0} else SCALES
    for groups in (list(range(len(values))), [index // 2 for index in range(len(values))]):
        for scale, possible in scales:
            assert_same(summarise(values, groups, scale=scale), formulas.summary(values, groups, possible))


def assert_same(told: Summary, found: Defined) -> None:
    numbers = (told.n, told.mean, told.standard_error, told.low, told.high)
    close = [None if each is None else pytest.approx(each, rel=1e-9, abs=1e-12) for each in numbers]
    assert [*msgspec.structs.astuple(found)] == [*close, told.method]


def test_means_of_repeats_by_definition_are_those_of_a_report() -> None:
    """Right or wrong, with as many answers as it takes, some of which failed, and samples in groups."""
    draw = random.Random(20)
    for _ in range(300):
        samples, most = draw.randint(1, 25), draw.randint(1, 6)
        repeats = [draw.randint(1, most) for _ in range(samples)]
        ease = draw.choice([0.02, 0.3, 0.6, 0.97])
        values = [sum(draw.random() < ease for _ in range(several)) / several for several in repeats]
        groups = [draw.randrange(samples) if draw.random() < 0.5 else index for index in range(samples)]
        told = summarise_sums([sum_groups(values, groups)], scale=BOOL, answers=sum(repeats))
        assert_same(told, formulas.summary(values, groups, formulas.RIGHT_OR_WRONG, sum(repeats)))
