"""A page asks for nothing, runs nothing, and shows the figures of the report."""

import itertools
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from holdfast.records import Key
from holdfast.records.samples import Usage
from holdfast.report import CellReport, Comparison, ComparisonResult, Example, RunReport, ScorerReport, Side
from holdfast.report.costs import Cost, CostLine
from holdfast.report.examples import AnswerSurvey, Curve, ExampleAnswer, ExampleGroup, GivenScore, Latency
from holdfast.report.formats.html import html_page
from holdfast.report.formats.run_page import RunOrigin, RunPage, shown_keys
from holdfast.report.questions import Question
from holdfast.report.reduction import Reduced
from holdfast.report.summaries.agreement import Agreement
from holdfast.stats import BOOL, Scale, Summary
from tests.unit.report.export_lines import HOSTILE

VOID = {"meta", "br", "hr", "line", "circle"}
"""Elements without an end: of HTML, and of SVG where they are written as `<line/>`."""
WORDS = """
html head meta title style body main header section article div span p h1 h2 h3 h4 h5 ul li dl dt dd strong em small
code pre table thead tbody tfoot tr th td figure figcaption svg g line circle text details summary
"""
TAGS = set(WORDS.split())
SUMMARY = Summary(3, 0.5, 0.125, 0.25, 0.75)


class Seen(HTMLParser):
    """The tags of a page, with what they name, and its text. Elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elements.append((tag, dict(attrs)))
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def cell(model: str = "m", scorers: tuple[ScorerReport, ...] = (), **fields: Any) -> CellReport:
    made = CellReport("t", model, 4, 3, 1, 0, {}, Usage(10, 20), 0.0, scorers)
    return msgspec.structs.replace(made, **fields)


def report(*cells: CellReport, **fields: Any) -> RunReport:
    made = RunReport("r", "exp", "completed", "", "e", cells, {}, Usage(10, 20), Usage(), 0)
    return msgspec.structs.replace(made, **fields)


def example(**fields: Any) -> ExampleAnswer:
    score = GivenScore("exact", True, "it is equal", scale=BOOL)
    made = ExampleAnswer("t/m/s1/1", Key("t", "m", "s1", 1), "the answer", 10, (score,))
    return msgspec.structs.replace(made, **fields)


def compared(first: str = "a", second: str = "b", scorer: str = "exact") -> ComparisonResult:
    found = Comparison(
        Side("r", "t", first), Side("r", "t", second), scorer,
        3, 0, 0, {"failed": 1}, {}, 0.25, 0.75, SUMMARY, 0.5, "mcnemar", 3, 0.01, 0.01, True, 2, 0, 1, [], scale=BOOL,
    )  # fmt: skip
    return ComparisonResult((found,), True, (), "holm", 1)


def page(*pages: RunPage, comparison: ComparisonResult | None = None) -> str:
    return "".join(html_page(pages, comparison))


def hostile_page() -> str:
    """With the hostile text in every field that a page shows."""
    names = (HOSTILE, HOSTILE)
    one = Example(HOSTILE, HOSTILE)
    scorer = ScorerReport(HOSTILE, SUMMARY, 0, 1, {}, one, (Reduced(HOSTILE, SUMMARY, 1),), edited=1)
    labels = ScorerReport("label", Summary(0), 0, 0, {HOSTILE: 3})
    cost = Cost(1.5, 0.25, 0.5, (HOSTILE,))
    agreed = Agreement(HOSTILE, (HOSTILE, "b"), 3, 1.0, 0.5, 0.25)
    rows = [
        cell(
            model, (scorer, labels), task=HOSTILE, failures={HOSTILE: 1}, examples={HOSTILE: one}, cost=Cost(1.5),
            marks={HOSTILE: 1}, marked={HOSTILE: one}, anomalies={"loop": 1}, odd={"loop": one}, agreement=(agreed,),
            groups_unknown=HOSTILE,
        )
        for model in (HOSTILE, f"{HOSTILE}2")
    ]  # fmt: skip
    made = report(
        *rows, run_id=HOSTILE, experiment=HOSTILE, status=HOSTILE, reason=HOSTILE, damage=(HOSTILE,), anomalies=2,
        evaluation=HOSTILE, evaluations={HOSTILE: HOSTILE, "b": ""}, cost=cost,
    )  # fmt: skip
    line = CostLine(*names, HOSTILE, 4, Usage(10, 20), Usage(), Usage(), Usage(), cost, 3)
    key = Key(HOSTILE, HOSTILE, HOSTILE, 2)
    scores = (
        GivenScore(HOSTILE, HOSTILE, HOSTILE),
        GivenScore(HOSTILE, None, "", HOSTILE),
        GivenScore(HOSTILE, 3, "", "", Scale("range", 1.0, 5.0)),
    )
    answers = (example(name=HOSTILE, key=key, text=HOSTILE * 100, characters=200_000, scores=scores),)
    groups = tuple(ExampleGroup(each, 9, answers) for each in ("right", "wrong", "highest", "lowest", "answered"))
    survey = AnswerSurvey(
        groups, (Latency(HOSTILE, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),), (Curve(HOSTILE, HOSTILE, (0.25, 0.5, 0.75)),)
    )
    asked = {HOSTILE: Question(HOSTILE, HOSTILE)}
    shown = RunPage(made, (line,), RunOrigin(((HOSTILE, HOSTILE),), HOSTILE), survey, asked)
    comparison = msgspec.structs.replace(compared(*names, scorer=HOSTILE), warnings=(HOSTILE,))
    return page(shown, shown, comparison=comparison)


def test_nothing_in_a_name_or_an_answer_is_markup() -> None:
    text = hostile_page()
    seen = Seen(text)
    assert set(seen.tags) <= TAGS
    assert [name for name, _ in seen.attributes if name.startswith("on") or name == "style"] == []
    assert seen.text.count("onerror=") > 60  # shown as it is
    assert "\x00" not in text
    assert "\u202e" not in text


def test_the_check_finds_a_text_that_is_not_escaped() -> None:
    with pytest.raises(AssertionError):
        Seen(f"<p>{HOSTILE}</p>")


def test_a_page_names_nothing_that_a_browser_would_fetch() -> None:
    seen = Seen(hostile_page())
    loading = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "ping"}
    assert [name for name, _ in seen.attributes if name in loading] == []
    policy = [value for name, value in seen.attributes if name == "content" and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"]
    assert re.findall(r"url\(|@import", hostile_page()) == []


def full_page(**fields: Any) -> RunPage:
    scorer = ScorerReport("exact", SUMMARY, 0, 1, {}, Example("t/m/s3/1", "no number"), scale=BOOL)
    failed = cell(
        "m", (scorer,), failures={"timeout": 2}, examples={"timeout": Example("t/m/s2/1", "after 60 s")}, seconds=90.0
    )
    cost = Cost(1.5, 0.25)
    made = report(failed, cost=cost, worked_seconds=12.5, anomalies=2)
    line = CostLine("t", "m", "", 4, Usage(12_100, 5_000), Usage(), Usage(), Usage(), cost, 3)
    wrong = example(
        name="t/m/s4/1",
        key=Key("t", "m", "s4", 1),
        text="a wrong answer",
        scores=(GivenScore("exact", False, scale=BOOL), GivenScore("rubric", 2, "unclear", "", Scale("range", 1, 5))),
    )
    groups = (ExampleGroup("right", 1_234, (example(),)), ExampleGroup("wrong", 1, (wrong,)))
    asked = {
        "t/m/s1/1": Question("How much is 2 + 2?", "4"),
        "t/m/s2/1": Question("The slow question", ["x", "y"]),
        "t/m/s4/1": Question([{"role": "user"}], 0, "The last message"),
    }
    origin = RunOrigin((("started", "2025-01-02T03:04:05Z"), ("git", "abc")), "name: the spec")
    latency = Latency("m", 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    shown = RunPage(made, (line,), origin, AnswerSurvey(groups, (latency,)), asked)
    return msgspec.structs.replace(shown, **fields)


def test_a_page_has_figures_failures_cost_and_origin() -> None:
    seen = Seen(page(full_page()))
    drawings = [attributes for tag, attributes in seen.elements if tag == "svg" and attributes.get("role") == "img"]
    assert [attributes["aria-label"] for attributes in drawings] == [
        "m: 50.0% (25.0 to 75.0)",
        "m: 300 ms (95% within 500 ms)",
    ]
    for each in (
        "0.5000", "0.2500 .. 0.7500", "$1.50", "$500.00", "replay saved $0.2500", "2 anomalies", "The spec",
        "12.1k in, 5k out", "wall time: 12.5 s", "summed latency: 1.5 min", "2025-01-02 03:04 UTC", "name: the spec",
    ):  # fmt: skip
        assert each in seen.text, each


def test_examples_are_right_wrong_or_failed_and_have_question_and_target() -> None:
    text = Seen(page(full_page())).text
    titles = ("1 of 1,234 right answers", "1 of 1 wrong answer", "Failures")
    right, wrong, failed = map(text.index, titles)
    assert right < wrong < failed
    shown = [
        (right, ("s1", "How much is 2 + 2?", "Target4", "the answer", "exact: right it is equal")),
        (wrong, ("s4", "The last message", "Target0", "a wrong answer", "exact: wrong", "rubric: 2 (1 to 5) unclear")),
        (failed, ("timeout 2 samples", "after 60 s", "The slow question", 'Target["x","y"]', "t/m/s2/1")),
        (failed, ("scorer exact failed 1 answer", "no number", "t/m/s3/1")),
    ]
    for start, parts in shown:
        for part in parts:
            assert text.find(part, start) > start, part


def test_the_questions_that_a_page_needs_are_those_of_its_examples() -> None:
    shown = full_page()
    assert sorted(shown_keys(shown.report, shown.answers)) == ["t/m/s1/1", "t/m/s2/1", "t/m/s3/1", "t/m/s4/1"]


def test_answers_to_the_same_sample_share_a_card() -> None:
    both = tuple(example(name=f"t/{model}/s1/1", key=Key("t", model, "s1", 1), text=f"by {model}") for model in "ab")
    made = RunPage(report(cell("a"), cell("b")), (), RunOrigin(()), AnswerSurvey((ExampleGroup("right", 9, both),)))
    asked = {"t/a/s1/1": Question("the question")}
    seen = Seen(page(msgspec.structs.replace(made, questions=asked)))
    assert seen.tags.count("article") == 1
    assert seen.text.count("the question") == 1
    for each in ("2 of 9 right answers", "Answer of a", "by a", "Answer of b", "by b"):
        assert each in seen.text, each


def test_long_texts_are_folded_and_cut() -> None:
    text = "".join(f"line {number}\n" for number in range(400))
    answer = example(text=text[:3_000], characters=200_000)
    asked = {"t/m/s1/1": Question("q" * 50_000, "x" * 50_000)}
    made = full_page(answers=AnswerSurvey((ExampleGroup("right", 1, (answer,)),)), questions=asked)
    written = page(made)
    seen = Seen(written)
    assert re.findall(r"Show ([\w ,]+) characters", seen.text) == ["more of 50,000"] * 2 + ["more of 200,000"]
    whole = Seen(page(full_page(questions={"t/m/s1/1": Question("w" * 1_999)})))
    assert re.findall(r"Show ([\w ,]+) characters", whole.text) == ["all 1,999"]
    assert "x" * 501 not in written
    assert "q" * 2_001 not in written


def test_sentences_of_scores_and_of_the_comparison_come_first() -> None:
    """Those with the same subject are together."""
    scorers = (ScorerReport("exact", SUMMARY, 0, 0, {}, scale=BOOL),)
    made = RunPage(report(cell("a", scorers), cell("b", scorers)), (), RunOrigin(()))
    text = Seen(page(made, comparison=compared())).text
    said = [
        "t, exact:",
        "a has 50.0% right (95%: 25.0 to 75.0, 3 samples); b has 50.0% right",
        "b is better than a by 50.0 points (95%: 25.0 to 75.0, p = 0.010, 3 paired samples)",
        "Scores",
        "95% interval",
        "Comparison",
        "adjusted p: Holm over 1 test",
        "left out of a: 1 failed",
    ]
    places = [text.index(each) for each in said]
    assert places == sorted(places)
    assert "holdfast compare" not in text


def test_many_results_are_folded() -> None:
    scorers = tuple(ScorerReport(f"s{number}", SUMMARY, 0, 0, {}, scale=BOOL) for number in range(10))
    text = page(RunPage(report(cell("m", scorers)), (), RunOrigin(())))
    before, _, folded = text.partition("<summary>More results (4)</summary>")
    assert ("t, s5:" in before, "t, s6:" in before, "t, s6:" in folded) == (True, False, True)
    several = [compared("a", f"b{number}").comparisons[0] for number in range(12)]
    made = msgspec.structs.replace(compared(), comparisons=tuple(several))
    assert "<p>3 more comparisons: see the table</p>" in page(full_page(), comparison=made)


def test_what_makes_a_comparison_doubtful_is_a_notice() -> None:
    doubtful = msgspec.structs.replace(compared(), warnings=("rows with the same id differ",))
    assert '<div class="notice" role="note">\n<p>rows with the same id differ</p>' in page(
        full_page(), comparison=doubtful
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("running", "This run is still in progress (running: since noon). 3 of 4 answers are finished, 1 failed."),
        ("stalled", "This run is still in progress (stalled: since noon)."),
        ("interrupted", "This run is not complete (interrupted: since noon). 3 of 4 answers are finished, 1 failed."),
        ("cancelled", "This run is not complete (cancelled: since noon)."),
    ],
)
def test_a_run_that_is_not_complete_is_named_at_the_top(status: str, said: str) -> None:
    made = full_page(report=msgspec.structs.replace(full_page().report, status=status, reason="since noon"))
    text = Seen(page(made)).text
    assert 0 < text.index(said) < text.index("Summary")
    assert "not complete" not in page(full_page())


def test_a_run_without_its_data_says_why_there_are_no_questions() -> None:
    text = Seen(page(full_page(questions={}, holds_data=False))).text
    assert "this run does not record its data (record_data: false)" in text
    assert "Question" not in text.replace("Questions and targets", "")
    assert "the answer" in text


def test_a_page_is_readable_without_eyes() -> None:
    """Headings in order, headers of tables with their scope, drawings with a name."""
    seen = Seen(hostile_page())
    levels = [int(tag[1]) for tag in seen.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert [pair for pair in itertools.pairwise(levels) if pair[1] > pair[0] + 1] == []
    assert [attributes for tag, attributes in seen.elements if tag == "th" and "scope" not in attributes] == []
    drawings = [attributes for tag, attributes in seen.elements if tag == "svg"]
    assert [each for each in drawings if not each.get("aria-label") and each.get("aria-hidden") != "true"] == []
    assert ("lang", "en") in seen.attributes


def test_a_page_says_what_a_reader_of_its_numbers_must_know() -> None:
    """Whose hand is in them, what was left out of them, how far judges agree, and what is odd about the answers."""
    reduced = Reduced("pass@2", Summary(1, 1.0), 2)
    scorer = ScorerReport("exact", Summary(3, 0.5), 0, 0, {}, reduced=(reduced,), edited=1)
    agreed = Agreement("rubric", ("a", "b"), 3, 1.0, 0.5, 0.25)
    odd = {"loop": Example("t/m/s/1", HOSTILE)}
    row = cell("m", (scorer,), agreement=(agreed,), anomalies={"loop": 2}, odd=odd)
    text = page(RunPage(report(row, unlooked=4), (), RunOrigin(())))
    for told in (
        "1 score edited by hand",
        "2 samples without a value",
        "kappa (unweighted) 0.2500",
        "loop in 2 answers",
        "4 answers",
    ):
        assert told in text, told
    assert "<img" not in text


def test_a_page_of_runs_without_scores_has_no_figures() -> None:
    row = cell("m", finished=0, failed=0, unfinished=4)
    text = page(RunPage(report(row, status="interrupted", reason="killed"), (), RunOrigin(())))
    assert "<svg" not in text
    assert "interrupted" in text


def test_numbers_of_any_size_are_drawn() -> None:
    """Up to the largest that a score may have, and where nothing varies."""
    for low, mean, high in ((-1e155, 0.0, 1e155), (5.0, 5.0, 5.0), (0.0, 0.0, 0.0), (1e-300, 2e-300, 3e-300)):
        scorer = ScorerReport("size", Summary(3, mean, 0.1, low, high), 0, 0, {})
        seen = Seen(page(RunPage(report(cell("m", (scorer,))), (), RunOrigin(()))))
        places = [value for name, value in seen.attributes if name in {"x1", "x2", "cx"}]
        assert places
        assert [each for each in places if not 0 <= float(each.rstrip("%")) <= 100] == []


def test_the_provenance_is_folded_and_bounded() -> None:
    facts = tuple(("resumed", f"time {number}") for number in range(1_000))
    text = page(RunPage(report(), (), RunOrigin(facts, "s" * 200_000)))
    assert '<details class="provenance"><summary><h2>Provenance</h2></summary>' in text
    assert "940 facts" in text
    assert "150,000 more characters" in text
    assert len(text) < 100_000


def test_two_runs_with_the_same_id_are_told_apart() -> None:
    scorers = (ScorerReport("exact", SUMMARY, 0, 0, {}, scale=BOOL),)
    pages = [RunPage(report(cell("m", scorers), experiment=name), (), RunOrigin(())) for name in ("one", "two")]
    text = Seen(page(*pages)).text
    assert "one/r m: 50.0%" in text
    assert "two/r m: 50.0%" in text


def test_differences_between_two_runs_name_the_model_that_both_sides_share() -> None:
    (found,) = compared().comparisons
    rows = tuple(
        msgspec.structs.replace(found, first=Side("r1", "t", model), second=Side("r2", "t", model))
        for model in ("small", "large")
    )
    text = page(RunPage(report(run_id="r1"), (), RunOrigin(())), RunPage(report(run_id="r2"), (), RunOrigin(())),
                comparison=ComparisonResult(rows, True, (), "holm", 2))  # fmt: skip
    figure = text[text.index("<figure") :]
    assert "small: r2 minus r1" in figure
    assert "large: r2 minus r1" in figure
