"""Multiple choice: finds the letter that an answer chooses, for the scorer `choice` and the extractor `letter`.

These readings are tried in order; the first that finds a letter decides, and within it the last mention:

1. the whole text is a letter;
2. a phrase: "Answer: (B)", "B is correct", \\boxed{B}. A line that begins with "Answer:", and a box, decide against
   sentences such as "D is true, but ...": models explain their answer after it;
3. exactly one letter at the start of lines: "B. because ...";
4. emphasis: **B**;
5. unless the caller excludes mere mentions: the last single capital letter that is no word, as in "A cat" or "I think";
6. a small letter: "b) because ...", "option b"; or "option B" at the end of a line.

The text before a `</think>` is not read. If the last "Answer: ..." or \\boxed{...} names a letter that is no choice,
only the text after it is read.

A letter that is joined to another choice ("A or B", "A, B and C", "A/D") decides nothing. If that is the last phrase of
reading 2, the text has no answer, even if an earlier phrase names one letter.

Numbers as labels ("1" to "4") are read from the whole text, a phrase, or the start of lines, never from a mere mention.

All patterns run in linear time: answers may be adversarial.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_START = r"(?<![A-Za-z0-9.])"
_END = r"(?![A-Za-z0-9+#]|['\u2019.-][A-Za-z])"
# possessive and bounded, so that long blanks and nested boxes cause no backtracking
_OPEN = r"""(?:[\s*_`"'\u201c\u2018(\[{$<]|\\[(\[])*+(?:\\[a-z]++\s*+\{[\s*(]*+){0,4}+"""

WHOLE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
_BE = r"(?:is|are|was|(?:would|should|must|has\s+to)(?:\s+(?:therefore|thus|then|clearly))?\s+be)\b"
_CUE = re.compile(
    rf"""(?:
        \b(?:answer|solution)\b (?:[\s*_]++{_BE})?
      | \b(?:choice|option)[\s*_]*+(?:{_BE}|(?=[:=]))
      | \b(?:choose|chose|pick|select|go\s+with|going\s+with)\b
      | \u7b54\u6848[\u662f\u4e3a]? | \u9009[\u62e9\u9879]?          # Chinese: the answer is; choose
      | \\boxed
    )
    [\s*_`"'>|]*+ (?P<colon>[:\uff1a=])? \s*+
    (?:(?:therefore|thus|clearly|(?:most\s+)?(?:likely|probably)|definitely)\b)?
    \s*+ (?:\bthe\s++)? (?:\b(?:option|choice|letter|answer)\b)? {_OPEN} (?P<letter>[A-Za-z]){_END}""",
    re.VERBOSE | re.IGNORECASE,
)
_LINE_START = re.compile(r"(?:^|\n)[^\w\n]*+(?:(?:the|my|so|final|correct|best|right)\b[^\w\n]*+)*+\Z", re.IGNORECASE)
_LINE_START_MAX = 40
_VERDICT = re.compile(
    rf"""{_START}(?P<letter>[A-Z])[\s*_`)\]}}"'.$]*\s(?:is|seems|looks)\s+(?:the\s+)?(?:most\s+)?
    (?: (?:correct|right|true|answer)\b
      | (?:accurate|appropriate|likely|logical|plausible|suitable)\s+(?:answer|choice|option)\b
      # not "C is the best known remedy"
      | best\b (?! [ \t]+ (?! (?:answer|choice|option|explanation|description|statement|match|fit|because|since|as)\b )
                [a-z] )
    )""",
    re.VERBOSE,
)
_LEADS = re.compile(
    "actually|although|and|answer|because|believe|but|choice|clearly|conclude|hence|if|is|letter|means|obviously|only"
    "|option|or|say|since|so|statement|that|then|therefore|think|though|thus|when|whereas|while",
    re.IGNORECASE,
)
"""Words before the letter of a verdict. Any other word may name something: "vitamin C is right for you"."""
_LEAD = re.compile(r"([A-Za-z][A-Za-z'\u2019-]*)[ \t]+[*_`\"'(\[{$]*\Z")
_LEAD_MAX = 24
_RESTATED = re.compile(r"[*_`]*[)\]:][)\]:*_`\s]*\Z")
_LINE = re.compile(
    r"""^[ \t>#*_`(\[-]*+ (?P<letter>[A-Z])
    (?: [)\].:*_]+(?=\s|$) | [ \t]*$ | ,?[ \t]+(?:because|since)\b | [ \t]+[-\u2013\u2014][ \t] )""",
    re.MULTILINE | re.VERBOSE,
)
_EMPHASIS = re.compile(r"\*\*[\s(\[]*(?P<letter>[A-Z])(?:[\s)\].:]*\*\*|[).:]\s)")
_MENTION = re.compile(rf"{_START}(?P<letter>[A-Z]){_END}")
_SMALL = re.compile(
    r"""^[ \t>#*_`(\[-]*+(?P<letter>[a-z])[).]+(?=\s|$)
    | \b(?:[Oo]ption|[Cc]hoice|[Ll]etter)[ \t]+(?:
          \(?(?P<named>[a-z])(?=[\s*_`"')\]]*(?:[.,;:)\]*\n]|$)) | [*_`"'(\[]*(?P<last>[A-Z])[*_`"')\].]*[ \t]*$
      )""",
    re.MULTILINE | re.VERBOSE,
)
_DIGIT = re.compile(r"(?<![\w.,-])[1-9](?![\w+%]|[.,/:-]\w)")
_BOX = "\\boxed"
_FINAL = ("answer", _BOX, "\u7b54\u6848")
"""Phrases that name nothing but a choice: "choose K" may be a sentence about a number K."""

_FULL_WIDTH = str.maketrans({0xFEE0 + ord(letter): letter for letter in ALPHABET})
_NEXT_WORD = re.compile(r"[ \t]+([a-z]+)")
_NAMED = re.compile(r"(?:answer|choice|option|letter|is|be|choose|chose|pick|select|with)[ \t]+", re.IGNORECASE)
_NAMED_MAX = 10
_CONTINUATION = re.compile("and|as|based|because|but|due|for|if|in|is|or|per|since|so|therefore|thus|which|with")
_CLOSED = re.compile(r"[\s*_`\"')\]}$]*(?:[.,;:)\]}*\n]|$)")

_GAP = r"""(?:[\s*_`"'\u201c\u201d\u2018\u2019()\[\]{}$]|\\[a-z]++)*+"""
_JOIN = re.compile(
    rf"""(?<![A-Za-z0-9.\\])(?P<first>[A-Za-z])(?![A-Za-z0-9]) {_GAP}
    (?P<by> (?:[,/\uff0c\u3001\u6216\u548c]|\\?&|(?:or|and)\b) )
    (?: {_GAP} (?: [,/\uff0c\u3001\u6216\u548c]|\\?& # Chinese: or, and
      | (?:or|and|even|also|either|maybe|perhaps|possibly|probably|both|options?|choices?|letter|answer)\b ) )*+
    {_GAP} (?=(?P<second>[A-Za-z]){_END})""",
    re.VERBOSE | re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"""[\s*_`"')\]}$]*+ (?<=[\s*_`"')\]}$])
    (?:is|was|seems|looks|would|does|did|has|had|can|could|fits) (?:n['\u2019]t|not)?\b""",
    re.VERBOSE,
)
_DENIED = re.compile(
    r"""[\s*_`"')\]}$]*+ \b(?:is|are|was|were|do|does|did|can|could|would)
    (?: n['\u2019]t\b | not\b | [ \t]+ (?:(?:all|both|clearly|therefore)[ \t]+)? (?:not|wrong|incorrect|false)\b )""",
    re.VERBOSE,
)
_UNDECIDED = "?"
"""What a phrase yields whose letter is joined to another choice."""


class _Join(NamedTuple):
    """Two letters with a conjunction, a comma or a slash between them. `by`: the first of these."""

    first: int
    second: int
    by: str


class _Text(NamedTuple):
    """A text, and its joins by the position of their first and of their second letter."""

    text: str
    letters: str
    """Those of the choices."""
    after: Mapping[int, _Join]
    before: Mapping[int, _Join]

    def is_joined(self, at: int) -> bool:
        return at in self.after or at in self.before


def extract_letter(text: str, letters: str = ALPHABET, mentions: bool = True) -> str | None:
    """Return the letter that a text chooses, in upper case; None if it chooses none of `letters`. `mentions`: whether
    the mere mention of a letter counts.
    """
    text = _after_thinking(text)
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    whole = WHOLE.fullmatch(text)
    if whole is not None:
        return whole[1].upper() if whole[1].upper() in letters else None
    given = _with_joins(_after_other_letter(text, letters), letters)
    for read in _READINGS:
        if read is _by_mention and not mentions:
            continue
        found = [letter for letter in read(given) if letter in letters or letter == _UNDECIDED]
        if found:
            return None if found[-1] == _UNDECIDED else found[-1]
    return None


def extract_labelled(text: str, letters: str, mentions: bool = True) -> str | None:
    """Like `extract_letter`, for choices that are labelled 1, 2, 3 ...: 1 and A both mean the first."""
    text = _after_thinking(text)
    # The readings know letters only: hide those of the text, and write A for 1.
    shown = _DIGIT.sub(lambda match: ALPHABET[int(match[0]) - 1], _MENTION.sub("?", text))
    whole = WHOLE.fullmatch(shown)
    if whole is not None and whole[1] in letters:
        return whole[1]
    given = _with_joins(shown, letters)
    cues = [letter for letter in _by_cue(given) if letter in letters or letter == _UNDECIDED]
    if cues:
        return None if cues[-1] == _UNDECIDED else cues[-1]
    # "1. First ..." may begin a list, so the start of a line counts only if nothing else is found.
    for found in ([extract_letter(text, letters, mentions)], _by_line(given)):
        known = [letter for letter in found if letter is not None and letter in letters]
        if known:
            return known[-1]
    return None


def _after_thinking(text: str) -> str:
    """The text after the last `</think>`; the whole text if nothing follows it."""
    rest = text.rpartition("</think>")[2]
    return rest if rest.strip() else text


def _with_joins(text: str, letters: str) -> _Text:
    """Find the letters that are joined to another choice."""
    joins = []
    for match in _JOIN.finditer(text):
        join = _Join(match.start("first"), match.start("second"), match["by"].lower())
        one, other = match["first"].upper(), match["second"].upper()
        is_clause = join.by == "," and _CLAUSE.match(text, join.second + 1)  # "B, and A is close"
        if one != other and one in letters and other in letters and not is_clause and _is_letter(text, join.second):
            joins.append(join)
    return _Text(text, letters, {each.first: each for each in joins}, {each.second: each for each in joins})


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


def _by_cue(given: _Text) -> Iterator[str]:
    text = given.text
    cues = [match for match in _CUE.finditer(text) if _is_choice(text, match)]
    labels = [match.start("letter") for match in cues if _is_label(given, match)]
    if labels and not _is_undecided(given, labels[-1]):
        yield text[labels[-1]].upper()
        return
    ends = {match.end() for match in cues}
    found = {match.start("letter") for match in cues}
    found |= {match.start("letter") for match in _VERDICT.finditer(text) if _is_verdict(text, match, ends)}
    for at in sorted(found):
        yield _UNDECIDED if _is_undecided(given, at) else text[at].upper()


def _is_label(given: _Text, match: re.Match[str]) -> bool:
    """Whether a phrase states a choice as a box does, or as "Answer:" does at the start of a line. "Answer: A is close,
    but B is correct" is a sentence.
    """
    text, start = given.text, match.start()
    is_known = match["letter"].upper() in given.letters
    if not is_known or match.start("letter") in given.after or _CLAUSE.match(text, match.end()):
        return False
    if match[0].lower().startswith(_BOX):
        return True
    if match["colon"] is None or not match[0].lower().startswith(_FINAL):
        return False
    return _LINE_START.search(text, max(start - _LINE_START_MAX, 0), start) is not None


def _is_verdict(text: str, match: re.Match[str], ends: Collection[int]) -> bool:
    """`ends`: of the letters in other phrases. "The answer is (D) A is true, B is false" says what choice D is."""
    at = match.start("letter")
    between = _RESTATED.search(text, max(at - _LEAD_MAX, 0), at)
    if between is not None and between.start() in ends:
        return False
    lead = _LEAD.search(text, max(at - _LEAD_MAX, 0), at)
    return not _is_word(text, at) and (lead is None or _LEADS.fullmatch(lead[1]) is not None)


def _is_undecided(given: _Text, at: int) -> bool:
    """Whether the letter of a phrase is one of several. "D, and A and B are wrong" decides D."""
    join = given.after.get(at)
    if at in given.before or join is None:
        return at in given.before
    if join.by not in (",", "and"):
        return True
    end = join.second
    for _ in ALPHABET:
        if end not in given.after:
            break
        end = given.after[end].second
    return _DENIED.match(given.text, end + 1) is None


def _by_line(given: _Text) -> Iterator[str]:
    """Several letters at the start of lines are a list of the choices, not a decision."""
    found = [match for match in _LINE.finditer(given.text) if not given.is_joined(match.start("letter"))]
    letters = {match["letter"] for match in found}
    if len(letters) == 1:
        yield from letters


def _by_emphasis(given: _Text) -> Iterator[str]:
    for match in _EMPHASIS.finditer(given.text):
        if not given.is_joined(match.start("letter")):
            yield match["letter"]


def _by_mention(given: _Text) -> Iterator[str]:
    for match in _MENTION.finditer(given.text):
        if not _is_word(given.text, match.start()) and not given.is_joined(match.start()):
            yield match["letter"]


def _by_small_letter(given: _Text) -> Iterator[str]:
    """Several letters are a list of the choices, not a decision."""
    found = set()
    for match in _SMALL.finditer(given.text):
        name = match.lastgroup or ""
        if not given.is_joined(match.start(name)):
            found.add(match[name].upper())
    if len(found) == 1:
        yield from found


_READINGS: tuple[Callable[[_Text], Iterator[str]], ...] = (
    _by_cue,
    _by_line,
    _by_emphasis,
    _by_mention,
    _by_small_letter,
)


def _is_choice(text: str, match: re.Match[str]) -> bool:
    return _is_letter(text, match.start("letter"))


def _is_letter(text: str, at: int) -> bool:
    """A lower-case letter must end the phrase: "answer: b." is a choice, "the answer is a matter of taste" is none."""
    if text[at].islower():
        after = _NEXT_WORD.match(text, at + 1)
        continues = after is not None and _CONTINUATION.fullmatch(after[1]) is not None
        return continues or _CLOSED.match(text, at + 1) is not None
    return not _is_word(text, at)


def _is_word(text: str, at: int) -> bool:
    """Whether "A" or "I" is a word here: a word follows that does not continue "A because ...". In "option A fits" it
    is a letter, because an article would be lower case there.
    """
    after = _NEXT_WORD.match(text, at + 1) if text[at] in "AI" else None
    if after is None or _CONTINUATION.fullmatch(after[1]) is not None:
        return False
    return text[at] == "I" or not any(match.end() == at for match in _NAMED.finditer(text, max(at - _NAMED_MAX, 0), at))
