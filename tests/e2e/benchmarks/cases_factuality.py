"""SimpleQA. The judge of the tests grades by `Grade: …` at the end of an answer."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

CASES = {
    "simpleqa": BenchmarkCases(
        {
            "simple_qa_test_set.csv": [
                {
                    "metadata": "{'topic': 'Art', 'answer_type': 'Person', 'urls': ['https://a.example', 'b']}",
                    "problem": "Who painted the blue door, in full?",
                    "answer": "Ann Example",
                },
                {"metadata": "{'topic': ", "problem": "In which year did it open?", "answer": "1976"},
            ]
        },
        [
            Case(
                "Who painted the blue door",
                right=["Ann Example. Grade: correct"],
                wrong=["Ben Example. Grade: incorrect", "I do not know. Grade: not_attempted", ""],
            ),
            Case("In which year", right=["In 1976. Grade: correct"], wrong=["In 1977. Grade: incorrect"]),
        ],
    )
}
