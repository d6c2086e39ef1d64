"""Word problems with a number as the answer: GSM8K."""

import re

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_MARKS = re.compile(r"<<[^<>]*>>")
_STRICT = r"#### *(-?[$]?[0-9.,]+)"


def _gsm8k(row: Row) -> Row:
    """The last line of an answer is `#### 1,234`; `<<16-3=13>>` are marks for a calculator."""
    solution, found, number = row["answer"].rpartition("####")
    if not found:
        raise ValueError("the answer has no line with ####")
    reasoning = _MARKS.sub("", solution).strip()
    target = number.strip().replace(",", "")
    return {
        "question": row["question"].strip(),
        "target": target,
        "solution": f"{reasoning}\n#### {target}",
        "answer": row["answer"],
    }


BENCHMARKS = [
    Benchmark(
        name="gsm8k",
        title="GSM8K: word problems of primary school",
        source="Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems",
        licence="MIT",
        samples=1319,
        metric="flexible",
        columns=("question", "answer"),
        convert=_gsm8k,
        task={
            "dataset": {
                "hub": "openai/gsm8k",
                "config": "main",
                "split": "test",
                "revision": "cc7b047b6e5bb11b4f1af84efc572db110a51b3c",
                "input": "question",
                "target": "target",
                "shuffle": {"seed": 1},
            },
            "prompt": (
                "Solve the problem step by step. End with one line: `#### N`, where N is the answer as a number.\n\n"
                "{question}"
            ),
            "scorers": [
                {"numeric": {"name": "flexible"}},
                {"numeric": {"extract": {"regex": {"pattern": _STRICT}}, "name": "strict"}},
            ],
            "counts": NOTHING_FLATTERS,
        },
        differs="No examples and an instruction, where lm-eval shows 5 examples (see gsm8k:5shot).",
    ),
]
