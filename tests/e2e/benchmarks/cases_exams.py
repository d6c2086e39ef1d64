"""MMLU, MMLU-Pro, GPQA and SuperGPQA."""

from typing import Any

from tests.e2e.benchmarks.cases import BenchmarkCases, Case, Files

_MMLU_TEST = [
    {
        "question": " Which organ pumps blood?",
        "subject": "anatomy",
        "choices": ["The liver", "The heart", "The skin", "A lung"],
        "answer": 1,
    },
    {
        "question": "Who wrote the first law?\nStatement 1 | It was A.",
        "subject": "high_school_us_history",
        "choices": ["Ann", "", "Both", "I"],
        "answer": 3,
    },
]
_MMLU_DEV = [
    {
        "question": f"How many is {number} plus {number} in {subject}?",
        "subject": subject,
        "choices": [str(number), str(2 * number), "none", "all"],
        "answer": 1,
    }
    for number in range(1, 6)
    for subject in ("anatomy", "high_school_us_history")
]
_MMLU_FILES: Files = {"all/test-00000-of-00001.parquet": _MMLU_TEST, "all/dev-00000-of-00001.parquet": _MMLU_DEV}
_MMLU = [
    Case("Which organ pumps blood?", right=["Answer: B"], wrong=["Answer: 1", "The heart", "A heart", "Answer: D"]),
    Case(
        "Who wrote the first law?",
        right=["Answer: D", "(d)", "I think that it was I.\n\nAnswer: **D**", "The answer is D."],
        wrong=["I think that it was someone else.", "Answer: I", "Answer: E", "A law is a text.", "", "3"],
    ),
]


def _mmlu_pro(number: int, question: str, options: list[Any], answer: str, category: str) -> dict[str, Any]:
    return {
        "question_id": number,
        "question": question,
        "options": options,
        "answer": answer,
        "answer_index": "ABCDEFGHIJ".index(answer),
        "cot_content": "",
        "category": category,
        "src": "own",
    }


_MMLU_PRO = [
    _mmlu_pro(70, "Which digit is the largest?", [str(digit) for digit in range(10)], "J", "math"),
    _mmlu_pro(71, "Is 4 even?", ["yes", "no", "both", "", "N/A"], "A", "math"),
    _mmlu_pro(72, "What is the entry of an empty form?", ["0", "N/A", "1", "N/A"], "B", "other"),
]


def _gpqa(record: str, question: str, correct: str, domain: str) -> dict[str, str]:
    return {
        "Pre-Revision Question": "an older text",
        "Question": question,
        "Correct Answer": correct,
        "Incorrect Answer 1": "wrong, one",
        "Incorrect Answer 2": "wrong, two\n",
        "Incorrect Answer 3": "wrong, three",
        "Explanation": "because",
        "Record ID": record,
        "High-level domain": domain,
        "Subdomain": "own",
        "Canary String": "CANARY",
    }


_GPQA = [
    _gpqa("recA", 'What is "E" in E = mc^2?', "energy\n", "Physics"),
    _gpqa("recB", "Which acid is in vinegar?", "acetic acid", "Chemistry"),
]
_GPQA_CASES = [
    Case("in E = mc^2?", right=["Answer: C"], wrong=["Answer: E", "Answer: A", "energy", "E is energy."]),
    Case("in vinegar?", right=["Answer: B", "B because the others are wrong."], wrong=["Answer: A", "A guess"]),
]

_SUPERGPQA = [
    {
        "uuid": "u-1",
        "question": "Which number is ten?",
        "options": ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
        "answer": "10",
        "answer_letter": "J",
        "discipline": "Science",
        "field": "Mathematics",
        "subfield": "Counting",
        "difficulty": "easy",
        "is_calculation": False,
    },
    {
        "uuid": "u-2",
        "question": "Which metal is liquid?",
        "options": ["iron", "mercury", "gold"],
        "answer": "mercury",
        "answer_letter": "B",
        "discipline": "Engineering",
        "field": "Materials",
        "subfield": "Metals",
        "difficulty": "easy",
        "is_calculation": False,
    },
]

CASES = {
    "mmlu": BenchmarkCases(_MMLU_FILES, _MMLU),
    "mmlu:5shot": BenchmarkCases(_MMLU_FILES, _MMLU),
    "mmlu:likelihood": BenchmarkCases(_MMLU_FILES, []),
    "mmlu:likelihood_5shot": BenchmarkCases(_MMLU_FILES, []),
    "mmlu_pro": BenchmarkCases(
        {"data/test-00000-of-00001.parquet": _MMLU_PRO},
        [
            Case("digit is the largest?", right=["Answer: J", "The answer is (J)."], wrong=["Answer: K", "9", "I"]),
            Case("Is 4 even?", right=["Answer: A"], wrong=["Answer: D", "A number is even if 2 divides it.", "yes"]),
            Case("an empty form?", right=["Answer: B"], wrong=["N/A", "Answer: D", "Answer: N/A"]),
        ],
    ),
    "gpqa_diamond": BenchmarkCases({"gpqa_diamond.csv": _GPQA, "gpqa_main.csv": _GPQA}, _GPQA_CASES),
    "gpqa_main": BenchmarkCases({"gpqa_main.csv": _GPQA}, _GPQA_CASES),
    "supergpqa": BenchmarkCases(
        {"SuperGPQA-all.jsonl": _SUPERGPQA},
        [
            Case(
                "Which number is ten?", right=["Answer: J", "\\boxed{J}"], wrong=["10", "Answer: 10", "I count to 10"]
            ),
            Case("metal is liquid?", right=["Answer: B"], wrong=["Answer: D", "mercury"]),
        ],
    ),
}
