"""Refusals in a row: whether a model, or one cell of it, is refused for good, or only some of its requests. Pure.

Where one sample may be to blame, refusals count once for each sample: one whose prompt no server takes is one, however
often it is repeated and whatever else it asks.
"""

from holdfast.models.failures import Policy


class Streak:
    """Of one line, or of one cell. `has_answers`: whether it has ever had one, in an earlier process too."""

    def __init__(self, has_answers: bool = False) -> None:
        self.has_answers = has_answers
        self._in_a_row = 0
        self._samples: set[str] = set()

    def answered(self) -> None:
        self.has_answers = True
        self._in_a_row = 0
        self._samples.clear()

    def refused(self, policy: Policy, sample: str = "") -> bool:
        """True if that is enough. `sample`: whose request it was, if that may be the reason."""
        if not sample or sample not in self._samples:
            self._in_a_row += 1
        if sample:
            self._samples.add(sample)
        enough = policy.stops_working if self.has_answers else policy.stops_new
        return 0 < enough <= self._in_a_row
