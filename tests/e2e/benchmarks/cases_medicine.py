"""MedQA, MedMCQA and PubMedQA."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case

_MEDQA = {
    "data/test-00000-of-00001.parquet": [
        {
            "id": "test-00000",
            "sent1": "A child has a fever of 40.0 C. What helps?",
            "sent2": "",
            "ending0": "Sugar",
            "ending1": "Vitamin C",
            "ending2": "Salt",
            "ending3": "Paracetamol",
            "label": 3,
        },
        {
            "id": "test-00001",
            "sent1": "Which vitamin prevents scurvy?",
            "sent2": "",
            "ending0": "Vitamin C",
            "ending1": "Vitamin A",
            "ending2": "Vitamin D",
            "ending3": "Vitamin K",
            "label": 0,
        },
    ]
}
_MEDMCQA = {
    "data/validation-00000-of-00001.parquet": [
        {
            "id": "m-1",
            "question": "Bones of an arm do not include",
            "opa": "Ulna",
            "opb": "Femur",
            "opc": "Radius",
            "opd": "",
            "cop": 1,
            "choice_type": "single",
            "exp": None,
            "subject_name": "Anatomy",
            "topic_name": None,
        },
        {
            "id": "m-2",
            "question": "A milk tooth is lost at age",
            "opa": "6",
            "opb": "16",
            "opc": "26",
            "opd": "All of the above",
            "cop": 0,
            "choice_type": "multi",
            "exp": "own",
            "subject_name": "Dental",
            "topic_name": None,
        },
        {
            "id": "m-3",
            "question": "A universal donor has the blood group",
            "opa": "O",
            "opb": "A",
            "opc": "B",
            "opd": "AB",
            "cop": 0,
            "choice_type": "single",
            "exp": None,
            "subject_name": "Anatomy",
            "topic_name": None,
        },
    ]
}
_PUBMEDQA = {
    "pqa_labeled/train-00000-of-00001.parquet": [
        {
            "pubid": 101,
            "question": "Does tea keep people awake?",
            "context": {
                "contexts": ["We gave tea to 10 people.", "Eight did not sleep."],
                "labels": ["METHODS", "RESULTS"],
                "meshes": ["Tea"],
            },
            "long_answer": "Tea keeps people awake.",
            "final_decision": "yes",
        },
        {
            "pubid": 102,
            "question": "Is a walk better than a run?",
            "context": {"contexts": ["Nobody walked."], "labels": ["RESULTS"], "meshes": ["Walking"]},
            "long_answer": "More studies are needed.",
            "final_decision": "maybe",
        },
    ]
}

CASES = {
    "medqa": BenchmarkCases(
        _MEDQA,
        [
            Case("fever of 40.0 C", right=["Answer: D"], wrong=["Vitamin C", "Answer: 3", "40 C", "Paracetamol"]),
            Case("prevents scurvy?", right=["Answer: A", "It is vitamin C.\nAnswer: A"], wrong=["Vitamin C", "C"]),
        ],
    ),
    "medqa:likelihood": BenchmarkCases(_MEDQA, []),
    "medmcqa": BenchmarkCases(
        _MEDMCQA,
        [
            Case("Bones of an arm", right=["Answer: B"], wrong=["Answer: 1", "Femur", "Answer: D"]),
            Case("has the blood group", right=["Answer: A"], wrong=["Answer: O", "Answer: B", "O"]),
            Case("A milk tooth is lost", right=["Answer: A"], wrong=["6", "A tooth is lost at 6.", "Answer: D"]),
        ],
    ),
    "medmcqa:likelihood": BenchmarkCases(_MEDMCQA, []),
    "pubmedqa": BenchmarkCases(
        _PUBMEDQA,
        [
            Case("Does tea keep", right=["Answer: A"], wrong=["Answer: B", "A study says yes", "no"]),
            Case("Is a walk better", right=["Answer: C", "c"], wrong=["Answer: A", "Answer: D", "maybe"]),
        ],
    ),
    "pubmedqa:likelihood": BenchmarkCases(_PUBMEDQA, []),
}
