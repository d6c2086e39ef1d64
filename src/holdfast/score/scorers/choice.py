"""Multiple choice: which letter an answer picks, and the scorer `choice`.

An answer is read in this order; the first way that finds a letter decides, and within it the last mention:
the whole text is a letter · "Answer: (B)", "B is correct", \\boxed{B} · exactly one letter stands at the start of
lines, "B. because ..." · **B** · the last capital letter that stands alone and is no word ("A cat", "I think").
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.records.samples import Answer, Row, Sample, Score
from holdfast.score.definition import scorer

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_START = r"(?<![A-Za-z0-9.])"
_END = r"(?![A-Za-z0-9+#]|['\u2019.-][A-Za-z])"
# possessive, and few: no way back through long blanks, no long way through boxes in boxes
_OPEN = r"""[\s*_`"'\u201c\u2018(\[{$]*+(?:\\[a-z]++\s*+\{[\s*(]*+){0,4}+"""

_WHOLE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
_CUE = re.compile(
    rf"""(?:
        \b(?:answer|solution)\b (?:[\s*_]++(?:is|are|was|would\s+be|should\s+be|must\s+be)\b)?
      | \b(?:choice|option)[\s*_]*+(?:(?:is|would\s+be|should\s+be|must\s+be)\b|(?=[:=]))
      | \b(?:choose|chose|pick|select|go\s+with|going\s+with)\b
      | \u7b54\u6848[\u662f\u4e3a]? | \u9009[\u62e9\u9879]?          # Chinese: the answer is; choose
      | \\boxed
    )
    [\s*_]*+ [:\uff1a=]? \s*+ (?:(?:therefore|thus|clearly|likely|probably|definitely)\b)?
    \s*+ (?:\bthe\s++)? (?:\b(?:option|choice|letter|answer)\b)? {_OPEN} (?P<letter>[A-Za-z]){_END}""",
    re.VERBOSE | re.IGNORECASE,
)
_VERDICT = re.compile(
    rf"{_START}(?P<letter>[A-Z])[\s*_`)\]}}\"'.$]*\s(?:is|seems|looks)\s+(?:the\s+)?(?:most\s+)?(?:correct|right|best|true|answer)"
)
_LINE = re.compile(r"^[ \t>#*_`(\[-]*+(?P<letter>[A-Z])(?:[)\].:*_]+(?=\s|$)|[ \t]*$)", re.MULTILINE)
_EMPHASIS = re.compile(r"\*\*[\s(\[]*(?P<letter>[A-Z])(?:[\s)\].:]*\*\*|[).:]\s)")
_MENTION = re.compile(rf"{_START}(?P<letter>[A-Z]){_END}")

_FULL_WIDTH = str.maketrans({0xFEE0 + ord(letter): letter for letter in _ALPHABET})
_NEXT_WORD = re.compile(r"[ \t]+([a-z]+)")
_NAMED = re.compile(r"(?:answer|choice|option|letter|is|be|choose|chose|pick|select|with)[ \t]+", re.IGNORECASE)
_NAMED_MAX = 10
_SENTENCE_GOES_ON = re.compile("and|as|based|because|but|due|for|if|in|is|or|per|since|so|therefore|thus|which|with")
_CLOSED = re.compile(r"[\s*_`\"')\]}$]*(?:[.,;:)\]}*\n]|$)")


@scorer
def choice(sample: Sample, answer: Answer, choices: int = 0) -> Score:
    """The answer picks the target. `choices`: how many there are; by default as many as the row's `choices` or
    `options` has, else 26.

    A target is a letter, an index from 0, or the text of one of the row's choices; of a list any will do. One that is
    none of these, or two of them at once, is an error of the data and raises.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    options = _options(sample.row)
    letters = _ALPHABET[: choices or len(options) or len(_ALPHABET)]
    entries = sample.target if isinstance(sample.target, list | tuple) else [sample.target]
    wanted = {_target(entry, options, letters) for entry in entries}
    found = extract_letter(answer.text, letters)
    if found is None:
        return Score(False, "no choice in the answer")
    return Score(found in wanted, f"read {found}")


def extract_letter(text: str, letters: str = _ALPHABET) -> str | None:
    """The letter that a text picks, in upper case; None if it picks none of `letters`."""
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return whole[1].upper() if whole[1].upper() in letters else None
    for read in _WAYS:
        found = [letter for letter in read(text) if letter in letters]
        if found:
            return found[-1]
    return None


def _by_cue(text: str) -> Iterator[str]:
    matches = [match for match in _CUE.finditer(text) if _is_pick(text, match)]
    matches += [match for match in _VERDICT.finditer(text) if not _is_word(text, match.start("letter"))]
    for match in sorted(matches, key=lambda match: match.start("letter")):
        yield match["letter"].upper()


def _by_line(text: str) -> Iterator[str]:
    """Several letters at the start of lines are a list of the choices, not a pick."""
    found = {match["letter"] for match in _LINE.finditer(text)}
    if len(found) == 1:
        yield from found


def _by_emphasis(text: str) -> Iterator[str]:
    for match in _EMPHASIS.finditer(text):
        yield match["letter"]


def _by_mention(text: str) -> Iterator[str]:
    for match in _MENTION.finditer(text):
        if not _is_word(text, match.start()):
            yield match["letter"]


_WAYS: tuple[Callable[[str], Iterator[str]], ...] = (_by_cue, _by_line, _by_emphasis, _by_mention)


def _is_pick(text: str, match: re.Match[str]) -> bool:
    """A small letter must close the phrase: "answer: b." picks one, "the answer is a matter of taste" does not."""
    if match["letter"].islower():
        after = _NEXT_WORD.match(text, match.end("letter"))
        goes_on = after is not None and _SENTENCE_GOES_ON.fullmatch(after[1]) is not None
        return goes_on or _CLOSED.match(text, match.end("letter")) is not None
    return not _is_word(text, match.start("letter"))


def _is_word(text: str, at: int) -> bool:
    """A and I, followed by a word that does not go on with "A because ..."; but "option A fits" names one: an article
    would be small there.
    """
    after = _NEXT_WORD.match(text, at + 1) if text[at] in "AI" else None
    if after is None or _SENTENCE_GOES_ON.fullmatch(after[1]) is not None:
        return False
    return text[at] == "I" or not any(match.end() == at for match in _NAMED.finditer(text, max(at - _NAMED_MAX, 0), at))


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
        letter = _WHOLE.fullmatch(target.strip())
        if letter:
            readings.add(_ALPHABET.index(letter[1].upper()))
        elif target.strip().isdecimal():
            readings.add(int(target))
    valid = sorted(index for index in readings if 0 <= index < len(letters))
    if len(valid) != 1:
        what = "several of the choices" if valid else "none of the choices"
        raise ValueError(f"the target {target!r} means {what} {letters[0]} to {letters[-1]}; use a letter or an index")
    return letters[valid[0]]
