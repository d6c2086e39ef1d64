"""How like the target a text is, from 0 to 1: `token_f1`, `edit_similarity`, `bleu`, `chrf`, `rouge`, `meteor`.

Of several references the best counts (BLEU and chrF have their own way with several). A text that is too long to be
compared in reasonable time has no score, and the reason says so.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from holdfast.records.samples import Answer, Sample, Score
from holdfast.score.definition import needing, scorer
from holdfast.score.extractors import code, normalized
from holdfast.score.identity import version_of
from holdfast.score.scorers.text import references
from holdfast.score.worker_process import apart

CHARACTERS_MAX = 100_000
_PAIRS_MAX = 2_000_000
"""Of words, one of each text: what compares every word with every other takes a second or two for so many."""
_WORD = re.compile(r"\w+|[^\w\s]")
_ROUGE_WORD = re.compile(r"[a-z0-9]", re.IGNORECASE)


@scorer
def token_f1(sample: Sample, answer: Answer) -> Score:
    """The harmonic mean of the shares of words that answer and target have in common, as SQuAD computes it: without
    case, punctuation and English articles.
    """
    return _best(sample, answer, lambda text, wanted: _f1(normalized(text).split(), normalized(wanted).split()))


@needing("text", "rapidfuzz")
@scorer
def edit_similarity(sample: Sample, answer: Answer, ignore_case: bool = False, strip: bool = True) -> Score:
    """1 less the edits (characters inserted, deleted or replaced) that make the answer the target, divided by the
    length of the longer.
    """
    from rapidfuzz.distance import Levenshtein

    def alike(text: str, wanted: str) -> float:
        one, other = (each.strip() if strip else each for each in (text, wanted))
        if ignore_case:
            one, other = one.casefold(), other.casefold()
        return float(Levenshtein.normalized_similarity(one, other))

    return _best(sample, answer, alike)


@needing("text", "sacrebleu")
@scorer
def bleu(
    sample: Sample,
    answer: Answer,
    tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a",
    ignore_case: bool = False,
) -> Score:
    """Sentence BLEU of sacrebleu, divided by 100. The metadata holds what the BLEU of many answers together is made of:
    that is no mean of these.
    """
    wanted = references(sample.target)
    problem = _unfit(answer.text, wanted)
    if problem is not None:
        return problem
    if not any(each.strip() for each in wanted):  # no words to find
        return Score(0.0 if answer.text.strip() else 1.0, "the target is empty")
    found = _bleu(tokenize, ignore_case).sentence_score(answer.text, wanted)
    counts = {name: list(getattr(found, name)) for name in ("counts", "totals")}
    return Score(_within(found.score / 100), "", {**counts, "sys_len": found.sys_len, "ref_len": found.ref_len})


@needing("text", "sacrebleu")
@scorer
def chrf(sample: Sample, answer: Answer, word_order: int = 0, ignore_case: bool = False) -> Score:
    """chrF of sacrebleu, divided by 100: shares of characters in a row. With `word_order: 2`, chrF++."""
    wanted = references(sample.target)
    problem = _unfit(answer.text, wanted)
    if problem is not None:
        return problem
    if not any(each.strip() for each in wanted):
        return Score(0.0 if answer.text.strip() else 1.0, "the target is empty")
    return Score(_within(_chrf(word_order, ignore_case).sentence_score(answer.text, wanted).score / 100))


@needing("text", "rouge-score", "rapidfuzz")
@scorer
def rouge(
    sample: Sample,
    answer: Answer,
    kind: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL",
    measure: Literal["fmeasure", "precision", "recall"] = "fmeasure",
    stem: bool = False,
) -> Score:
    """ROUGE of rouge-score: words, pairs of words, or the longest sequence of words in common. It knows no letters
    besides a to z, and digits: a target without any has no score.
    """
    if any(not _ROUGE_WORD.search(each) for each in references(sample.target)):
        return Score(None, "ROUGE reads the letters a to z and digits, and the target has none")

    def alike(text: str, wanted: str) -> float:
        if kind == "rougeL":
            words = _rouge_words(stem)
            return _in_sequence(words(text), words(wanted), measure)
        return _within(float(getattr(_rouge(kind, stem).score(wanted, text)[kind], measure)))

    return _best(sample, answer, alike, pairwise=kind == "rougeLsum")


@needing("text", "nltk")
@scorer
def meteor(sample: Sample, answer: Answer, alpha: float = 0.9, beta: float = 3.0, gamma: float = 0.5) -> Score:
    """METEOR of nltk: words that are the same or have the same English stem, and how much they stand in order. Synonyms
    are not known, because their data would have to be fetched.
    """

    def alike(text: str, wanted: str) -> float:
        from nltk.translate.meteor_score import single_meteor_score

        one, other = _WORD.findall(text), _WORD.findall(wanted)
        if not one or not other:
            return float(one == other)
        found = single_meteor_score(other, one, wordnet=_NoSynonyms(), alpha=alpha, beta=beta, gamma=gamma)
        return _within(float(found))

    return _best(sample, answer, alike, pairwise=True)


class _NoSynonyms:
    def synsets(self, word: str) -> list[Any]:
        return []


def _best(sample: Sample, answer: Answer, alike: Callable[[str, str], float], pairwise: bool = False) -> Score:
    """The highest value over the references."""
    wanted = references(sample.target)
    problem = _unfit(answer.text, wanted, pairwise)
    return Score(max(alike(answer.text, each) for each in wanted)) if problem is None else problem


def _unfit(text: str, wanted: Sequence[str], pairwise: bool = False) -> Score | None:
    """Why there is no score, if there is none."""
    if not wanted:
        return Score(None, "the sample has no target")
    longest = max(map(len, (text, *wanted)))
    if longest > CHARACTERS_MAX:
        return Score(None, f"a text of {longest} characters; at most {CHARACTERS_MAX} are compared: extract a part")
    words, most = len(_WORD.findall(text)), max(len(_WORD.findall(each)) for each in wanted)
    if pairwise and words * most > _PAIRS_MAX:
        return Score(None, f"{words} words against {most} are too many to compare: extract a part")
    return None


def _f1(one: Sequence[str], other: Sequence[str]) -> float:
    if not one or not other:
        return float(one == other)
    same = (Counter(one) & Counter(other)).total()
    return 2 * same / (len(one) + len(other))


def _in_sequence(found: list[str], wanted: list[str], measure: str) -> float:
    """ROUGE-L by the longest sequence in common, which the package would find in quadratic time and memory."""
    from rapidfuzz.distance import LCSseq

    same = LCSseq.similarity(found, wanted)
    sizes = {"precision": len(found), "recall": len(wanted), "fmeasure": (len(found) + len(wanted)) / 2}
    return same / sizes[measure] if same else 0.0


@functools.lru_cache(maxsize=2)
def _rouge_words(stem: bool) -> Callable[[str], list[str]]:
    from rouge_score.tokenizers import DefaultTokenizer

    words: Callable[[str], list[str]] = DefaultTokenizer(use_stemmer=stem).tokenize
    return words


@functools.lru_cache(maxsize=16)
def _bleu(tokenize: str, ignore_case: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenize, lowercase=ignore_case, effective_order=True)


@functools.lru_cache(maxsize=16)
def _chrf(word_order: int, ignore_case: bool) -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(word_order=word_order, lowercase=ignore_case)


@functools.lru_cache(maxsize=16)
def _rouge(kind: str, stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=stem)


def _within(value: float) -> float:
    """Rounding may leave the best score a little above 1."""
    return min(max(value, 0.0), 1.0)


_SECONDS_MAX = 20.0
_CHARACTERS_MAX = 100_000


def _problem_of_language(language: str = "python", **_: Any) -> str:
    grammar = f"tree-sitter-{language.replace('_', '-')}"
    return "" if version_of(grammar) else f"codebleu needs the package {grammar}: pip install 'holdfast[code]'"


@needing("code", "codebleu", "tree-sitter")
@scorer(check=_problem_of_language)
async def codebleu(
    sample: Sample,
    answer: Answer,
    language: Literal["python", "javascript", "java", "go", "c", "cpp", "rust"] = "python",
    weights: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25),
) -> Score:
    """CodeBLEU of the package codebleu: words, words with keywords counted more, syntax and flow of data, weighted. The
    answer's code is its last fenced block, or all of it.
    """
    wanted = references(sample.target)
    if not wanted:
        return Score(None, "the sample has no target")
    block = code(answer.text)
    text = answer.text if block is None else block
    longest = max(map(len, (text, *wanted)))
    if longest > _CHARACTERS_MAX:
        return Score(None, f"code of {longest} characters; at most {_CHARACTERS_MAX} are compared")
    parts = await apart(_SECONDS_MAX, f"{__name__}:parts_of", text, wanted, language, list(weights))
    value = parts.pop("codebleu")
    return Score(min(max(value, 0.0), 1.0), "", parts)


def parts_of(text: str, wanted: list[str], language: str, weights: list[float]) -> dict[str, float]:
    """CodeBLEU and its four parts."""
    from codebleu import calc_codebleu

    one, two, three, four = weights
    found: dict[str, float] = calc_codebleu([wanted], [text], language, (one, two, three, four))
    return {name: float(value) for name, value in found.items()}
