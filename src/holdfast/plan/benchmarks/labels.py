"""Where a reply states its answer: patterns for scorers that read `Answer: X`, in the forms that models write.

A label is `Answer:`, `**Answer**:`, `Answer :`, `**Final Answer:**`, or a heading such as `### Answer` above the
answer. The last label decides. Only a reply without one is searched for the last sentence such as `The answer is X.`,
because models explain their answer after the label in such sentences.

All patterns take linear time. They begin at the start of the text, so their first match is the only one.
"""

from typing import Any

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
