"""IFEval."""

from tests.e2e.benchmarks.cases import BenchmarkCases, Case, Files

_NO_KWARGS = {"num_bullets": None, "language": None, "relation": None, "num_words": None}
_ROWS = [
    {
        "key": 11,
        "prompt": "Name two rivers. Use exactly 2 bullets and no commas.",
        "instruction_id_list": ["detectable_format:number_bullet_lists", "punctuation:no_comma"],
        "kwargs": [{**_NO_KWARGS, "num_bullets": 2.0}, _NO_KWARGS],
    },
    {
        "key": 12,
        "prompt": "Write a greeting in German.",
        "instruction_id_list": ["language:response_language"],
        "kwargs": [{**_NO_KWARGS, "language": "de"}],
    },
    {
        "key": 13,
        "prompt": "Describe the sea with at least 3 words.",
        "instruction_id_list": ["length_constraints:number_words"],
        "kwargs": [{"relation": "at least", "num_words": 3}],
    },
]
_FILES: Files = {"ifeval_input_data.jsonl": _ROWS}
_CASES = [
    Case(
        "Name two rivers",
        right=["- Rhine\n- Elbe", "Two rivers:\n* Rhine\n* Elbe"],
        wrong=["- Rhine", "- Rhine\n- Elbe, too", "Sure, here:\n- Rhine\n- Elbe", ""],
    ),
    Case("Describe the sea", right=["It is wide."], wrong=["Wide.", ""]),
]
_GERMAN = Case("greeting in German", right=["deutsch: Guten Tag!"], wrong=["Good morning!", "", "123"])

CASES = {
    "ifeval": BenchmarkCases(_FILES, [*_CASES, _GERMAN]),
    "ifeval:no_language": BenchmarkCases(_FILES, _CASES),
}
