"""Questions of medical exams and of medical research: MedQA, MedMCQA and PubMedQA."""

from holdfast.plan.benchmarks.answers import (
    CHAT_DIFFERS,
    chat_task,
    lettered,
    rank_choices,
    rank_letters,
    read_index,
)
from holdfast.plan.benchmarks.card import Benchmark
from holdfast.records import Row

_DECISIONS = ["yes", "no", "maybe"]


def _medqa(row: Row) -> Row:
    choices = [row[f"ending{index}"] for index in range(4)]
    made = lettered(choices, read_index(row["label"]), keep_empty=True)
    return {"id": row["id"], "question": row["sent1"], **made}


_MEDQA = Benchmark(
    name="medqa",
    title="MedQA: questions of the medical licensing exam of the USA, 4 choices",
    source="Jin et al. 2020, What Disease does this Patient Have?",
    licence="CC-BY-SA-4.0",
    samples=1273,
    metric="choice",
    columns=("id", "sent1", "ending0", "ending1", "ending2", "ending3", "label"),
    convert=_medqa,
    task=chat_task(
        {"hub": "GBaker/MedQA-USMLE-4-options-hf", "split": "test", "id": "id", "shuffle": {"seed": 1}},
    ),
    differs=f"{CHAT_DIFFERS} See medqa:likelihood.",
    unverified=("licence",),
)


def _medmcqa(row: Row) -> Row:
    choices = [row[name] for name in ("opa", "opb", "opc", "opd")]
    return {
        "id": row["id"],
        "question": row["question"],
        "subject": row["subject_name"],
        **lettered(choices, read_index(row["cop"]), keep_empty=True),
    }


_MEDMCQA = Benchmark(
    name="medmcqa",
    title="MedMCQA: questions of medical entrance exams of India",
    source="Pal et al. 2022, MedMCQA: A Large-scale Multi-Subject Multi-Choice Dataset",
    licence="Apache-2.0",
    samples=4183,
    metric="choice",
    columns=("id", "question", "opa", "opb", "opc", "opd", "cop", "subject_name"),
    convert=_medmcqa,
    subset="subject",
    task=chat_task(
        {
            "hub": "openlifescienceai/medmcqa",
            "split": "validation",
            "id": "id",
            "shuffle": {"seed": 1, "by": "subject"},
        }
    ),
    differs=f"{CHAT_DIFFERS} The test split hides its answers, so this is the validation split.",
)


def _pubmedqa(row: Row) -> Row:
    decision = row["final_decision"]
    if decision not in _DECISIONS:
        raise ValueError(f"the decision is {decision!r}; it must be one of {', '.join(_DECISIONS)}")
    return {
        "id": row["pubid"],
        "question": row["question"],
        "abstract": "\n".join(row["context"]["contexts"]),
        **lettered(_DECISIONS, _DECISIONS.index(decision)),
    }


_ALL_ROWS = "All 1,000 labelled rows; published figures are of 500 of them, whose list is not part of the data."
_PUBMEDQA = Benchmark(
    name="pubmedqa",
    title="PubMedQA: what an abstract says, yes, no or maybe",
    source="Jin et al. 2019, PubMedQA: A Dataset for Biomedical Research Question Answering",
    licence="MIT",
    samples=1000,
    metric="choice",
    columns=("pubid", "question", "context", "final_decision"),
    convert=_pubmedqa,
    task=chat_task(
        {
            "hub": "qiaojin/PubMedQA",
            "config": "pqa_labeled",
            "split": "train",
            "revision": "9001f2853fb87cab8d220904e0de81ac6973b318",
            "id": "id",
            "shuffle": {"seed": 1},
        },
        "{abstract}\n\n{question}",
    ),
    differs=f"{CHAT_DIFFERS} {_ALL_ROWS}",
)

BENCHMARKS = [
    _MEDQA,
    rank_letters(
        _MEDQA,
        "Question: {question}\n{options}\nAnswer:",
        "ABCD",
        comparable="lm-eval 0.4.13, task medqa_4options, without examples",
    ),
    _MEDMCQA,
    rank_letters(
        _MEDMCQA,
        "Question: {question}\nChoices:\n{options}\nAnswer:",
        "ABCD",
        comparable="lm-eval 0.4.13, task medmcqa, without examples",
    ),
    _PUBMEDQA,
    rank_choices(
        _PUBMEDQA,
        "Abstract: {abstract}\nQuestion: {question}\nAnswer:",
        differs=f"The prompt is that of lm-eval 0.4.13, task pubmedqa. {_ALL_ROWS}",
    ),
]
