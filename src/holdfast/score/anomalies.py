"""Anomalies of single answers, independent of scores: loops, refusals, another script than the question's, and a wrong
format.

Pure, and cheap enough for every sample: only a bounded part of a long text is examined. Doubtful cases are not
reported, because users switch off checks with false alarms. Empty, truncated and filtered answers are `Answer.marks`;
anomalies that show only in comparison with other answers are in `report.anomalies`.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.records import Answer, Sample

# ruff: noqa: RUF001 - characters of other languages are intended


_REFUSAL_CHARACTERS_MAX = 1000
_HEAD_CHARACTERS = 200
_CLAUSE = r"(?:[^.!?\n。！]{0,60}[,.!，。、！:;]\s*(?:but |aber |mais |pero |mas |ma |но )?)?"
_ENGLISH = (
    r"i(?:'m| am) (?:unable|not (?:able|going|comfortable|allowed|permitted|programmed|designed)) to ",
    r"i (?:can't|cannot|can not|won't|will not|must decline to|have to decline to|must refuse to) ",
)
_DECLINED = (
    r"(?:help\b(?! but)|(?:assist|comply|fulfil+|provide|support|engage)\b|"
    r"(?:participate|discuss|continue with|do that|do this)\b|"
    r"(?:create|generate|write|produce|share)\b[^.\n]{0,60}\b"
    r"(?:content|material|instructions|story|stories|information|malware|that|such)\b)"
)
_REFUSALS = (
    *(begins + _DECLINED for begins in _ENGLISH),
    r"(?:dabei|damit|hierbei|das) (?:kann|darf|werde) ich[^.\n]{0,40} nicht (?:weiter)?(?:helfen|unterstützen|tun)",
    r"ich (?:kann|darf|werde)[^.\n]{0,60} nicht (?:weiter)?(?:helfen|unterstützen|behilflich sein|bereitstellen)",
    r"je ne (?:peux|puis) pas (?:vous |t')?(?:aider|assister|fournir|répondre à cette demande)",
    r"no puedo (?:ayudar|asistir|proporcionar|cumplir)",
    r"não posso (?:ajudar|fornecer|atender)",
    r"non posso (?:aiutar|fornire|assister)",
    r"(?:я )?не могу (?:вам )?(?:помочь|предоставить|выполнить эт)",
    r"(?:但?我)?(?:无法|不能|無法)(?:为您|为你|為您)?(?:提供|协助|協助|帮助|幫助|满足|滿足)",
    r"[^。\n]{0,30}(?:お手伝い|お答え|お応え|ご提供|提供)(?:することは|することが|は)?でき(?:ません|かねます)",
    r"[^.\n]{0,30}(?:도와드릴|도움을 드릴|제공할) 수 없",
)
_NEGATIVE = re.compile(
    r"can't|cannot|can not|won't|will not|decline|refuse|unable|not (?:able|going|comf|allow|permi|progr|desig)|"
    r"nicht|pas |no puedo|posso|не могу|无法|不能|無法|でき|수 없"
)
_REFUSES = re.compile(_CLAUSE + f"(?:{'|'.join(_REFUSALS)})")


def refusal_in(answer: Answer) -> str:
    """Return the evidence that an answer is a refusal; empty if it is none."""
    if answer.finish_reason == "refusal" or answer.message.get("refusal"):
        return "the server says so"
    text = answer.text
    if not text or len(text) > _REFUSAL_CHARACTERS_MAX:
        return ""
    head = text.lstrip()[:_HEAD_CHARACTERS].lower().replace("\u2019", "'")
    if _NEGATIVE.search(head) is None or (found := _REFUSES.match(head)) is None:
        return ""
    return f"it begins: {' '.join(found[0].split())!r}"


_RANGES = {
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Cyrillic": "\u0400-\u052f",
    "Armenian": "\u0530-\u058f",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Tamil": "\u0b80-\u0bff",
    "Thai": "\u0e00-\u0e7f",
    "Georgian": "\u10a0-\u10ff",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "Han": "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff",
}
_OTHERS = {name: re.compile(f"[{ranges}]+") for name, ranges in _RANGES.items()}
_LATIN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_NAMES = {"Han": "Chinese or Japanese", "Hangul": "Korean"}
_FIRST_OTHER = "\u0370"
_READ_MAX = 2000
_GUESSED = 60
_SHARE_MIN = 0.9
_LETTERS_MIN = 20
_WORDS_MIN = 15
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$[^$\n]*\$", re.DOTALL)
_PROSE_SHARE = 0.15
_FUNCTION_WORDS = (
    "the of and is are to in that it for as with this you be on not or a an can de la le les des est et que un une en "
    "el los las es y por para no se der die das und ist nicht ein eine zu den von mit il di che per non o os uma com"
)
_PROSE = frozenset(_FUNCTION_WORDS.split())
"""Function words of languages in Latin letters: prose is full of them; code, formulas and names are not."""
_LANGUAGES = re.compile(
    r"translat|translit|romani[sz]|\blanguages?\b(?! models?)|\b(?:english|russian|ukrainian|bulgarian|serbian|greek|"
    r"hebrew|arabic|persian|farsi|urdu|hindi|bengali|tamil|thai|chinese|mandarin|cantonese|japanese|korean|french|german|"
    r"spanish|italian|portuguese|latin|cyrillic|kanji|hiragana|pinyin|multilingual)\b|übersetz|traduc|traduz|"
    r"перев|англий|русск|翻译|翻譯|翻訳|英语|英文|英語|中文|日语|日本語|번역|영어|한국어|ترجم|الإنجليزية|अनुवाद",
    re.IGNORECASE,
)


def scripts_in(text: str) -> set[str]:
    """Return all scripts with at least two adjacent letters in a text."""
    found = {"Latin"} if _has(_LATIN, text) else set()
    if text and not text.isascii() and max(text) >= _FIRST_OTHER:
        found |= {name for name, pattern in _OTHERS.items() if _has(pattern, text)}
    return found


def likely_script(text: str) -> str:
    """Guess the main script quickly, from a few dozen characters."""
    if text.isascii():
        return "Latin"
    head = text[:_READ_MAX]
    some = head[:: len(head) // _GUESSED + 1]
    if max(some) < _FIRST_OTHER:
        return "Latin"
    counts = {name: sum(map(len, pattern.findall(some))) for name, pattern in _OTHERS.items()}
    return max(counts, key=lambda each: counts[each])


def is_used(script: str, text: object) -> bool:
    """Whether the beginning of a text contains letters of a script."""
    return isinstance(text, str) and _has(_LATIN if script == "Latin" else _OTHERS[script], text[:_READ_MAX])


def script_of(text: str) -> str:
    """Return the script of nearly all letters in a text; empty if there is none, or the text is too short. Latin
    counts only for prose: code, formulas and names use Latin letters in every language.
    """
    text = text[:_READ_MAX]
    if not text or text.isascii() or max(text) < _FIRST_OTHER:
        return "Latin" if _is_prose(text) else ""
    plain = _CODE.sub(" ", text)
    counts = {name: sum(map(len, pattern.findall(plain))) for name, pattern in _OTHERS.items()}
    latin = sum(map(len, _LATIN.findall(plain)))
    name = max(counts, key=lambda each: counts[each])
    whole = sum(counts.values()) + latin
    fewest = _LETTERS_MIN // 2 if name == "Han" else _LETTERS_MIN
    if counts[name] >= max(fewest, _SHARE_MIN * whole):
        return name
    return "Latin" if latin >= _SHARE_MIN * whole and _is_prose(plain) else ""


def mentions_languages(text: str) -> bool:
    """Whether a text mentions languages or translation: then the answer may be in any script."""
    return _LANGUAGES.search(text) is not None


def name_of(script: str) -> str:
    """Return the display name of a script."""
    return _NAMES.get(script, script)


def _has(pattern: "re.Pattern[str]", text: str) -> bool:
    return any(len(match[0]) > 1 for match in pattern.finditer(text))


def _is_prose(text: str) -> bool:
    words = [word.lower() for word in _LATIN.findall(_CODE.sub(" ", text))]
    return len(words) >= _WORDS_MIN and sum(word in _PROSE for word in words) >= _PROSE_SHARE * len(words)


ANOMALIES_VERSION = 1
"""Version of the checks. If it changes, a resume or `holdfast score --anomalies` checks old answers again. Adding
`invalid_values` did not change it, because older runs recorded nothing in which it could be found.
"""

KINDS = {
    "loop": "the same phrase again and again",
    "refusal": "reads like a refusal",
    "language": "in another script than the question",
    "format": "not in the format that was asked for",
    "invalid_values": "the server sent values that cannot be right; they were dropped",
    "identical": "the same in all repeats, at a temperature above 0",
    "slow": "took far longer than the others",
    "scores_differ": "another score than an equal answer to the same sample",
}
"""All kinds besides the marks, each with the phrase that reports show."""

_WINDOW = 8192
_PROBE = 32
_SHORTEST_LOOP = 240
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
_FENCED = re.compile(r"```(?:json|JSON)?\s*\n(.*?)```", re.DOTALL)
_SHOWN = 60
_ROW_CHARACTERS_MAX = 20_000
"""Most characters of a row that are examined for its scripts."""
_TEXTS_MAX = 200
_DEEPEST = 6
_VALUES_SHOWN = 300


class AnswerExpectations(msgspec.Struct, frozen=True):
    """What a task and a model's parameters imply about the answers."""

    scripts: frozenset[str] = frozenset()
    """Scripts that occur in the task's prompts."""
    any_script: bool = False
    """The prompts mention languages, so any script may be correct."""
    json: str = ""
    """Empty: no JSON expected; `whole`: the answer must be JSON; `part`: it must contain some."""


def expect_answers(task: Mapping[str, Any], params: Mapping[str, Any]) -> AnswerExpectations:
    """Derive the expectations from a task of an effective spec, as plain data, and the model's parameters."""
    own = " ".join(_texts([task.get(name) for name in ("system", "prompt", "messages")]))
    names = [name for each in task.get("scorers") or () for name in ([each] if isinstance(each, str) else each)]
    json = "part" if any(name in {"json_field", "json_schema"} for name in names) else ""
    form = params.get("response_format")  # counts only for `chat`: other solvers may transform the text
    if task.get("solver") == "chat" and isinstance(form, Mapping) and str(form.get("type")).startswith("json"):
        json = "whole"
    return AnswerExpectations(frozenset(scripts_in(own)), mentions_languages(own), json)


def find_anomalies(sample: Sample, answer: Answer, expected: AnswerExpectations) -> dict[str, str]:
    """Return the anomalies of one answer by kind, each with its evidence."""
    text = answer.text
    found: dict[str, str] = {}
    if len(text) >= _SHORTEST_LOOP and (reason := _find_loop(text, is_cut="truncated" in answer.marks)):
        found["loop"] = reason
    if reason := refusal_in(answer):
        found["refusal"] = reason
    if reason := _find_other_script(sample, text, expected):
        found["language"] = reason
    if expected.json and (reason := _find_format_error(answer, expected)):
        found["format"] = reason
    if answer.dropped:
        found["invalid_values"] = "; ".join(answer.dropped)[:_VALUES_SHOWN]
    return found


def _find_loop(text: str, *, is_cut: bool) -> str:
    """Describe a loop. Most loops reach the end of the text; others are found at a quarter, half or three quarters."""
    size = len(text)
    for end in (size, size * 3 // 4, size // 2, size // 4):
        window = text[max(end - _WINDOW, 0) : end]
        probe = window[-_PROBE:]
        if len(window) >= _SHORTEST_LOOP and window.count(probe) >= 3:
            unit, times = _repeated_phrase(window, probe)
            if _is_loop(unit, times, size, is_cut=is_cut):
                shown = " ".join(unit.split())[:_SHOWN]
                return f"{shown!r} again and again, {times} times or more"
    return ""


def _repeated_phrase(window: str, probe: str) -> tuple[str, int]:
    """Return the phrase that repeats at the end of the window, and how often."""
    length = len(window) - len(probe) - window.rfind(probe, 0, len(window) - 1)
    unit, times, more = window[-length:], 1, len(window) // length
    while times < more:  # binary search, because the phrase may be a single character
        middle = (times + more + 1) // 2
        times, more = (middle, more) if window.endswith(unit * middle) else (times, middle - 1)
    return unit, times


def _is_loop(unit: str, times: int, size: int, *, is_cut: bool) -> bool:
    """Whether a repetition is a loop. A phrase needs fewer repeats than a word; text without letters (a rule, zeros)
    is rarely a loop.
    """
    words = _WORD.findall(unit * 3)[1:-1]  # the phrase may begin in the middle of a word
    repeated = len(unit) * times
    if len(words) >= 10 and len(set(words)) >= 3:
        return times >= (4 if len(unit) >= 200 else 8) and repeated >= _SHORTEST_LOOP
    most = repeated * 2 >= min(size, _WINDOW)
    return most and repeated >= 400 and times >= 40 and (bool(words) or is_cut)


def _find_other_script(sample: Sample, text: str, expected: AnswerExpectations) -> str:
    likely = likely_script(text)
    if expected.any_script or likely in expected.scripts or is_used(likely, sample.input):
        return ""  # fast path for most samples
    script = script_of(text)
    if not script or script in expected.scripts:
        return ""
    texts = itertools.islice(_texts([sample.input, sample.target, sample.row]), _TEXTS_MAX)
    question = " ".join(texts)[:_ROW_CHARACTERS_MAX]
    seen = scripts_in(question) | expected.scripts
    if not seen or script in seen or mentions_languages(question):
        return ""
    return f"{name_of(script)}, where the question has {' and '.join(sorted(map(name_of, seen)))}"


def _find_format_error(answer: Answer, expected: AnswerExpectations) -> str:
    if answer.marks or answer.tool_calls or _is_json(answer.text):
        return ""
    text = answer.text
    spans = (text[text.find(opened) : text.rfind(closed) + 1] for opened, closed in ("{}", "[]"))
    if expected.json == "part" and any(map(_is_json, itertools.chain(_FENCED.findall(text), spans))):
        return ""
    return f"no JSON: {' '.join(answer.text.split())[:_SHOWN]!r}"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield every text in plain data."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)
