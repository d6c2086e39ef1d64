"""How scorers, extractors, solvers and tools that come with Holdfast are recorded: by name and version.

The tables hold every version in force. Raise one by 1 when a built-in returns something else for the same input, also
if the reason is a part that it uses. Then `compare` warns, `gate` refuses, and a resume scores again; a resume with
another version of a solver or a tool is refused. Moving, renaming or rewording code needs no new version.

Version 0.1.0 recorded scorers and extractors by `module:function` and a digest of the module's file. `normalized` reads
these records as version 1. Its table names the modules as they were then, and never changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

SCORER_VERSIONS = {
    "acc": 1,
    "acc_bytes": 1,
    "acc_norm": 1,
    "all_of": 1,
    "any_of": 1,
    "at_least": 1,
    "bert_score": 1,
    "bleu": 1,
    "choice": 3,
    "chrf": 1,
    "code_tests": 3,
    "codebleu": 2,
    "consistency": 1,
    "drop_em": 1,
    "drop_f1": 1,
    "edit_similarity": 1,
    "embedding_similarity": 1,
    "exact_match": 1,
    "grade": 1,
    "ifeval_instruction": 1,
    "ifeval_prompt": 1,
    "includes": 1,
    "json_field": 1,
    "json_schema": 1,
    "length": 1,
    "length_difference": 1,
    "maths": 1,
    "mc2": 1,
    "meteor": 1,
    "none_of": 1,
    "numeric": 1,
    "pairwise": 1,
    "regex": 1,
    "rouge": 1,
    "row_is": 1,
    "rubric": 1,
    "taxonomy": 1,
    "token_f1": 1,
    "weighted": 1,
    "when": 1,
}
EXTRACTOR_VERSIONS = {
    "after": 1,
    "boxed": 2,
    "code": 2,
    "first_line": 1,
    "json": 1,
    "last_line": 1,
    "letter": 3,
    "normalized": 1,
    "number": 1,
    "regex": 1,
    "tag": 1,
    "without_thinking": 1,
}
SOLVER_VERSIONS = {
    "best_of": 1,
    "chain": 1,
    "chat": 1,
    "choice_likelihood": 1,
    "command": 1,
    "conversation": 1,
    "critique": 1,
    "feedback": 1,
    "fork": 1,
    "majority": 1,
    "react": 1,
}
TOOL_VERSIONS = {"bash": 1, "python": 1, "read_file": 1, "write_file": 1}
JUDGES = frozenset({"grade", "pairwise", "rubric"})
"""The scorers that call the models of roles."""

_IN_0_1_0 = {
    "agreeing": ("consistency",),
    "choices": ("choice",),
    "composing": ("all_of", "any_of", "at_least", "none_of", "row_is", "taxonomy", "weighted", "when"),
    "executing": ("code_tests",),
    "extracting": (
        *("after", "boxed", "code", "first_line", "json_", "last_line", "letter", "normalized", "number", "regex"),
        *("tag", "without_thinking"),
    ),
    "judges": ("pairwise", "rubric"),
    "lengths": ("length", "length_difference"),
    "mathematics": ("maths",),
    "neural": ("bert_score", "embedding_similarity"),
    "programs": ("codebleu",),
    "quantities": ("numeric",),
    "similarity": ("bleu", "chrf", "edit_similarity", "meteor", "rouge", "token_f1"),
    "structures": ("json_field", "json_schema"),
    "texts": ("exact_match", "includes", "regex"),
}
"""By module of `holdfast.score`: its scorers, or extractors."""
NAMES_IN_0_1_0 = {
    f"holdfast.score.{module}:{function}": function.removesuffix("_")
    for module, functions in _IN_0_1_0.items()
    for function in functions
}
"""From `module:function`, as 0.1.0 recorded built-ins and as its specs may name them, to the name."""
_NESTED = ("args", "extract", "extract_target")
_DEEPEST = 50
"""A record may come from somebody else. Deeper values are compared as they are, to bound the recursion."""


def normalized(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a scorer or an extractor, and of its parts, as the current version records it; without the scales
    that users declare, so that a declaration neither scores again nor makes runs incomparable.
    """
    found: dict[str, Any] = _normalized(identity, 0)
    return found


def comparable(identity: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for identities of the same scorer, whatever version recorded them."""
    return msgspec.json.encode(normalized(identity), order="deterministic")


def comparable_by_task(scorers: Iterable[Mapping[str, Any]]) -> dict[str, list[bytes]]:
    """The comparable bytes of all scorers, by task. Equal for evaluations with the same scorers."""
    found: dict[str, list[bytes]] = {}
    for each in scorers:
        found.setdefault(str(each.get("task", "")), []).append(comparable(each))
    return found


def _normalized(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return value
    if isinstance(value, list | tuple):
        return [_normalized(each, depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    if not {"name", "function", "args"} <= value.keys():
        return {name: _normalized(each, depth + 1) for name, each in value.items()}
    # A scale says how to read the scores, and changes none.
    kept = {name: each for name, each in value.items() if name != "scale"}
    made = {name: _normalized(each, depth + 1) if name in _NESTED else each for name, each in kept.items()}
    name = NAMES_IN_0_1_0.get(value["function"]) if isinstance(value["function"], str) else None
    if name is None:
        return made
    made.pop("source", None)
    return {**made, "function": name, "version": 1}
