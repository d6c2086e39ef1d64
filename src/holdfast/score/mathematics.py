"""Whether two mathematical expressions are the same: the scorer `maths`.

Expressions can be made that take for ever, or all memory, to work out: it is done by the process that can be ended.
"""

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import needing, scorer, shortened
from holdfast.score.limited import apart
from holdfast.score.texts import references

_SECONDS_MAX = 10.0
_READ = 10_000
"""Characters at the end of an answer: there stands the result."""


@needing("math", "math-verify")
@scorer
async def maths(sample: Sample, answer: Answer, digits: int = 6) -> Score:
    r"""The last expression of the answer (`\boxed{…}` and `$…$` first) equals the target, by the rules of math-verify:
    1/2 is 0.5 is \frac{1}{2}, x+1 is 1+x, {1,2} is {2,1}. Decimals are compared to so many `digits`.
    """
    wanted = references(sample.target)
    if not wanted:
        return Score(None, "the sample has no target")
    same, read = await apart(_SECONDS_MAX, f"{__name__}:equals", answer.text[-_READ:], wanted, digits)
    return Score(same, f"read {shortened(read)}" if read else "no expression in the answer")


def equals(text: str, wanted: list[str], digits: int) -> tuple[bool, str]:
    """Whether an expression in a text equals one of several, and what was read. ValueError if a target is none."""
    from math_verify import verify

    found = _parsed(text)
    same = False
    for each in wanted:
        gold = _parsed(each)
        if not gold:
            raise ValueError(f"the target {shortened(each)!r} is no mathematical expression")
        same = same or (bool(found) and verify(gold, found, float_rounding=digits, timeout_seconds=None))
    return same, str(found[-1]) if found else ""


def _parsed(text: str) -> list[object]:
    """Bare LaTeX, as it stands inside a box, is read too."""
    from math_verify import parse

    bare = [f"${text.strip()}$"] if "$" not in text and "\\boxed" not in text and len(text) < 200 else []
    for candidate in (*bare, text) if "\\" in text else (text, *bare):
        found: list[object] = parse(candidate, parsing_timeout=None)  # ended from outside
        if found:
            return found
    return []
