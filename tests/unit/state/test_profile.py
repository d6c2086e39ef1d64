"""The fold behind a profile: known timings come out as known percentiles, spans and shares."""

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.records import Line, Segment
from holdfast.records.durations import RELATIVE_ERROR, Durations
from holdfast.records.facts import Failure, RunEnded, RunResumed, Step, StoredRequest, Timing, ToolCall
from holdfast.records.samples import Answer, Usage
from holdfast.report.profile import ModelProfile, Percentiles, ProfileReport, profile_report
from holdfast.state import Profile
from holdfast.state.profile import SPANS_MAX, TimedGist

BEGAN = 1_700_000_000.0
_gist = msgspec.json.Decoder(TimedGist)


def line(kind: str, data: object, at: float, model: str = "m") -> Line:
    told = datetime.fromtimestamp(BEGAN + at, UTC).isoformat().replace("+00:00", "Z")
    return Line(1, told, kind, msgspec.Raw(msgspec.json.encode(data)), "", f"task/{model}/s1/1")


class Told:
    """A profile, and the records that it is told of, each at so many seconds after the beginning."""

    def __init__(self) -> None:
        self.profile = Profile()

    def open(self, at: float, epoch: int) -> None:
        self.profile.fold(line("segment", Segment(1, "uid", 1, epoch, 1), at))

    def begin(self, at: float = 0.0, kind: str = "run.resumed", *, live: bool = False) -> None:
        self.profile.fold(line(kind, RunResumed(live=live), at))

    def end(self, at: float, commits: Durations | None = None) -> None:
        self.profile.fold(line("run.interrupted", RunEnded(0, 0, 0, "", commits), at))

    def step(self, at: float, step: Step, model: str = "m") -> None:
        record = line("step", step, at, model)
        self.profile.answered(_gist.decode(record.d), record)

    def report(self, live: Durations | None = None) -> ProfileReport:
        return profile_report(self.profile, ("run", "experiment", "completed"), live)

    def model(self, name: str = "m") -> ModelProfile:
        return next(each for each in self.report().models if each.name == name)

    def phase(self, phase: str, model: str = "m") -> Percentiles:
        found = self.model(model).phases[phase]
        assert found is not None
        return found


def asked(seconds: float, timing: Timing | None = None, role: str = "", tries: int = 1, output: int = 10) -> Step:
    answer = Answer("8", usage=Usage(5, output))
    return Step(
        0,
        "solve/1",
        "q",
        asked=StoredRequest([], role=role),
        answer=answer,
        seconds=seconds,
        timing=timing,
        tries=tries,
    )


@pytest.fixture
def told() -> Told:
    found = Told()
    found.begin(kind="run.started")
    return found


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=RELATIVE_ERROR)


def test_known_timings_come_out_as_known_percentiles_within_the_stated_error(told: Told) -> None:
    for i in range(1, 101):
        first = i / 100
        told.step(2.0 + i, asked(first + 0.25, Timing(queue=i / 1000, connect=0.05, first=first)))
    assert told.phase("first byte").p50 == about(0.5)
    assert told.phase("first byte").p90 == about(0.9)
    assert told.phase("first byte").p99 == about(0.99)
    assert told.phase("first byte").max == 1.0
    assert told.phase("generate").p50 == about(0.2)
    assert told.phase("connect").p99 == about(0.05)
    assert told.phase("queue").p90 == about(0.09)
    assert told.phase("request").p50 == about(0.75)
    assert told.phase("request").seconds == pytest.approx(75.5)


def test_each_model_and_each_role_has_its_own_numbers_and_a_fork_none_of_its_parents(told: Told) -> None:
    told.step(1.0, asked(0.1))
    told.step(2.0, asked(0.2), model="other%2Fname")
    told.step(3.0, asked(0.4, role="judge"))
    told.step(4.0, msgspec.structs.replace(asked(9.0), origin=7))
    found = {(each.name, each.role): each.phases["request"] for each in told.report().models}
    assert {names: each.max for names, each in found.items() if each is not None} == {
        ("m", False): 0.1,
        ("other/name", False): 0.2,
        ("judge", True): 0.4,
    }


def test_a_step_of_an_older_version_has_a_request_time_and_no_phase_that_it_does_not_tell(told: Told) -> None:
    told.step(1.0, asked(0.5))
    assert told.phase("request").p50 == about(0.5)
    phases = told.model().phases
    assert {phase for phase, found in phases.items() if found is None} == {*phases} - {"request"}
    assert told.model().rate_limited_share is None


def test_a_provider_that_tells_no_first_byte_has_a_queue_and_no_connection(told: Told) -> None:
    told.step(1.0, asked(0.5, Timing(queue=0.1)))
    assert told.phase("queue").max == 0.1
    assert told.model().phases["first byte"] is told.model().phases["connect"] is None


def test_failed_tries_are_no_part_of_generating_and_are_counted_as_retries(told: Told) -> None:
    told.step(9.0, asked(1.0, Timing(first=0.2, lost=0.6), tries=3))
    assert told.phase("generate").max == pytest.approx(0.2)
    assert (told.model().requests, told.model().retries, told.model().answered) == (3, 2, 1)


def test_a_request_that_was_given_up_is_counted_and_is_in_no_percentile(told: Told) -> None:
    failure = Failure("timeout", "no answer")
    told.step(
        5.0, Step(0, "solve/1", "q", asked=StoredRequest([]), failure=failure, seconds=4.0, timing=Timing(lost=4.0))
    )
    assert told.model().failed == 1
    assert told.model().phases["request"] is None
    assert sum(told.profile.spans.busy) == pytest.approx(4.0)


def test_tools_scores_and_commits_are_phases_too(told: Told) -> None:
    commits = Durations()
    commits.add(0.003)
    told.step(1.0, Step(0, "solve/1", "q", kind="call", called=ToolCall("search"), value=1, seconds=0.7))
    told.profile.scored(0.02, line("score", {}, 2.0))
    told.profile.scored(0.0, line("score", {}, 2.0))
    told.end(3.0, commits)
    report = told.report()
    assert (told.phase("tools").max, told.phase("score").max) == (0.7, 0.02)
    assert told.phase("score").count == 1
    assert report.commit is not None
    assert report.commit.max == 0.003
    assert (report.processes, report.commit_processes) == (1, 1)


def test_a_killed_process_leaves_no_commits_and_one_at_work_tells_them_elsewhere(told: Told) -> None:
    told.begin(10.0)
    now = Durations()
    now.add(0.004)
    assert (told.report().processes, told.report().commit_processes) == (2, 0)
    assert (told.report(now).commit_processes, told.report(now).commit) == (1, Percentiles.of(now))


def test_requests_per_second_and_the_share_of_rate_limits_are_of_the_time_at_work(told: Told) -> None:
    told.step(2.0, asked(1.0, Timing(queue=3.0, limited=1.0)))
    told.end(4.0)
    told.begin(1000.0)
    told.step(1006.0, asked(1.0, Timing(queue=0.0)))
    told.end(1006.0)
    model = told.model()
    assert (model.requests_per_second, model.output_tokens_per_second) == (0.2, 2.0)
    assert model.rate_limited_share == 0.2
    assert told.report().worked_seconds == 10.0


def test_the_time_between_two_processes_is_a_gap_and_no_time_without_requests(told: Told) -> None:
    for _ in range(4):
        told.step(10.0, asked(10.0))
    told.end(10.0)
    told.begin(50.0)
    told.step(60.0, asked(5.0))
    told.end(60.0)
    found = told.report().in_flight
    assert found is not None
    mean = {second: found.mean[int(second / found.span_seconds)] for second in (5, 30, 52, 58)}
    assert mean == {5: pytest.approx(4.0), 30: None, 52: 0.0, 58: pytest.approx(1.0)}


def test_the_spans_stay_few_and_lose_nothing_however_long_a_run_lives(told: Told) -> None:
    for i in range(1, 400):
        told.step(i * 37.0, asked(11.0))
    told.end(400 * 37.0)
    spans = told.profile.spans
    assert len(spans.busy) == len(spans.open) <= SPANS_MAX
    assert sum(spans.busy) == pytest.approx(399 * 11.0)
    assert sum(spans.open) == pytest.approx(400 * 37.0)


def test_a_clock_that_was_set_back_breaks_nothing(told: Told) -> None:
    told.step(100.0, asked(1.0))
    told.begin(-5000.0)
    told.step(-4000.0, asked(1.0))
    told.end(-3000.0)
    found = told.report().in_flight
    assert found is not None
    assert all(mean is None or mean >= 0 for mean in found.mean)


def test_a_live_run_that_is_tuned_is_still_one_process(told: Told) -> None:
    told.begin(5.0, live=True)
    told.end(10.0)
    assert (told.report().processes, told.report().worked_seconds) == (1, 10.0)


def test_scoring_after_the_end_is_time_at_work_and_its_sessions_are_apart(told: Told) -> None:
    told.end(10.0)
    told.profile.scored(2.0, line("score", {}, 102.0))
    told.profile.scored(2.0, line("score", {}, 502.0))
    assert told.report().worked_seconds == pytest.approx(14.0)


def test_the_time_between_two_processes_that_score_is_no_time_at_work(told: Told) -> None:
    told.end(10.0)
    for epoch, at in ((2, 15.0), (3, 40.0)):
        told.open(at, epoch)
        told.profile.scored(2.0, line("score", {}, at + 2.0))
    assert told.report().worked_seconds == pytest.approx(14.0)


def test_a_killed_process_was_at_work_until_its_last_record_whoever_scores_later() -> None:
    told = Told()
    told.open(0.0, 1)
    told.begin(kind="run.started")
    told.step(5.0, asked(1.0))
    told.open(6.0, 1)  # the same process goes on in another segment
    told.step(10.0, asked(1.0))
    told.open(500.0, 2)
    told.profile.scored(2.0, line("score", {}, 502.0))
    assert told.report().worked_seconds == pytest.approx(12.0)


def test_scoring_again_does_not_change_the_speed_of_a_model(told: Told) -> None:
    told.step(5.0, asked(1.0, output=40))
    told.end(10.0)
    before = told.model()
    assert (before.requests_per_second, before.output_tokens_per_second) == (0.1, 4.0)
    told.profile.scored(30.0, line("score", {}, 102.0))
    judged = msgspec.structs.replace(asked(20.0, role="judge"), scope="score/e/1")
    told.step(130.0, judged)
    assert told.report().worked_seconds > 60.0
    assert told.model().output_tokens_per_second == 4.0


def test_a_session_that_has_not_ended_counts_for_the_speed(told: Told) -> None:
    told.step(5.0, asked(1.0, output=40))
    assert told.model().output_tokens_per_second == 8.0


def test_totals_of_an_older_version_give_the_speed_over_all_sessions() -> None:
    older = Told()
    older.begin(kind="run.started")
    older.step(5.0, asked(1.0, output=40))
    older.end(10.0)
    stored = msgspec.to_builtins(older.profile)
    del stored["answering_seconds"], stored["is_answering"]
    told = Told()
    told.profile.fold(line("totals", {"profile": stored}, 11.0))
    assert told.model().output_tokens_per_second == 4.0
