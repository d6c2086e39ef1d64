"""Mathematics of competitions: MATH and its 500 problems, AIME."""

import re
from collections.abc import Sequence

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_PROMPT = "Solve the problem. Reason step by step, and write the final answer as `\\boxed{…}`.\n\n{question}"
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_TO_BOX = {"regex": {"pattern": r"(?s)\\boxed\s*\{.*"}}
_WHOLE = re.compile(r"0*([0-9]{1,3})(?:\^\{?\\circ\}?|°)?")
_SCORERS = [{"maths": {"name": "flexible"}}, {"maths": {"extract": _TO_BOX, "name": "strict"}}]


def _last_box(solution: str) -> str:
    r"""Return the content of the last `\boxed{…}`, which may contain braces; also that of `\boxed 2`."""
    *_, rest = _BOX.split(solution)
    if rest == solution:
        raise ValueError("the solution has no box")
    if not rest.startswith("{"):
        return rest.partition("$")[0].strip()
    depth = 0
    for at, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:at].strip()
    raise ValueError("the last box of the solution has no end")


def _in_box(answer: str) -> str:
    r"""math-verify reads `1,2`, `\$18` and `y = 2x` as a whole only in a box."""
    if not answer.strip():
        raise ValueError("the answer is empty")
    return f"\\boxed{{{answer.strip()}}}"


def _level(level: object) -> int | None:
    """`5` or `Level 5`; a few problems have `Level ?`."""
    found = re.search(r"[0-9]+", str(level))
    return None if found is None else int(found[0])


def _math_500(row: Row) -> Row:
    return {
        "id": row["unique_id"],
        "question": row["problem"],
        "target": _in_box(str(row["answer"])),
        "type": row["subject"],
        "level": _level(row["level"]),
    }


def _competition_math(row: Row) -> Row:
    return {
        "question": row["problem"],
        "target": _in_box(_last_box(row["solution"])),
        "type": row["type"],
        "level": _level(row["level"]),
    }


_SOURCE = "Hendrycks et al. 2021, Measuring Mathematical Problem Solving With the MATH Dataset"

_MATH_500 = Benchmark(
    name="math_500",
    title="MATH-500: 500 problems of MATH",
    source=f"{_SOURCE}; the selection: Lightman et al. 2023, Let's Verify Step by Step",
    licence="MIT",
    samples=500,
    metric="flexible",
    subset="type",
    columns=("problem", "answer", "subject", "level", "unique_id"),
    convert=_math_500,
    needs=("the extra math",),
    task={
        "dataset": {
            "hub": "HuggingFaceH4/MATH-500",
            "split": "test",
            "id": "id",
            "input": "question",
            "target": "target",
            "shuffle": {"seed": 1, "by": "type"},
        },
        "prompt": _PROMPT,
        "scorers": _SCORERS,
        "counts": NOTHING_FLATTERS,
    },
    differs="Holdfast's own instruction. math-verify ignores units and number bases: 2516 equals 2516_8.",
    unverified=("the licence of this copy", "the columns"),
)

_COMPETITION_MATH = Benchmark(
    name="competition_math",
    title="MATH: 5,000 problems of competitions in seven subjects",
    source=_SOURCE,
    licence="MIT",
    samples=5000,
    metric="flexible",
    subset="type",
    columns=("problem", "level", "type", "solution"),
    convert=_competition_math,
    needs=("the extra math",),
    task={
        # This copy has all subjects in one file, and other tools pin the same commit.
        "dataset": {
            "hub": "DigitalLearningGmbH/MATH-lighteval",
            "config": "default",
            "split": "test",
            "revision": "0530c78699ea5e8eb5530600900e1f328b48acad",
            "input": "question",
            "target": "target",
            "shuffle": {"seed": 1, "by": "type"},
        },
        "prompt": _PROMPT,
        "scorers": _SCORERS,
        "counts": NOTHING_FLATTERS,
        "macro": "type",
    },
    differs=(
        "No examples, where Minerva and lm-eval show 4. Equality by math-verify, which accepts more than the text "
        "comparison of the paper. The copy in one file, because hendrycks/competition_math was taken down."
    ),
    unverified=("the layout of files in this copy",),
)


def _aime(row: Row) -> Row:
    """Copies write the columns small or capitalised. Answers are 0 to 999, some with leading zeros or a degree sign."""
    cells = {name.lower(): value for name, value in row.items()}
    found = _WHOLE.fullmatch(str(cells["answer"]).strip())
    if found is None:
        raise ValueError(f"the answer {cells['answer']!r} is not from 0 to 999")
    return {"id": str(cells["id"]), "question": cells["problem"], "target": found[1]}


_SPACE = r"[\s${}]|\\[,;:! ]"
_ALONE = {
    "regex": {
        "pattern": rf"\A(?:[^=,;]*=)*+(?:{_SPACE}|\\(?:text|mathrm|mathbf|textbf|displaystyle)\b)*+"
        rf"([0-9]+(?:,[0-9]{{3}})*)(?:{_SPACE}|[.°]|\^\{{?\\circ|\\text\s*\{{[^{{}}0-9]*\}})*+\Z"
    }
}
"""One number, also after equations such as `m + n = 16 + 9 = 25`: a list decides nothing."""


def _aime_of(year: int, columns: Sequence[str], dataset: Row, licence: str, unverified: Sequence[str]) -> Benchmark:
    return Benchmark(
        name=f"aime_{year}",
        title=f"AIME {year}: 30 problems with whole numbers as answers",
        source=f"Mathematical Association of America, American Invitational Mathematics Examination {year}",
        licence=licence,
        samples=30,
        metric="strict",
        columns=columns,
        convert=_aime,
        task={
            "dataset": {**dataset, "id": "id", "input": "question", "target": "target", "shuffle": {"seed": 1}},
            "prompt": _PROMPT,
            "scorers": [
                {"numeric": {"extract": ["boxed", _ALONE], "name": "strict"}},
                {"numeric": {"name": "flexible"}},
            ],
            "counts": NOTHING_FLATTERS,
        },
        differs=(
            "One answer for each problem; published figures are means of 16 to 64, so set `repeats`. Holdfast's own "
            "instruction."
        ),
        unverified=unverified,
    )


BENCHMARKS = [
    _MATH_500,
    _COMPETITION_MATH,
    _aime_of(
        2024,
        ("ID", "Problem", "Answer"),
        {
            "hub": "Maxwell-Jia/AIME_2024",
            "split": "train",
            "revision": "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792",
        },
        "MIT (this copy)",
        ("the licence", "the layout of files"),
    ),
    _aime_of(
        2025,
        ("id", "problem", "answer"),
        {"hub": "math-ai/aime25", "split": "test", "revision": "563bb8404243c5f09de6ec262f2db674fe5bce9b"},
        "not stated",
        ("the licence", "the layout of files"),
    ),
]
