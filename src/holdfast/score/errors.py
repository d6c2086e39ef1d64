"""Errors of scorers.

HoldfastError
├── ScorerError     before a run: an unknown scorer or argument, or a function that is not a scorer
└── ScoringFailed   during a run: the scorer raised, or returned a value that is not a score
"""

from holdfast.errors import HoldfastError
from holdfast.records.facts import Failure


class ScorerError(HoldfastError):
    """A scorer cannot be used. Has the place in the spec or the code, the problem, and the nearest valid name."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)  # both arguments, so that the error can be pickled
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class ScoringFailed(HoldfastError):  # noqa: N818 - an expected outcome that is recorded, not a bug
    """A scorer failed on one answer. `detail` has the traceback through the user's own code."""

    kind = "scorer"

    def __init__(self, scorer: str, message: str, detail: str = "") -> None:
        super().__init__(scorer, message, detail)
        self.scorer = scorer
        self.message = message
        self.detail = detail

    def __str__(self) -> str:
        return f"scorer {self.scorer!r}: {self.message}"

    @property
    def failure(self) -> Failure:
        """The failure as it is recorded."""
        return Failure(self.kind, str(self), self.detail)
