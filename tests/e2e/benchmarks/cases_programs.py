"""HumanEval and MBPP. Every answer runs in the real sandbox."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_DOUBLE = (
    'from typing import List\n\n\ndef double_all(numbers: List[int]) -> List[int]:\n    """Double each number."""\n'
)
_IS_EVEN = 'def half(n):\n    return n // 2\n\n\ndef is_even(n: int) -> bool:\n    """Whether n is even."""\n'
_HUMANEVAL = [
    {
        "task_id": "Mine/0",
        "prompt": _DOUBLE,
        "canonical_solution": "    return [2 * each for each in numbers]\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n",
        "entry_point": "double_all",
    },
    {
        "task_id": "Mine/1",
        "prompt": _IS_EVEN,
        "canonical_solution": "    return 2 * half(n) == n\n",
        "test": "def check(candidate):\n    assert candidate(4) is True\n    assert candidate(3) is False\n",
        "entry_point": "is_even",
    },
]
_HUMANEVAL_CASES = [
    Case(
        "def double_all",
        right=[
            "```python\n" + _DOUBLE + "    return [2 * each for each in numbers]\n```",
            "    return [2 * each for each in numbers]\n",
            "So:\n```python\ndef double_all(numbers: List[int]):\n    return [n + n for n in numbers]\n```\nDone.",
        ],
        wrong=[
            "```python\ndef double_all(numbers):\n    return numbers\n```",
            "    return [n + n for n in numbers[:1]]\n",
            "```python\nimport sys\nsys.exit(0)\n```",
            "```python\ndef other(numbers):\n    return [n + n for n in numbers]\n```",
            "I cannot do this.",
            "",
        ],
    ),
    Case(
        "def is_even",
        right=["    return 2 * half(n) == n\n", "```python\ndef is_even(n):\n    return n % 2 == 0\n```"],
        wrong=["    return True\n", "```python\ndef is_even(n):\n    return n %% 2 == 0\n```", "```python\n"],
    ),
]

_SQUARE = {
    "code": "def square(n):\r\n    return n * n",
    "test_list": ["assert square(3) == 9", "assert square(0) == 0"],
}
_ROOT = {
    "code": "def root(n):\n    return math.isqrt(n)",
    "test_list": ["assert root(9) == 3", "assert math.isclose(root(16), 4)"],
}
_MBPP_CASES = [
    Case(
        "square of a number",
        right=[
            f"```python\n{_SQUARE['code']}\n```",
            "def square(n):\n    return n ** 2",
            "```\nsquare = lambda n: n*n\n```",
        ],
        wrong=["```python\ndef square(n):\n    return 9\n```", "def squared(n):\n    return n * n", "exit()", ""],
    ),
    Case(
        "root of a square",
        right=[f"```python\n{_ROOT['code']}\n```", "```python\ndef root(n):\n    return round(n ** 0.5)\n```"],
        wrong=["```python\ndef root(n):\n    return 3\n```", "```python\ndef root(n): return n\n```", "No."],
    ),
]

CASES = {
    "humaneval": BenchmarkCases({"openai_humaneval/test-00000-of-00001.parquet": _HUMANEVAL}, _HUMANEVAL_CASES),
    "mbpp": BenchmarkCases(
        {
            "full/test-00000-of-00001.parquet": [
                {
                    "task_id": 11,
                    "text": "Write a function to find the square of a number.",
                    **_SQUARE,
                    "test_setup_code": "",
                    "challenge_test_list": ["assert square(1) == 2"],
                },
                {
                    "task_id": 12,
                    "text": "Write a function to find the root of a square.",
                    **_ROOT,
                    "test_setup_code": "import math",
                    "challenge_test_list": [],
                },
            ]
        },
        _MBPP_CASES,
    ),
    "mbpp:sanitized": BenchmarkCases(
        {
            "sanitized/test-00000-of-00001.parquet": [
                {
                    "source_file": "Mine",
                    "task_id": 11,
                    "prompt": "Write a function to find the square of a number.",
                    **_SQUARE,
                    "test_imports": [],
                },
                {
                    "source_file": "Mine",
                    "task_id": 12,
                    "prompt": "Write a function to find the root of a square.",
                    **_ROOT,
                    "test_imports": ["import math"],
                },
            ]
        },
        _MBPP_CASES,
    ),
}
