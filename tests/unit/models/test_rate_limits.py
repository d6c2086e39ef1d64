"""What servers say in headers about what is left, in the forms that they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.pacing.pace import Quota, quotas_in

NOON = 1_780_000_000.0


def quotas(**headers: str) -> list[Quota]:
    given = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return quotas_in(given, NOON)


def test_openai_says_what_is_left_of_requests_and_of_tokens() -> None:
    assert quotas(
        x_ratelimit_limit_requests="60",
        x_ratelimit_remaining_requests="59",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_limit_tokens="150000",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_tokens="6m0s",
    ) == [Quota(59, 1.0, 60), Quota(149984, 360.0, 150000, "tokens")]


def test_anthropic_says_when_it_is_all_there_again() -> None:
    found = quotas(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="0",
        anthropic_ratelimit_requests_reset="2026-05-28T20:26:50Z",
        anthropic_ratelimit_input_tokens_remaining="10",
        anthropic_ratelimit_input_tokens_reset="2026-05-28T20:26:45+00:00",
    )
    assert found == [Quota(0, 10.0, 50), Quota(10, 5.0, 0, "input-tokens")]


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("17ms", 0.017),
        ("1h2m3s", 3600.0),
        ("2.5s", 2.5),
        ("30", 30.0),
        ("1780000010", 10.0),
        ("1780000010000", 10.0),
        ("1779999000", 0.0),
    ],
)
def test_a_reset_is_a_duration_a_number_of_seconds_or_a_moment(reset: str, seconds: float) -> None:
    (quota,) = quotas(X_RateLimit_Remaining="3", X_RateLimit_Reset=reset)
    assert quota.remaining == 3
    assert quota.reset_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("reset", ["", "soon", "1s later", "-5", "2026-05-28", "nan"])
def test_what_cannot_be_read_is_passed_over(reset: str) -> None:
    assert quotas(x_ratelimit_remaining_requests="3", x_ratelimit_reset_requests=reset) == []


def test_what_is_left_without_a_reset_is_passed_over() -> None:
    assert quotas(x_ratelimit_remaining_requests="3") == []


@given(st.lists(st.tuples(st.sampled_from([b"x-ratelimit-remaining", b"RateLimit-Reset", b"date"]), st.binary())))
def test_no_header_breaks_anything(headers: list[tuple[bytes, bytes]]) -> None:
    assert len(quotas_in(headers, NOON)) <= 1
