"""GSM8K."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

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

CASES = {
    "gsm8k": BenchmarkCases(
        {
            "main/test-00000-of-00001.parquet": _GSM8K,
            "main/train-00000-of-00001.parquet": [
                {"question": f"What is {i} plus {i}?", "answer": f"It is <<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i}"}
                for i in range(1, 12)
            ],
        },
        [
            Case(
                "1,200 pens and gives 34",
                right=["#### 1166", "#### 1,166", "1200 - 34 is 1,166.00", "So she has **1,166** pens."],
                wrong=["#### 11.66", "1,166 minus 1 is 1165", "I do not know.", "", "#### 1166 and then 3"],
            ),
            Case("A book costs $9 and a pen $9", right=["#### $18", "$18.00", "18."], wrong=["#### 1.8", "9 and 9"]),
            Case("gets 8 degrees colder", right=["#### -5", "\u22125"], wrong=["5", "#### 5"]),
        ],
    )
}
