"""MATH-500, MATH, AIME 2024 and 2025."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_PROBLEMS = [
    (
        "A fair coin is thrown once. What is the chance of heads?",
        r"\frac{1}{2}",
        [r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{\dfrac12}", "It is $\\frac{2}{4}$."],
        [r"\boxed{2}", r"\boxed{\frac{1}{3}}", "I do not know.", "", r"\boxed{}"],
    ),
    (
        "Solve (x-1)(x+2) = 0.",
        "1,-2",
        [r"\boxed{-2, 1}", r"\boxed{1,-2}"],
        [r"\boxed{1}", r"\boxed{1,2}", r"\boxed{-2}"],
    ),
    (
        "Three cards cost \\$6,300 each. What do all cost?",
        r"\$18,\!900",
        [r"\boxed{18900}", r"\boxed{\$18,900}", r"\boxed{18{,}900}"],
        [r"\boxed{189}", r"\boxed{18.9}", r"\boxed{6300}"],
    ),
    (
        "Who is taller, Ann or Ben?",
        r"\text{Ann}",
        [r"\boxed{\text{Ann}}", r"\boxed{Ann}"],
        [r"\boxed{\text{Ben}}", "Ben"],
    ),
    (
        "Which interval solves |x| < 2?",
        r"\left(-2, 2\right)",
        [r"\boxed{(-2,2)}"],
        [r"\boxed{[-2,2]}", r"\boxed{(-2,3)}", r"\boxed{(2,-2)}"],
    ),
    ("Find the line with slope 2 through (0, 1).", "y = 2x + 1", [r"\boxed{y=1+2x}"], [r"\boxed{y=2x}", r"\boxed{1}"]),
    (
        "Double the column (1, 2).",
        "\\begin{pmatrix} 2 \\\\ 4 \\end{pmatrix}",
        ["\\boxed{\\begin{pmatrix} 2 \\\\ 4 \\end{pmatrix}}"],
        ["\\boxed{\\begin{pmatrix} 4 \\\\ 2 \\end{pmatrix}}"],
    ),
]
_CASES = [Case(problem, right, wrong) for problem, _, right, wrong in _PROBLEMS]
_SUBJECTS = ("Algebra", "Counting & Probability")

_MATH_500 = [
    {
        "problem": problem,
        "solution": "See above.",
        "answer": answer,
        "subject": _SUBJECTS[number % 2],
        "level": number % 5 + 1,
        "unique_id": f"test/mine/{number}.json",
    }
    for number, (problem, answer, _, _) in enumerate(_PROBLEMS)
]
_MATH = [
    {
        "problem": problem,
        "level": f"Level {number % 5 + 1}" if number else "Level ?",
        "type": _SUBJECTS[number % 2],
        "solution": f"First \\boxed{{7}} is wrong, {{so}} the answer is $\\boxed{{{answer}}}$ {{as said}}.",
    }
    for number, (problem, answer, _, _) in enumerate(_PROBLEMS)
]

_AIME_CASES = [
    Case(
        "m and n when m + n = 25",
        right=["\\boxed{25}", "\\boxed{025}", "So $\\boxed{25}$, which is less than 100."],
        wrong=["25", "\\boxed{250}", "\\boxed{2.5}", "\\boxed{5}", "", "\\boxed{m+n}", "\\boxed{25} or \\boxed{26}"],
    ),
    Case("the rest of 1000 by 10", right=["\\boxed{0}", "\\boxed{000}"], wrong=["\\boxed{10}", "\\boxed{}", "0"]),
    Case(
        "100 times 4",
        right=["\\boxed{400}", "\\boxed{\\,400}", "\\boxed{\\text{400}}"],
        wrong=["\\boxed{4}", "\\boxed{40}", "\\boxed{4,00}"],
    ),
]
_TEXTS = ("Find m and n when m + n = 25.", "Find the rest of 1000 by 10.", "Find 100 times 4.")
_NUMBERS = ("025", "0", "400")

CASES = {
    "math_500": BenchmarkCases({"test.jsonl": _MATH_500}, _CASES),
    "competition_math": BenchmarkCases({"data/test-00000-of-00001.parquet": _MATH}, _CASES),
    "aime_2024": BenchmarkCases(
        {
            "aime_2024_problems.parquet": [
                {"ID": f"2024-I-{number}", "Problem": text, "Solution": "It is easy.", "Answer": int(answer)}
                for number, (text, answer) in enumerate(zip(_TEXTS, _NUMBERS, strict=True), 1)
            ]
        },
        _AIME_CASES,
    ),
    "aime_2025": BenchmarkCases(
        {
            "test.jsonl": [
                {"problem": text, "answer": answer, "id": str(number)}
                for number, (text, answer) in enumerate(zip(_TEXTS, _NUMBERS, strict=True))
            ]
        },
        _AIME_CASES,
    ),
}
