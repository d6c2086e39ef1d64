"""How like the target's code an answer's code is: the scorer `codebleu`. What runs it is in `executing`."""

from typing import Any, Literal

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import needing, scorer
from holdfast.score.extracting import code
from holdfast.score.fingerprint import version_of
from holdfast.score.limited import apart
from holdfast.score.texts import references

_SECONDS_MAX = 20.0
_CHARACTERS_MAX = 100_000


def _problem_of_language(language: str = "python", **_: Any) -> str:
    grammar = f"tree-sitter-{language.replace('_', '-')}"
    return "" if version_of(grammar) else f"codebleu needs the package {grammar}: pip install 'holdfast[code]'"


@needing("code", "codebleu", "tree-sitter")
@scorer(check=_problem_of_language)
async def codebleu(
    sample: Sample,
    answer: Answer,
    language: Literal["python", "javascript", "java", "go", "c", "cpp", "rust"] = "python",
    weights: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25),
) -> Score:
    """CodeBLEU of the package codebleu: words, words with keywords counted more, syntax and flow of data, weighted. The
    answer's code is its last fenced block, or all of it.
    """
    wanted = references(sample.target)
    if not wanted:
        return Score(None, "the sample has no target")
    block = code(answer.text)
    text = answer.text if block is None else block
    longest = max(map(len, (text, *wanted)))
    if longest > _CHARACTERS_MAX:
        return Score(None, f"code of {longest} characters; at most {_CHARACTERS_MAX} are compared")
    parts = await apart(_SECONDS_MAX, f"{__name__}:parts_of", text, wanted, language, list(weights))
    value = parts.pop("codebleu")
    return Score(min(max(value, 0.0), 1.0), "", parts)


def parts_of(text: str, wanted: list[str], language: str, weights: list[float]) -> dict[str, float]:
    """CodeBLEU and its four parts."""
    from codebleu import calc_codebleu

    one, two, three, four = weights
    found: dict[str, float] = calc_codebleu([wanted], [text], language, (one, two, three, four))
    return {name: float(value) for name, value in found.items()}
