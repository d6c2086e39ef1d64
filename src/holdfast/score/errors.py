"""The errors of this room: a scorer that cannot be used, and one that failed on an answer.

HoldfastError
├── ScorerError     before a run: an unknown name or argument, a function that is no scorer
└── ScoringFailed   during one: the scorer raised, or returned what is no score
"""

from holdfast.errors import HoldfastError
from holdfast.records.facts import Failure


class ScorerError(HoldfastError):
    """Names the place in the spec or the code, what is wrong there, and the nearest thing that would work."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)  # both, so that it can be pickled
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class ScoringFailed(HoldfastError):  # noqa: N818 - an expected outcome that is recorded, not a defect of ours
    """One scorer gave no score for one answer. `detail` shows the user's own lines that led to it."""

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
        """As it is recorded."""
        return Failure(self.kind, str(self), self.detail)
