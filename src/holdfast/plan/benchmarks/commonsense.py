"""Everyday knowledge: HellaSwag, WinoGrande, TruthfulQA, CommonsenseQA, PIQA and Social IQa."""

import re
from typing import Any

import msgspec

from holdfast.plan.benchmarks.answers import (
    CHAT_DIFFERS,
    chat_task,
    labelled,
    lettered,
    rank_choices,
    rank_letters,
    read_index,
)
from holdfast.plan.benchmarks.card import Benchmark
from holdfast.records import Row

_BRACKETED = re.compile(r"\[.*?\]")
_BLANK = "<blank>"


def _without_brackets(text: str) -> str:
    """Texts of WikiHow have marks such as `[title]` and `[step]`. Each step is as in lm-eval, also a space that stays
    at the beginning.
    """
    text = text.strip().replace(" [title]", ". ")
    return _BRACKETED.sub("", text).replace("  ", " ")


def _hellaswag(row: Row) -> Row:
    correct = read_index(row["label"])
    begun = f"{row['ctx_a']} {row['ctx_b'].capitalize()}"
    return {
        "question": _without_brackets(f"{row['activity_label']}: {begun}"),
        "source": row["source_id"],
        "kind": row["split_type"],
        **lettered([_without_brackets(ending) for ending in row["endings"]], correct),
    }


_HELLASWAG = Benchmark(
    name="hellaswag",
    title="HellaSwag: how a scene or a guide continues",
    source="Zellers et al. 2019, HellaSwag: Can a Machine Really Finish Your Sentence?",
    licence="MIT",
    samples=10042,
    metric="choice",
    columns=("activity_label", "ctx_a", "ctx_b", "endings", "source_id", "split_type", "label"),
    convert=_hellaswag,
    task=chat_task(
        {
            "hub": "Rowan/hellaswag",
            "split": "validation",
            "revision": "218ec52e09a7e7462a5400043bb9a69a41d06b76",
            "group": "source",
            "shuffle": {"seed": 1, "by": "kind"},
        },
        "Which choice continues this text?\n\n{question}",
    ),
    differs=f"{CHAT_DIFFERS} See hellaswag:likelihood.",
    unverified=("licence",),
)


def _winogrande(row: Row) -> Row:
    """`ranked` has a mark where the choices go: the sentence itself may contain more underscores."""
    before, found, after = row["sentence"].partition("_")
    if not found:
        raise ValueError("the sentence has no underscore where a choice goes")
    return {
        "question": row["sentence"],
        "ranked": f"{before}{_BLANK} {after.strip()}",
        **lettered([row["option1"], row["option2"]], read_index(row["answer"], first=1)),
    }


_WINOGRANDE = Benchmark(
    name="winogrande",
    title="WinoGrande: which of two things a sentence means",
    source="Sakaguchi et al. 2019, WinoGrande: An Adversarial Winograd Schema Challenge at Scale",
    licence="unknown",
    samples=1267,
    metric="choice",
    columns=("sentence", "option1", "option2", "answer"),
    convert=_winogrande,
    task=chat_task(
        {
            "hub": "allenai/winogrande",
            "config": "winogrande_xl",
            "split": "validation",
            "revision": "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            "shuffle": {"seed": 1},
        },
        "Which choice belongs where the underscore is?\n\n{question}",
    ),
    differs=f"{CHAT_DIFFERS} See winogrande:likelihood.",
    unverified=("licence",),
)


def _one_or_zero(targets: Any) -> tuple[list[str], list[int]]:
    """The choices of `mc1_targets` or `mc2_targets`, and 1 or 0 for each."""
    choices, labels = list(targets["choices"]), [int(label) for label in targets["labels"]]
    if len(choices) != len(labels) or 1 not in labels or not {*labels} <= {0, 1}:
        raise ValueError(f"the labels must be 1 or 0, and one of them 1; they are {labels}")
    return choices, labels


def _truthfulqa(row: Row) -> Row:
    """The correct choice is always the first."""
    choices, labels = _one_or_zero(row["mc1_targets"])
    if sum(labels) != 1:
        raise ValueError(f"exactly one choice of mc1_targets must be correct; the labels are {labels}")
    question = row["question"]
    return {"question": question, **lettered(choices, labels.index(1), shuffle=question)}


def _truthfulqa_mc2(row: Row) -> Row:
    choices, labels = _one_or_zero(row["mc2_targets"])
    return {"question": row["question"], "choices": choices, "labels": labels}


_TRUTHFULQA_DATA = {
    "hub": "truthfulqa/truthful_qa",
    "config": "multiple_choice",
    "split": "validation",
    "revision": "741b8276f2d1982aa3d5b832d3ee81ed3b896490",
    "shuffle": {"seed": 1},
}
_NO_PRIMER = "Without the 6 questions and answers that the paper and lm-eval put first, so figures are not comparable."
_TRUTHFULQA = Benchmark(
    name="truthfulqa",
    title="TruthfulQA MC1: questions that invite false beliefs",
    source="Lin et al. 2021, TruthfulQA: Measuring How Models Mimic Human Falsehoods",
    licence="Apache-2.0",
    samples=817,
    metric="choice",
    columns=("question", "mc1_targets"),
    convert=_truthfulqa,
    task=chat_task(_TRUTHFULQA_DATA),
    differs=f"{CHAT_DIFFERS} The order of choices is shuffled by the question, because the first is always correct.",
)
_TRUTHFULQA_LIKELIHOOD = rank_choices(_TRUTHFULQA, "Q: {question}\nA:", differs=_NO_PRIMER)
_TRUTHFULQA_MC2 = msgspec.structs.replace(
    _TRUTHFULQA_LIKELIHOOD,
    name="truthfulqa_mc2:likelihood",
    title="TruthfulQA MC2: the probability of all true answers, by likelihood",
    metric="mc2",
    columns=("question", "mc2_targets"),
    convert=_truthfulqa_mc2,
    task={
        **_TRUTHFULQA_LIKELIHOOD.task,
        "dataset": {**_TRUTHFULQA_DATA, "input": "question", "target": "labels"},
        "scorers": ["mc2"],
    },
)


def _commonsense_qa(row: Row) -> Row:
    texts, correct = labelled(row["choices"], row["answerKey"])
    return {"id": row["id"], "question": row["question"].strip(), **lettered(texts, correct)}


_COMMONSENSE_QA = Benchmark(
    name="commonsense_qa",
    title="CommonsenseQA: everyday knowledge",
    source="Talmor et al. 2019, CommonsenseQA: A Question Answering Challenge Targeting Commonsense Knowledge",
    licence="MIT",
    samples=1221,
    metric="choice",
    columns=("id", "question", "choices", "answerKey"),
    convert=_commonsense_qa,
    task=chat_task(
        {
            "hub": "tau/commonsense_qa",
            "split": "validation",
            "revision": "94630fe30dad47192a8546eb75f094926d47e155",
            "id": "id",
            "shuffle": {"seed": 1},
        }
    ),
    differs=f"{CHAT_DIFFERS} The test split hides its answers, so this is the validation split.",
)


def _piqa(row: Row) -> Row:
    return {"question": row["goal"], **lettered([row["sol1"], row["sol2"]], read_index(row["label"]))}


_PIQA = Benchmark(
    name="piqa",
    title="PIQA: how to do everyday things",
    source="Bisk et al. 2020, PIQA: Reasoning about Physical Commonsense in Natural Language",
    licence="unknown",
    samples=1838,
    metric="choice",
    columns=("goal", "sol1", "sol2", "label"),
    convert=_piqa,
    task=chat_task(
        {"hub": "baber/piqa", "split": "validation", "shuffle": {"seed": 1}},
        "Which choice reaches this goal?\n\n{question}",
    ),
    differs=f"{CHAT_DIFFERS} See piqa:likelihood.",
    unverified=("licence",),
)


def _social_iqa(row: Row) -> Row:
    choices = [row["answerA"], row["answerB"], row["answerC"]]
    question = f"{row['context']} {row['question']}"
    return {"question": question, **lettered(choices, read_index(row["label"], first=1))}


_SOCIAL_IQA = Benchmark(
    name="social_iqa",
    title="Social IQa: what people feel, want and do",
    source="Sap et al. 2019, Social IQa: Commonsense Reasoning about Social Interactions",
    licence="unknown",
    samples=1954,
    metric="choice",
    columns=("context", "question", "answerA", "answerB", "answerC", "label"),
    convert=_social_iqa,
    task=chat_task({"hub": "lighteval/siqa", "split": "validation", "shuffle": {"seed": 1}}),
    differs=f"{CHAT_DIFFERS} See social_iqa:likelihood.",
    unverified=("licence",),
)


def _same_as(task: str) -> str:
    return f"lm-eval 0.4.13, task {task}, without examples"


BENCHMARKS = [
    _HELLASWAG,
    rank_choices(
        _HELLASWAG,
        "{question}",
        scorers=("acc_norm", "acc"),
        comparable=_same_as("hellaswag version 1"),
    ),
    _WINOGRANDE,
    rank_choices(_WINOGRANDE, "{ranked}", mark=_BLANK, comparable=_same_as("winogrande version 1")),
    _TRUTHFULQA,
    _TRUTHFULQA_LIKELIHOOD,
    _TRUTHFULQA_MC2,
    _COMMONSENSE_QA,
    rank_letters(
        _COMMONSENSE_QA,
        "Question: {question}\n{options}\nAnswer:",
        "ABCDE",
        comparable=_same_as("commonsense_qa"),
    ),
    _PIQA,
    rank_choices(
        _PIQA, "Question: {question}\nAnswer:", scorers=("acc", "acc_norm"), comparable=_same_as("piqa version 1")
    ),
    _SOCIAL_IQA,
    rank_choices(_SOCIAL_IQA, "Q: {question}\nA:", comparable=_same_as("social_iqa version 0")),
]
