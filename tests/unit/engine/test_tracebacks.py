"""What is recorded of an exception: the user's own lines, bounded, without secrets."""

import asyncio
import json
import os
from typing import Any

import msgspec
import pytest

from holdfast.engine.failures import failure_of, redacted, secrets_of, user_traceback
from holdfast.records.facts import Failure
from holdfast.spec import Model, build_spec

SECRET = "sk-verysecret-0123456789abcdef"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nor this")


def raised(function: Any) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def broken() -> None:
    raise ValueError("no number")


def deep(left: int) -> None:
    if left:
        deep(left - 1) if left % 2 else deeper(left - 1)
    raise ValueError("at the bottom")


def deeper(left: int) -> None:
    deep(left)


def test_the_users_line_is_told_with_its_source() -> None:
    failure = failure_of("solver", raised(broken))
    assert (failure.kind, failure.message) == ("solver", "ValueError: no number")
    assert f'File "{__file__}"' in failure.detail
    assert 'raise ValueError("no number")' in failure.detail


def test_our_frames_and_the_loops_are_left_out() -> None:
    async def wait() -> None:
        async with asyncio.timeout(60):
            await asyncio.wait_for(asyncio.to_thread(broken), 60)

    detail = user_traceback(raised(lambda: asyncio.run(wait())))
    assert "in broken" in detail
    assert os.path.join("asyncio", "") not in detail
    assert os.path.join("src", "holdfast", "") not in detail


def test_an_exception_that_is_all_ours_has_no_lines() -> None:
    error = raised(lambda: msgspec.json.decode(b"{"))
    error.__traceback__ = None
    assert user_traceback(error) == ""


def test_what_an_exception_came_from_is_told_too() -> None:
    def wrap() -> None:
        try:
            broken()
        except ValueError as error:
            raise LookupError("not found") from error

    detail = user_traceback(raised(wrap))
    assert detail.index("no number") < detail.index("direct cause") < detail.index("LookupError: not found")


def test_every_exception_of_a_group_is_told() -> None:
    def group() -> None:
        raise BaseExceptionGroup("two", [raised(broken), KeyError("k")])

    detail = user_traceback(raised(group))
    assert "no number" in detail
    assert "KeyError: 'k'" in detail


@pytest.mark.parametrize("error", [ValueError("x" * 1_000_000), RecursionError("y" * 100_000)])
def test_a_record_is_bounded_and_keeps_the_users_lines(error: Exception) -> None:
    def fail() -> None:
        raise error

    failure = failure_of("solver", raised(fail))
    assert len(failure.message) <= 2000
    assert len(failure.detail) <= 8000
    assert "in fail" in failure.detail


def test_a_deep_stack_keeps_the_way_in_and_where_it_broke() -> None:
    detail = user_traceback(raised(lambda: deep(100)))
    assert "in raised" in detail
    assert 'raise ValueError("at the bottom")' in detail
    assert "more …" in detail
    assert len(detail) < 8000


def test_what_cannot_be_said_or_written_is_recorded_all_the_same() -> None:
    def fail() -> None:
        raise UnspeakableError

    assert "cannot be made" in failure_of("solver", raised(fail)).message

    def half() -> None:
        raise ValueError("\ud800")

    assert json.loads(msgspec.json.encode(failure_of("solver", raised(half))))["message"] == "ValueError: ?"


def test_secrets_are_taken_out_of_message_and_lines_before_they_are_cut() -> None:
    def leak() -> None:
        raise ValueError("x" * 1990 + SECRET)

    failure = failure_of("solver", raised(leak), [SECRET])
    assert SECRET[:8] not in failure.message + failure.detail
    told = redacted(Failure("scorer", f"key {SECRET}", f"header {SECRET}"), [SECRET])
    assert (told.message, told.detail) == ("key [redacted]", "header [redacted]")


def test_secrets_are_what_the_spec_names_and_what_is_called_like_one() -> None:
    model = {
        "name": "m",
        "provider": "mock",
        "api_key_env": "ODD",
        "headers": {"X-Team": "Bearer ${TEAM}"},
        "base_url": "http://${HOST_PART:-x}/v1",
    }
    spec = build_spec({"tasks": [{"name": "t"}], "models": [model]}, "test")
    whole = msgspec.structs.replace(
        spec, models=[*spec.models, Model(name="w", provider="mock", base_url="${ADDRESS}")]
    )
    environ = {
        "ODD": "odd-value",
        "TEAM": "team-value",
        "HOST_PART": "host-value",
        "ADDRESS": "http://plain.example",
        "OTHER_API_KEY": "other-secret",
        "KEYBOARD": "us",
        "PATH": "some/folder",
        "https_proxy": "http://me:pass%20word@proxy.example:3128",
        "ALL_PROXY": "http://[no",
        "NO_PROXY": "localhost",
    }
    proxy = {"pass%20word", "pass word"}
    assert set(secrets_of(whole, environ)) == {"odd-value", "team-value", "host-value", "other-secret", *proxy}
