"""The timeline of a sample: one row for each process, with what it replayed and how it ended."""

from holdfast.journal import START
from holdfast.records import Answer, SampleFinished, ScoreGiven, Step, Timing
from holdfast.report import KeyRecords, StepOutline
from holdfast.report.story import StepOutline as Outline
from holdfast.state import Life, RunTotals
from holdfast.view.links import Links
from holdfast.view.sources import RunRef
from holdfast.view.timeline import make_timeline, mark_text, render_timeline, timeline_legend, unfinished_processes


def address(n: int) -> str:
    return Links().sample(RunRef("e", "r"), "t/m/s/1", n)


def at(seconds: float) -> str:
    return f"2026-01-01T00:00:{seconds:09.6f}Z"


def records(*steps: tuple[float, int, Step | StepOutline], resumes: int = 1) -> KeyRecords:
    listed = [(n, at(when), process, step) for n, (when, process, step) in enumerate(steps, 1)]
    lives = [Life("run.started", 1, START, at(0.0), 1, RunTotals())]
    lives += [Life("run.resumed", 2 + n, START, at(20.0), 2 + n, RunTotals()) for n in range(resumes)]
    return KeyRecords(steps=listed, lives=lives, texts=False)


def asked(seconds: float, timing: Timing | None = None, tries: int = 1) -> StepOutline:
    return Outline("solve/1", "q", seconds=seconds, timing=timing, tries=tries)


def test_steps_of_an_earlier_process_are_replayed_in_the_next_and_where_it_died_is_marked() -> None:
    found = records((2.0, 1, asked(1.0)), (4.0, 1, asked(1.0)), (23.0, 2, asked(1.0)))
    found.ends.append((4, at(24.0), 2, SampleFinished(0, 1, Answer("x"))))
    first, second = make_timeline(found, {1: "killed"}, is_live=False).lives
    assert (first.steps, first.replayed, first.end, first.killed, first.seconds) == (2, 0, "killed", True, 3.0)
    assert (second.steps, second.replayed, second.end, second.killed) == (1, 2, "finished", False)
    assert [mark.start for mark in first.marks] == [0.0, 2.0]
    figure = render_timeline(make_timeline(found, {1: "killed"}, is_live=False), address)
    assert figure is not None
    assert "✕ killed" in figure
    assert "2 steps replayed from the journal" in figure
    assert "?step=3#step-3" in figure
    assert "style=" not in figure


def test_a_process_that_was_stopped_is_told_apart_from_one_that_was_killed() -> None:
    found = records((2.0, 1, asked(1.0)), (23.0, 2, asked(1.0)))
    first, second = make_timeline(found, {1: "interrupted"}, is_live=True).lives
    assert (first.end, first.killed) == ("interrupted", True)
    assert (second.end, second.killed) == ("running", False)
    assert unfinished_processes(found) == [1]


def test_a_process_that_only_scored_has_scored_and_was_not_killed() -> None:
    found = records((2.0, 1, asked(1.0)), (23.0, 2, Outline("score/e/1", "q", seconds=1.0)), resumes=0)
    found.lives = [*found.lives, Life("score.started", 2, START, at(20.0), 2, RunTotals())]
    found.ends.append((4, at(4.0), 1, SampleFinished(0, 1, Answer("x"))))
    assert make_timeline(found, {2: ""}, is_live=False).lives[1].end == "not finished"
    found.scores.append((5, at(24.0), 2, ScoreGiven(0, 4, "e", "s", last=True)))
    assert unfinished_processes(found) == []
    first, second = make_timeline(found, {}, is_live=False).lives
    assert (first.end, second.end, second.killed, second.ended) == ("finished", "scored", False, at(24.0))


def test_waiting_and_failed_tries_are_drawn_before_the_answer() -> None:
    found = records((9.0, 1, asked(3.0, Timing(queue=5.0, lost=1.0), tries=2)), resumes=0)
    ((mark,),) = [life.marks for life in make_timeline(found, {}, is_live=False).lives]
    assert (mark.start, mark.waited, mark.lost, mark.seconds) == (0.0, 5.0, 1.0, 3.0)
    assert mark_text(mark) == "request, record 1: 3 s, waited 5 s, sent 2 times, 1 s in failed tries"
    assert [class_ for class_, _ in timeline_legend(make_timeline(found, {}, is_live=False))] == [
        "waited",
        "lost",
        "model",
    ]


def test_many_steps_are_drawn_together_and_every_one_is_counted() -> None:
    found = records(*((n / 1000, 1, asked(0.0005)) for n in range(10_000)), resumes=0)
    (life,) = make_timeline(found, {}, is_live=False).lives
    assert len(life.marks) <= 240
    assert sum(mark.count for mark in life.marks) == life.steps == 10_000
    figure = render_timeline(make_timeline(found, {}, is_live=False), address)
    assert figure is not None
    assert len(figure) < 120_000


def test_a_sample_without_steps_has_no_figure() -> None:
    assert render_timeline(make_timeline(records(resumes=0), {}, is_live=False), address) is None
