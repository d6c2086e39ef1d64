"""The progress of a run in one line, for terminals, notebooks and logs."""

import html
from typing import TYPE_CHECKING

from holdfast.printable import one_line
from holdfast.report.tables import duration, short
from holdfast.report.text import bar, counted, first_line

if TYPE_CHECKING:
    from holdfast.engine import Progress

_FAILURE_WIDTH = 80
_WHY_WIDTH = 60


def progress_line(progress: "Progress", now: float) -> str:
    """Done/total, rate, errors, tokens, time left, and the last failure."""
    done = progress.finished + progress.failed
    seconds = max(now - progress.started, 1e-9)
    rate = (done - progress.before) / seconds
    left = (progress.planned - done) / rate if rate > 0 else None
    parts = [f"{done}/{progress.planned}", f"{rate:.1f}/s", f"{progress.in_flight} in flight"]
    if progress.replayed:
        parts.append(f"{progress.replayed} replayed")
    if progress.retried:
        parts.append(
            f"{counted(progress.retried, 'request')} tried again ({first_line(progress.last_retry, _WHY_WIDTH)})"
        )
    if progress.at_once:
        parts.append(f"{progress.sending} of {progress.at_once} requests at once")
    if progress.held:
        parts.append(first_line(progress.held, _FAILURE_WIDTH))
    parts += [f"{progress.failed} failed"] * bool(progress.failed)
    parts += [counted(progress.anomalies, "anomaly", "anomalies")] * bool(progress.anomalies)
    used = progress.usage.input_tokens + progress.usage.output_tokens
    parts.append(f"{short(used)} tokens")
    if progress.batch_jobs:
        parts.append(jobs_text(progress.batch_jobs, progress.batch_requests, now - progress.batch_since))
    if left is not None and done < progress.planned:
        parts.append(f"{duration(left)} left")
    if progress.mirror_behind:
        parts.append(f"mirror {duration(progress.mirror_behind)} behind")
    if progress.last_failure:
        parts.append(f"last failure: {first_line(progress.last_failure, _FAILURE_WIDTH)}")
    return " · ".join(parts)


def jobs_text(jobs: int, requests: int, oldest_seconds: float) -> str:
    """Batch jobs that wait for their servers."""
    noun = "request" if requests == 1 else "requests"
    return f"{counted(jobs, 'job')}, {requests:,} {noun} waiting, oldest {duration(max(oldest_seconds, 0.0))}"


def progress_bar(progress: "Progress") -> str:
    return bar(progress.finished + progress.failed, progress.planned)


def progress_html(progress: "Progress", now: float) -> str:
    """An HTML progress bar with the line."""
    done = progress.finished + progress.failed
    shown = f'<progress value="{done}" max="{max(progress.planned, 1)}"></progress>'
    return f"<div>{shown} {html.escape(one_line(progress_line(progress, now)))}</div>"
