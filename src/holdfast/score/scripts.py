"""Which script a text is written in: enough to tell Russian from English, not French from English.

Chinese and Japanese count as one: they share most of what they are written with.
"""

import re

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
_NEARLY_ALL = 0.9
_FEWEST = 20
_FEWEST_WORDS = 15
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$[^$\n]*\$", re.DOTALL)
_PROSE_SHARE = 0.15
_LITTLE = (
    "the of and is are to in that it for as with this you be on not or a an can de la le les des est et que un une en "
    "el los las es y por para no se der die das und ist nicht ein eine zu den von mit il di che per non o os uma com"
)
_PROSE = frozenset(_LITTLE.split())
"""Little words of languages in Latin letters: code, formulas and names have few of them."""
_LANGUAGES = re.compile(
    r"translat|translit|romani[sz]|\blanguages?\b(?! models?)|\b(?:english|russian|ukrainian|bulgarian|serbian|greek|"
    r"hebrew|arabic|persian|farsi|urdu|hindi|bengali|tamil|thai|chinese|mandarin|cantonese|japanese|korean|french|german|"
    r"spanish|italian|portuguese|latin|cyrillic|kanji|hiragana|pinyin|multilingual)\b|übersetz|traduc|traduz|"
    r"перев|англий|русск|翻译|翻譯|翻訳|英语|英文|英語|中文|日语|日本語|번역|영어|한국어|ترجم|الإنجليزية|अनुवाद",
    re.IGNORECASE,
)


def scripts_in(text: str) -> set[str]:
    """All that have at least two letters together in a text."""
    found = {"Latin"} if _has(_LATIN, text) else set()
    if text and not text.isascii() and max(text) >= _FIRST_OTHER:
        found |= {name for name, pattern in _OTHERS.items() if _has(pattern, text)}
    return found


def likely_script(text: str) -> str:
    """A first guess, by a few dozen of its characters."""
    if text.isascii():
        return "Latin"
    head = text[:_READ_MAX]
    some = head[:: len(head) // _GUESSED + 1]
    if max(some) < _FIRST_OTHER:
        return "Latin"
    counts = {name: sum(map(len, pattern.findall(some))) for name, pattern in _OTHERS.items()}
    return max(counts, key=lambda each: counts[each])


def is_used(script: str, asked: object) -> bool:
    """Whether the beginning of a text has letters of a script."""
    return isinstance(asked, str) and _has(_LATIN if script == "Latin" else _OTHERS[script], asked[:_READ_MAX])


def script_of(text: str) -> str:
    """The one that nearly all of a text is written in; empty if there is none, or too little to tell. For Latin it
    must be prose: code, formulas and names are in Latin letters whatever the language.
    """
    text = text[:_READ_MAX]
    if not text or text.isascii() or max(text) < _FIRST_OTHER:
        return "Latin" if _is_prose(text) else ""
    plain = _CODE.sub(" ", text)
    counts = {name: sum(map(len, pattern.findall(plain))) for name, pattern in _OTHERS.items()}
    latin = sum(map(len, _LATIN.findall(plain)))
    name = max(counts, key=lambda each: counts[each])
    whole = sum(counts.values()) + latin
    fewest = _FEWEST // 2 if name == "Han" else _FEWEST
    if counts[name] >= max(fewest, _NEARLY_ALL * whole):
        return name
    return "Latin" if latin >= _NEARLY_ALL * whole and _is_prose(plain) else ""


def asks_for_language(text: str) -> bool:
    """Whether a text speaks of languages or of translating: then an answer may be in any."""
    return _LANGUAGES.search(text) is not None


def name_of(script: str) -> str:
    """For people."""
    return _NAMES.get(script, script)


def _has(pattern: "re.Pattern[str]", text: str) -> bool:
    return any(len(match[0]) > 1 for match in pattern.finditer(text))


def _is_prose(text: str) -> bool:
    words = [word.lower() for word in _LATIN.findall(_CODE.sub(" ", text))]
    return len(words) >= _FEWEST_WORDS and sum(word in _PROSE for word in words) >= _PROSE_SHARE * len(words)
