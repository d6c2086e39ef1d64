"""How benchmarks ask for answers and read them.

- Multiple choice: the columns that prompts use, the prompt for chat models, and variants that rank likelihoods.
- Where a reply states its answer, in the forms that models write. A label is `Answer:`, `**Answer**:`, `Answer :`,
  `**Final Answer:**`, or a heading such as `### Answer` above the answer. The last label decides. Only a reply without
  one is searched for the last sentence such as `The answer is X.`, because models explain their answer after the label
  in such sentences. These patterns take linear time, and begin at the start of the text, so their first match is the
  only one.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

CHAT = (
    "Answer the multiple-choice question below. You may reason first. The last line of your reply must be "
    "`Answer: X`, where X is the letter of one choice.\n\n{question}\n\n{options}"
)
"""The prompt for chat models. `options` has one line for each choice: `A. text`."""
CHAT_DIFFERS = "A chat model chooses a letter; published figures of base models rank likelihoods."
_CHOICE: Mapping[str, Any] = {"choice": {"mentions": False}}
"""The headline scorer. In a text about vitamin C, the mere mention of a letter is no answer."""
_LAST_LINE = r"\A[*_`#>\s]*+answer[*_`\s]*+:[*_`\s$]*+(\(?[A-Z]\)?)[*_`\s$.]*+\Z"
_STRICT = {
    "choice": {
        "name": "strict",
        "mentions": False,
        "extract": ["last_line", {"regex": {"pattern": _LAST_LINE, "ignore_case": True}}],
    }
}
"""Nothing counts but the last line, `Answer: X`, with or without emphasis."""
_HIDDEN = "the row has no answer: its split hides the answers; use another split"


def lettered(choices: Sequence[str], correct: int, *, shuffle: str = "", keep_empty: bool = False) -> Row:
    """Return the columns of a question: its `choices` with their letters as labels, the same as `options` in lines, the
    `letter` of the correct one and its `index`. `shuffle`: an id that decides the order, for sources that always have
    the correct choice in the same place; empty: the order of the source. `keep_empty`: an empty choice keeps its
    letter.
    """
    if not 0 <= correct < len(choices) or len(choices) > len(string.ascii_uppercase):
        raise ValueError(f"the correct choice is {correct}, but there are {len(choices)} choices")
    if any(not isinstance(choice, str) or not (choice.strip() or keep_empty) for choice in choices):
        raise ValueError(f"a choice is empty: {list(choices)!r}")
    order = list(range(len(choices)))
    if shuffle:
        order.sort(key=lambda index: xxhash.xxh3_64_intdigest(f"{shuffle}:{index}".encode()))
    texts = [choices[index] for index in order]
    letters = list(string.ascii_uppercase[: len(texts)])
    lines = [f"{letter}. {text}" for letter, text in zip(letters, texts, strict=True)]
    at = order.index(correct)
    # With labels, the letter "A" is the first choice even if the text of another one is "A", as for blood groups.
    return {
        "choices": {"text": texts, "label": letters},
        "options": "\n".join(lines),
        "letter": letters[at],
        "index": at,
    }


def labelled(choices: Any, key: str) -> tuple[list[str], int]:
    """Return the texts of `{text: […], label: […]}`, and the index of the label `key`: ARC has labels 1 to 4 in some
    rows. Empty choices, which pad some copies, are left out.
    """
    if not key:
        raise ValueError(_HIDDEN)
    pairs = [(text, str(label)) for text, label in zip(choices["text"], choices["label"], strict=True) if text]
    labels = [label for _, label in pairs]
    if labels.count(str(key)) != 1:
        raise ValueError(f"the answer {key!r} is not one of the labels {labels}")
    return [text for text, _ in pairs], labels.index(str(key))


def read_index(label: Any, first: int = 0) -> int:
    """Return the index of the correct choice, from a label that is a number or its text. `first`: the lowest label.
    ValueError if the label is empty or -1, as where a source hides it.
    """
    text = "" if label is None else str(label).strip()
    if text in ("", "-1"):
        raise ValueError(_HIDDEN)
    if not text.isdecimal():
        raise ValueError(f"the answer {label!r} is no number")
    return int(text) - first


def chat_task(dataset: Mapping[str, Any], question: str = "{question}", **more: Any) -> dict[str, Any]:
    """Return the task of a chat model that chooses a letter, read flexibly and strictly. `question`: what replaces
    `{question}` in the prompt.
    """
    asked = {**dataset, "input": "question", "target": "letter"}
    prompt = CHAT.replace("{question}", question)
    return {"dataset": asked, "prompt": prompt, "scorers": [_CHOICE, _STRICT], "counts": NOTHING_FLATTERS, **more}


def rank_letters(chat: Benchmark, prompt: str, letters: str, **card: Any) -> Benchmark:
    """Return the variant of a benchmark in which a base model ranks letters after a prompt that has the choices."""
    task = _ranking(chat, prompt, ["acc"], {"texts": list(letters)})
    task["dataset"]["target"] = "letter"  # as few-shot examples show it
    return _variant(chat, task, card)


def rank_choices(
    chat: Benchmark, prompt: str, *, scorers: Sequence[str] = ("acc",), mark: str = "", **card: Any
) -> Benchmark:
    """Return the variant of a benchmark in which a base model ranks the texts of the choices. The first scorer is the
    result. `mark`: what each choice replaces in the prompt, if the text after it is ranked.
    """
    return _variant(chat, _ranking(chat, prompt, scorers, {"context_per_choice": mark} if mark else {}), card)


def _ranking(chat: Benchmark, prompt: str, scorers: Sequence[str], arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "dataset": {**chat.task["dataset"], "target": "index"},
        "prompt": prompt,
        "solver": {"choice_likelihood": arguments} if arguments else "choice_likelihood",
        "scorers": list(scorers),
        "counts": NOTHING_FLATTERS,
        **({"macro": chat.task["macro"]} if "macro" in chat.task else {}),
    }


def _variant(chat: Benchmark, task: Mapping[str, Any], card: Mapping[str, Any]) -> Benchmark:
    own = {"name": f"{chat.name}:likelihood", "title": f"{chat.title}, by likelihood", "differs": "", **card}
    needs = (*chat.needs, "a completion server")
    return msgspec.structs.replace(chat, task=task, metric=task["scorers"][0], needs=needs, **own)


_LABEL = (
    r"(?:\banswers?[ \t*_`]*+[:\uff1a]"
    r"|(?:\A|\n)[ \t]*+#*+[ \t*_`]*+(?:the[ \t]+)?(?:(?:final|correct)[ \t]+)?answer[ \t*_`]*+(?=\n))"
)
_SENTENCE = (
    r"\banswers?(?:[ \t]+to[ \t]+(?:the|this|your)[ \t]+question)?[\s*_]+"
    r"(?:is|are|was|were|(?:would|must|should)[ \t]+be)\b[ \t]*:?"
)
_NEXT_SENTENCE = r"\.[*_`\"']*\s+(?:According|As|Based|Because|He|However|I|In|It|She|Since|That|The|These|They|This)\b"


def after_statement(sentence: str = _SENTENCE) -> str:
    """Return a pattern for the text up to the answer. `sentence`: what states the answer if there is no label."""
    return rf"\A(?is:(?>.*{_LABEL})|(?!.*{_LABEL})(?>.*{sentence})(?!\s*not\b))"


def without_statement(sentence: str = _SENTENCE) -> str:
    """Return a pattern for the start of a reply that states no answer."""
    return rf"\A(?is:(?!.*(?:{_LABEL}|{sentence})))"


STATED: dict[str, Any] = {
    "regex": {
        "pattern": after_statement()
        + r"[\s*_`\"'\u201c\u2018$]*+"
        + rf"((?:(?!{_NEXT_SENTENCE})[^\n])*[^\s.*_`\"'\u201d\u2019$])",
        "first": True,
    }
}
"""The answer that a reply states, to the end of its line or sentence. Only dots at its end are left out: 12.5 stays."""
