"""IFEval: instructions that code can check, strictly and loosely."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import ScorerError
from holdfast.records.samples import Score
from holdfast.score import ScoringFailed, resolve
from holdfast.score.scorers.instructions import CHECKS, count_sentences
from tests.unit.score.answers import score

PUBLISHED = """
change_case:capital_word_frequency change_case:english_capital change_case:english_lowercase combination:repeat_prompt
combination:two_responses detectable_content:number_placeholders detectable_content:postscript
detectable_format:constrained_response detectable_format:json_format detectable_format:multiple_sections
detectable_format:number_bullet_lists detectable_format:number_highlighted_sections detectable_format:title
keywords:existence keywords:forbidden_words keywords:frequency keywords:letter_frequency language:response_language
length_constraints:nth_paragraph_first_word length_constraints:number_paragraphs length_constraints:number_sentences
length_constraints:number_words punctuation:no_comma startend:end_checker startend:quotation
"""
LEAST, LESS = "at least", "less than"
FIRST = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"}
CASES: dict[str, list[tuple[dict[str, Any], str, bool]]] = {
    "keywords:existence": [
        ({"keywords": ["Cat", "dog"]}, "cats and DOGS", True),
        ({"keywords": ["cat", "dog"]}, "cats", False),
        ({"keywords": ["c.t"]}, "cat", False),
    ],
    "keywords:frequency": [
        ({"keyword": "dog", "frequency": 2, "relation": LEAST}, "Dog, dogs", True),
        ({"keyword": "dog", "frequency": 2.0, "relation": LESS}, "Dog, dogs", False),
        ({"keyword": "dog", "frequency": 3, "relation": LESS}, "Dog, dogs", True),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["cat"]}, "category", True),
        ({"forbidden_words": ["cat"]}, "A CAT.", False),
    ],
    "keywords:letter_frequency": [
        ({"letter": "a", "let_frequency": 3, "let_relation": LEAST}, "Banana", True),
        ({"letter": "A", "let_frequency": 3, "let_relation": LESS}, "Banana", False),
        ({"letter": "!", "let_frequency": 2, "let_relation": LEAST}, "Hi!!", True),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 2, "relation": LEAST}, "One. Two.", True),
        ({"num_sentences": 2, "relation": LESS}, "One. Two.", False),
        ({"num_sentences": 2, "relation": LESS}, "Dr. Who is 3.5 m tall.", True),
    ],
    "length_constraints:number_words": [
        ({"num_words": 3, "relation": LEAST}, "one-two three", True),
        ({"num_words": 3, "relation": LESS}, "one-two three", False),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, "one\n***\ntwo", True),
        ({"num_paragraphs": 2}, "***\none\n***\ntwo\n***", True),
        ({"num_paragraphs": 2}, "one\n***\n***\ntwo", False),
        ({"num_paragraphs": 2}, "one\n\ntwo", False),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (FIRST, 'First.\n\n"Then, it', True),
        (FIRST, "First.\n\nthen", True),
        (FIRST, "First.\n\nThey", False),
        (FIRST, "First.\n\nThen\n\nThird", False),
        (FIRST, "Then", False),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, "Dear [name] of [place]", True),
        ({"num_placeholders": 2}, "Dear [name] of [pl\nace]", False),
        ({"num_placeholders": 2}, "[[name]]", False),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Bye\nP. S. more", True),
        ({"postscript_marker": "P.S."}, "Bye\np.s. more", True),
        ({"postscript_marker": "P.P.S"}, "Bye\nP.P.S more", True),
        ({"postscript_marker": "P.P.S"}, "Bye\nP.S. more", False),
        ({"postscript_marker": "P.S."}, "stops", False),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, "* one\n  - two", True),
        ({"num_bullets": 2}, "* one\n* two\n* three", False),
        ({"num_bullets": 1}, "**bold**\n* one", True),
    ],
    "detectable_format:constrained_response": [
        ({}, "Well. My answer is maybe.", True),
        ({}, "My answer is perhaps.", False),
        ({}, "my answer is yes", False),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, "*one* and **two**", True),
        ({"num_highlights": 2}, "**one** and ** **", False),
        ({"num_highlights": 1}, "*o\nne*", False),
    ],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "Section", "num_sections": 2}, "Section 1\na\nSection 2\nb", True),
        ({"section_spliter": "Section", "num_sections": 2}, "Section 1\nSection X", False),
    ],
    "detectable_format:json_format": [
        ({}, '```json\n{"a": 1}\n```', True),
        ({}, "[1]", True),
        ({}, 'Here: {"a": 1}', False),
        ({}, "[" * 100_000, False),
    ],
    "detectable_format:title": [
        ({}, "<<Ode to Joy>>\nText", True),
        ({}, "<<>>", False),
        ({}, "<< >>", False),
        ({}, "<<Ode\nto>>", False),
        ({}, ">> x <<", False),
    ],
    "combination:two_responses": [
        ({}, "one\n******\ntwo", True),
        ({}, "one\n******\none", False),
        ({}, "one\n******\n******\ntwo", False),
        ({}, "one", False),
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Say hi."}, "say HI. Hi!", True),
        ({"prompt_to_repeat": "Say hi."}, "Hi! Say hi.", False),
        ({}, "the prompt, and more", True),
    ],
    "startend:end_checker": [
        ({"end_phrase": "The end."}, 'It is "the END."', True),
        ({"end_phrase": "The end."}, "The end. Really", False),
    ],
    "startend:quotation": [({}, '"Hi."\n', True), ({}, '"', False), ({}, '"Hi', False)],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": LEAST}, "NASA and WELL-KNOWN", True),
        ({"capital_frequency": 2, "capital_relation": LESS}, "I am NASA", False),
    ],
    "change_case:english_capital": [({}, "ENGLISH!", True), ({}, "English!", False), ({}, "DEUTSCH", False)],
    "change_case:english_lowercase": [({}, "english!", True), ({}, "English!", False), ({}, "123", False)],
    "language:response_language": [
        ({"language": "de"}, "deutsch", True),
        ({"language": "de"}, "english", False),
        ({"language": "de"}, "123", False),
    ],
    "punctuation:no_comma": [({}, "one; two", True), ({}, "one, two", False)],
}


class NoLettersError(Exception):
    pass


def _detect(text: str) -> str:
    if not any(map(str.isalpha, text)):
        raise NoLettersError
    return {"d": "de"}.get(text[0].lower(), "en")


@pytest.fixture
def _detector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(detect=_detect, LangDetectException=NoLettersError, DetectorFactory=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "langdetect", fake)
    monkeypatch.setattr("holdfast.score.scorers.instructions.version_of", lambda package: "1.0.9")


def row(**instructions: Any) -> dict[str, Any]:
    kwargs = [{**args, "unused": None} for args in instructions.values()]
    return {"instruction_id_list": list(instructions), "kwargs": kwargs, "prompt": "the prompt"}


def test_every_published_instruction_has_a_check_and_cases() -> None:
    assert sorted(CHECKS) == sorted(CASES) == PUBLISHED.split()


@pytest.mark.usefixtures("_detector")
@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    for args, text, wanted in CASES[name]:
        found = score("ifeval_prompt", None, text, row(**{name: args}))
        assert (text, found.value) == (text, wanted)
        assert found.reason == ("" if wanted else f"not followed: {name}")


NO_LANGUAGE = {"skip_language": True}
BOTH = row(**{"punctuation:no_comma": {}, "startend:quotation": {}})


def test_all_instructions_or_a_share_of_them_is_followed() -> None:
    prompt, share = ({name: NO_LANGUAGE} for name in ("ifeval_prompt", "ifeval_instruction"))
    counts = {"followed": 1, "instructions": 2}
    assert score(prompt, None, "one two", BOTH) == Score(False, "not followed: startend:quotation", counts)
    assert score(share, None, "one two", BOTH) == Score(0.5, "not followed: startend:quotation", counts)
    assert score(prompt, None, '"one two"', BOTH) == Score(True, "", {"followed": 2, "instructions": 2})
    assert score(share, None, '"one two"', BOTH).value == 1.0


@pytest.mark.parametrize("loose", [False, True])
def test_an_empty_response_follows_nothing(loose: bool) -> None:
    rows = row(**{"punctuation:no_comma": {}})
    for text in ("", " \n "):
        found = score({"ifeval_prompt": {"loose": loose, **NO_LANGUAGE}}, None, text, rows)
        assert (found.value, found.reason) == (False, "no answer; not followed: punctuation:no_comma")
    assert score({"ifeval_instruction": {"loose": loose, **NO_LANGUAGE}}, None, "", rows).value == 0.0


LOOSE: list[tuple[str, dict[str, Any], str]] = [
    ("punctuation:no_comma", {}, "Sure, here:\nthe text"),
    ("punctuation:no_comma", {}, "the text\nBye, then"),
    ("punctuation:no_comma", {}, "Sure, here:\nthe text\nBye, then"),
    ("startend:end_checker", {"end_phrase": "The end."}, "**The end.**"),
    ("startend:quotation", {}, 'Sure:\n*"the text"*\nBye'),
]


@pytest.mark.parametrize(("name", "args", "text"), LOOSE)
def test_loose_scores_ignore_first_and_last_lines_and_asterisks(name: str, args: Any, text: str) -> None:
    rows = row(**{name: args})
    assert score({"ifeval_prompt": NO_LANGUAGE}, None, text, rows).value is False
    assert score({"ifeval_prompt": {"loose": True, **NO_LANGUAGE}}, None, text, rows).value is True


def test_loose_scores_need_one_variant_that_follows() -> None:
    rows = row(**{"punctuation:no_comma": {}})
    assert score({"ifeval_prompt": {"loose": True, **NO_LANGUAGE}}, None, "a, b\nc, d\ne, f", rows).value is False
    assert score({"ifeval_prompt": {"loose": True, **NO_LANGUAGE}}, None, "a, b", rows).value is False


def test_without_the_package_the_spec_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.scorers.instructions.version_of", lambda package: "")
    for name in ("ifeval_prompt", "ifeval_instruction"):
        with pytest.raises(ScorerError, match="need the package langdetect: pip install langdetect, or set skip_lang"):
            resolve(name, "here")
        assert resolve({name: NO_LANGUAGE}, "here").name == name


def test_what_depends_on_an_unknown_language_has_no_score() -> None:
    german = row(**{"language:response_language": {"language": "de"}, "punctuation:no_comma": {}})
    found = score({"ifeval_prompt": NO_LANGUAGE}, None, "Ja", german)
    assert (found.value, found.reason) == (None, "language unknown: language:response_language")
    assert score({"ifeval_instruction": NO_LANGUAGE}, None, "Ja", german).value is None
    assert score({"ifeval_prompt": NO_LANGUAGE}, None, "Ja, ja", german).value is False
    upper = row(**{"change_case:english_capital": {}})
    assert score({"ifeval_prompt": NO_LANGUAGE}, None, "YES", upper).value is None
    assert score({"ifeval_prompt": NO_LANGUAGE}, None, "Yes", upper).value is False


@pytest.mark.usefixtures("_detector")
def test_a_language_that_the_package_does_not_know_has_no_score() -> None:
    assert (
        score("ifeval_prompt", None, "nuqneH", row(**{"language:response_language": {"language": "tlh"}})).value is None
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (row(**{"no:such": {}, "punctuation:no_comma": {}, "other": {}}), "unknown instructions: no:such, other"),
        ({"prompt": "x"}, "the row needs the columns instruction_id_list and kwargs"),
        ({"instruction_id_list": [], "kwargs": []}, "two lists of the same length"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "two lists of the same length"),
        (row(**{"startend:end_checker": {}}), "the instruction startend:end_checker has the arguments {}: missing"),
        (row(**{"punctuation:no_comma": {"x": 1}}), "got an unexpected keyword argument 'x'"),
        (row(**{"length_constraints:number_words": {"num_words": 1, "relation": "about"}}), "the relation is 'about'"),
    ],
)
def test_a_row_that_cannot_be_checked_is_a_failure_of_the_data(rows: Any, problem: str) -> None:
    with pytest.raises(ScoringFailed, match=problem):
        score({"ifeval_prompt": NO_LANGUAGE}, None, "text", rows)


SENTENCES = {
    "One. Two! Three?": 3,
    "One": 1,
    "": 0,
    "...": 1,
    "Mr. Smith met J. K. Rowling. They spoke.": 2,
    "It costs 3.50 dollars. Really": 2,
    "He said \u201cGo.\u201d Then he left.": 2,
    "See e.g. Bach. Or not": 2,
    "1. First point.\n2. Second point.": 2,
    "Wait... what? Yes": 2,
    "What?! No!!": 2,
    "\u4f60\u597d\u3002\u518d\u89c1\uff01": 2,
    "visit example.com now": 1,
    "A line\nwithout marks": 1,
}


@pytest.mark.parametrize("text", SENTENCES, ids=ascii)
def test_sentences_are_counted(text: str) -> None:
    assert count_sentences(text) == SENTENCES[text]


@pytest.mark.parametrize("piece", ["[", ".", "*", "-", "<<", "Section ", "p. ", "a.", "\n", "A. ", "******", '"'])
def test_long_responses_take_linear_time(piece: str) -> None:
    given = {name: cases[0][0] for name, cases in CASES.items()}
    found = score({"ifeval_prompt": {"loose": True, **NO_LANGUAGE}}, None, piece * 30_000, row(**given))
    assert found.value is False  # a pattern that takes quadratic time would never get here
