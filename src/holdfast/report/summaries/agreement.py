"""How well the judges of a panel agree, for each score that the panel gives.

A panel is a scorer with several `roles`. It records its combined score under its own name and each vote beside it
(`rubric`, `rubric.a`, `rubric.b`). Votes are points on a scale, so alpha is ordinal. For two judges there is also
Cohen's unweighted kappa, where any two different votes are a disagreement.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records import JUDGES, normalized
from holdfast.report.text import format_number
from holdfast.score import as_number
from holdfast.stats import cohens_kappa, krippendorff_alpha, percent_agreement

_MODEL_FIELDS = ("provider", "model", "params", "options")


class Agreement(msgspec.Struct, frozen=True):
    """Agreement on `n` answers with at least two votes. A measure is None where disagreement was impossible."""

    scorer: str
    judges: tuple[str, ...]
    n: int
    agreement: float | None
    """The share of pairs of judges with the same vote, not corrected for chance."""
    alpha: float | None
    kappa: float | None = None

    def __str__(self) -> str:
        measures = [f"Krippendorff's alpha (ordinal) {format_number(self.alpha)}"]
        if len(self.judges) == 2:
            measures.append(f"Cohen's kappa (unweighted) {format_number(self.kappa)}")
        measures.append(f"pairwise agreement {format_number(self.agreement)}")
        return f"{self.scorer}: agreement of {', '.join(self.judges)} on {self.n} answers: {', '.join(measures)}"


def panels(scorers: Sequence[Mapping[str, Any]], task: str) -> dict[str, tuple[str, ...]]:
    """The roles of each panel among the scorers of a task. `scorers`: as an evaluation records them."""
    found = {}
    for each in scorers:
        roles = (each.get("args") or {}).get("roles")
        if each.get("task", task) == task and isinstance(roles, list) and len(roles) > 1:
            found[str(each.get("name"))] = tuple(map(str, roles))
    return found


def judges_of(scorer: Mapping[str, Any], roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The models that a built-in judge calls, by role. They are part of its identity."""
    scorer = normalized(scorer)
    if "version" not in scorer or scorer["function"] not in JUDGES:
        return {}
    args = scorer.get("args") or {}
    named = args.get("roles") or [args.get("role", "judge")]
    return {role: {part: roles[role].get(part) for part in _MODEL_FIELDS} for role in named if role in roles}


def agreements(judges: Mapping[str, tuple[str, ...]], votes: Mapping[str, Mapping[int, Any]]) -> Iterator[Agreement]:
    """The agreement on every score that a panel gives. `votes`: by score name, then by ordinal of the answer."""
    for panel, roles in judges.items():
        for name in votes:
            own = [votes.get(f"{name}.{role}", {}) for role in roles]
            if (name == panel or name.startswith(f"{panel}.")) and all(own):
                answers = dict.fromkeys(answer for each in own for answer in each)
                units = [[as_number(each.get(answer)) for each in own] for answer in answers]
                units = [unit for unit in units if sum(vote is not None for vote in unit) > 1]
                alpha, kappa = krippendorff_alpha(units, "ordinal"), None
                if len(roles) == 2:
                    kappa = cohens_kappa([unit[0] for unit in units], [unit[1] for unit in units])
                yield Agreement(name, roles, len(units), percent_agreement(units), alpha, kappa)
