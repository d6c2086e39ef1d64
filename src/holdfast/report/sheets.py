"""All that a page says of one run: its report, what each model cost, and where it comes from."""

import msgspec

from holdfast.report.cells import RunReport
from holdfast.report.costs import CostLine


class Origin(msgspec.Struct, frozen=True):
    """Where a run comes from: name and value of each fact, and the spec as a person reads it."""

    facts: tuple[tuple[str, str], ...]
    spec: str = ""


class Sheet(msgspec.Struct, frozen=True):
    """One run on the page."""

    report: RunReport
    costs: tuple[CostLine, ...]
    origin: Origin
