"""The one error of this room: a data set that cannot be used, with the place to mend."""

from holdfast.errors import HoldfastError


class DataError(HoldfastError):
    """Names the file (or task), the line if there is one, what is wrong there, and what to do."""

    def __init__(self, where: str, problem: str, line: int = 0, unit: str = "line") -> None:
        super().__init__(where, problem, line, unit)  # all of them, so that it can be pickled
        self.where = where
        self.problem = problem
        self.line = line
        self.unit = unit

    def __str__(self) -> str:
        place = f"{self.where}, {self.unit} {self.line}" if self.line else self.where
        return f"{place}: {self.problem}"
