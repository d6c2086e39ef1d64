"""The scores so far of one cell, for progress. Reports do not use them: they compute theirs from the index.

One value per sample: the mean of its repeats that have a number. Labels, "no score" and failures do not count, and
neither do scores that people set by hand. The fold counts what is in the journal; the engine continues with the same
objects, so a resumed run shows the mean of all processes.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.records import Failure, escape
from holdfast.score.results import MAGNITUDE_MAX


class RunningMean(msgspec.Struct):
    """The mean of one scorer so far."""

    samples: int = 0
    """With a number."""
    total: float = 0.0
    """Of one value per sample."""

    @property
    def value(self) -> float | None:
        return self.total / self.samples if self.samples else None

    def __add__(self, other: "RunningMean") -> "RunningMean":
        return RunningMean(self.samples + other.samples, self.total + other.total)


class CellScores(msgspec.Struct):
    """The running means of one cell."""

    repeats: int = 1
    failures: int = 0
    """Scorers that failed on an answer of this process."""
    means: dict[str, RunningMean] = msgspec.field(default_factory=dict)
    """By scorer."""
    begun: dict[str, dict[str, tuple[int, float]]] = msgspec.field(default_factory=dict)
    """By scorer and sample: the count and the sum of the repeats of samples that lack some."""

    def add(self, key: str, scores: Mapping[str, Any]) -> None:
        """Count the scores of one answer, by scorer; one that failed has a Failure. Runs for every sample, so it is one
        call.
        """
        for scorer, value in scores.items():
            # As in reports (`as_number`), but without a call. NaN fails the comparison too.
            if not isinstance(value, int | float) or not -MAGNITUDE_MAX <= value <= MAGNITUDE_MAX:
                self.failures += isinstance(value, Failure)
                continue
            mean = self.means.get(scorer)
            if mean is None:
                mean = self.means[scorer] = RunningMean()
            if self.repeats == 1:
                mean.samples += 1
                mean.total += value
            else:
                self._add_repeat(mean, scorer, key.rpartition("/")[0], value)

    def _add_repeat(self, mean: RunningMean, scorer: str, sample: str, value: float) -> None:
        begun = self.begun.setdefault(scorer, {})
        count, total = begun.get(sample, (0, 0.0))
        mean.samples += not count
        mean.total += (total + value) / (count + 1) - (total / count if count else 0.0)
        begun[sample] = (count + 1, total + value)
        if count + 1 >= self.repeats:  # its value is final: memory must not grow with the run
            del begun[sample]


def repeats_in(spec: Mapping[str, Any], cell: str) -> int:
    """The repeats of a cell's task, from a stored spec of any version."""
    name, tasks = cell.partition("/")[0], spec.get("tasks")
    for task in tasks if isinstance(tasks, list) else ():
        if isinstance(task, dict) and escape(str(task.get("name"))) == name:
            repeats = task.get("repeats")
            return repeats if isinstance(repeats, int) else 1
    return 1
