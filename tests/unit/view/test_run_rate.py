"""The rate of a run on its overview."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.view.pages import run as run_page


def rate(
    *, is_live: bool, finished: int, before: int = 0, lease: Any = None, worked: float = 0.0, summed: float = 0.0
) -> float | None:
    run: Any = SimpleNamespace(
        is_live=is_live,
        standing=SimpleNamespace(lease=lease),
        index=SimpleNamespace(lives=[SimpleNamespace(before=SimpleNamespace(finished=before))]),
    )
    summary: Any = SimpleNamespace(finished=finished, failed=5)
    report: Any = SimpleNamespace(worked_seconds=worked, summed_seconds=summed)
    return run_page.samples_per_second(run, summary, report)


def test_the_rate_of_a_resumed_run_is_that_of_its_last_process() -> None:
    lease = SimpleNamespace(began=100.0, at=110.0)
    assert rate(is_live=True, finished=95, before=90, lease=lease) == 1.0
    assert rate(is_live=True, finished=95, lease=lease) == 10.0


def test_the_rate_of_a_run_that_ended_is_that_over_all_sessions() -> None:
    assert rate(is_live=False, finished=95, before=90, worked=50.0) == 2.0


def test_the_rate_of_a_live_sharded_run_is_that_of_all_workers() -> None:
    lease = SimpleNamespace(began=100.0, at=101.0)
    assert rate(is_live=True, finished=95, lease=lease, worked=10.0, summed=30.0) == 10.0


@pytest.mark.parametrize("lease", [None, SimpleNamespace(began=1.0, at=1.0)])
def test_a_rate_that_is_not_known_is_not_shown(lease: Any) -> None:
    assert rate(is_live=True, finished=95, lease=lease) is None
    assert rate(is_live=False, finished=95) is None
