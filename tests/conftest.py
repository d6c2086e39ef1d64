"""Settings of the whole suite."""

import pytest

NOT_YET = (
    "test_cancel_and_tune",
    "test_load",
    "test_never_stuck",
    "test_no_flock",
    "test_signals",
    "test_status",
    "test_stopping",
    "test_isolation",
    "test_watching",
    "test_terms",
)
"""Files with tests that do not all pass yet (issue 5 is open); they run with the long ones. May only shrink."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in NOT_YET and "unit/state" not in str(item.path):
            item.add_marker(pytest.mark.long)
