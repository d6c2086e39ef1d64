"""ARC."""

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


def _files(config: str) -> Files:
    return {f"{config}/test-00000-of-00001.parquet": _ROWS}


CASES = {
    "arc_easy": BenchmarkCases(_files("ARC-Easy"), _CHAT),
    "arc_easy:likelihood": BenchmarkCases(_files("ARC-Easy"), []),
    "arc_challenge": BenchmarkCases(_files("ARC-Challenge"), _CHAT),
    "arc_challenge:likelihood": BenchmarkCases(_files("ARC-Challenge"), []),
}
