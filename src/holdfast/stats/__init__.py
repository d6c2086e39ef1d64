"""Statistics on plain numbers: means with intervals, paired tests, effect sizes, power, agreement, rankings.

Pure: no network, clock, files or event loop, and no knowledge of runs or scorers. numpy and scipy are imported by the
first function that needs them. Functions that draw random numbers take a seed.

Where a p-value comes from: `report.compare.comparison.paired_test` picks `mcnemar_test` or `permutation_test`
(`stats.paired_tests`); `holm` or `benjamini_hochberg` (`stats.adjustment`) adjust the p-values of one table.
docs/statistics.md says which method is used when.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports
from holdfast.stats.adjustment import benjamini_hochberg, holm, ranks_of_intervals, ranks_of_tests, tied_ranks
from holdfast.stats.agreement import cohens_kappa, krippendorff_alpha, percent_agreement
from holdfast.stats.effects import cliffs_delta, cohens_d, cohens_dz, cohens_h, odds_ratio, paired_odds_ratio
from holdfast.stats.intervals import (
    LEVEL,
    GroupSums,
    Summary,
    macro_mean,
    paired_difference,
    student,
    sum_groups,
    summarise,
    summarise_sums,
    widen_for_unseen,
    wilson,
)
from holdfast.stats.paired_intervals import paired_interval
from holdfast.stats.power import (
    Design,
    VarianceSplit,
    detectable_effect,
    power_of,
    repeats_needed,
    samples_needed,
    split_variance,
)
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
from holdfast.stats.scales import BOOL, COUNT, LABEL, NUMBER, UNIT, Scale, parse_scale
from holdfast.stats.values import Pairs, pair_up, quantile

if TYPE_CHECKING:
    from holdfast.stats.bootstrap_intervals import bootstrap, graded_f1
    from holdfast.stats.bradley_terry import Strength, Strengths, fit_strengths
    from holdfast.stats.duels import DuelStrength, DuelStrengths, connected_games, duel_strengths
    from holdfast.stats.paired_tests import PairedTest, mcnemar_test, permutation_test, wilcoxon_test
    from holdfast.stats.sequential import BoundedMean, NormalMixture
else:  # hidden from type checkers, which would accept every misspelt name
    # numpy is imported on first use: a plain report needs none of these functions.
    __getattr__ = lazy_exports(
        __name__,
        {
            "bootstrap_intervals": "bootstrap graded_f1",
            "bradley_terry": "Strength Strengths fit_strengths",
            "duels": "DuelStrength DuelStrengths connected_games duel_strengths",
            "paired_tests": "PairedTest mcnemar_test permutation_test wilcoxon_test",
            "sequential": "BoundedMean NormalMixture",
        },
    )

__all__ = [
    "BOOL",
    "COUNT",
    "LABEL",
    "LEVEL",
    "NUMBER",
    "UNIT",
    "BoundedMean",
    "Design",
    "DuelStrength",
    "DuelStrengths",
    "GroupSums",
    "NormalMixture",
    "PairedTest",
    "Pairs",
    "Scale",
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
    "connected_games",
    "cons_at_k",
    "detectable_effect",
    "duel_strengths",
    "fit_strengths",
    "graded_f1",
    "holm",
    "krippendorff_alpha",
    "macro_mean",
    "maximum",
    "mcnemar_test",
    "mean",
    "median",
    "mode",
    "mode_label",
    "odds_ratio",
    "pair_up",
    "paired_difference",
    "paired_interval",
    "paired_odds_ratio",
    "parse_scale",
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
    "sum_groups",
    "summarise",
    "summarise_sums",
    "tied_ranks",
    "widen_for_unseen",
    "wilcoxon_test",
    "wilson",
]
