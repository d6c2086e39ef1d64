"""Pure numbers: what was measured, how sure that is, and what differs. Nothing here knows what the numbers are of.

No network, clock, files or event loop. numpy and scipy are brought in by the first method that needs them; what draws
at random takes a seed. docs/statistics.md says which method is used when.
"""

from typing import TYPE_CHECKING, Any

from holdfast.stats.adjustment import benjamini_hochberg, holm, ranks_of_intervals, ranks_of_tests, tied_ranks
from holdfast.stats.agreement import cohens_kappa, krippendorff_alpha, percent_agreement
from holdfast.stats.effects import cliffs_delta, cohens_d, cohens_dz, cohens_h, odds_ratio, paired_odds_ratio
from holdfast.stats.intervals import Summary, paired_difference, student, summarise, wilson
from holdfast.stats.pairs import Pairs, pair_up
from holdfast.stats.power import (
    Design,
    VarianceSplit,
    detectable_effect,
    power_of,
    repeats_needed,
    samples_needed,
    split_variance,
)
from holdfast.stats.quantiles import quantile
from holdfast.stats.reducers import (
    at_least,
    cons_at_k,
    maximum,
    mean,
    median,
    mode,
    mode_label,
    pass_at_k,
    pass_power_k,
    reducer,
)

if TYPE_CHECKING:
    from holdfast.stats.bootstrap_intervals import bootstrap
    from holdfast.stats.bradley_terry import Strength, Strengths, fit_strengths
    from holdfast.stats.paired_tests import PairedTest, mcnemar_test, permutation_test, wilcoxon_test
    from holdfast.stats.sequential import BoundedMean, NormalMixture

_NEEDS_NUMPY = {
    "BoundedMean": "sequential",
    "NormalMixture": "sequential",
    "PairedTest": "paired_tests",
    "Strength": "bradley_terry",
    "Strengths": "bradley_terry",
    "bootstrap": "bootstrap_intervals",
    "fit_strengths": "bradley_terry",
    "mcnemar_test": "paired_tests",
    "permutation_test": "paired_tests",
    "wilcoxon_test": "paired_tests",
}

__all__ = [
    "BoundedMean",
    "Design",
    "NormalMixture",
    "PairedTest",
    "Pairs",
    "Strength",
    "Strengths",
    "Summary",
    "VarianceSplit",
    "at_least",
    "benjamini_hochberg",
    "bootstrap",
    "cliffs_delta",
    "cohens_d",
    "cohens_dz",
    "cohens_h",
    "cohens_kappa",
    "cons_at_k",
    "detectable_effect",
    "fit_strengths",
    "holm",
    "krippendorff_alpha",
    "maximum",
    "mcnemar_test",
    "mean",
    "median",
    "mode",
    "mode_label",
    "odds_ratio",
    "pair_up",
    "paired_difference",
    "paired_odds_ratio",
    "pass_at_k",
    "pass_power_k",
    "percent_agreement",
    "permutation_test",
    "power_of",
    "quantile",
    "ranks_of_intervals",
    "ranks_of_tests",
    "reducer",
    "repeats_needed",
    "samples_needed",
    "split_variance",
    "student",
    "summarise",
    "tied_ranks",
    "wilcoxon_test",
    "wilson",
]


if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """A report of a run needs none of these, and so not the time that importing numpy takes."""
        if name not in _NEEDS_NUMPY:
            raise AttributeError(f"module 'holdfast.stats' has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(f"holdfast.stats.{_NEEDS_NUMPY[name]}"), name)
        globals()[name] = found
        return found
