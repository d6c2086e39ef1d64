"""Multiple choice: the scorer `choice`."""

from typing import Any

from holdfast.records import Answer, Row, Sample, Score
from holdfast.score.definition import scorer
from holdfast.score.letters import ALPHABET, WHOLE, extract_labelled, extract_letter


@scorer
def choice(sample: Sample, answer: Answer, choices: int = 0, mentions: bool = True) -> Score:
    """The answer chooses the target. `choices`: number of choices; default: the length of the row's `choices` or
    `options`, else 26. `mentions`: whether the mere mention of a letter is an answer if nothing clearer is found:
    "Vitamin C helps" would choose C. Two letters that are joined ("A or B") are no answer.

    A target is a letter, an index from 0, or the text of one of the row's choices; for a list, any entry counts. A
    target that is none of these, or ambiguous, is an error in the data and fails. If the row's choices have labels
    (`{text: […], label: […]}`), a label is a target too, before an index; answers may name labels 1, 2, 3.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    options, labels = _options(sample.row)
    letters = ALPHABET[: choices or len(options) or len(ALPHABET)]
    entries = sample.target if isinstance(sample.target, list | tuple) else [sample.target]
    targets = {_target(entry, options, labels, letters) for entry in entries}
    is_numbered = bool(labels) and labels == [str(index + 1) for index in range(len(labels))]
    found = (extract_labelled if is_numbered else extract_letter)(answer.text, letters, mentions)
    if found is None:
        return Score(False, "no choice in the answer", unreadable=True)
    return Score(found in targets, f"read {found}")


def _options(row: Row) -> tuple[list[Any], list[str]]:
    """Return the texts of the row's choices, and their labels if they have any."""
    for name in ("choices", "options"):
        column: Any = row.get(name)
        options, labels = (column.get("text"), column.get("label")) if isinstance(column, dict) else (column, None)
        if isinstance(options, list):
            if not isinstance(labels, list) or len(labels) != len(options):
                return options, []
            return options, [str(each) for each in labels]
    return [], []


def _target(target: Any, options: list[Any], labels: list[str], letters: str) -> str:
    if isinstance(target, str) and labels.count(target.strip()) == 1 and labels.index(target.strip()) < len(letters):
        return letters[labels.index(target.strip())]
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
