"""Which values each score of a run can have, from what its evaluation records, without `score.scales`.

Composed scorers are not in the table: nothing that the oracle checks uses them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.oracle.formulas import ANY, RIGHT_OR_WRONG, Possible

_ONE = Possible(0.0, 1.0)
_COUNT = Possible(lowest=0.0)
_BUILT_IN = {
    **dict.fromkeys(
        ["choice", "code_tests", "exact_match", "includes", "json_field", "json_schema", "maths", "numeric", "regex"],
        RIGHT_OR_WRONG,
    ),
    **dict.fromkeys(["bleu", "chrf", "consistency", "edit_similarity", "rouge", "token_f1"], _ONE),
    "length": _COUNT,
    "length_difference": ANY,
    "taxonomy": ANY,
}
_NAMED = {"bool": RIGHT_OR_WRONG, "count": _COUNT, "number": ANY, "label": ANY}


def possible(score: str, scorers: Iterable[Mapping[str, Any]], task: str, values: Iterable[Any]) -> Possible:
    """Of the score of this name. `values`: all that were given; they decide only if nothing is declared."""
    found = declared(score, scorers, task)
    if found is not None:
        return found
    return RIGHT_OR_WRONG if {type(value) for value in values if value is not None} == {bool} else ANY


def declared(score: str, scorers: Iterable[Mapping[str, Any]], task: str) -> Possible | None:
    """None if the scorer does not say, or nobody knows it."""
    by_length = sorted(
        (each for each in scorers if each.get("task", task) == task), key=lambda each: -len(each["name"])
    )
    for each in by_length:
        name = each["name"]
        if score == f"{name} correct":  # which of its grades are correct
            return RIGHT_OR_WRONG
        if score == name or score.startswith(f"{name}."):
            return _of_identity(each, score[len(name) + 1 :])
    return None


def _of_identity(scorer: Mapping[str, Any], part: str) -> Possible | None:
    function = str(scorer["function"])
    if function.startswith("holdfast.score."):  # of 0.1.0
        function = function.rpartition(":")[2]
    if ":" not in function:
        return _BUILT_IN[function]
    given = scorer.get("scale")
    if isinstance(given, Mapping):
        given = given.get(part)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return Possible(float(given[0]), float(given[1]))
    return None if given is None else _NAMED[given]
