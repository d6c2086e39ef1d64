"""Multiple choice: the scorer `choice`."""

from typing import Any

from holdfast.records import Answer, Row, Sample, Score
from holdfast.score.definition import scorer
from holdfast.score.letters import ALPHABET, WHOLE, extract_letter


@scorer
def choice(sample: Sample, answer: Answer, choices: int = 0) -> Score:
    """The answer chooses the target. `choices`: number of choices; default: the length of the row's `choices` or
    `options`, else 26.

    A target is a letter, an index from 0, or the text of one of the row's choices; for a list, any entry counts. A
    target that is none of these, or ambiguous, is an error in the data and fails.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    options = _options(sample.row)
    letters = ALPHABET[: choices or len(options) or len(ALPHABET)]
    entries = sample.target if isinstance(sample.target, list | tuple) else [sample.target]
    targets = {_target(entry, options, letters) for entry in entries}
    found = extract_letter(answer.text, letters)
    if found is None:
        return Score(False, "no choice in the answer")
    return Score(found in targets, f"read {found}")


def _options(row: Row) -> list[Any]:
    for name in ("choices", "options"):
        options = row.get(name)
        if isinstance(options, dict):
            options = options.get("text")
        if isinstance(options, list):
            return options
    return []


def _target(target: Any, options: list[Any], letters: str) -> str:
    readings = set()
    if isinstance(target, int) and not isinstance(target, bool):
        readings.add(target)
    elif isinstance(target, str):
        readings.update(index for index, option in enumerate(options) if option == target)
        letter = WHOLE.fullmatch(target.strip())
        if letter:
            readings.add(ALPHABET.index(letter[1].upper()))
        elif target.strip().isdecimal():
            readings.add(int(target))
    valid = sorted(index for index in readings if 0 <= index < len(letters))
    if len(valid) != 1:
        what = "several of the choices" if valid else "none of the choices"
        raise ValueError(f"the target {target!r} means {what} {letters[0]} to {letters[-1]}; use a letter or an index")
    return letters[valid[0]]
