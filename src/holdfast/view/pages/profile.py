"""The profile of a run: where the time went, how fast each model was, requests in flight over time."""

import msgspec

from holdfast.records import Durations, middle_of
from holdfast.report import PHASES, ProfileReport, brief, profile_lines, profile_report
from holdfast.state import Profile
from holdfast.view.charts import figure, histogram_chart, load_chart
from holdfast.view.layout import table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.sources import Durability, RunRef, RunStatus, ViewedRun
from holdfast.view.travel import Stop, ref_of, timeline_stops, travel_form


class Distribution(msgspec.Struct, frozen=True):
    """How long the requests to a model took: counts by seconds, and percentiles."""

    model: str
    counts: list[tuple[float, int]]
    p50: float
    p90: float
    p99: float


class ProfileView(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    ref: RunRef
    profile: ProfileReport
    """As `holdfast show --profile --json`."""
    latency: list[Distribution]
    stops: list[Stop]
    durability: Durability
    live: bool
    status: RunStatus = RunStatus()


def load(request: PageRequest) -> ProfileView:
    ref = ref_of(request)
    with request.sources.open(ref) as run:
        report = _report(run)
        stops = timeline_stops(run.index.lives, run.index.last_n)
        latency = distributions(run.index.profile)
        return ProfileView(ref, report, latency, stops, run.durability(), run.is_live, run.shown_status())


def _report(run: ViewedRun) -> ProfileReport:
    if run.at is None:
        return run.profile()
    # Times of the process that runs now are not of the past.
    return profile_report(run.index.profile, (run.run_id, run.place.experiment, run.status()[0]), None)


def distributions(profile: Profile) -> list[Distribution]:
    """Of the requests to each evaluated model and each role."""
    named = [*profile.models.items(), *((f"{role} (role)", times) for role, times in profile.roles.items())]
    return [_distribution(name, times.phases["request"]) for name, times in named if "request" in times.phases]


def _distribution(name: str, durations: Durations) -> Distribution:
    counts = [(round(middle_of(bucket), 6), count) for bucket, count in sorted(durations.counts.items())]
    p50, p90, p99 = (round(durations.quantile(share), 6) for share in (0.5, 0.9, 0.99))
    return Distribution(name, counts, p50, p90, p99)


def latency_figure(latency: list[Distribution]) -> Markup | None:
    """The distributions as a chart."""
    rows = [(each.model, each.counts, [("p50", each.p50), ("p90", each.p90)]) for each in latency]
    return figure(histogram_chart(rows), "How long requests took, by model. The axis is logarithmic.")


def render(found: ProfileView, links: Links) -> Body:
    report = found.profile
    parts: list[Child] = [
        h("h1", "Profile"),
        h("section", _content(found), id="profile", data_live=True),
        travel_form(found.ref, found.stops, links, "profile"),
    ]
    return Body(
        f"Profile {report.run_id}",
        join(parts),
        found.ref,
        "profile",
        found.status,
        found.durability,
        is_live=found.live and found.ref.at is None,
    )


def _content(found: ProfileView) -> list[Child]:
    report = found.profile
    lines = [line for line in profile_lines(report) if not line.startswith(("in flight:", " ", "Percentiles"))]
    parts: list[Child] = [h("p", line) for line in lines]
    flight = report.in_flight
    if flight is not None:
        gap = " Gaps: no process was at work." if None in flight.mean else ""
        text = f"Requests in flight over time, {brief(flight.span_seconds)} for each bar.{gap}"
        parts.append(figure(load_chart(flight.mean, flight.span_seconds), text))
    parts += [latency_figure(found.latency), _phases(report)]
    return parts


def _phases(report: ProfileReport) -> Markup:
    columns = ["model", "phase", "n", "p50", "p90", "p99", "max", "in all"]
    rows = []
    for model in report.models:
        for phase in PHASES:
            times = model.phases[phase]
            if times is None:
                continue
            values = [f"{times.count:,}", *map(brief, (times.p50, times.p90, times.p99, times.max, times.seconds))]
            rows.append(
                h("tr", h("td", model.title), h("td", phase), [h("td", each, class_="number") for each in values])
            )
    if report.commit is not None:
        commit = report.commit
        values = [f"{commit.count:,}", *map(brief, (commit.p50, commit.p90, commit.p99, commit.max, commit.seconds))]
        rows.append(h("tr", h("td", "all"), h("td", "commit"), [h("td", each, class_="number") for each in values]))
    note = f"Percentiles are within {report.relative_error:.1%}; max is exact."
    return join([table(columns, rows, numbers=frozenset(columns[2:])), h("p", note, class_="quiet")])
