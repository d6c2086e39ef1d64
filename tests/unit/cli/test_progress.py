"""The line that says how far a run is."""

import pytest

from holdfast.cli.progress import show
from holdfast.engine import Progress
from holdfast.records.samples import Usage
from holdfast.report.progress import progress_line


def test_the_line_says_how_many_how_fast_how_much_and_how_long() -> None:
    progress = Progress(planned=100, finished=40, in_flight=8, usage=Usage(1500, 500), started=1000.0)
    assert progress_line(progress, 1020.0) == "40/100 · 2.0/s · 8 in flight · 2k tokens · 30.0 s left"


def test_what_an_earlier_process_finished_does_not_make_this_one_look_fast() -> None:
    progress = Progress(planned=100, finished=60, before=50, started=0.0, replayed=3)
    assert progress_line(progress, 10.0) == "60/100 · 1.0/s · 0 in flight · 3 replayed · 0 tokens · 40.0 s left"


def test_a_mirror_that_is_late_is_reported() -> None:
    progress = Progress(planned=10, finished=5, started=0.0, mirror_behind=12.0)
    assert progress_line(progress, 5.0) == "5/10 · 1.0/s · 0 in flight · 0 tokens · 5.0 s left · mirror 12.0 s behind"


def test_failures_are_done_and_are_shown() -> None:
    progress = Progress(planned=10, finished=4, failed=1, started=0.0)
    assert progress_line(progress, 5.0) == "5/10 · 1.0/s · 0 in flight · 1 failed · 0 tokens · 5.0 s left"


@pytest.mark.parametrize(("finished", "now"), [(0, 0.0), (0, 60.0), (10, 0.0), (10, 60.0)])
def test_no_remaining_time_is_shown_where_it_is_unknown(finished: int, now: float) -> None:
    line = progress_line(Progress(planned=10, finished=finished, started=0.0), now)
    assert line.startswith(f"{finished}/10 · ")
    assert "left" not in line


def test_the_line_says_shortly_what_failed_last() -> None:
    progress = Progress(planned=10, finished=4, failed=1, started=0.0)
    progress.last_failure = f"t/m/s1/1: bad_request: \x1b[31mno such\tthing {'x' * 300}\nsecond line"
    said = progress_line(progress, 5.0).split(" · ")[-1]
    assert said.startswith("last failure: t/m/s1/1: bad_request: \\u001b[31mno such thing xxx")
    assert said.endswith("x…")
    assert len(said) <= 100


def test_a_live_line_never_wraps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    progress = Progress(planned=10, finished=4, failed=1, started=0.0, last_failure="t/m/s1/1: bad_request: no")
    show(progress, live=True)
    assert len(capsys.readouterr().err.removeprefix("\r\x1b[2K")) == 59
    show(progress, live=False)
    assert "bad_request: no\n" in capsys.readouterr().err


def test_what_is_with_a_batch_api_is_reported() -> None:
    progress = Progress(planned=2000, finished=800, started=0.0, batch_jobs=3, batch_requests=1200, batch_since=-7000.0)
    assert "0 tokens · 3 jobs, 1,200 requests waiting, oldest 2.0 h" in progress_line(progress, 200.0)
