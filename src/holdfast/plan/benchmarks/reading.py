"""Reading comprehension and questions of general knowledge: BoolQ, DROP, TriviaQA, CoQA."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.plan.benchmarks.answers import STATED
from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_LAST_LINE = "The last line of your reply must be `Answer: X`, where X is"
_ANY_CASE = {"ignore_case": True}
_STRICT = {"regex": {"pattern": r"""answer:[*\s`"']*(.*[^\s.*`"'])""", **_ANY_CASE}}
"""The text after the last `Answer:`, to the end of its line. Only dots at the end are left out: 12.5 stays whole."""


def _exact(name: str, extract: dict[str, Any]) -> dict[str, Any]:
    return {"exact_match": {"name": name, "extract": [extract, "normalized"], "extract_target": "normalized"}}


_TOKEN_F1 = {"token_f1": {"extract": STATED}}
_NOT_WORDS = re.compile(r"\b(?:a|an|the)\b|[\W_]")


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _boolq(row: Row) -> Row:
    """The answer is a bool; in the copy of SuperGLUE it is `label`, 0 or 1."""
    answer = row["answer"] if "answer" in row else row["label"]
    if answer not in (True, False):
        raise ValueError(f"the answer is {answer!r}, which is neither true nor false")
    return {
        "passage": row["passage"],
        "question": row["question"],
        "target": "yes" if answer else "no",
        "index": int(answer),
        "passage_digest": _digest(row["passage"]),
    }


_BOOLQ_DATA = {
    "hub": "google/boolq",
    "split": "validation",
    "revision": "35b264d03638db9f4ce671b711558bf7ff0f80d5",
    "input": "question",
    "target": "target",
    "group": "passage_digest",
    "shuffle": {"seed": 1},
}
_MARKS = "[*_`\"')]*"
_BOTH = rf"{_MARKS}(?:[ \t]*/|[ \t]*[,;]?[ \t]*(?:or|and|yes|no)\b)"
_BEFORE = (
    r"\banswer\b(?:[\s*_]+(?:is|(?:would|should|must)[ \t]+be)\b)?[^\w\n]*+\s*+[^\w\n]*+",
    r"\\boxed\{(?:\\text\{)?",
    r"^[^\w\n]*+",
    r"[.!?:][ \t*_]+",
    rf"(?<!\byes)(?<!\bno),[ \t*_]+(?=\w+{_MARKS}[.!]*{_MARKS}[ \t]*$)",
)
_CLAUSE = "as|based|because|he|i|it|she|since|that|the|there|these|they|this|those|we|you"
_YES_OR_NO = {
    # The last of "The answer is yes because ...", "No it does not", "By the passage, yes."; not "There is no doubt"
    "flexible": rf"(?m)(?:{'|'.join(_BEFORE)})(yes|no)\b(?!{_BOTH})"
    rf"(?=[^\w\n]*$|{_MARKS}(?:[,.:;!\u2014]|</|[ \t]+(?:[-\u2013\u2014(]|(?:{_CLAUSE})\b)))",
    "strict": r"(?m)^[^\w\n]*+answer:\W*+(yes|no)[^\w\n]*$",
}
_BOOLQ = Benchmark(
    name="boolq",
    title="BoolQ: yes or no, after a passage of Wikipedia",
    source="Clark et al. 2019, BoolQ: Exploring the Surprising Difficulty of Natural Yes/No Questions",
    licence="CC-BY-SA-3.0",
    samples=3270,
    metric="flexible",
    columns=("question", "answer", "passage"),
    convert=_boolq,
    task={
        "dataset": _BOOLQ_DATA,
        "prompt": (
            f"Read the passage, then answer the question. You may reason first. {_LAST_LINE} yes or no.\n\n"
            "{passage}\n\nQuestion: {question}?"
        ),
        "scorers": [
            {"exact_match": {"name": name, "ignore_case": True, "extract": {"regex": {"pattern": each, **_ANY_CASE}}}}
            for name, each in _YES_OR_NO.items()
        ],
        "counts": NOTHING_FLATTERS,
    },
    differs="A chat model writes yes or no; published figures of base models rank the likelihoods of both.",
)
_BOOLQ_LIKELIHOOD = msgspec.structs.replace(
    _BOOLQ,
    name="boolq:likelihood",
    title="BoolQ: yes or no, by likelihood",
    metric="acc",
    needs=("a completion server",),
    task={
        "dataset": {**_BOOLQ_DATA, "target": "index"},
        "prompt": "{passage}\nQuestion: {question}?\nAnswer:",
        "solver": {"choice_likelihood": {"texts": ["no", "yes"]}},
        "scorers": ["acc"],
        "counts": NOTHING_FLATTERS,
    },
    differs=(
        "The format is that of lm-eval 0.4.13, task boolq, without examples. Its data is the copy of SuperGLUE, whose "
        "passages begin with the title of their article: dataset {hub: aps/super_glue, config: boolq, revision: main}."
    ),
    unverified=("passages of the copy of SuperGLUE begin with a title, those of this source do not",),
)


_TWICE = "28553293-d719-441b-8f00-ce3dc6df5398"
"""Two rows of EleutherAI/drop have this id. Their questions differ only in the last character: `?` and `/`."""


def _drop(row: Row) -> Row | None:
    """Two layouts: `answer` and `validated_answers` of EleutherAI/drop; `answers_spans` of ucinlp/drop. A question
    without any answer is left out.
    """
    found = list(_annotated(row) if "answer" in row else _labelled(row["answers_spans"]))
    target = [spans for index, spans in enumerate(found) if spans and spans not in found[:index]]
    if not target:
        return None
    return {
        "id": f"{_TWICE}-2" if row["query_id"] == _TWICE and "?" not in row["question"] else row["query_id"],
        "passage": row["passage"],
        "question": row["question"],
        "target": target,
        "passage_digest": _digest(row["passage"]),
    }


def _annotated(row: Row) -> Iterator[list[str]]:
    """The spans of the answer, then of each validated answer: a list of answers, or a mapping of lists."""
    yield _spans(row["answer"])
    validated = row.get("validated_answers") or []
    if isinstance(validated, dict):
        fields = [name for name in ("number", "date", "spans") if validated.get(name) is not None]
        columns = (validated[name] for name in fields)
        validated = [dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)]
    for each in validated:
        yield _spans(each)


def _spans(answer: Row) -> list[str]:
    """An answer is a number, several spans or a date; the other fields are empty."""
    number = answer.get("number")
    if number is not None and str(number).strip():
        return [str(number).strip()]
    spans = [span.strip() for span in answer.get("spans") or [] if span.strip()]
    date = answer.get("date") or {}
    written = " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))
    return spans or ([written] if written else [])


def _labelled(answers: Any) -> Iterator[list[str]]:
    """All spans of all annotators are one list. Numbers and dates are alternatives. Different spans of text may be
    alternatives or parts of one answer; they count as parts, because the other reading would flatter.
    """
    pairs = list(dict.fromkeys(zip(answers["spans"], answers["types"], strict=True)))
    yield [span for span, kind in pairs if kind == "span"]
    yield from ([span] for span, kind in pairs if kind != "span")


_DROP = Benchmark(
    name="drop",
    title="DROP: questions with a number, a date or spans as the answer, after a passage",
    source="Dua et al. 2019, DROP: A Reading Comprehension Benchmark Requiring Discrete Reasoning Over Paragraphs",
    licence="CC-BY-SA-4.0",
    samples=9536,
    metric="drop_f1",
    columns=("passage", "question", "query_id", "answer", "validated_answers"),
    convert=_drop,
    task={
        "dataset": {
            "hub": "EleutherAI/drop",
            "split": "validation",
            "revision": "refs/convert/parquet",
            "id": "id",
            "input": "question",
            "target": "target",
            "group": "passage_digest",
            "shuffle": {"seed": 1},
        },
        "prompt": (
            f"Read the passage, then answer the question. You may reason first. {_LAST_LINE} only the answer: a number "
            "in digits without its unit, a date, or words of the passage. Separate several answers by commas.\n\n"
            "{passage}\n\nQuestion: {question}"
        ),
        "scorers": [
            {"drop_f1": {"extract": STATED}},
            {"drop_em": {"extract": STATED}},
            {"drop_f1": {"name": "strict", "extract": _STRICT}},
        ],
        "counts": NOTHING_FLATTERS,
    },
    differs=(
        "An instruction and no examples, where the usual way shows 3. lm-eval 0.4.13 ends an answer at its first dot, "
        "so that 12.5 becomes 12; here it stays whole. The rows of ucinlp/drop work too; their different spans of text "
        "count as parts of one answer."
    ),
    unverified=(
        "the number of samples: 9,536 in EleutherAI/drop, 9,535 in ucinlp/drop",
        "the layout of validated_answers in the Parquet copy; a list and a mapping of lists are both read",
    ),
)


def _triviaqa(row: Row) -> Row:
    """Names that are nothing but an article would match every answer without a last line, so they are left out."""
    answer = row["answer"]
    names = [answer["value"], *(answer.get("aliases") or ()), *(answer.get("normalized_aliases") or ())]
    target = [name for name in dict.fromkeys(names) if name and _NOT_WORDS.sub("", name.lower())]
    if not target:
        raise ValueError(f"the question has no answer: {names!r}")
    return {"question_id": row["question_id"], "question": row["question"], "target": target}


_TRIVIAQA = Benchmark(
    name="triviaqa",
    title="TriviaQA, config rc.nocontext: questions of quizzes, without documents",
    source="Joshi et al. 2017, TriviaQA: A Large Scale Distantly Supervised Challenge Dataset",
    licence="unknown",
    samples=17944,
    metric="exact",
    columns=("question", "question_id", "answer"),
    convert=_triviaqa,
    task={
        "dataset": {
            "hub": "mandarjoshi/trivia_qa",
            "config": "rc.nocontext",
            "split": "validation",
            "input": "question",
            "target": "target",
            "group": "question_id",  # not the id: a question of the web part may be in the Wikipedia part too
            "shuffle": {"seed": 1},
        },
        "prompt": f"Answer the question. {_LAST_LINE} only the answer, as short as possible.\n\n{{question}}",
        "scorers": [_exact("exact", STATED), _TOKEN_F1, _exact("strict", _STRICT)],
        "counts": NOTHING_FLATTERS,
    },
    differs=(
        "No examples, where most published figures have 5 or 64. Three validation splits have different sizes: "
        "rc.nocontext 17,944, unfiltered.nocontext 11,313, rc.wikipedia.nocontext 7,993. Compare only the same config. "
        "Aliases that are only an article are left out."
    ),
    unverified=("whether a question_id occurs more than once; such rows are samples of one group",),
)


def _coqa(row: Row) -> Iterator[Row]:
    """One row for each question of a story, with the earlier questions and their reference answers."""
    questions, answers = _turns(row["questions"]), _turns(row["answers"])
    more = [_turns(each) for each in (row.get("additional_answers") or {}).values()]
    story = str(row.get("id") or _digest("\n".join((row["story"], *questions))))
    dialogue = ""
    for turn, (question, answer, *others) in enumerate(zip(questions, answers, *more, strict=True), 1):
        yield {
            "id": f"{story}-{turn}",
            "story_id": story,
            "source": row["source"],
            "story": row["story"],
            "dialogue": dialogue,
            "question": question,
            "target": list(dict.fromkeys((answer, *others))),
        }
        dialogue += f"Q: {question}\nA: {answer}\n\n"


def _turns(texts: Any) -> Sequence[str]:
    found = texts["input_text"] if isinstance(texts, dict) else texts
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError("questions and answers must be lists of texts")
    return found


_COQA = Benchmark(
    name="coqa",
    title="CoQA: every question of conversations about a story",
    source="Reddy et al. 2019, CoQA: A Conversational Question Answering Challenge",
    licence="other; it differs by the source of the story",
    samples=7983,
    metric="token_f1",
    columns=("source", "story", "questions", "answers"),
    convert=_coqa,
    task={
        "dataset": {
            "hub": "stanfordnlp/coqa",
            "split": "validation",
            "id": "id",
            "input": "question",
            "target": "target",
            "group": "story_id",
            "shuffle": {"seed": 1, "by": "source"},
        },
        "prompt": (
            "Read the story and the conversation about it, then answer the last question. "
            f"{_LAST_LINE} only the answer, as short as possible: words of the story, a number, yes, no, or unknown if "
            "the story does not say.\n\n{story}\n\n{dialogue}Question: {question}"
        ),
        "scorers": [
            _TOKEN_F1,
            _exact("exact", STATED),
            {"token_f1": {"name": "strict", "extract": _STRICT}},
        ],
        "counts": NOTHING_FLATTERS,
    },
    differs=(
        "Earlier turns show the reference answers, as is usual, not those of the model. All questions are asked, as in "
        "the official evaluation; lm-eval has only the last one of each story. This source has one reference answer; "
        "official figures take the best of several, which EleutherAI/coqa has."
    ),
    unverified=("the number of questions: 7,983 in 500 stories",),
)

BENCHMARKS = [_BOOLQ, _BOOLQ_LIKELIHOOD, _DROP, _TRIVIAQA, _COQA]
