"""The table of built-in scorers.

To add one: write it in a module of this package, list it here, and give it version 1 in `holdfast.records.built_in`,
which identifies built-in code in records. Everything else (specs, reference page, resume rules) follows from the table.
"""

from holdfast.score.scorers.choice import choice
from holdfast.score.scorers.code_tests import code_tests
from holdfast.score.scorers.composed import all_of, any_of, at_least, none_of, row_is, taxonomy, weighted, when
from holdfast.score.scorers.drop import drop_em, drop_f1
from holdfast.score.scorers.instructions import ifeval_instruction, ifeval_prompt
from holdfast.score.scorers.json import json_field, json_schema
from holdfast.score.scorers.judges import grade, pairwise, rubric
from holdfast.score.scorers.likelihood import acc, acc_bytes, acc_norm, mc2
from holdfast.score.scorers.neural import bert_score, embedding_similarity
from holdfast.score.scorers.numeric import maths, numeric
from holdfast.score.scorers.similarity import bleu, chrf, codebleu, edit_similarity, meteor, rouge, token_f1
from holdfast.score.scorers.text import consistency, exact_match, includes, length, length_difference, regex

SECTIONS = {
    "Right or wrong": (
        *(exact_match, includes, regex, numeric, choice, maths, json_field, json_schema, code_tests),
        drop_em,
    ),
    "Likelihood of choices": (acc, acc_norm, acc_bytes, mc2),
    "Similarity to the target": (
        *(token_f1, drop_f1, edit_similarity, bleu, chrf, rouge, meteor),
        *(bert_score, embedding_similarity, codebleu),
    ),
    "Judge models": (rubric, pairwise, grade),
    "Instructions that code can check": (ifeval_prompt, ifeval_instruction),
    "Length and consistency": (length, length_difference, consistency),
    "Composed of other scorers": (all_of, any_of, none_of, weighted, when, at_least, taxonomy, row_is),
}
"""All scorers, by section of docs/scorers.md."""

SCORERS = {scorer.name: scorer for section in SECTIONS.values() for scorer in section}
"""All scorers, by the name that a spec uses."""
