"""What `holdfast.run` and `holdfast.open_run` give back: tables, frames, the story of one answer."""

import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.report import ExportLine
from holdfast.runs import Run
from holdfast.spec.providers import PROVIDERS

ROWS = [
    {"id": "a", "q": "2+2", "target": "2+2"},
    {"id": "b", "q": "<b>3</b>", "target": "7"},
    {"id": "c", "q": "no", "target": ""},
]


@holdfast.scorer
def same(sample: holdfast.Sample, answer: holdfast.Answer) -> holdfast.Score:
    return holdfast.Score(answer.text == sample.target, reason="compared")


@holdfast.scorer
def output(sample: holdfast.Sample, answer: holdfast.Answer) -> str:
    """Called as a column is called already."""
    return "long" if len(answer.text) > 3 else "short"


@holdfast.solver
async def moody(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    if sample.id == "c":
        raise LookupError("not today")
    return await ctx.generate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    task = holdfast.Task("t", ROWS, "{q}", solver=moody, scorers=[same, output], sample_retries=0)
    return holdfast.run(task, models=["mock/m"], store=str(tmp_path), id="x")


def test_the_report_is_a_table_in_a_terminal_and_in_a_notebook(run: Run) -> None:
    with run:
        report = run.report()
    assert str(report) == repr(report)
    rows = [line.split() for line in str(report).splitlines()]
    assert [row[:4] for row in rows if row[:1] in (["t"], ["same"])] == [
        ["t", "m", "output", "short"],
        ["same", "0.5000", "0.0945", ".."],
    ]
    assert "1 sample failed: solver, e.g. t/m/c/1: LookupError: not today" in str(report)
    shown = report._repr_html_()
    assert "<td>0.5000</td>" in shown
    assert "<th>scorer</th>" in shown


def test_samples_are_frozen_and_typed(run: Run) -> None:
    with run:
        samples = run.samples()
    first = samples[0]
    assert isinstance(first, ExportLine)
    assert (first.key, first.output, first.scores) == ("t/m/a/1", "2+2", {"same": True, "output": "short"})
    with pytest.raises(AttributeError):
        first.output = "other"  # type: ignore[misc] # that is the point
    assert (len(samples), [line.sample_id for line in samples[1:]]) == (3, ["b", "c"])


def test_samples_print_as_a_table_and_what_they_hold_is_no_html(run: Run) -> None:
    with run:
        samples = run.samples()
    assert repr(samples).splitlines()[0].split()[:3] == ["key", "task", "model"]
    assert "LookupError: not today" in repr(samples)
    assert "&lt;b&gt;3&lt;/b&gt;" in samples._repr_html_()
    assert "<b>" not in samples._repr_html_()


def test_a_long_table_says_how_much_is_left_out(tmp_path: Path) -> None:
    rows = [{"id": f"{number:03}", "q": "x"} for number in range(100)]
    with holdfast.run(holdfast.Task("t", rows, "{q}"), models=["mock"], store=str(tmp_path)) as run:
        assert repr(run.samples()).endswith("… and 80 more")
        assert "… and 80 more" in run.samples()._repr_html_()
        assert repr(run.failed()).strip() == "(none)"


def test_samples_are_a_frame_of_pandas(run: Run) -> None:
    with run:
        frame = run.samples().to_pandas()
    assert list(frame["key"]) == ["t/m/a/1", "t/m/b/1", "t/m/c/1"]
    assert list(frame["same"].dropna()) == [True, False]
    assert list(frame["score.output"].dropna()) == ["short", "long"]
    assert frame["error_kind"].iloc[2] == "solver"


def test_samples_are_a_frame_of_polars(run: Run) -> None:
    with run:
        frame = run.samples().to_polars()
    assert frame["same"].to_list() == [True, False, None]
    assert frame["error"].to_list()[2] == "LookupError: not today"


def test_a_frame_of_mixed_scores_can_be_made(tmp_path: Path) -> None:
    def mixed(sample: holdfast.Sample, answer: holdfast.Answer) -> object:
        return {"a": 1, "b": "label", "c": None}[sample.id]

    with holdfast.run(holdfast.Task("t", ROWS, "{q}", scorers=[mixed]), models=["mock"], store=str(tmp_path)) as run:
        assert len(run.samples().to_polars()) == 3
        assert list(run.samples().to_pandas()["mixed"])[:2] == [1, "label"]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_reported_in_one_sentence(run: Run, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with run, pytest.raises(holdfast.HoldfastError) as refused:
        getattr(run.samples(), f"to_{package}")()
    assert str(refused.value) == f"to_{package} needs one more package: pip install 'holdfast[{package}]'"


def test_scores_have_their_reasons(run: Run) -> None:
    with run:
        scores = run.scores()
        frame = scores.to_pandas()
    assert [(line.sample_id, line.scorer, line.value, line.reason) for line in scores] == [
        ("a", "output", "short", ""),
        ("a", "same", True, "compared"),
        ("b", "output", "long", ""),
        ("b", "same", False, "compared"),
    ]
    assert list(frame["scorer"]) == ["output", "same"] * 2


def test_failed_samples_are_a_table_of_their_own(run: Run) -> None:
    with run:
        (line,) = run.failed()
    assert line.error is not None
    assert (line.key, line.error.kind) == ("t/m/c/1", "solver")
    assert "in moody" in line.error.detail


def test_the_story_of_an_answer_prints_as_text_and_in_a_notebook(run: Run) -> None:
    with run:
        story = run.show("t/m/b/1")
        with pytest.raises(holdfast.HoldfastError, match="did you mean"):
            run.show("t/m/z/1")
    assert story.answer is not None
    assert (story.status, story.answer.text, story.attempts[0].steps[0].how) == ("finished", "<b>3</b>", "live")
    assert "[user] <b>3</b>" in str(story)
    assert story._repr_html_().startswith("<pre>t/m/b/1  finished")
    assert "<b>" not in story._repr_html_()


def test_a_run_says_what_it_is(run: Run) -> None:
    with run:
        assert repr(run) == "<Run default/x: completed, 2 of 3 finished, 1 failed>"
        assert "<table>" in run._repr_html_()
        assert run.run_id == "x"


def test_a_run_is_opened_by_its_id(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.close()
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path))
    for found in (holdfast.open_run(), holdfast.open_run("x"), holdfast.open_run("x", store=str(tmp_path))):
        with found:
            assert found.report().status == "completed"
    with pytest.raises(holdfast.HoldfastError, match="no run 'y'"):
        holdfast.open_run("y")


def test_a_path_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "1"}\n')
    task = holdfast.Task("t", tmp_path / "rows.jsonl", "{q}")
    with holdfast.run(task, models=["mock"], store=str(tmp_path / "runs")) as run:
        assert [line.output for line in run.samples()] == ["1"]


def test_nothing_is_shown_where_nobody_looks(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run.close()
    assert capfd.readouterr() == ("", "")


def test_a_solver_is_refused_where_it_is_written() -> None:
    with pytest.raises(holdfast.SpecError, match=r"@holdfast\.solver.*async def"):

        @holdfast.solver  # type: ignore[arg-type] # that is the point
        def blocking(sample: holdfast.Sample, ctx: holdfast.Context) -> str:
            return "x"

    with pytest.raises(holdfast.SpecError, match="does not take"):

        @holdfast.solver  # type: ignore[arg-type] # that is the point
        async def alone(sample: holdfast.Sample) -> str:
            return "x"


def test_a_solver_stays_the_function_that_it_is() -> None:
    @holdfast.solver
    async def asked(sample: holdfast.Sample, ctx: holdfast.Context, hint: str, turns: int = 2) -> str:
        return hint * turns

    assert asked.__name__ == "asked"


def test_a_run_whose_provider_was_removed_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = holdfast.Task("t", ROWS[:2], "{q}", scorers=["exact_match"])
    with monkeypatch.context() as older_version:
        older_version.setitem(PROVIDERS, "vllm", PROVIDERS["mock"])
        model = {"name": "m", "provider": "vllm", "model": "org/m"}
        holdfast.run(task, models=[model], store=str(tmp_path), id="x", quiet=True).close()
    with holdfast.open_run("x", store=str(tmp_path)) as run:
        assert run.report().cells[0].finished == 2
        assert run.spec().models[0].provider == "vllm"
        assert [line.output for line in run.samples()] == ["2+2", "<b>3</b>"]
    with pytest.raises(holdfast.SpecError, match="provider vllm was removed: serve the model with `vllm serve MODEL`"):
        holdfast.run(task, models=[model], store=str(tmp_path), id="y", quiet=True)
