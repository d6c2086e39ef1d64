"""What a progress display shows: honest numbers, a layout that does not jump, lines that fit."""

import pytest
from rich.cells import cell_len

from holdfast.engine import ModelProgress, Progress
from holdfast.records.samples import Usage
from holdfast.report.progress.lines import (
    Line,
    ProgressLayout,
    format_cost,
    format_left,
    format_rate,
    format_score,
    note_lines,
    plain_line,
)
from holdfast.report.progress.page import progress_html
from holdfast.report.progress.view import ProgressTracker, ProgressView, RateWindow
from holdfast.score import RunningMean


def one_model(**fields: object) -> Progress:
    """40 of 100 samples in 20 seconds, by the clock of the tests."""
    progress = Progress(planned=100, finished=39, failed=1, in_flight=8, usage=Usage(1500, 500), scorers=["exact"])
    scores = {"exact": RunningMean(39, 29.25)}
    progress.models = {"m": ModelProgress(100, 39, 1, dollars=0.42, scores=scores)}
    for name, value in fields.items():
        setattr(progress, name, value)
    return progress


def several_models(names: int = 3) -> Progress:
    progress = Progress(planned=100 * names, finished=40 * names, scorers=["exact", "numeric"])
    scores = {"exact": RunningMean(40, 30.0), "numeric": RunningMean(40, 20.0)}
    progress.models = {
        f"model-{number}": ModelProgress(100, 40, dollars=0.1 if number else None, scores=scores)
        for number in range(names)
    }
    return progress


def seen(progress: Progress, now: float = 20.0, *, ended: bool = False) -> ProgressView:
    return ProgressTracker().view(progress, now, ended=ended)


def shown(view: ProgressView, width: int = 100, height: int = 24, layout: ProgressLayout | None = None) -> list[str]:
    return [text_of(line) for line in (layout or ProgressLayout()).lines(view, width, height)]


def text_of(line: Line) -> str:
    return "".join(piece.text for piece in line).rstrip()


def test_a_line_has_done_and_total_rate_time_left_dollars_scores_and_failures() -> None:
    first, second = shown(seen(one_model()))
    assert first == (
        "████████████░░░░░░░░░░░░░░░░░░░░   40/100   40%   2.0/s    30 s left  $0.42    exact 0.75  1 failed"
    )
    assert second == "8 samples in flight · 2k tokens"


def test_a_log_has_the_same_in_one_line() -> None:
    assert plain_line(seen(one_model())) == (
        "40/100  40%  2.0/s  30 s left  $0.42  exact 0.75  1 failed  8 samples in flight"
    )
    assert plain_line(seen(several_models())) == (
        "120/300  40%  6.0/s  30 s left  $0.20  0 failed  0 samples in flight  (model-0 40% exact 0.75 numeric 0.50, "
        "model-1 40% exact 0.75 numeric 0.50, model-2 40% exact 0.75 numeric 0.50)"
    )


def test_several_models_have_a_line_each_and_a_total() -> None:
    assert shown(seen(several_models(2)))[:4] == [
        "model                        done         rate    left   cost  exact  numeric  failed",
        "model-0  ██████░░░░░░░░░░  40/100   40%  2.0/s    30 s      —   0.75     0.50       0",
        "model-1  ██████░░░░░░░░░░  40/100   40%  2.0/s    30 s  $0.10   0.75     0.50       0",
        "total    ██████░░░░░░░░░░  80/200   40%  4.0/s    30 s  $0.10                       0",
    ]


@pytest.mark.parametrize("width", [*range(24, 60, 7), 60, 80, 100, 140, 300])
@pytest.mark.parametrize("progress", [one_model(), several_models(), several_models(40)], ids=["1", "3", "40"])
def test_lines_fit_any_terminal(progress: Progress, width: int) -> None:
    progress.held = progress.last_failure = "m: 模型 does not answer, " + "x" * 300
    for height in (4, 10, 24):
        lines = shown(seen(progress), width, height)
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width or width < 30


def test_a_narrow_terminal_keeps_the_time_left_and_everything_about_one_model() -> None:
    assert shown(seen(one_model()), 40)[:3] == [
        "████████████░░░░░░░░░░░░░░░░░░░░",
        " 40/100   40%   2.0/s    30 s left",
        "$0.42    exact 0.75  1 failed",
    ]
    lines = shown(seen(several_models()), 40)
    assert lines[:2] == ["model       done    left  exact  failed", "model-0   40/100    30 s   0.75       0"]


def test_long_names_keep_both_ends() -> None:
    progress = several_models()
    models = zip("789", progress.models.values(), strict=True)
    progress.models = {f"a-very-long-name-of-a-model-{size}b": model for size, model in models}
    assert [line.split()[0] for line in shown(seen(progress), 60)[1:4]] == [
        f"a-very-lon…-model-{size}b" for size in "789"
    ]


def test_the_layout_does_not_jump_while_numbers_grow() -> None:
    """Every fact stays at its place: the ends of all columns are the same from the first line to the last."""
    layout, tracker, places = ProgressLayout(), ProgressTracker(), set()
    for done in range(3, 100, 7):
        progress = one_model(finished=done, failed=0)
        progress.models["m"].finished, progress.models["m"].failed = done, 0
        (line, _) = shown(tracker.view(progress, float(done)), 120, layout=layout)
        places.add(tuple(line.index(text) + len(text) for text in ("/100", "%", "/s", " left", "exact 0")))
    assert len(places) == 1


def test_what_an_earlier_process_finished_does_not_make_this_one_look_fast() -> None:
    progress = Progress(planned=100, finished=60, before=50, started=0.0, replayed=3)
    view = seen(progress, 10.0)
    assert plain_line(view).startswith("60/100  60%  1.0/s  40 s left")
    assert "3 steps replayed" in view.activity


def test_a_model_without_a_price_makes_the_total_a_lower_bound() -> None:
    progress = several_models(2)
    progress.models["model-0"].has_unpriced = True
    head, unpriced, priced, total, _ = shown(seen(progress))
    at = head.index("cost") + len("cost")
    assert [line[: at + 1].split()[-1] for line in (unpriced, priced, total)] == ["—", "$0.10", "$0.10+"]


def test_without_any_price_no_dollars_are_shown() -> None:
    progress = one_model()
    progress.models["m"].dollars = None
    assert "$" not in "".join(shown(seen(progress)))


def test_the_slowest_model_decides_how_long_it_takes() -> None:
    progress = several_models(2)
    progress.models["model-1"].finished = 10
    assert seen(progress).total.left == pytest.approx(180.0)
    progress.models["model-1"].finished = 2
    assert seen(progress).total.left is None, "too few samples to know"
    progress.models["model-1"].stopped = 98
    view = seen(progress)
    assert view.total.left == pytest.approx(30.0), "a model that was given up is not waited for"
    assert [row.state for row in view.models] == ["running", "stopped"]


def test_more_models_than_lines_show_the_most_active_ones_and_count_the_others() -> None:
    progress, layout = several_models(12), ProgressLayout()
    progress.models["model-3"].finished = 100
    progress.models["model-11"].finished = 80
    lines = shown(seen(progress), 80, 10, layout)
    assert len(lines) == 10
    names = [line.split()[0] for line in lines]
    assert "model-11" in names
    assert "model-3" not in names, "it is done"
    numbers = [int(name.removeprefix("model-")) for name in names if name.startswith("model-")]
    assert numbers == sorted(numbers), "in the order of the spec"
    assert lines[-3] == "and 6 more, 1 of them done"
    assert names[-2] == "total"
    progress.models["model-10"].finished = 60
    assert [line.split()[0] for line in shown(seen(progress), 80, 10, layout)] == names, "a little faster is not enough"


def test_waits_and_retries_have_a_line_of_their_own() -> None:
    view = seen(one_model(retried=12, last_retry="server: no\nmore", held="m: 3 requests wait until 12:01:05"))
    lines = shown(view)
    assert lines[:2] == shown(seen(one_model())), "the time left is where it was"
    assert lines[2] == "12 retries · m: 3 requests wait until 12:01:05 · last retry: server: no"
    assert [*note_lines(view)] == [lines[2]]


def test_batch_jobs_and_a_late_mirror_are_waits() -> None:
    progress = one_model(batch_jobs=3, batch_requests=1200, batch_since=-7000.0, mirror_behind=12.0)
    assert seen(progress, 200.0).waits == (
        "3 jobs, 1,200 requests waiting, oldest 2.0 h",
        "mirror 12.0 s behind",
    )


def test_the_last_failure_is_shown_shortly_and_clean() -> None:
    failure = f"t/m/s1/1: bad_request: \x1b[31mno such\tthing {'x' * 300}\nsecond line"
    view = seen(one_model(last_failure=failure))
    assert view.last_failure.startswith("t/m/s1/1: bad_request: \\u001b[31mno such thing xxx")
    assert len(view.last_failure) <= 200
    assert [line for line in shown(view) if line.startswith("last failure: t/m/s1/1")] != []


def test_saved_answers_that_are_scored_now_are_counted() -> None:
    assert "40 of 1,200 saved answers scored" in seen(one_model(scored=40, to_score=1200)).activity
    assert len(seen(one_model(scored=0, to_score=1200)).activity) == 2


def test_the_last_state_says_how_long_it_took() -> None:
    progress = one_model(retried=2, last_retry="server: no", held="m: waiting", last_failure="t/m/1/1: bad_request: no")
    view = seen(progress, ended=True)
    assert plain_line(view) == "40/100  40%  2.0/s  took 20 s  $0.42  exact 0.75  1 failed"
    assert [*note_lines(view)] == ["2 retries · last retry: server: no", "last failure: t/m/1/1: bad_request: no"]
    assert "took 20 s" in shown(seen(several_models(), ended=True))[4]
    assert "30 s" not in "".join(shown(seen(several_models(), ended=True)))


def test_a_run_that_stopped_asking_a_server_leaves_the_cause_to_its_report() -> None:
    progress = one_model(retried=2, last_retry="connection: no")
    progress.models["m"].stopped = 60
    assert [*note_lines(seen(progress, ended=True))] == ["2 retries"]
    assert "last retry: connection: no" in "".join(note_lines(seen(progress)))


def test_scores_have_a_place_before_the_first_answer() -> None:
    progress = Progress(planned=9, scorers=["exact"], models={"m": ModelProgress(9)})
    assert plain_line(seen(progress)) == "0/9  0%  —  — left  exact —  0 failed  0 samples in flight"


def test_names_cannot_begin_another_line() -> None:
    progress = several_models(2)
    progress.models["m\n\x1b[2J"] = progress.models.pop("model-1")
    progress.scorers = ["exact\nFORGED"]
    view = seen(progress)
    for text in (plain_line(view), *shown(view)):
        assert not {"\n", "\x1b"} & set(text)


def test_many_scores_are_counted() -> None:
    names = [f"rouge.{number}" for number in range(12)]
    progress = one_model(scorers=names)
    progress.models["m"].scores = dict.fromkeys(names, RunningMean(1, 0.5))
    assert "rouge.7 0.50  and 4 more scores  1 failed" in plain_line(seen(progress))


def test_a_notebook_shows_a_bar_for_each_model_and_escapes_names() -> None:
    progress = several_models(2)
    progress.models["<b>\x1b"] = progress.models.pop("model-1")
    page = progress_html(seen(progress))
    assert page.count('<progress value="40" max="100">') == 2
    assert '<progress value="80" max="200">' in page
    assert "<td>&lt;b&gt;\\u001b</td>" in page
    single = progress_html(seen(one_model(retried=1, last_failure="t/m/1/1: no")))
    assert single.startswith('<div><progress value="40" max="100"></progress> 40/100  40%')
    assert "<small>1 retry</small>" in single
    assert "<small>last failure: t/m/1/1: no</small>" in single


class TestRates:
    def test_a_rate_follows_the_last_minute(self) -> None:
        window = RateWindow(0.0, 0)
        for second in range(1, 601):
            window.note(float(second), 10 * min(second, 300) + max(second - 300, 0))
        assert window.rate(600.0) == pytest.approx(1.0, rel=0.05)

    def test_slow_samples_are_counted_over_a_longer_time(self) -> None:
        window = RateWindow(0.0, 0)
        for second in range(1, 7201):
            window.note(float(second), second // 300)
        assert window.rate(7200.0) == pytest.approx(1 / 300, rel=0.06)

    def test_memory_does_not_grow_with_the_run(self) -> None:
        window = RateWindow(0.0, 0)
        for tick in range(1, 40_000):
            window.note(tick / 4, tick)
        assert len(window._points) < 300  # noqa: SLF001

    @pytest.mark.parametrize(("done", "now"), [(0, 0.0), (0, 60.0), (2, 60.0), (10, 0.0), (10, 1.0)])
    def test_time_left_is_unknown_where_it_would_be_a_guess(self, done: int, now: float) -> None:
        window = RateWindow(0.0, 0)
        window.note(now, done)
        assert window.seconds_left(90, now) is None

    def test_time_left_is_unknown_while_nothing_finishes_for_long(self) -> None:
        window = RateWindow(0.0, 0)
        for second in range(1, 101):
            window.note(float(second), 10 * second)
        assert window.seconds_left(100, 110.0) is not None
        window.note(300.0, 1000)
        assert window.seconds_left(100, 300.0) is None
        window.note(301.0, 1010)
        assert window.seconds_left(100, 301.0) is not None

    def test_answers_that_come_together_once_a_while_leave_it_known(self) -> None:
        """64 at a time, each of which takes two minutes."""
        window = RateWindow(0.0, 0)
        lefts = []
        for second in range(1, 1200):
            window.note(float(second), 64 * (second // 120))
            lefts.append(window.seconds_left(640, float(second)))
        assert None not in lefts[125:]

    def test_the_average_is_that_of_the_whole_time(self) -> None:
        window = RateWindow(0.0, 50)
        assert window.average() is None
        window.note(10.0, 70)
        window.note(500.0, 70)
        assert window.average() == 2.0


def test_numbers_are_short() -> None:
    assert [format_rate(each) for each in (1234.5, 23.4, 9.97, 2.34, 0.5, 0.02, 0.001)] == [
        "1,234/s",
        "23/s",
        "10/s",
        "2.3/s",
        "30/min",
        "1.2/min",
        "3.6/h",
    ]
    assert [format_left(each) for each in (0.2, 25.3, 89.0, 754.0, 12_240.0, 432_000.0)] == [
        "1 s",
        "25 s",
        "89 s",
        "13 min",
        "3.4 h",
        "5 days",
    ]
    assert [format_cost(each) for each in (0.0, 0.00001, 0.0042, 0.42, 1234.5)] == [
        "$0.00",
        "<$0.0001",
        "$0.0042",
        "$0.42",
        "$1,234.50",
    ]
    assert [format_score(each) for each in (0.0, 0.812, 1.0, 7.43, 81.25, -0.5, 0.0012, 12345.0)] == [
        "0.00",
        "0.81",
        "1.00",
        "7.43",
        "81.2",
        "-0.50",
        "0.0012",
        "1.2e+04",
    ]
