"""A run's profile for people and as JSON: time by phase, speed of each model, requests in flight over time.

The numbers come from `state.profile`; this module formats them.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.records import RELATIVE_ERROR, Durations
from holdfast.report.text import Grid, brief, counted, three_digits
from holdfast.state import ModelTimes, Profile

PHASES = ("queue", "connect", "first byte", "generate", "request", "tools", "score")


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of durations in seconds. `max` is exact, the others are within `relative_error`."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float
    seconds: float
    """The sum of all durations."""

    @classmethod
    def of(cls, durations: Durations | None) -> "Percentiles | None":
        if durations is None or not durations.count:
            return None
        p50, p90, p99 = (round(durations.quantile(share), 6) for share in (0.5, 0.9, 0.99))
        return cls(durations.count, p50, p90, p99, round(durations.longest, 6), round(durations.seconds, 3))


class ModelProfile(msgspec.Struct, frozen=True):
    """One model: an evaluated one or, with `role`, one that is used in a role."""

    name: str
    role: bool
    requests: int
    """HTTP requests sent, including retries."""
    answered: int
    failed: int
    retries: int
    batched: int
    """Answered by a batch API; not part of any phase."""
    input_tokens: int
    output_tokens: int
    requests_per_second: float | None
    """Per second of the sessions in which samples sent requests; of a role, per second that a process worked."""
    output_tokens_per_second: float | None
    rate_limited_share: float | None
    """The share of the time from queueing to the answer that requests waited for a rate limit."""
    phases: dict[str, Percentiles | None]
    """None: not recorded."""
    evaluations: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests as a judge, by evaluation; requests of the samples themselves have the empty key."""

    @classmethod
    def of(cls, name: str, is_role: bool, times: ModelTimes, worked: float) -> "ModelProfile":
        """`worked`: seconds in which it could have been used."""
        waited = times.held_seconds + times.sent_seconds
        has_queue = "queue" in times.phases  # older versions did not record it
        return cls(
            name=name,
            role=is_role,
            requests=times.requests,
            answered=times.answered,
            failed=times.failed,
            retries=times.retries,
            batched=times.batched,
            input_tokens=times.input_tokens,
            output_tokens=times.output_tokens,
            requests_per_second=round(times.requests / worked, 3) if worked else None,
            output_tokens_per_second=round(times.output_tokens / worked, 3) if worked else None,
            rate_limited_share=round(times.limited_seconds / waited, 4) if waited and has_queue else None,
            phases={phase: Percentiles.of(times.phases.get(phase)) for phase in PHASES},
            evaluations=dict(times.evaluations),
        )

    @property
    def title(self) -> str:
        return f"{self.name} (role)" if self.role else self.name


class InFlightOverTime(msgspec.Struct, frozen=True):
    """The time of a run in equal spans: the mean number of requests in flight while a process worked; None where no
    process did.
    """

    start: str
    span_seconds: float
    mean: list[float | None]


class ProfileReport(msgspec.Struct, frozen=True):
    """The output of `show RUN --profile --json`: a contract, fields are only ever added."""

    run_id: str
    experiment: str
    status: str
    worked_seconds: float
    """Time that processes worked on the run."""
    models: tuple[ModelProfile, ...]
    commit: Percentiles | None
    """Time from queueing a record until it is durable."""
    processes: int
    commit_processes: int
    """How many of the processes `commit` covers: a killed one leaves no times."""
    in_flight: InFlightOverTime | None
    relative_error: float = RELATIVE_ERROR

    def __str__(self) -> str:
        from holdfast.report.tables import as_text, profile_title  # imported late: rich is slow to import

        return "\n".join([profile_title(self), as_text(phase_table(self)), *profile_lines(self)])

    __repr__ = __str__


def model_profiles(profile: Profile) -> Iterator[ModelProfile]:
    """Evaluated models first, without models that did nothing."""
    _, worked = profile.until_now()
    answering = profile.answering_until_now()
    for is_role, models in ((False, profile.models), (True, profile.roles)):
        for name, times in models.items():
            if times.requests or times.phases:
                yield ModelProfile.of(name, is_role, times, worked if is_role else answering)


def profile_report(profile: Profile, names: tuple[str, str, str], live: Durations | None) -> ProfileReport:
    """`names`: run, experiment, status. `live`: commit times of the process that is still running."""
    spans, worked = profile.until_now()
    commits = Durations()
    commits.merge(profile.commits)
    if live is not None:
        commits.merge(live)
    in_flight = None
    if spans.busy:
        start = datetime.fromtimestamp(spans.start, UTC).isoformat(timespec="milliseconds")
        pairs = zip(spans.busy, spans.open, strict=True)
        mean = [round(busy / opened, 2) if opened else None for busy, opened in pairs]
        in_flight = InFlightOverTime(f"{start[:-6]}Z", spans.width, mean)
    return ProfileReport(
        *names,
        round(worked, 3),
        tuple(model_profiles(profile)),
        Percentiles.of(commits),
        profile.processes,
        profile.reported + (live is not None),
        in_flight,
    )


_COLUMNS = ("model", "phase", "n", "p50", "p90", "p99", "max", "in all")
_BARS = "▁▂▃▄▅▆▇█"


def phase_table(report: ProfileReport) -> Grid:
    """A row for each recorded phase of each model; `-` where a value is not recorded."""
    rows = []
    for model in report.models:
        known = [phase for phase in PHASES if model.phases[phase] is not None or phase not in ("tools", "score")]
        rows += [
            (model.title if not place else "", phase, *_numbers(model.phases[phase]))
            for place, phase in enumerate(known)
        ]
    rows.append(("all", "commit", *_numbers(report.commit)))
    return Grid(_COLUMNS, rows, titles=2, right=_COLUMNS[2:], whole=("phase",))


def profile_lines(report: ProfileReport) -> Iterator[str]:
    """The lines below the table."""
    for model in report.models:
        text = f"{model.title}: {counted(model.requests, 'request')}, {counted(model.retries, 'retry', 'retries')}"
        if model.failed:
            text += f", {model.failed} given up"
        if model.batched:
            text += f", {model.batched} in batches"
        if model.requests_per_second is not None and model.output_tokens_per_second is not None:
            text += f"; {three_digits(model.requests_per_second)} requests/s"
            text += f", {three_digits(model.output_tokens_per_second)} output tokens/s"
        if model.rate_limited_share:
            text += f"; {model.rate_limited_share:.1%} of the time held by rate limits"
        yield text
    if report.in_flight is not None:
        means, span = report.in_flight.mean, brief(report.in_flight.span_seconds)
        most = max((each for each in means if each is not None), default=0.0)
        yield f"in flight: {sparkline(means)}  up to {three_digits(most)}, {span} each"
        if None in means:
            yield "           (a gap: no process was at work)"
    left = report.processes - report.commit_processes
    if left > 0:
        gone = counted(left, "process", "processes")
        yield f"commit: {gone} of {report.processes} that ran samples left no times (killed, or older versions)"
    yield f"Percentiles are within {report.relative_error:.1%}; max is exact. - means not recorded."


def sparkline(values: Sequence[float | None]) -> str:
    """One bar per value, the largest at full height; a space for None."""
    known = [each for each in values if each is not None]
    most = max(known, default=0.0) or 1.0
    return "".join(
        " " if each is None else _BARS[min(int(each / most * len(_BARS)), len(_BARS) - 1)] for each in values
    )


def _numbers(found: Percentiles | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * (len(_COLUMNS) - 2)
    return str(found.count), *map(brief, (found.p50, found.p90, found.p99, found.max, found.seconds))
