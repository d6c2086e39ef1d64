"""Reasoning in many small tasks: BIG-Bench Hard."""

import re
import string
from typing import Any

from holdfast.plan.benchmarks.answers import after_statement, without_statement
from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_TASKS = [
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
]
_OPTION = re.compile(r"^\(([A-Z])\) ?(.+)$", re.MULTILINE)
_KINDS = {
    "choice": re.compile(r"\([A-Z]\)"),
    "number": re.compile(r"-?[0-9]+"),
    "verdict": re.compile(r"yes|no|true|false|valid|invalid", re.IGNORECASE),
    "brackets": re.compile(r"[][(){}<>\s]+"),
}


def _bbh(row: Row) -> Row:
    """Some copies have `question` for `input`, and the choices in a column of their own."""
    question = (row["input"] if "input" in row else row["question"]).strip()
    target = str(row["target"]).strip()
    choices = row.get("choices")
    if choices and choices.get("text") and not _OPTION.search(question):
        pairs = zip(string.ascii_uppercase, choices["text"], strict=False)
        question += "\nOptions:" + "".join(f"\n({letter}) {text}" for letter, text in pairs)
        target = f"({target})" if re.fullmatch("[A-Z]", target) else target
    kind = next((name for name, pattern in _KINDS.items() if pattern.fullmatch(target)), "words")
    made: Row = {
        "id": f"{row['config']}-{row['config_row']}",
        "config": row["config"],
        "question": question,
        "kind": kind,
        "target": target,
    }
    if kind == "choice":
        made["choices"] = [text for _, text in _OPTION.findall(question)]
    elif kind == "brackets":
        made["target"] = [target, "".join(target.split())]
    elif kind == "words" and "," not in target:  # a sorted list of words
        made["target"] = [target, ", ".join(target.split())]
    return made


_STATEMENT = r"\banswer\b(?: is\b)?:?"
_STATED, _NOT_STATED = after_statement(_STATEMENT), without_statement(_STATEMENT)
_FINAL = {"regex": {"pattern": rf"(?:{_STATED}|{_NOT_STATED})([\s\S]*)\Z", "first": True}}
"""What follows the last `Answer:`, else the last `answer` or `answer is`; the whole reply if there is neither."""
_BRACKETS = {"regex": {"pattern": r"[][(){}<>](?:\s*[][(){}<>])*"}}
_WORD = r"(?i:(?<!\bnot )\b(?:yes|no|true|false|valid|invalid)\b)"
_VERDICT = {"regex": {"pattern": rf"(?:{_STATED}(?:(?!{_WORD})[\s\S])*+|{_NOT_STATED}[\s\S]*)({_WORD})", "first": True}}
"""The first verdict after `Answer:`; the last one of a reply that states no answer."""
_PLAIN = {"regex": {"pattern": r"\A\W*+(.*\w)"}}


def _by_kind(scorers: dict[str, dict[str, Any]], otherwise: dict[str, Any]) -> dict[str, Any]:
    """A scorer for each kind of target."""
    for kind, scorer in reversed(scorers.items()):
        test = {"row_is": {"column": "kind", "equals": kind}}
        otherwise = {"when": {"test": test, "then": scorer, "otherwise": otherwise}}
    return otherwise


def _flexible() -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {
        "choice": {"choice": {"mentions": False, "extract_target": {"regex": {"pattern": "[A-Z]"}}}},
        "number": {"numeric": {"extract": _FINAL}},
        "verdict": {"exact_match": {"ignore_case": True, "extract": _VERDICT}},
        "brackets": {"exact_match": {"extract": [_FINAL, _BRACKETS]}},
    }
    made = _by_kind(parts, {"exact_match": {"ignore_case": True, "extract": [_FINAL, "last_line", _PLAIN]}})
    made["when"]["name"] = "flexible"
    return made


_STRICT = {"regex": {"pattern": r"(?m)^[ \t]*+[#>]*+[ \t*_`]*+Answer[*_`]*+:[ \t*_`]*+(.*[^\s.*_`])"}}

_BBH = Benchmark(
    name="bbh",
    title="BIG-Bench Hard: 27 tasks that need several steps",
    source="Suzgun et al. 2022, Challenging BIG-Bench Tasks and Whether Chain-of-Thought Can Solve Them",
    licence="MIT",
    samples=6511,
    metric="flexible",
    subset="config",
    columns=("input", "target"),
    convert=_bbh,
    task={
        "dataset": {
            "hub": "SaylorTwift/bbh",
            "config": _TASKS,
            "split": "test",
            "id": "id",
            "input": "question",
            "target": "target",
            "shuffle": {"seed": 1, "by": "config"},
        },
        "prompt": (
            "Solve the task below step by step. The last line of your reply must be `Answer: X`. X is an option with "
            "its parentheses, such as (A), if the task lists such options. Otherwise it is the answer itself: a word, "
            "a number, or what is missing.\n\n{question}"
        ),
        "scorers": [
            _flexible(),
            {"exact_match": {"ignore_case": True, "extract": _STRICT, "name": "strict"}},
        ],
        "counts": NOTHING_FLATTERS,
        "macro": "config",
    },
    differs="No examples, where the paper and lm-eval show 3 with reasoning that ends in `So the answer is`.",
    unverified=("the licence", "the number of samples", "the names of all configs in this copy"),
)

BENCHMARKS = [_BBH]
