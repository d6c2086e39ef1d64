"""How long an answer is: `length`, `length_difference`."""

from typing import Literal

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import scorer
from holdfast.score.texts import references

Unit = Literal["characters", "words", "lines"]


@scorer
def length(sample: Sample, answer: Answer, unit: Literal["characters", "words", "lines", "tokens"] = "words") -> Score:
    """How many words, characters, lines or tokens the answer has. Tokens are those that the server counted."""
    if unit == "tokens":
        told = answer.usage.output_tokens
        return Score(told or None, "" if told else "the server did not count tokens")
    return Score(_measured(answer.text, unit))


@scorer
def length_difference(sample: Sample, answer: Answer, unit: Unit = "words", relative: bool = False) -> Score:
    """How much longer than the target the answer is; below 0 if it is shorter. Of several references the nearest
    counts. `relative`: divided by the target's length, and without a score if that is 0.
    """
    wanted = [_measured(each, unit) for each in references(sample.target)]
    if not wanted:
        return Score(None, "the sample has no target")
    found = _measured(answer.text, unit)
    nearest = min(wanted, key=lambda each: abs(found - each))
    if relative:
        return Score((found - nearest) / nearest if nearest else None, f"{found} {unit}, the target has {nearest}")
    return Score(found - nearest, f"{found} {unit}, the target has {nearest}")


def _measured(text: str, unit: str) -> int:
    if unit == "characters":
        return len(text)
    return len(text.split() if unit == "words" else text.splitlines())
