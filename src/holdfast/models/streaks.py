"""Refusals in a row: whether a model, or one cell of it, is refused for good, or only some of its requests. Pure."""

from holdfast.models.failures import Policy


class Streak:
    """Of one line, or of one cell. `has_answers`: whether it has ever had one, in an earlier process too."""

    def __init__(self, has_answers: bool = False) -> None:
        self.has_answers = has_answers
        self._in_a_row = 0

    def answered(self) -> None:
        self.has_answers = True
        self._in_a_row = 0

    def refused(self, policy: Policy) -> bool:
        """True if that is enough."""
        self._in_a_row += 1
        enough = policy.stops_working if self.has_answers else policy.stops_new
        return 0 < enough <= self._in_a_row
