"""Exam questions from school to graduate level: MMLU, MMLU-Pro, GPQA and SuperGPQA."""

import string
from typing import Any

import msgspec

from holdfast.plan.benchmarks.answers import CHAT_DIFFERS, chat_task, lettered, rank_letters, read_index
from holdfast.plan.benchmarks.card import Benchmark
from holdfast.records import Row

_PADDING = ("", "N/A")


def _without_padding(options: list[Any], correct: int) -> list[str]:
    """The options without those behind the correct one that only fill up the list. The others keep their letters."""
    texts = ["" if option is None else option.strip() for option in options]
    while len(texts) > correct + 1 and texts[-1] in _PADDING:
        texts.pop()
    return texts


def _mmlu(row: Row) -> Row:
    subject = row["subject"]
    return {
        "question": row["question"].strip(),
        "subject": subject,
        "topic": subject.replace("_", " "),
        **lettered(row["choices"], read_index(row["answer"]), keep_empty=True),
    }


_MMLU = Benchmark(
    name="mmlu",
    title="MMLU: exam questions of 57 subjects",
    source="Hendrycks et al. 2021, Measuring Massive Multitask Language Understanding",
    licence="MIT",
    samples=14042,
    metric="choice",
    columns=("question", "subject", "choices", "answer"),
    convert=_mmlu,
    subset="subject",
    task=chat_task(
        {
            "hub": "cais/mmlu",
            "config": "all",
            "split": "test",
            "revision": "c30699e8356da336a370243923dbaf21066bb9fe",
            "shuffle": {"seed": 1, "by": "subject"},
        },
        macro="subject",
    ),
    differs=f"{CHAT_DIFFERS} No examples (see mmlu:5shot). Duplicates are kept: inspect_evals drops 105 rows.",
    unverified=("licence",),
)
_MMLU_SHOTS = {"split": "dev", "by": "subject", "n": 5, "pick": "first"}
_MMLU_CHAT_SHOTS = msgspec.structs.replace(
    _MMLU,
    name="mmlu:5shot",
    title=f"{_MMLU.title}, with 5 examples",
    task={
        **_MMLU.task,
        "prompt": "{question}\n\n{options}\n\nReply with one line: `Answer: X`, where X is the letter of one choice.",
        "fewshot": {**_MMLU_SHOTS, "answer": "Answer: {letter}"},
    },
    differs="Examples are earlier turns of a chat; lm-eval ranks the likelihood of letters after one text. "
    "Duplicates are kept.",
)
_MMLU_LIKELIHOOD = rank_letters(
    _MMLU,
    "{question}\n{options}\nAnswer:",
    "ABCD",
    comparable="lm-eval 0.4.13, group mmlu version 2, without examples; its figure is the mean over questions",
)
_MMLU_TASK = {
    **_MMLU_LIKELIHOOD.task,
    "system": "The following are multiple choice questions (with answers) about {topic}.",
}


def _mmlu_pro(row: Row) -> Row:
    """Many rows have fewer than 10 options; some copies fill them up."""
    correct = read_index(row["answer_index"])
    made = lettered(_without_padding(row["options"], correct), correct)
    if made["letter"] != row["answer"]:
        raise ValueError(f"the answer is {row['answer']!r}, but its index is {correct}")
    return {"id": row["question_id"], "question": row["question"].strip(), "category": row["category"], **made}


_MMLU_PRO = Benchmark(
    name="mmlu_pro",
    title="MMLU-Pro: exam questions with up to 10 choices",
    source="Wang et al. 2024, MMLU-Pro: A More Robust and Challenging Multi-Task Language Understanding Benchmark",
    licence="MIT",
    samples=12032,
    metric="choice",
    columns=("question_id", "question", "options", "answer", "answer_index", "category"),
    convert=_mmlu_pro,
    subset="category",
    task=chat_task(
        {
            "hub": "TIGER-Lab/MMLU-Pro",
            "split": "test",
            "revision": "527feea0afed1de15a8c115abf7be4c912123315",
            "id": "id",
            "shuffle": {"seed": 1, "by": "category"},
        },
        macro="category",
    ),
    differs="No examples, where the paper shows 5 with reasoning. The scorer reads more phrases than `answer is (X)`; "
    "an answer without a letter is wrong.",
    unverified=("licence",),
)


def _gpqa(row: Row) -> Row:
    """Only these columns: the source has some 60 more, and a canary that must reach no prompt and no file."""
    columns = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    choices = [row[name].strip() for name in columns]
    record = row["Record ID"]
    if not record:
        raise ValueError("the row has no Record ID, which decides the order of its choices")
    return {
        "id": record,
        "question": row["Question"].strip(),
        "domain": row["High-level domain"],
        **lettered(choices, 0, shuffle=record),
    }


def _gpqa_benchmark(config: str, samples: int, title: str, unverified: tuple[str, ...]) -> Benchmark:
    return Benchmark(
        name=config,
        title=f"GPQA: graduate-level questions that a search does not answer, {title}",
        source="Rein et al. 2023, GPQA: A Graduate-Level Google-Proof Q&A Benchmark",
        licence="CC-BY-4.0",
        share="no-text",
        samples=samples,
        metric="choice",
        columns=(
            "Record ID",
            "Question",
            "Correct Answer",
            "Incorrect Answer 1",
            "Incorrect Answer 2",
            "Incorrect Answer 3",
            "High-level domain",
        ),
        convert=_gpqa,
        subset="domain",
        needs=("its terms accepted at the Hub, HF_TOKEN",),
        task=chat_task(
            {
                "hub": "Idavidrein/gpqa",
                "config": config,
                "split": "train",
                "revision": "5233cd1db58884ed0bf678c7c6be731722a23f84",
                "id": "id",
                "shuffle": {"seed": 1, "by": "domain"},
            }
        ),
        differs="Own prompt; choices are shuffled by Record ID, so equal in all runs. In lm-eval the order "
        "depends on the state of a global random generator.",
        unverified=unverified,
    )


def _supergpqa(row: Row) -> Row:
    letter = row["answer_letter"]
    if not isinstance(letter, str) or len(letter) != 1 or letter not in string.ascii_uppercase:
        raise ValueError(f"the answer {letter!r} is no letter")
    correct = string.ascii_uppercase.index(letter)
    return {
        "id": row["uuid"],
        "question": row["question"].strip(),
        "discipline": row["discipline"],
        "field": row["field"],
        **lettered(_without_padding(row["options"], correct), correct),
    }


_SUPERGPQA = Benchmark(
    name="supergpqa",
    title="SuperGPQA: graduate-level questions of 285 disciplines, up to 10 choices",
    source="M-A-P Team 2025, SuperGPQA: Scaling LLM Evaluation across 285 Graduate Disciplines",
    licence="MIT",
    samples=26529,
    metric="choice",
    columns=("uuid", "question", "options", "answer_letter", "discipline", "field"),
    convert=_supergpqa,
    subset="discipline",
    task=chat_task(
        {
            "hub": "m-a-p/SuperGPQA",
            "split": "train",
            "id": "id",
            "shuffle": {"seed": 1, "by": "discipline"},
        },
        macro="discipline",
    ),
    differs="Own prompt and no examples; published figures use the prompt of the paper.",
    unverified=("licence",),
)

BENCHMARKS = [
    _MMLU,
    _MMLU_CHAT_SHOTS,
    msgspec.structs.replace(_MMLU_LIKELIHOOD, task=_MMLU_TASK),
    msgspec.structs.replace(
        _MMLU_LIKELIHOOD,
        name="mmlu:likelihood_5shot",
        title=f"{_MMLU_LIKELIHOOD.title}, with 5 examples",
        task={**_MMLU_TASK, "fewshot": _MMLU_SHOTS},
        comparable="lm-eval 0.4.13, group mmlu version 2, with --num_fewshot 5; its figure is the mean over questions",
    ),
    _MMLU_PRO,
    _gpqa_benchmark("gpqa_diamond", 198, "the part with the best agreement of experts", ()),
    _gpqa_benchmark("gpqa_main", 448, "main set", ("number of samples",)),
    _SUPERGPQA,
]
