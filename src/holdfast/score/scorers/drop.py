"""Answers that are numbers, dates or sets of spans, compared as in DROP: `drop_em` and `drop_f1`.

A target is a list of alternatives, each a text or a list of texts (its spans); the best alternative counts. Answers are
free text. Against an alternative with one span, the whole answer is one span. Against several, each line of the answer
is a span, without its list mark; an answer of one line is split at commas, semicolons and "and".
"""

import math
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import scorer
from holdfast.score.scorers.text import references

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BETWEEN_WORDS = re.compile("[ -]")
_BETWEEN_SPANS = re.compile(r"[,;]\s+(?:and\s+)?|\s+and\s+")
_LIST_MARK = re.compile(r"(?:[-*\u2022]|[0-9]{1,3}[.)])\s+")
_SPANS_MAX = 1000


@scorer
def drop_em(sample: Sample, answer: Answer) -> Score:
    """The spans of the answer are those of the target, in any order, after DROP's normalisation: without case,
    punctuation and English articles, and 1,000 equals 1000.0. A target is a list of alternatives, each a text or a list
    of spans; the best counts. Against one span, the whole answer is one span. Against several, each line is a span; an
    answer of one line is split at commas, semicolons and "and".
    """
    best: bool | None = None
    for gold, given in _pairs(sample.target, answer.text):
        one, other = _normalise_all(given), _normalise_all(gold)
        best = best or (set(one) == set(other) and len(one) == len(other))
    return Score(best, _reason(answer.text, best))


@scorer
def drop_f1(sample: Sample, answer: Answer) -> Score:
    """F1 of the words that answer and target share, as in DROP: each span counts with its partner in the best pairing
    of spans; if a span of the target has numbers, they must share one. Targets and spans as in `drop_em`. Rounded to
    two decimals, as DROP does.
    """
    best: float | None = None
    for gold, given in _pairs(sample.target, answer.text):
        one, other = ([frozenset(each.split()) for each in _normalise_all(spans)] for spans in (given, gold))
        best = max(best or 0.0, _paired_f1(one, other))
    return Score(best, _reason(answer.text, best))


def _reason(text: str, best: float | None) -> str:
    if best is None:
        return "the sample has no target"
    return "" if text.strip() else "no answer"


def _pairs(target: Any, text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the spans of each alternative with those of the answer. Blank alternatives are left out."""
    for entry in target if isinstance(target, list | tuple) else [target]:
        gold = [span for span in references(entry) if span.strip()]
        if gold:
            yield gold, [text] if len(gold) == 1 else read_spans(text)


def read_spans(text: str) -> list[str]:
    """Return the spans of an answer that names several."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        spans = [_LIST_MARK.sub("", line, count=1) if _LIST_MARK.match(line) else line for line in lines]
    else:
        spans = [span for line in lines for span in _BETWEEN_SPANS.split(line) if span.strip()]
    if len(spans) > _SPANS_MAX:
        raise ValueError(f"the answer has {len(spans)} spans; at most {_SPANS_MAX} are compared: extract a part")
    return spans or [""]


def _normalise_all(spans: Sequence[str]) -> list[str]:
    return [_normalise(span) for span in spans]


def _normalise(text: str) -> str:
    """Normalise each word. A number stays one: "1.5" keeps its dot, and "3" is "3.0"."""
    words = [_normalise_word(word) for word in _BETWEEN_WORDS.split(text.lower())]
    return " ".join(word for each in words for word in each.split())


def _normalise_word(word: str) -> str:
    plain = word if _is_number(word) else word.translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", str(float(plain)) if _is_number(plain) else plain)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _paired_f1(given: Sequence[frozenset[str]], gold: Sequence[frozenset[str]]) -> float:
    """Return the mean F1 over the best pairing of spans. A span without a partner counts as 0."""
    few, many = (given, gold) if len(given) <= len(gold) else (gold, given)
    values = [[_f1(one, other) if few is given else _f1(other, one) for other in many] for one in few]
    return round(_best_sum(values) / len(many), 2)


def _best_sum(values: Sequence[Sequence[float]]) -> float:
    """Return the highest sum with one value of each row and at most one of each column. There are not more rows than
    columns.

    The Hungarian method, because scipy takes a second to import: rows are added one after another, each along the
    cheapest path of reassignments. Prices of rows and columns keep all reduced costs at 0 or more.
    """
    width = len(values[0])
    row_price, column_price = [0.0] * len(values), [0.0] * width
    owner: list[int] = [-1] * width  # the row of each column
    for added in range(len(values)):
        costs, previous = [math.inf] * width, [-1] * width
        open_columns, done = set(range(width)), []
        row, column, paid = added, -1, 0.0
        while row >= 0:
            for each in open_columns:
                cost = paid - values[row][each] - row_price[row] - column_price[each]
                if cost < costs[each]:
                    costs[each], previous[each] = cost, column
            column = min(open_columns, key=costs.__getitem__)
            open_columns.remove(column)
            done.append(column)
            row, paid = owner[column], costs[column]
        row_price[added] += paid
        for each in done[:-1]:
            row_price[owner[each]] += paid - costs[each]
            column_price[each] -= paid - costs[each]
        while column >= 0:  # each row on the path takes the next column
            before = previous[column]
            owner[column] = owner[before] if before >= 0 else added
            column = before
    return sum(values[row][column] for column, row in enumerate(owner) if row >= 0)


def _f1(given: frozenset[str], gold: frozenset[str]) -> float:
    numbers = {word for word in gold if _is_number(word)}
    if numbers and not numbers & given:
        return 0.0
    if not given or not gold:
        return float(given == gold)
    return 2 * len(given & gold) / (len(given) + len(gold))
