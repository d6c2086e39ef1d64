"""BoolQ, DROP, TriviaQA, CoQA."""

from typing import Any

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_BRIDGE = "The bridge was built in 1901. It carries trains and, since 1950, cars."
_BOOLQ = [
    {"question": "can cars use the bridge", "answer": True, "passage": _BRIDGE},
    {"question": "was the bridge built after 1950", "answer": False, "passage": _BRIDGE},
]


def _answer(number: str = "", spans: tuple[str, ...] = (), day: str = "", month: str = "") -> dict[str, Any]:
    return {"number": number, "date": {"day": day, "month": month, "year": ""}, "spans": list(spans)}


def _validated(*answers: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [answer[name] for answer in answers] for name in ("number", "date", "spans")}


_MATCH = "The home team led by 12.5 points, 1,200 people watched, and Ann Lee and Bo Li scored on 3 May."
_DROP = [
    {"query_id": "d-1", "question": "By how many points did it lead?", "answer": _answer("12.5")},
    {"query_id": "d-2", "question": "Who scored?", "answer": _answer(spans=("Ann Lee", "Bo Li"))},
    {"query_id": "d-3", "question": "When was it?", "answer": _answer(day="3", month="May")},
    {"query_id": "d-4", "question": "How many watched?", "answer": _answer("1200")},
]
_DROP_ROWS = [
    {
        "section_id": "s-1",
        "passage": _MATCH,
        **row,
        "validated_answers": _validated(_answer(spans=("the home team",)))
        if row["query_id"] == "d-4"
        else _validated(),
    }
    for row in _DROP
]


def _trivia(value: str, *aliases: str) -> dict[str, Any]:
    normalized = [alias.lower() for alias in aliases]
    return {"value": value, "aliases": list(aliases), "normalized_aliases": normalized, "type": "WikipediaEntity"}


_TRIVIAQA = [
    {
        "question": "Which city has the Louvre?",
        "question_id": "q_1",
        "question_source": "mine",
        "answer": _trivia("Paris", "Paris", "City of Light", "Paris, France"),
    },
    {
        "question": "Which vitamin is retinol?",
        "question_id": "q_2",
        "question_source": "mine",
        "answer": _trivia("A", "A", "Vitamin A"),
    },
    {  # the same question, from the other part
        "question": "Which city has the Louvre, again?",
        "question_id": "q_1",
        "question_source": "mine",
        "answer": _trivia("Paris", "Paris"),
    },
]
_COQA = [
    {
        "source": "mctest",
        "story": "Mia has a red kite. She flies it with her brother Tom.",
        "questions": ["What does Mia have?", "What colour is it?", "Does she fly it alone?", "How old is Tom?"],
        "answers": {
            "input_text": ["a red kite", "red", "no", "unknown"],
            "answer_start": [0, 10, 20, -1],
            "answer_end": [18, 13, 52, -1],
        },
    },
    {
        "source": "cnn",
        "story": "The shop opened on Monday with 20 helpers.",
        "questions": ["When did it open?", "With how many helpers?"],
        "answers": {"input_text": ["on Monday", "20"], "answer_start": [0, 26], "answer_end": [25, 41]},
    },
]
_BOOLQ_FILES = {"data/validation-00000-of-00001.parquet": _BOOLQ}

CASES = {
    "boolq": BenchmarkCases(
        _BOOLQ_FILES,
        [
            Case(
                "Question: can cars use",
                right=["Answer: yes", "**Answer:** Yes.", "Yes.", "Yes, since 1950.", "So the answer is **yes**."],
                wrong=["Answer: no", "There is no doubt.", "yesterday", "Answer: yes or no", "", "Yes or no?"],
            ),
            Case(
                "Question: was the bridge built after",
                right=["Answer: no", "No", "Yes, it is old.\nAnswer: NO"],
                wrong=["No idea.", "None", "Not sure", "Answer: yes", "answer: unknown"],
            ),
        ],
    ),
    "boolq:likelihood": BenchmarkCases(_BOOLQ_FILES, []),
    "drop": BenchmarkCases(
        {"default/validation/0000.parquet": _DROP_ROWS},
        [
            Case(
                "Question: By how many",
                right=["Answer: 12.5", "It led.\n**Answer:** 12.50.", "Answer: 3\nAnswer: 12.5", "`Answer: 12.5`"],
                wrong=["Answer: 12", "12.5", "Answer: 125", "Answer:", ""],
                partial={"Answer: 12.5 points": 0.67},
            ),
            Case(
                "Question: Who scored",
                right=["Answer: Bo Li, Ann Lee", "Answer: ann lee and bo li", "Answer: Bo Li; Ann Lee."],
                wrong=["Answer: the home team", "Ann Lee, Bo Li"],
                partial={"Answer: Ann Lee": 0.5},
            ),
            Case("Question: When was", right=["Answer: 3 May"], wrong=["Answer: 4 May"], partial={"Answer: 3": 0.67}),
            Case("Question: How many watched", right=["Answer: 1,200", "Answer: home team"], wrong=["Answer: 1.2"]),
        ],
    ),
    "triviaqa": BenchmarkCases(
        {"rc.nocontext/validation-00000-of-00001.parquet": _TRIVIAQA},
        [
            Case(
                "Which city has the Louvre?",
                right=["Answer: Paris", "Answer: the city of light.", "It is there.\nAnswer: **Paris, France**"],
                wrong=["Paris", "Answer: Paris or Lyon", "Answer: Lyon", "Answer: the", ""],
            ),
            Case("Which vitamin is", right=["Answer: vitamin A"], wrong=["Answer: a", "Answer: the", "I do not know."]),
            Case("Louvre, again?", right=["Answer: PARIS"], wrong=["Answer: City of Light"]),
        ],
    ),
    "coqa": BenchmarkCases(
        {"data/validation-00000-of-00001.parquet": _COQA},
        [
            Case(
                "Question: What does Mia",
                right=["Answer: a red kite", "Answer: Red kite."],
                wrong=["a red kite", "Answer: a dog", ""],
                partial={"Answer: kite": 2 / 3, "Answer: her red kite": 0.8},
            ),
            Case("Question: What colour", right=["Answer: red"], wrong=["Answer: blue"]),
            Case("Question: Does she", right=["She flies it with Tom.\nAnswer: No"], wrong=["Answer: yes"]),
            Case("Question: How old", right=["Answer: unknown"], wrong=["Answer: 7", "unknown"]),
            Case("Question: When did", right=["Answer: on Monday"], wrong=["Answer: Tuesday"]),
            Case("Question: With how many", right=["Answer: 20", "Answer: 20."], wrong=["Answer: twenty", "20"]),
        ],
    ),
}
