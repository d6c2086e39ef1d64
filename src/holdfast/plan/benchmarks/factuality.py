"""Questions of fact whose answers a judge grades: SimpleQA."""

import ast
from typing import Any

from holdfast.plan.benchmarks.card import JUDGE, NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_NO_TOPIC = "unknown"


def _simpleqa(row: Row) -> Row:
    """The topic is in `metadata`, a mapping or its text in Python, or in a column of its own."""
    problem, answer = row["problem"], row["answer"]
    if not str(problem).strip() or not str(answer).strip():
        raise ValueError("the question or its answer is empty")
    topic = row.get("topic") or _metadata(row.get("metadata")).get("topic")
    return {"question": problem, "target": str(answer), "topic": str(topic or _NO_TOPIC)}


def _metadata(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


BENCHMARKS = [
    Benchmark(
        name="simpleqa",
        title="SimpleQA: short questions of fact, graded by a judge",
        source="Wei et al. 2024, Measuring short-form factuality in large language models",
        licence="MIT",
        samples=4326,
        metric="grade",
        columns=("problem", "answer"),
        convert=_simpleqa,
        subset="topic",
        needs=(JUDGE,),
        task={
            "dataset": {
                "hub": "basicv8vc/SimpleQA",
                "split": "test",
                "input": "question",
                "target": "target",
                "shuffle": {"seed": 1, "by": "topic"},
            },
            "prompt": "{question}",
            "scorers": ["grade"],
            "counts": NOTHING_FLATTERS,
        },
        differs=(
            "The judge's instructions are our own and define the same three grades; the judge is the role `judge` of "
            "the spec. Published figures depend on their judge. The result is the share of correct answers; reports "
            "have F1 too."
        ),
        unverified=("the licence", "the topics: `metadata` may be a text in Python; rows without one have `unknown`"),
    )
]
