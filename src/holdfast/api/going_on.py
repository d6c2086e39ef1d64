"""The command with which a run that has stopped goes on: what is advised must work when it is copied."""

from holdfast.api.places import RunPlace
from holdfast.errors import UsageError
from holdfast.spec import RunLimits

_BUDGET = "budget: limits.run."


def not_begun(place: RunPlace) -> UsageError:
    """For commands that need the record that a run begins with, when its process died before writing it."""
    return UsageError(
        f"{place.run_id} has not begun: its journal holds no run; start it with: {place.command_to_begin()}"
    )


def command_to_go_on(place: RunPlace, reason: str, limits: RunLimits | None) -> str:
    """`reason` is that of the run's status. At a budget a plain resume would stop at once, so the limit is doubled.
    `limits` is None for a run that has not begun: its first command starts it.
    """
    if limits is None:
        return place.command_to_begin()
    name = reason.removeprefix(_BUDGET).partition(" ")[0] if reason.startswith(_BUDGET) else ""
    limit = getattr(limits, name) if name else None
    if limit is None:
        return place.command("resume")
    raised = 2 * limit if isinstance(limit, int) else f"{2 * limit:g}"  # no 2e+06, which is no whole number
    return place.command("resume", "--set", f"limits.run.{name}={raised}")
