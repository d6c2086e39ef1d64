"""Scorers: they rate finished answers without calling the evaluated model again.

`scorer` turns a function into a scorer, `resolve` finds the scorer that a spec entry names, and `score_answer` applies
it to an answer. Built-in scorers without models are pure: no network, clock or event loop. Invariant: a scorer that
cannot rate an answer gives "no score" or fails; neither ever counts as zero.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.score.anomalies import ANOMALIES_VERSION, KINDS, AnswerExpectations, expect_answers, find_anomalies
    from holdfast.score.definition import Extractor, Scorer, ScoringFailed, arguments_after, scorer
    from holdfast.score.extractors import EXTRACTORS
    from holdfast.score.fingerprints import identity, import_user_module, solver_digest, source_digest
    from holdfast.score.letters import extract_letter
    from holdfast.score.numbers import last_quantity
    from holdfast.score.reduction import OF_LABELS, Repeat, reduced_value
    from holdfast.score.resolution import Entry, resolve, scorers_in
    from holdfast.score.results import as_number, is_quick, score_answer, score_at_once, score_group
    from holdfast.score.running_scores import CellScores, RunningMean, repeats_in
    from holdfast.score.scales import (
        BUILT_IN_SCALES,
        EvaluationScales,
        describe_scale,
        mixed_scales,
        scale_hints,
        scales_of,
        threshold_hints,
        wrong_value,
    )
    from holdfast.score.scorers.choice import choice
    from holdfast.score.scorers.numeric import numeric
    from holdfast.score.scorers.registry import SCORERS
    from holdfast.score.scorers.text import exact_match, includes, regex
    from holdfast.score.worker_process import run_in_worker
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "anomalies": "ANOMALIES_VERSION KINDS AnswerExpectations expect_answers find_anomalies",
            "definition": "Extractor Scorer ScoringFailed arguments_after scorer",
            "extractors": "EXTRACTORS",
            "fingerprints": "identity import_user_module solver_digest source_digest",
            "letters": "extract_letter",
            "numbers": "last_quantity",
            "reduction": "OF_LABELS Repeat reduced_value",
            "resolution": "Entry resolve scorers_in",
            "results": "as_number is_quick score_answer score_at_once score_group",
            "running_scores": "CellScores RunningMean repeats_in",
            "scales": (
                "BUILT_IN_SCALES EvaluationScales describe_scale mixed_scales scale_hints scales_of threshold_hints "
                "wrong_value"
            ),
            "scorers.choice": "choice",
            "scorers.numeric": "numeric",
            "scorers.registry": "SCORERS",
            "scorers.text": "exact_match includes regex",
            "worker_process": "run_in_worker",
        },
    )

__all__ = [
    "ANOMALIES_VERSION",
    "BUILT_IN_SCALES",
    "EXTRACTORS",
    "KINDS",
    "OF_LABELS",
    "SCORERS",
    "AnswerExpectations",
    "CellScores",
    "Entry",
    "EvaluationScales",
    "Extractor",
    "Repeat",
    "RunningMean",
    "Scorer",
    "ScoringFailed",
    "arguments_after",
    "as_number",
    "choice",
    "describe_scale",
    "exact_match",
    "expect_answers",
    "extract_letter",
    "find_anomalies",
    "identity",
    "import_user_module",
    "includes",
    "is_quick",
    "last_quantity",
    "mixed_scales",
    "numeric",
    "reduced_value",
    "regex",
    "repeats_in",
    "resolve",
    "run_in_worker",
    "scale_hints",
    "scales_of",
    "score_answer",
    "score_at_once",
    "score_group",
    "scorer",
    "scorers_in",
    "solver_digest",
    "source_digest",
    "threshold_hints",
    "wrong_value",
]
