"""Multiple choice: finds the letter that an answer chooses, for the scorer `choice` and the extractor `letter`.

These readings are tried in order; the first that finds a letter decides, and within it the last mention:

1. the whole text is a letter;
2. a phrase: "Answer: (B)", "B is correct", \\boxed{B};
3. exactly one letter at the start of lines: "B. because ...";
4. emphasis: **B**;
5. the last single capital letter that is no word, as in "A cat" or "I think";
6. a small letter: "b) because ...", "option b".

If the last "Answer: ..." or \\boxed{...} names a letter that is no choice, only the text after it is read.

Numbers as labels ("1" to "4") are read from the whole text, a phrase, or the start of lines, never from a mere mention.

All patterns run in linear time: answers may be adversarial.
"""

import re
from collections.abc import Callable, Iterator

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_START = r"(?<![A-Za-z0-9.])"
_END = r"(?![A-Za-z0-9+#]|['\u2019.-][A-Za-z])"
# possessive and bounded, so that long blanks and nested boxes cause no backtracking
_OPEN = r"""[\s*_`"'\u201c\u2018(\[{$]*+(?:\\[a-z]++\s*+\{[\s*(]*+){0,4}+"""

WHOLE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
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
_SMALL = re.compile(
    r"""^[ \t>#*_`(\[-]*+(?P<letter>[a-z])[).]+(?=\s|$)
    | \b(?:[Oo]ption|[Cc]hoice|[Ll]etter)[ \t]+\(?(?P<named>[a-z])(?=[\s*_`"')\]]*(?:[.,;:)\]*\n]|$))""",
    re.MULTILINE | re.VERBOSE,
)
_DIGIT = re.compile(r"(?<![\w.,-])[1-9](?![\w+%]|[.,/:-]\w)")
_FINAL = ("answer", "\\boxed", "\u7b54\u6848")
"""Phrases that name nothing but a choice: "choose K" may be a sentence about a number K."""

_FULL_WIDTH = str.maketrans({0xFEE0 + ord(letter): letter for letter in ALPHABET})
_NEXT_WORD = re.compile(r"[ \t]+([a-z]+)")
_NAMED = re.compile(r"(?:answer|choice|option|letter|is|be|choose|chose|pick|select|with)[ \t]+", re.IGNORECASE)
_NAMED_MAX = 10
_CONTINUATION = re.compile("and|as|based|because|but|due|for|if|in|is|or|per|since|so|therefore|thus|which|with")
_CLOSED = re.compile(r"[\s*_`\"')\]}$]*(?:[.,;:)\]}*\n]|$)")


def extract_letter(text: str, letters: str = ALPHABET) -> str | None:
    """Return the letter that a text chooses, in upper case; None if it chooses none of `letters`."""
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    whole = WHOLE.fullmatch(text)
    if whole is not None:
        return whole[1].upper() if whole[1].upper() in letters else None
    text = _after_other_letter(text, letters)
    for read in _READINGS:
        found = [letter for letter in read(text) if letter in letters]
        if found:
            return found[-1]
    return None


def extract_labelled(text: str, letters: str) -> str | None:
    """Like `extract_letter`, for choices that are labelled 1, 2, 3 ...: 1 and A both mean the first."""
    # The readings know letters only: hide those of the text, and write A for 1.
    shown = _DIGIT.sub(lambda match: ALPHABET[int(match[0]) - 1], _MENTION.sub("?", text))
    whole = WHOLE.fullmatch(shown)
    numbered = [whole[1]] if whole is not None and whole[1] in letters else [*_by_cue(shown)]
    # "1. First ..." may begin a list, so the start of a line counts only if nothing else is found.
    for found in (numbered, [extract_letter(text, letters)], _by_line(shown)):
        known = [letter for letter in found if letter is not None and letter in letters]
        if known:
            return known[-1]
    return None


def _after_other_letter(text: str, letters: str) -> str:
    """Return the text after a final answer that is none of the choices; the whole text if there is none."""
    if len(letters) == len(ALPHABET):
        return text
    cues = [match for match in _CUE.finditer(text) if _is_choice(text, match)]
    last = cues[-1] if cues else None
    if last is None or last["letter"].upper() in letters or not last[0].lower().startswith(_FINAL):
        return text
    # "The answer is V = IR" names no choice
    return text[last.end() :] if _CLOSED.match(text, last.end()) else text


def _by_cue(text: str) -> Iterator[str]:
    matches = [match for match in _CUE.finditer(text) if _is_choice(text, match)]
    matches += [match for match in _VERDICT.finditer(text) if not _is_word(text, match.start("letter"))]
    for match in sorted(matches, key=lambda match: match.start("letter")):
        yield match["letter"].upper()


def _by_line(text: str) -> Iterator[str]:
    """Several letters at the start of lines are a list of the choices, not a decision."""
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


def _by_small_letter(text: str) -> Iterator[str]:
    """Several small letters are a list of the choices, not a decision."""
    found = {match["letter"] or match["named"] for match in _SMALL.finditer(text)}
    if len(found) == 1:
        yield from (letter.upper() for letter in found)


_READINGS: tuple[Callable[[str], Iterator[str]], ...] = (_by_cue, _by_line, _by_emphasis, _by_mention, _by_small_letter)


def _is_choice(text: str, match: re.Match[str]) -> bool:
    """A lower-case letter must end the phrase: "answer: b." is a choice, "the answer is a matter of taste" is none."""
    if match["letter"].islower():
        after = _NEXT_WORD.match(text, match.end("letter"))
        continues = after is not None and _CONTINUATION.fullmatch(after[1]) is not None
        return continues or _CLOSED.match(text, match.end("letter")) is not None
    return not _is_word(text, match.start("letter"))


def _is_word(text: str, at: int) -> bool:
    """Whether "A" or "I" is a word here: a word follows that does not continue "A because ...". In "option A fits" it
    is a letter, because an article would be lower case there.
    """
    after = _NEXT_WORD.match(text, at + 1) if text[at] in "AI" else None
    if after is None or _CONTINUATION.fullmatch(after[1]) is not None:
        return False
    return text[at] == "I" or not any(match.end() == at for match in _NAMED.finditer(text, max(at - _NAMED_MAX, 0), at))
