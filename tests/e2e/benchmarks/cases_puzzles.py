"""BIG-Bench Hard: a few tasks by hand, and one question for each of the others."""

from holdfast.plan import all_benchmarks
from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_BY_HAND = {
    "boolean_expressions": [
        (
            "not ( False ) is",
            "True",
            ["Answer: True", "It is **true**."],
            ["Answer: False", "Answer: not true", "1", ""],
        )
    ],
    "date_understanding": [
        (
            "Today is 1/2/2020. What is tomorrow?\nOptions:\n(A) 01/03/2020\n(B) 01/01/2020\n(C) 02/02/2020",
            "(A)",
            ["Answer: (A)", "Answer: A", "So the answer is (A).", "**(A)**", "(B) is yesterday.\nAnswer: (A)"],
            ["Answer: (B)", "A day later", "Answer: (D)", "Answer: 01/01/2020", "", "(A) or (B)?\nAnswer: (C)"],
        )
    ],
    "dyck_languages": [
        (
            "Close the brackets: < [ (",
            ") ] >",
            ["Answer: ) ] >", "Answer: )]>", "Input < [ ( needs three.\nThe answer is: ) ] >."],
            ["Answer: ) ]", "Answer: > ] )", "Answer: < [ ( ) ] >", "Answer:", "no"],
        )
    ],
    "formal_fallacies": [
        (
            "All cats are animals. So all animals are cats. Is this valid?\nOptions:\n- valid\n- invalid",
            "invalid",
            ["Answer: invalid", "The answer is Invalid."],
            ["Answer: valid", "It is not invalid", "Answer: in", ""],
        )
    ],
    "multistep_arithmetic_two": [
        (
            "(2 - 9) * 10 =",
            "-70",
            ["Answer: -70", "The answer is \u221270.", "-70.0"],
            ["Answer: 70", "Answer: -7", "-700"],
        )
    ],
    "navigate": [
        (
            "Step left. Step right. Are you back?\nOptions:\n- Yes\n- No",
            "Yes",
            ["Answer: Yes", "There is no other way. The answer is yes."],
            ["Answer: No", "Yes? The answer is no.", "Eyes", "Answer:"],
        )
    ],
    "word_sorting": [
        (
            "Sort: pear apple fig",
            "apple fig pear",
            [
                "Answer: apple fig pear",
                "Answer: apple, fig, pear.",
                "Sorted:\n**apple fig pear**",
                "Answer: Apple fig pear",
            ],
            ["Answer: apple pear fig", "Answer: fig pear", "apple\nfig\npear", "pear apple fig", ""],
        )
    ],
    "ruin_names": [
        ("Which name is funny?", "fish, wind, & fire", ["Answer: fish, wind, & fire"], ["Answer: (A)", "fish", ""])
    ],
}


def _others(task: str) -> list[tuple[str, str, list[str], list[str]]]:
    question = f"Which letter begins {task}?\nOptions:\n(A) q\n(B) {task[0]}"
    return [(question, "(B)", ["Answer: (B)"], ["Answer: (A)", "Answer: (C)", ""])]


_ROWS = {task: _BY_HAND.get(task) or _others(task) for task in all_benchmarks()["bbh"].task["dataset"]["config"]}

CASES = {
    "bbh": BenchmarkCases(
        {
            f"{task}/test-00000-of-00001.parquet": [{"input": text, "target": target} for text, target, _, _ in rows]
            for task, rows in _ROWS.items()
        },
        [Case(text, right, wrong) for rows in _ROWS.values() for text, _, right, wrong in rows],
    )
}
