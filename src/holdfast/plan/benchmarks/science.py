"""Science questions of schools: ARC."""

import msgspec

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.plan.benchmarks.choices import CHAT, labelled, lettered
from holdfast.records import Row

_SOURCE = "Clark et al. 2018, Think you have Solved Question Answering? Try ARC"
_DATA = {
    "hub": "allenai/ai2_arc",
    "split": "test",
    "revision": "210d026faf9955653af8916fad021475a3f00453",
    "id": "id",
    "input": "question",
    "target": "letter",
    "shuffle": {"seed": 1},
}


def _arc(row: Row) -> Row:
    texts, correct = labelled(row["choices"], row["answerKey"])
    return {"id": row["id"], "question": row["question"], **lettered(texts, correct)}


def _benchmarks(name: str, config: str, samples: int) -> list[Benchmark]:
    chat = Benchmark(
        name=name,
        title=f"{config}: science questions of schools, multiple choice",
        source=_SOURCE,
        licence="CC-BY-SA-4.0",
        samples=samples,
        metric="choice",
        columns=("id", "question", "choices", "answerKey"),
        convert=_arc,
        task={
            "dataset": {**_DATA, "config": config},
            "prompt": CHAT,
            "scorers": ["choice"],
            "counts": NOTHING_FLATTERS,
        },
        differs="A chat model chooses a letter; published figures of base models rank likelihoods.",
    )
    likelihood = msgspec.structs.replace(
        chat,
        name=f"{name}:likelihood",
        title=f"{config}: science questions of schools, by likelihood",
        metric="acc_norm",
        needs=("a completion server",),
        task={
            "dataset": {**_DATA, "config": config, "target": "index"},
            "prompt": "Question: {question}\nAnswer:",
            "solver": "choice_likelihood",
            "scorers": ["acc_norm", "acc"],
            "counts": NOTHING_FLATTERS,
        },
        differs="",
        comparable=f"lm-eval 0.4.13, task {name} version 1, without examples",
    )
    return [chat, likelihood]


BENCHMARKS = [*_benchmarks("arc_easy", "ARC-Easy", 2376), *_benchmarks("arc_challenge", "ARC-Challenge", 1172)]
