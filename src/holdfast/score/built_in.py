"""The scorers that come with Holdfast, by the names that a spec uses."""

from holdfast.score.agreeing import consistency
from holdfast.score.choices import choice
from holdfast.score.composing import all_of, any_of, at_least, none_of, row_is, taxonomy, weighted, when
from holdfast.score.executing import code_tests
from holdfast.score.judges import pairwise, rubric
from holdfast.score.lengths import length, length_difference
from holdfast.score.mathematics import maths
from holdfast.score.neural import bert_score, embedding_similarity
from holdfast.score.programs import codebleu
from holdfast.score.quantities import numeric
from holdfast.score.similarity import bleu, chrf, edit_similarity, meteor, rouge, token_f1
from holdfast.score.structures import json_field, json_schema
from holdfast.score.texts import exact_match, includes, regex

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
