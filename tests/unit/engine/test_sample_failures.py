"""What a solver's exception means: whether another attempt could help is decided by what was raised, not its text."""

import pytest

from holdfast.engine.failures import failure_in
from holdfast.errors import SpecError
from holdfast.records.facts import Failure
from holdfast.solve import LimitError, StepFailedError


class QuotaError(Exception):
    """Its text may begin with anything."""


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (TypeError("no"), True),
        (ModuleNotFoundError("no"), True),
        (UnboundLocalError("no"), True),
        (NotImplementedError(), True),
        (SpecError("no"), True),
        (ExceptionGroup("several", [ValueError("no"), ExceptionGroup("more", [NameError("no")])]), True),
        (ValueError("TypeError: no"), False),
        (QuotaError("NameError: no"), False),
        (ExceptionGroup("several", [ValueError("no")]), False),
        (LimitError("no more"), True),
        (LimitError("too late", "timeout"), False),
        (StepFailedError(Failure("auth", "no key")), True),
        (StepFailedError(Failure("server", "down")), False),
        (StepFailedError(Failure("tool", "TypeError: no")), False),
    ],
    ids=repr,
)
def test_wrong_code_and_refusals_are_final_and_nothing_else(error: Exception, final: bool) -> None:
    assert failure_in(error, ()).final is final


def test_a_type_that_only_has_such_a_name_is_not_wrong_code() -> None:
    lookalike = type("TypeError", (Exception,), {})
    failed = failure_in(lookalike("no"), ())
    assert (failed.failure.message, failed.final) == ("TypeError: no", False)
