"""A failure has a kind, says whether to ask again, and tells no secrets."""

import pickle
from typing import get_args

import pytest

from holdfast.errors import HoldfastError
from holdfast.models import Kind, ModelError
from holdfast.models.provider import POLICIES
from holdfast.records.redaction import redact

KINDS: tuple[Kind, ...] = get_args(Kind)


def test_every_kind_has_a_policy() -> None:
    assert set(POLICIES) == set(KINDS)


def test_what_is_tried_again_never_stops_a_cell_and_what_stops_one_is_not_tried_again() -> None:
    for kind, policy in POLICIES.items():
        stops = policy.stops_new or policy.stops_working
        assert not (stops and policy.again == "request"), kind


def test_only_failures_that_pass_by_themselves_are_tried_again() -> None:
    again = {kind for kind in KINDS if ModelError(kind, "").retryable}
    assert again == {"rate_limit", "overload", "timeout", "connection", "server"}


def test_a_model_error_is_one_of_ours_and_shows_its_kind_and_message() -> None:
    error = ModelError("server", "it broke", status=500)
    assert isinstance(error, HoldfastError)
    assert str(error) == "server: it broke"


def test_a_model_error_survives_the_way_to_another_process() -> None:
    error = ModelError("rate_limit", "slow down", 1.5, 429)
    error.tries = 3
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.kind, copy.message, copy.retry_after, copy.status, copy.tries) == (
        "rate_limit",
        "slow down",
        1.5,
        429,
        3,
    )


@pytest.mark.parametrize(
    ("secrets", "expected"),
    [
        ({"sk-1234"}, "key [redacted] and [redacted]5"),
        ({"sk-1234", "sk-12345"}, "key [redacted] and [redacted]"),
        ({"k"}, "key sk-1234 and sk-12345"),
        (set(), "key sk-1234 and sk-12345"),
    ],
)
def test_every_occurrence_of_a_secret_is_blotted_out_the_longest_first(secrets: set[str], expected: str) -> None:
    assert redact("key sk-1234 and sk-12345", secrets) == expected
