"""HellaSwag, WinoGrande, TruthfulQA, CommonsenseQA, PIQA and Social IQa."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_HELLASWAG = {
    "data/validation-00000-of-00001.parquet": [
        {
            "ind": 7,
            "activity_label": "Baking bread",
            "ctx_a": "[header] How to bake bread [title] Mix flour and water. [step] Use warm water.",
            "ctx_b": "then John",
            "ctx": "not used",
            "endings": ["[substeps] kneads  the dough.", "sings [title] loudly.", "sleeps.", "flies away."],
            "source_id": "wikihow~1",
            "split": "val",
            "split_type": "indomain",
            "label": "0",
        },
        {
            "ind": 8,
            "activity_label": "Skiing",
            "ctx_a": "A woman stands on a hill.",
            "ctx_b": "",
            "ctx": "not used",
            "endings": ["She eats the hill.", "She reads snow.", "She skis down.", "She is a hill."],
            "source_id": "activitynet~v_1",
            "split": "val",
            "split_type": "zeroshot",
            "label": "2",
        },
    ]
}
_WINOGRANDE = {
    "winogrande_xl/validation-00000-of-00001.parquet": [
        {
            "sentence": "The cup is not in the box because the _ is too large.",
            "option1": "cup",
            "option2": "box",
            "answer": "1",
        },
        {"sentence": "Ann thanked Eve, so it was _'s idea. ", "option1": "Ann", "option2": "Eve", "answer": "2"},
    ]
}
_TRUTHFULQA = {
    "multiple_choice/validation-00000-of-00001.parquet": [
        {
            "question": "What is snow made of?",
            "mc1_targets": {"choices": ["Ice", "Sugar", "A cloud"], "labels": [1, 0, 0]},
            "mc2_targets": {"choices": ["Ice", "Frozen water", "Sugar"], "labels": [1, 1, 0]},
        },
        {
            "question": "Who built the moon?",
            "mc1_targets": {"choices": ["Nobody", "A giant"], "labels": [1, 0]},
            "mc2_targets": {"choices": ["Nobody", "A giant"], "labels": [1, 0]},
        },
    ]
}
_COMMONSENSE_QA = {
    "data/validation-00000-of-00001.parquet": [
        {
            "id": "c1",
            "question": "Where do you keep milk? ",
            "question_concept": "milk",
            "choices": {"label": ["A", "B", "C", "D", "E"], "text": ["oven", "desk", "shoe", "fridge", "car"]},
            "answerKey": "D",
        },
        {
            "id": "c2",
            "question": "What do you do with a book?",
            "question_concept": "book",
            "choices": {"label": ["A", "B", "C", "D", "E"], "text": ["read", "eat", "drink", "wear", "ride"]},
            "answerKey": "A",
        },
    ]
}
_PIQA = {
    "data/validation-00000-of-00001.parquet": [
        {"goal": "open a jar", "sol1": "Turn the lid.", "sol2": "Turn the table.", "label": 0},
        {"goal": "dry a cup", "sol1": "Fill it.", "sol2": "Use a towel.", "label": 1},
    ]
}
_SOCIAL_IQA = {
    "data/validation-00000-of-00001.parquet": [
        {
            "context": "Kim lost the keys.",
            "question": "How does Kim feel?",
            "answerA": "glad",
            "answerB": "proud",
            "answerC": "worried",
            "label": "3",
        },
        {
            "context": "Lee gave Kim a cake.",
            "question": "What does Kim do next?",
            "answerA": "say thanks",
            "answerB": "run away",
            "answerC": "call a doctor",
            "label": "1",
        },
    ]
}

CASES = {
    "hellaswag": BenchmarkCases(
        _HELLASWAG,
        [
            Case("Mix flour and water.", right=["Answer: A"], wrong=["Answer: 0", "A baker kneads.", "Answer: B"]),
            Case("stands on a hill", right=["Answer: C", "C."], wrong=["Answer: 2", "A woman skis.", ""]),
        ],
    ),
    "hellaswag:likelihood": BenchmarkCases(_HELLASWAG, []),
    "winogrande": BenchmarkCases(
        _WINOGRANDE,
        [
            Case("The cup is not", right=["Answer: A"], wrong=["Answer: 1", "cup", "Answer: C", "A cup is small: B"]),
            Case("Ann thanked Eve", right=["Answer: B"], wrong=["Answer: 2", "Eve", "Answer: A"]),
        ],
    ),
    "winogrande:likelihood": BenchmarkCases(_WINOGRANDE, []),
    "truthfulqa": BenchmarkCases(
        _TRUTHFULQA,
        [
            Case("What is snow made of?", right=["Answer: A"], wrong=["Answer: B", "Ice", "A cloud is made of C."]),
            Case("Who built the moon?", right=["Answer: B"], wrong=["Answer: A", "Nobody", "Answer: C"]),
        ],
    ),
    "truthfulqa:likelihood": BenchmarkCases(_TRUTHFULQA, []),
    "truthfulqa_mc2:likelihood": BenchmarkCases(_TRUTHFULQA, []),
    "commonsense_qa": BenchmarkCases(
        _COMMONSENSE_QA,
        [
            Case(
                "Where do you keep milk?", right=["Answer: D", "d) fridge"], wrong=["fridge", "Answer: F", "A fridge"]
            ),
            Case("do with a book?", right=["Answer: A"], wrong=["A book is read.", "I read", "Answer: B"]),
        ],
    ),
    "commonsense_qa:likelihood": BenchmarkCases(_COMMONSENSE_QA, []),
    "piqa": BenchmarkCases(
        _PIQA,
        [
            Case("open a jar", right=["Answer: A"], wrong=["Answer: 0", "A lid turns.", "Answer: B"]),
            Case("dry a cup", right=["Answer: B"], wrong=["Answer: 1", "Use a towel.", "Answer: A"]),
        ],
    ),
    "piqa:likelihood": BenchmarkCases(_PIQA, []),
    "social_iqa": BenchmarkCases(
        _SOCIAL_IQA,
        [
            Case("Kim lost the keys.", right=["Answer: C"], wrong=["Answer: 3", "worried", "Answer: D"]),
            Case("gave Kim a cake", right=["Answer: A"], wrong=["Answer: 1", "A friend says thanks.", "Answer: B"]),
        ],
    ),
    "social_iqa:likelihood": BenchmarkCases(_SOCIAL_IQA, []),
}
