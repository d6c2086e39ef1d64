"""GSM8K, GSM-Symbolic, MGSM."""

from tests.e2e.benchmarks.cases import CANARY, BenchmarkCases, Case, Files

_GSM8K = [
    {
        "question": "Ann has 1,200 pens and gives 34 to Ben. How many has she left?",
        "answer": "She has 1,200-34=<<1200-34=1166>>1,166 pens left.\n#### 1,166",
    },
    {"question": "A book costs $9 and a pen $9. What do both cost?", "answer": "9+9=<<9+9=18>>18 dollars.\n#### 18"},
    {
        "question": "It is 3 degrees and gets 8 degrees colder. What is it then?",
        "answer": "3-8=<<3-8=-5>>-5 degrees.\n#### -5",
    },
]

_GSM8K_FILES: Files = {
    "main/test-00000-of-00001.parquet": _GSM8K,
    "main/train-00000-of-00001.parquet": [
        {"question": f"What is {i} plus {i}?", "answer": f"It is <<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i}"}
        for i in range(1, 12)
    ],
}
_GSM8K_CASES = [
    Case(
        "1,200 pens and gives 34",
        right=["#### 1166", "#### 1,166", "1200 - 34 is 1,166.00", "So she has **1,166** pens."],
        wrong=["#### 11.66", "1,166 minus 1 is 1165", "I do not know.", "", "#### 1166 and then 3"],
    ),
    Case("A book costs $9 and a pen $9", right=["#### $18", "$18.00", "18."], wrong=["#### 1.8", "9 and 9"]),
    Case("gets 8 degrees colder", right=["#### -5", "\u22125"], wrong=["5", "#### 5"]),
]
_CONTINUED = [
    Case(
        "1,200 pens and gives 34",
        right=["1200-34=<<1200-34=1166>>1,166.\n#### 1,166\n\nQuestion: What is 2 plus 2?\nAnswer: 4\n#### 4"],
        wrong=["#### 4\n\nQuestion: What is 1165 plus 1?\nAnswer: #### 1166", "Question: 1166", ""],
    ),
    *_GSM8K_CASES[1:],
]


def _symbolic(config: str, more: str) -> BenchmarkCases:
    """Two templates with two problems each."""
    numbers = {(0, 0): 30, (0, 1): 1020, (7, 0): 3, (7, 1): 2000}
    rows = [
        {
            "id": template,
            "instance": instance,
            "question": f"Each of {number} boxes of shop {template}-{instance} has one egg{more}. How many eggs?",
            "answer": f"1*{number}=<<1*{number}={number}>>{number:,} eggs.\n#### {number:,}",
            "original_id": 100 + template,
            "original_question": "Each of 2 boxes has one egg. How many eggs?",
            "original_answer": "#### 2",
            "canary": CANARY,
        }
        for (template, instance), number in numbers.items()
    ]
    cases = [
        Case("of shop 0-0 has", right=["#### 30", "30 eggs"], wrong=["#### 3", "#### 300", "2"]),
        Case("of shop 0-1 has", right=["#### 1,020", "1020.00"], wrong=["#### 1.020", "#### 102", "1,02"]),
        Case("of shop 7-0 has", right=["#### 3"], wrong=["#### 30", "three"]),
        Case("of shop 7-1 has", right=["\\boxed{2{,}000}", "$2,000$"], wrong=["#### 2", "2k"]),
    ]
    return BenchmarkCases({f"{config}/test.jsonl": rows}, cases)


def _mgsm() -> BenchmarkCases:
    """Two problems in each language. The answer 20 must not equal 2: NeMo's keys lack final zeros."""
    languages = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
    own = {"bn": "২০", "de": "Ergebnis: 20", "th": "๒๐", "zh": "答案是20。", "ja": "20個", "te": "**20**"}
    thousand = {"de": "1.234", "fr": "1\u202f234", "es": "1 234", "ru": "1\u00a0234", "en": "1,234"}
    files = {
        f"{language}/test/0000.parquet": [
            {"question": f"{language}: 10 + 10 = ?", "answer": None, "answer_number": 20, "equation_solution": None},
            {
                "question": f"{language}: 1000 + 234 = ?",
                "answer": None,
                "answer_number": 1234,
                "equation_solution": None,
            },
        ]
        for language in languages
    }
    cases = [
        each
        for language in languages
        for each in (
            Case(f"{language}: 10 +", right=["20", "20.0", own.get(language, "20.")], wrong=["2", "200", "2.0", ""]),
            Case(
                f"{language}: 1000 +",
                right=["1234", thousand.get(language, "1234.0")],
                wrong=["1.23", "234", "1234.5", "123"],
            ),
        )
    ]
    return BenchmarkCases(files, cases)


CASES = {
    "gsm8k": BenchmarkCases(_GSM8K_FILES, _GSM8K_CASES),
    "gsm8k:5shot": BenchmarkCases(_GSM8K_FILES, _CONTINUED),
    "gsm_symbolic": _symbolic("main", ""),
    "gsm_symbolic:p1": _symbolic("p1", " and a spoon"),
    "gsm_symbolic:p2": _symbolic("p2", " and a spoon and a fork"),
    "mgsm": _mgsm(),
}
