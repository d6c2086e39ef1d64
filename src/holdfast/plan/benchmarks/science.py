"""Science questions of schools: ARC and SciQ."""

from holdfast.plan.benchmarks.answers import CHAT_DIFFERS, chat_task, labelled, lettered, rank_choices
from holdfast.plan.benchmarks.card import Benchmark
from holdfast.records import Row


def _arc(row: Row) -> Row:
    texts, correct = labelled(row["choices"], row["answerKey"])
    return {"id": row["id"], "question": row["question"], **lettered(texts, correct)}


def _arc_benchmarks(name: str, config: str, samples: int) -> list[Benchmark]:
    chat = Benchmark(
        name=name,
        title=f"{config}: science questions of schools",
        source="Clark et al. 2018, Think you have Solved Question Answering? Try ARC",
        licence="CC-BY-SA-4.0",
        samples=samples,
        metric="choice",
        columns=("id", "question", "choices", "answerKey"),
        convert=_arc,
        task=chat_task(
            {
                "hub": "allenai/ai2_arc",
                "config": config,
                "split": "test",
                "revision": "210d026faf9955653af8916fad021475a3f00453",
                "id": "id",
                "shuffle": {"seed": 1},
            }
        ),
        differs=CHAT_DIFFERS,
    )
    likelihood = rank_choices(
        chat,
        "Question: {question}\nAnswer:",
        scorers=("acc_norm", "acc"),
        comparable=f"lm-eval 0.4.13, task {name} version 1, without examples",
    )
    return [chat, likelihood]


def _sciq(row: Row) -> Row:
    """The correct answer has a column of its own. The support, a text with the answer, is empty in some rows."""
    columns = ("correct_answer", "distractor1", "distractor2", "distractor3")
    choices = [row[name] for name in columns]
    question, support = row["question"], (row["support"] or "").lstrip()
    return {
        "question": question,
        "support": support,
        "passage": f"{support.rstrip()}\n\n" if support else "",
        **lettered(choices, 0, shuffle="\n".join([question, *choices])),
    }


_SCIQ = Benchmark(
    name="sciq",
    title="SciQ: science questions of schools, with a text that helps",
    source="Welbl et al. 2017, Crowdsourcing Multiple Choice Science Questions",
    licence="CC-BY-NC-3.0",
    samples=1000,
    metric="choice",
    columns=("question", "distractor3", "distractor1", "distractor2", "correct_answer", "support"),
    convert=_sciq,
    task=chat_task({"hub": "allenai/sciq", "split": "test", "shuffle": {"seed": 1}}, "{passage}{question}"),
    differs=f"{CHAT_DIFFERS} The order of choices is shuffled, by a digest of the row.",
)

BENCHMARKS = [
    *_arc_benchmarks("arc_easy", "ARC-Easy", 2376),
    *_arc_benchmarks("arc_challenge", "ARC-Challenge", 1172),
    _SCIQ,
    rank_choices(
        _SCIQ,
        "{support}\nQuestion: {question}\nAnswer:",
        scorers=("acc", "acc_norm"),
        comparable="lm-eval 0.4.13, task sciq version 1, without examples",
    ),
]
