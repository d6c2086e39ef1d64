"""Instructions whose following code can check, as in IFEval: `ifeval_prompt` and `ifeval_instruction`.

A row has `instruction_id_list` and `kwargs`, one mapping of arguments for each instruction. `CHECKS` has one function
per instruction: it takes the response and the arguments, and returns whether the response follows. None means unknown:
the language cannot be detected without the package langdetect. Invariant: what is unknown gives no score, never a pass.

Two definitions differ from the published checkers, which use nltk: sentences end at a mark (. ! ? and their forms in
other scripts) before a space or the end, unless a small letter follows or the dot belongs to an abbreviation, an
initial or a list number; words in capitals are runs of letters and digits, joined by hyphens and apostrophes.
"""

import importlib
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from holdfast.records import Answer, Row, Sample, Score
from holdfast.score.definition import scorer, slow_if
from holdfast.score.fingerprints import version_of

Check = Callable[..., bool | None]
Detect = Callable[[str], str | None]
"""Returns the code of a text's language, "" if it has none, None if that is not checked."""
Relation = Literal["less than", "at least"]
CHECKS: dict[str, Check] = {}
"""By the published id of the instruction."""
_PACKAGE = "langdetect"
_LOCK = threading.Lock()
_LANGUAGES = frozenset(
    {
        *("af", "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "gu", "he"),
        *("hi", "hr", "hu", "id", "it", "ja", "kn", "ko", "lt", "lv", "mk", "ml", "mr", "ne", "nl", "no", "pa", "pl"),
        *("pt", "ro", "ru", "sk", "sl", "so", "sq", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi"),
        *("zh-cn", "zh-tw"),
    }
)
"""The languages that langdetect knows."""
_SENTENCE_END = re.compile(
    r"(?<![.!?])[.!?]++[\"'\u201d\u2019)\]*_]*+(?=\s|$)(?!\s++[a-z])|[\u3002\uff01\uff1f\u0964\u06d4]++"
)
_NOT_AN_END = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|jr|sr|vs|no|inc|ltd|e\.g|i\.e|cf|approx|fig|[a-z])|^[ \t]*[0-9]{1,3})\.$",
    re.IGNORECASE | re.MULTILINE,
)
_BEFORE_DOT = 12
"""Characters before a dot that are enough to recognise an abbreviation."""
_WORD = re.compile(r"\w+")
_JOINED_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_HIGHLIGHT = re.compile(r"\*\*([^\n*]*)\*\*|\*([^\n*]*)\*")
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}


def _check_package(loose: bool = False, skip_language: bool = False) -> str:
    if skip_language or version_of(_PACKAGE):
        return ""
    return (
        f"instructions about languages need the package {_PACKAGE}: pip install {_PACKAGE}, or set skip_language: "
        "true, and rows with such instructions get no score"
    )


@slow_if(lambda text, skip_language=False, **_: not skip_language)  # langdetect loads its profiles
@scorer(check=_check_package)
def ifeval_prompt(sample: Sample, answer: Answer, loose: bool = False, skip_language: bool = False) -> Score:
    """The answer follows all instructions of its row, as in IFEval. The row's `instruction_id_list` and `kwargs` have
    their ids and arguments. `loose`: it is enough to follow without the first line, the last line, or asterisks.
    `skip_language`: works without the package langdetect; no score where following depends on the language. Sentences
    are split by own rules, which differ from those of nltk.
    """
    followed = _follow(sample.row, answer.text, loose, skip_language)
    values = list(followed.values())
    return Score(False if False in values else None if None in values else True, *_explain(answer.text, followed))


@slow_if(lambda text, skip_language=False, **_: not skip_language)
@scorer(check=_check_package)
def ifeval_instruction(sample: Sample, answer: Answer, loose: bool = False, skip_language: bool = False) -> Score:
    """The share of the row's instructions that the answer follows; otherwise like `ifeval_prompt`. Reports weigh rows
    by the number of their instructions: the mean is the share of all instructions, as published.
    """
    followed = _follow(sample.row, answer.text, loose, skip_language)
    values = list(followed.values())
    return Score(None if None in values else values.count(True) / len(values), *_explain(answer.text, followed))


def _explain(text: str, followed: Mapping[tuple[int, str], bool | None]) -> tuple[str, dict[str, Any]]:
    """Return the reason and the metadata of a score."""
    named = {value: [name for (_, name), each in followed.items() if each is value] for value in (True, False, None)}
    parts = [] if text.strip() else ["no answer"]
    parts += [f"not followed: {', '.join(named[False])}"] if named[False] else []
    parts += [f"language unknown: {', '.join(named[None])}"] if named[None] else []
    return "; ".join(parts), {"followed": len(named[True]), "instructions": len(followed)}


def _follow(row: Row, text: str, loose: bool, skip_language: bool) -> dict[tuple[int, str], bool | None]:
    """Return for each instruction, by its index and id, whether the text follows it."""
    variants = [each for each in (_variants(text) if loose else [text]) if each.strip()]
    detect: Detect = (lambda text: None) if skip_language else detect_language
    found = {}
    for index, (name, args) in enumerate(_instructions(row)):
        given = (detect,) if "detect" in inspect.signature(CHECKS[name]).parameters else ()
        try:
            inspect.signature(CHECKS[name]).bind("", *given, **args)
        except TypeError as error:
            raise ValueError(f"the instruction {name} has the arguments {args!r}: {error}") from error
        results = [CHECKS[name](variant, *given, **args) for variant in variants]
        found[index, name] = True if True in results else None if None in results else False
    return found


def _variants(text: str) -> list[str]:
    """Return the responses that count in loose mode: without the first line, the last, both; without asterisks."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(each.replace("*", "") for each in cut)]


def _instructions(row: Row) -> list[tuple[str, dict[str, Any]]]:
    """Return the ids and arguments of a row's instructions. ValueError if there are none, or unknown ones."""
    names, given = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(names, list) or not isinstance(given, list) or len(names) != len(given) or not names:
        raise ValueError("the row needs the columns instruction_id_list and kwargs: two lists of the same length")
    unknown = [str(name) for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(f"unknown instructions: {', '.join(unknown)}")
    found = []
    for name, each in zip(names, given, strict=True):
        args = {key: value for key, value in (each or {}).items() if value is not None}
        if name == "combination:repeat_prompt":
            args.setdefault("prompt_to_repeat", row.get("prompt"))
        found.append((name, args))
    return found


def detect_language(text: str) -> str:
    """Return the code of a text's language by langdetect; "" if the text has no letters."""
    langdetect: Any = importlib.import_module(_PACKAGE)
    with _LOCK:  # it loads its profiles on first use, without a lock of its own
        langdetect.DetectorFactory.seed = 0  # it draws samples of the text
        try:
            return str(langdetect.detect(text))
        except langdetect.LangDetectException:
            return ""


def count_sentences(text: str) -> int:
    """Return the number of sentences. A last one without a mark counts."""
    count, end = 0, 0
    for match in _SENTENCE_END.finditer(text):
        dot = text.find(".", match.start(), match.end()) + 1
        if dot == match.start() + 1 and _NOT_AN_END.search(text[max(0, dot - _BEFORE_DOT) : dot]):
            continue
        count, end = count + 1, match.end()
    return count + any(each.isalnum() for each in text[end:])


def _instruction(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def _compare(count: int, relation: Relation, limit: float) -> bool:
    if relation not in ("less than", "at least"):
        raise ValueError(f"the relation is {relation!r}; expected 'less than' or 'at least'")
    return count < limit if relation == "less than" else count >= limit


@_instruction("keywords:existence")
def _has_keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(keyword.lower() in text.lower() for keyword in keywords)


@_instruction("keywords:frequency")
def _repeats_keyword(text: str, keyword: str, frequency: float, relation: Relation) -> bool:
    return _compare(text.lower().count(keyword.lower()), relation, frequency)


@_instruction("keywords:forbidden_words")
def _avoids_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


@_instruction("keywords:letter_frequency")
def _repeats_letter(text: str, letter: str, let_frequency: float, let_relation: Relation) -> bool:
    return _compare(text.lower().count(letter.lower()), let_relation, let_frequency)


@_instruction("language:response_language")
def _is_in_language(text: str, detect: Detect, language: str) -> bool | None:
    found = detect(text) if language in _LANGUAGES else None
    return None if found is None else found == language


@_instruction("length_constraints:number_sentences")
def _has_sentences(text: str, num_sentences: float, relation: Relation) -> bool:
    return _compare(count_sentences(text), relation, num_sentences)


@_instruction("length_constraints:number_words")
def _has_words(text: str, num_words: float, relation: Relation) -> bool:
    return _compare(len(_WORD.findall(text)), relation, num_words)


@_instruction("length_constraints:number_paragraphs")
def _has_paragraphs(text: str, num_paragraphs: float) -> bool:
    """Paragraphs are separated by `***`. Only the first and the last may be empty, and do not count then."""
    parts = [part.strip() for part in text.split("***")]
    return all(parts[1:-1]) and sum(map(bool, parts)) == num_paragraphs


@_instruction("length_constraints:nth_paragraph_first_word")
def _begins_paragraph(text: str, num_paragraphs: float, nth_paragraph: float, first_word: str) -> bool:
    """Paragraphs are separated by an empty line."""
    parts = [part.strip() for part in text.split("\n\n")]
    count, at = sum(map(bool, parts)), int(nth_paragraph)
    if count != num_paragraphs or not 1 <= at <= count or not parts[at - 1]:
        return False
    word = parts[at - 1].split()[0].lstrip("'\"")
    return re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


@_instruction("detectable_content:number_placeholders")
def _has_placeholders(text: str, num_placeholders: float) -> bool:
    """Placeholders are in square brackets, within a line."""
    count = 0
    for line in text.split("\n"):
        end = -1
        while (start := line.find("[", end + 1)) >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
    return count >= num_placeholders


@_instruction("detectable_content:postscript")
def _has_postscript(text: str, postscript_marker: str) -> bool:
    pattern = _POSTSCRIPTS.get(postscript_marker, re.escape(postscript_marker))
    return re.search(pattern, text, re.IGNORECASE) is not None


@_instruction("detectable_format:number_bullet_lists")
def _has_bullets(text: str, num_bullets: float) -> bool:
    """A bullet is a line that begins with `-`, or with one `*`."""
    lines = [line.lstrip() for line in text.split("\n")]
    return sum(line.startswith("-") or re.match(r"\*[^*]", line) is not None for line in lines) == num_bullets


@_instruction("detectable_format:constrained_response")
def _is_constrained(text: str) -> bool:
    return any(f"My answer is {each}." in text for each in ("yes", "no", "maybe"))


@_instruction("detectable_format:number_highlighted_sections")
def _has_highlights(text: str, num_highlights: float) -> bool:
    """Highlights are between one or two asterisks, within a line."""
    return sum(bool((two or one).strip()) for two, one in _HIGHLIGHT.findall(text)) >= num_highlights


@_instruction("detectable_format:multiple_sections")
def _has_sections(text: str, section_spliter: str, num_sections: float) -> bool:
    """A section begins with the word of the instruction and a number, such as "Section 1"."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?[0-9]", text)) >= num_sections


@_instruction("detectable_format:json_format")
def _is_json(text: str) -> bool:
    """The whole response is JSON. A fence around it is allowed."""
    content = re.sub(r"^```(?:json)?", "", text.strip(), flags=re.IGNORECASE).removesuffix("```")
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


@_instruction("detectable_format:title")
def _has_title(text: str) -> bool:
    """A title is between double angle brackets, within a line."""
    spans = ((line.find("<<"), line.rfind(">>"), line) for line in text.split("\n"))
    return any(0 <= start < end and line[start:end].strip("<> \t\r") for start, end, line in spans)


@_instruction("combination:two_responses")
def _has_two_responses(text: str) -> bool:
    """Two different responses are separated by six asterisks."""
    parts = [part.strip() for part in text.split("******")]
    found = [part for part in parts if part]
    return all(parts[1:-1]) and len(found) == 2 and found[0] != found[1]


@_instruction("combination:repeat_prompt")
def _repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@_instruction("startend:end_checker")
def _ends_with(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@_instruction("startend:quotation")
def _is_quoted(text: str) -> bool:
    content = text.strip()
    return len(content) > 1 and content[0] == content[-1] == '"'


@_instruction("change_case:capital_word_frequency")
def _has_capital_words(text: str, capital_frequency: float, capital_relation: Relation) -> bool:
    count = sum(word.isupper() for word in _JOINED_WORD.findall(text))
    return _compare(count, capital_relation, capital_frequency)


@_instruction("change_case:english_capital")
def _is_upper_english(text: str, detect: Detect) -> bool | None:
    return text.isupper() and _is_in_language(text, detect, "en")


@_instruction("change_case:english_lowercase")
def _is_lower_english(text: str, detect: Detect) -> bool | None:
    return text.islower() and _is_in_language(text, detect, "en")


@_instruction("punctuation:no_comma")
def _has_no_comma(text: str) -> bool:
    return "," not in text
