"""The command with which a run that has stopped goes on: what is advised must work when it is copied."""

from holdfast.api.places import RunPlace
from holdfast.spec import RunLimits

_BUDGET = "budget: limits.run."


def command_to_go_on(place: RunPlace, reason: str, limits: RunLimits) -> str:
    """`reason`: that of the run's status. At a budget a plain resume would stop at once: the limit is doubled."""
    name = reason.removeprefix(_BUDGET).partition(" ")[0] if reason.startswith(_BUDGET) else ""
    limit = getattr(limits, name) if name else None
    if limit is None:
        return place.command("resume")
    raised = 2 * limit if isinstance(limit, int) else f"{2 * limit:g}"  # no 2e+06, which is no whole number
    return place.command("resume", "--set", f"limits.run.{name}={raised}")
