"""The scorers that come with Holdfast, by the names that a spec uses."""

from holdfast.score.scorers.choice import choice
from holdfast.score.scorers.code_tests import code_tests
from holdfast.score.scorers.composed import all_of, any_of, at_least, none_of, row_is, taxonomy, weighted, when
from holdfast.score.scorers.json import json_field, json_schema
from holdfast.score.scorers.judges import pairwise, rubric
from holdfast.score.scorers.neural import bert_score, embedding_similarity
from holdfast.score.scorers.numeric import maths, numeric
from holdfast.score.scorers.similarity import bleu, chrf, codebleu, edit_similarity, meteor, rouge, token_f1
from holdfast.score.scorers.text import consistency, exact_match, includes, length, length_difference, regex

KINDS = {
    "Right or wrong": (exact_match, includes, regex, numeric, choice, maths, json_field, json_schema, code_tests),
    "How like the target": (
        *(token_f1, edit_similarity, bleu, chrf, rouge, meteor),
        *(bert_score, embedding_similarity, codebleu),
    ),
    "By a judge": (rubric, pairwise),
    "Something else": (length, length_difference, consistency),
    "Made of others": (all_of, any_of, none_of, weighted, when, at_least, taxonomy, row_is),
}
"""As the reference tells them."""

BUILT_IN = {each.name: each for kind in KINDS.values() for each in kind}
