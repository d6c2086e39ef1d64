"""Each metric against its reference library or a plain computation, and what holds for all texts."""

import functools
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from tests.unit.score.answers import PAIRS, score, value

METRICS = ["token_f1", "edit_similarity", "bleu", "chrf", "rouge", "meteor"]


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        ("Denver Broncos", "the Denver Broncos!", 1.0),
        ("Denver Broncos", "Broncos", 2 / 3),  # precision 1, recall 1/2
        ("a b c d", "b c x", 2 * (2 / 3) * (2 / 3) / (4 / 3)),  # the article is none of the words
        ("x x y", "x y y", 2 / 3),
        ("the", "a", 1.0),  # nothing is left of either
        ("the", "cat", 0.0),
        ("", "", 1.0),
        (["cat", "dog"], "dog", 1.0),
    ],
)
def test_token_f1_as_squad_defines_it(target: Any, text: str, wanted: float) -> None:
    assert value("token_f1", target, text) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("target", "text"), PAIRS)
def test_edit_similarity_is_the_textbook_distance(target: str, text: str) -> None:
    wanted = 1 - _distance(text, target) / max(len(text), len(target))
    assert value("edit_similarity", target, text) == pytest.approx(wanted, abs=1e-12)
    folded = 1 - _distance(text.casefold(), target.casefold()) / max(len(text), len(target))
    assert value({"edit_similarity": {"ignore_case": True}}, target, text) == pytest.approx(folded, abs=1e-12)


@pytest.mark.parametrize("tokenize", ["13a", "char"])
@pytest.mark.parametrize(("target", "text"), PAIRS)
def test_bleu_is_that_of_sacrebleu(target: str, text: str, tokenize: str) -> None:
    wanted = sacrebleu.sentence_bleu(text, [target], tokenize=tokenize, use_effective_order=True).score / 100
    assert value({"bleu": {"tokenize": tokenize}}, target, text) == pytest.approx(wanted, abs=1e-12)


def test_bleu_of_many_answers_follows_from_what_each_score_holds() -> None:
    from sacrebleu.metrics.bleu import BLEU

    held = [score("bleu", target, text).metadata for target, text in PAIRS]
    counts, totals = ([sum(each) for each in zip(*(one[n] for one in held), strict=True)] for n in ("counts", "totals"))
    lengths = {name: sum(one[name] for one in held) for name in ("sys_len", "ref_len")}
    found = BLEU.compute_bleu(counts, totals, **lengths)
    wanted = sacrebleu.corpus_bleu([text for _, text in PAIRS], [[target for target, _ in PAIRS]])
    assert found.score == pytest.approx(wanted.score, abs=1e-9)


@pytest.mark.parametrize("word_order", [0, 2])
@pytest.mark.parametrize(("target", "text"), PAIRS)
def test_chrf_is_that_of_sacrebleu(target: str, text: str, word_order: int) -> None:
    wanted = sacrebleu.sentence_chrf(text, [target], word_order=word_order).score / 100
    assert value({"chrf": {"word_order": word_order}}, target, text) == pytest.approx(wanted, abs=1e-12)


def test_bleu_and_chrf_take_several_references_as_sacrebleu_does() -> None:
    several = [target for target, _ in PAIRS[:3]]
    text = "the cat and dogs sat"
    wanted = sacrebleu.sentence_bleu(text, several).score / 100
    assert value("bleu", several, text) == pytest.approx(wanted, abs=1e-12)
    wanted = sacrebleu.sentence_chrf(text, several).score / 100
    assert value("chrf", several, text) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
def test_rouge_is_that_of_rouge_score(kind: str, stem: bool) -> None:
    reference = RougeScorer([kind], use_stemmer=stem)
    for target, text in PAIRS:
        wanted = reference.score(target, text)[kind]
        for measure in ("fmeasure", "precision", "recall"):
            entry = {"rouge": {"kind": kind, "stem": stem, "measure": measure}}
            assert value(entry, target, text) == pytest.approx(getattr(wanted, measure), abs=1e-12)


@pytest.mark.parametrize(
    ("target", "text", "wanted"),
    [
        # the example of nltk's documentation, where synonyms add nothing
        (
            "It is a guide to action that ensures that the military will forever heed Party commands",
            "It is a guide to action which ensures that the military always obeys the commands of the party",
            0.6944,
        ),
        # the three examples that encyclopedias give
        ("the cat sat on the mat", "on the mat sat the cat", 0.5),
        ("the cat sat on the mat", "the cat sat on the mat", 0.9977),
        ("the cat sat on the mat", "the cat was sat on the mat", 0.9654),
        # Banerjee and Lavie's formula by hand: F = 10PR / (R + 9P), less the share 0.5 (chunks / matches)^3 of it
        ("a b c d", "a b", (10 * 1 * 0.5) / (0.5 + 9) * (1 - 0.5 * (1 / 2) ** 3)),
        ("he runs", "he running", 1 - 0.5 * (1 / 2) ** 3),  # the same stem
        ("big", "large", 0.0),  # a synonym, which is not known
    ],
)
def test_meteor_against_published_and_computed_values(target: str, text: str, wanted: float) -> None:
    assert value("meteor", target, text) == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=40, deadline=None)
@given(target=st.text(), text=st.text())
def test_every_metric_is_between_0_and_1_for_any_texts(name: str, target: str, text: str) -> None:
    found = value(name, target, text)
    assert found is None or 0 <= found <= 1


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=40, deadline=None)
@given(target=st.text(st.characters(codec="ascii"), min_size=1), text=st.text(st.characters(codec="ascii")))
def test_no_text_is_more_like_a_target_than_the_target_itself(name: str, target: str, text: str) -> None:
    best = value(name, target, target)
    found = value(name, target, text)
    if name in ("token_f1", "edit_similarity", "rouge") and best is not None:
        assert best == 1
    if name != "bleu":  # whose smoothing may lift the score of a short answer
        assert found is None or found <= best + 1e-9


@pytest.mark.parametrize("name", ["token_f1", "edit_similarity", "rouge"])
@settings(max_examples=40, deadline=None)
@given(one=st.text("ab c"), other=st.text("ab c"))
def test_some_metrics_are_symmetrical(name: str, one: str, other: str) -> None:
    there, back = value(name, one, other), value(name, other, one)
    assert None in (there, back) or there == pytest.approx(back, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_of_several_references_the_best_counts(name: str) -> None:
    assert value(name, ["nothing alike", "the cat sat"], "the cat sat") >= value(name, "the cat sat", "the cat sat")


@pytest.mark.parametrize("name", METRICS)
def test_a_text_that_is_too_long_has_no_score_and_says_so(name: str) -> None:
    said = score(name, "word", "word " * 200_000)
    assert said.value is None
    assert "1000000 characters; at most 100000 are compared" in said.reason


@pytest.mark.parametrize("name", ["meteor", {"rouge": {"kind": "rougeLsum"}}])
def test_so_have_two_texts_with_too_many_words_to_compare_each_with_each(name: Any) -> None:
    said = score(name, "word " * 3000, "word " * 3000)
    assert (said.value, said.reason) == (None, "3000 words against 3000 are too many to compare: extract a part")


def test_rouge_l_takes_long_texts() -> None:
    assert value("rouge", "word other " * 5000, "word " * 10_000) == pytest.approx(0.5)


def test_rouge_has_no_score_for_what_it_cannot_read() -> None:
    said = score("rouge", "猫が座った", "猫が座った")
    assert (said.value, said.reason) == (None, "ROUGE reads the letters a to z and digits, and the target has none")


def _distance(one: str, other: str) -> int:
    """Levenshtein's, as every textbook has it."""

    @functools.cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    return between(len(one), len(other))
