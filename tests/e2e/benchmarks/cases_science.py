"""ARC and SciQ."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case, Files

_ROWS = [
    {
        "id": "MINE_1",
        "question": "Which of these is a metal?",
        "choices": {"text": ["wood", "iron", "glass", "wool"], "label": ["A", "B", "C", "D"]},
        "answerKey": "B",
    },
    {
        "id": "MINE_2",
        "question": "What do plants take from the air?",
        "choices": {"text": ["salt", "sand", "carbon dioxide"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
]
_CHAT = [
    Case(
        "is a metal?", right=["Answer: B", "**B**", "Iron conducts.\nAnswer: (B)."], wrong=["Answer: A", "A metal", "E"]
    ),
    Case("take from the air?", right=["Answer: C", "c"], wrong=["Answer: 3", "Answer: D", ""]),
]

_SCIQ = {
    "data/test-00000-of-00001.parquet": [
        {
            "question": "What do bees make?",
            "distractor3": "milk",
            "distractor1": "wool",
            "distractor2": "silk",
            "correct_answer": "honey",
            "support": " Bees collect nectar. They make honey.",
        },
        {
            "question": "Which star is nearest?",
            "distractor3": "Vega",
            "distractor1": "Sirius",
            "distractor2": "Rigel",
            "correct_answer": "the sun",
            "support": "",
        },
    ]
}


def _files(config: str) -> Files:
    return {f"{config}/test-00000-of-00001.parquet": _ROWS}


CASES = {
    "arc_easy": BenchmarkCases(_files("ARC-Easy"), _CHAT),
    "arc_easy:likelihood": BenchmarkCases(_files("ARC-Easy"), []),
    "arc_challenge": BenchmarkCases(_files("ARC-Challenge"), _CHAT),
    "arc_challenge:likelihood": BenchmarkCases(_files("ARC-Challenge"), []),
    "sciq": BenchmarkCases(
        _SCIQ,
        [
            Case("What do bees make?", right=["Answer: B"], wrong=["Answer: A", "honey", "A bee makes honey."]),
            Case("star is nearest?", right=["Answer: C"], wrong=["Answer: D", "the sun", "A star: D"]),
        ],
    ),
    "sciq:likelihood": BenchmarkCases(_SCIQ, []),
}
