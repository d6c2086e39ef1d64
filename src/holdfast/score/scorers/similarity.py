"""Similarity to the target, from 0 to 1: `token_f1`, `edit_similarity`, `bleu`, `chrf`, `rouge`, `meteor`, `codebleu`.

Of several references the best counts; BLEU and chrF combine them in their own way. A text that is too long to compare
in reasonable time has no score, with a reason.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import requires, scorer
from holdfast.score.extractors import code, normalized
from holdfast.score.fingerprints import version_of
from holdfast.score.scorers.text import references
from holdfast.score.worker_process import run_in_worker_async

CHARACTERS_MAX = 100_000
_PAIRS_MAX = 2_000_000
"""Most pairs of words for scorers that compare each word with each other: they take a second or two for this many."""
_WORD = re.compile(r"\w+|[^\w\s]")
_ROUGE_WORD = re.compile(r"[a-z0-9]", re.IGNORECASE)


@scorer
def token_f1(sample: Sample, answer: Answer) -> Score:
    """F1 of the words that answer and target share, as in SQuAD: ignores case, punctuation and English articles."""

    def similarity(text: str, target: str) -> float:
        one, other = normalized(text).split(), normalized(target).split()
        if not one or not other:
            return float(one == other)
        return 2 * (Counter(one) & Counter(other)).total() / (len(one) + len(other))

    return _best(sample, answer, similarity)


@requires("text", "rapidfuzz")
@scorer
def edit_similarity(sample: Sample, answer: Answer, ignore_case: bool = False, strip: bool = True) -> Score:
    """1 minus the number of edits (inserted, deleted or replaced characters) between answer and target, divided by the
    length of the longer one.
    """
    from rapidfuzz.distance import Levenshtein

    def similarity(text: str, target: str) -> float:
        one, other = (each.strip() if strip else each for each in (text, target))
        if ignore_case:
            one, other = one.casefold(), other.casefold()
        return float(Levenshtein.normalized_similarity(one, other))

    return _best(sample, answer, similarity)


@requires("text", "sacrebleu")
@scorer
def bleu(
    sample: Sample,
    answer: Answer,
    tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a",
    ignore_case: bool = False,
) -> Score:
    """Sentence BLEU of sacrebleu, divided by 100. The metadata holds the counts for corpus BLEU, which is not the mean
    of sentence scores.
    """
    targets = references(sample.target)
    problem = _find_obstacle(answer.text, targets)
    if problem is not None:
        return problem
    if not any(each.strip() for each in targets):  # nothing to match
        return Score(0.0 if answer.text.strip() else 1.0, "the target is empty")
    found = _bleu(tokenize, ignore_case).sentence_score(answer.text, targets)
    counts = {name: list(getattr(found, name)) for name in ("counts", "totals")}
    return Score(_clamp(found.score / 100), "", {**counts, "sys_len": found.sys_len, "ref_len": found.ref_len})


@requires("text", "sacrebleu")
@scorer
def chrf(sample: Sample, answer: Answer, word_order: int = 0, ignore_case: bool = False) -> Score:
    """chrF of sacrebleu, divided by 100: shared character sequences. With `word_order: 2`, chrF++."""
    targets = references(sample.target)
    problem = _find_obstacle(answer.text, targets)
    if problem is not None:
        return problem
    if not any(each.strip() for each in targets):
        return Score(0.0 if answer.text.strip() else 1.0, "the target is empty")
    return Score(_clamp(_chrf(word_order, ignore_case).sentence_score(answer.text, targets).score / 100))


@requires("text", "rouge-score", "rapidfuzz")
@scorer
def rouge(
    sample: Sample,
    answer: Answer,
    kind: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL",
    measure: Literal["fmeasure", "precision", "recall"] = "fmeasure",
    stem: bool = False,
) -> Score:
    """ROUGE of rouge-score: shared words, shared pairs of words, or the longest common sequence of words. It only reads
    the letters a to z and digits; a target without any has no score.
    """
    if any(not _ROUGE_WORD.search(each) for each in references(sample.target)):
        return Score(None, "ROUGE reads the letters a to z and digits, and the target has none")

    def similarity(text: str, target: str) -> float:
        if kind == "rougeL":  # with rapidfuzz: the rouge-score package needs quadratic time and memory
            from rapidfuzz.distance import LCSseq

            one, other = _rouge_words(stem)(text), _rouge_words(stem)(target)
            same = LCSseq.similarity(one, other)
            sizes = {"precision": len(one), "recall": len(other), "fmeasure": (len(one) + len(other)) / 2}
            return same / sizes[measure] if same else 0.0
        return _clamp(float(getattr(_rouge(kind, stem).score(target, text)[kind], measure)))

    return _best(sample, answer, similarity, pairwise=kind == "rougeLsum")


@requires("text", "nltk")
@scorer
def meteor(sample: Sample, answer: Answer, alpha: float = 0.9, beta: float = 3.0, gamma: float = 0.5) -> Score:
    """METEOR of nltk: words that are equal or share an English stem, and their order. Without synonyms, because their
    data would have to be downloaded.
    """

    def similarity(text: str, target: str) -> float:
        from nltk.translate.meteor_score import single_meteor_score

        one, other = _WORD.findall(text), _WORD.findall(target)
        if not one or not other:
            return float(one == other)
        found = single_meteor_score(other, one, wordnet=_NoSynonyms(), alpha=alpha, beta=beta, gamma=gamma)
        return _clamp(float(found))

    return _best(sample, answer, similarity, pairwise=True)


class _NoSynonyms:
    """Replaces WordNet, whose data would have to be downloaded."""

    def synsets(self, word: str) -> list[Any]:
        return []


def _best(sample: Sample, answer: Answer, similarity: Callable[[str, str], float], pairwise: bool = False) -> Score:
    """Return the highest value over all references."""
    targets = references(sample.target)
    problem = _find_obstacle(answer.text, targets, pairwise)
    return Score(max(similarity(answer.text, each) for each in targets)) if problem is None else problem


def _find_obstacle(text: str, targets: Sequence[str], pairwise: bool = False) -> Score | None:
    """Return a score of None with the reason if the texts cannot be compared; None if they can."""
    if not targets:
        return Score(None, "the sample has no target")
    longest = max(map(len, (text, *targets)))
    if longest > CHARACTERS_MAX:
        return Score(None, f"a text of {longest} characters; at most {CHARACTERS_MAX} are compared: extract a part")
    words, most = len(_WORD.findall(text)), max(len(_WORD.findall(each)) for each in targets)
    if pairwise and words * most > _PAIRS_MAX:
        return Score(None, f"{words} words against {most} are too many to compare: extract a part")
    return None


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


def _clamp(value: float) -> float:
    """Clamp to 0..1: rounding may leave a perfect score slightly above 1."""
    return min(max(value, 0.0), 1.0)


_SECONDS_MAX = 20.0


def _check_language(language: str = "python", **_: Any) -> str:
    grammar = f"tree-sitter-{language.replace('_', '-')}"
    return "" if version_of(grammar) else f"codebleu needs the package {grammar}: pip install 'holdfast[code]'"


@requires("code", "codebleu", "tree-sitter")
@scorer(check=_check_language)
async def codebleu(
    sample: Sample,
    answer: Answer,
    language: Literal["python", "javascript", "java", "go", "c", "cpp", "rust"] = "python",
    weights: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25),
) -> Score:
    """CodeBLEU of the package codebleu: a weighted mean of four similarities: words, words weighted by keyword, syntax
    trees, and data flow. The answer's code is its last fenced block, or the whole answer.
    """
    targets = references(sample.target)
    if not targets:
        return Score(None, "the sample has no target")
    block = code(answer.text)
    text = answer.text if block is None else block
    longest = max(map(len, (text, *targets)))
    if longest > CHARACTERS_MAX:
        return Score(None, f"code of {longest} characters; at most {CHARACTERS_MAX} are compared")
    parts = await run_in_worker_async(
        _SECONDS_MAX, f"{__name__}:code_similarities", text, targets, language, list(weights)
    )
    value = parts.pop("codebleu")
    return Score(_clamp(value), "", parts)


def code_similarities(text: str, targets: list[str], language: str, weights: list[float]) -> dict[str, float]:
    """Return CodeBLEU and its four parts. Runs in the worker process."""
    from codebleu import calc_codebleu

    one, two, three, four = weights
    found: dict[str, float] = calc_codebleu([targets], [text], language, (one, two, three, four))
    return {name: float(value) for name, value in found.items()}
