"""Every table of one run, whole, as files in `golden/` that were read by eye: a change of any word shows as a diff.

To rewrite the files after a change: HOLDFAST_GOLDEN=write pytest tests/e2e/test_golden_tables.py. Then read them: each
answer that a mean leaves out must be in every format, with its reason.
"""

import difflib
import html
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import call, write_rows

GOLDEN = Path(__file__).parent / "golden"
PARTS = '''
"""A solver whose answers are drawn with the seed of the key, and scorers that leave answers out."""
from holdfast import scorer

CHANCE = {"strong": 0.9, "weak": 0.45}

async def solve(sample, ctx):
    model = (await ctx.generate()).text
    if model == "weak" and sample.id == "s02":
        raise LookupError("no page for s02")
    if model == "strong" and sample.id in ("s03", "s05") and ctx.random.random() < 0.6:
        return ""
    return sample.target if ctx.random.random() < CHANCE[model] else "0"

@scorer(scale=(1, 5))
def grade(sample, answer):
    return 5 if answer.text == sample.target else 1 + int(sample.id[1:]) % 3

def right_only(sample, answer):
    return 1.0 if answer.text == sample.target else None

@scorer(scale="bool")
def shaky(sample, answer):
    if sample.id == "s07":
        raise ValueError("cannot parse s07")
    return answer.text == sample.target

@scorer(scale="label")
def kind(sample, answer):
    return "number" if answer.text != "0" else "zero"
'''
SAMPLES = 16
REPEATS = 3
UNFINISHED = 2
ANSWERS = 2 * SAMPLES * (REPEATS + 1)
COMMANDS = {
    "report": ("report", "one"),
    "report_all": ("report", "one", "--all"),
    "report_markdown": ("report", "one", "--format", "markdown"),
    "report_latex": ("report", "one", "--format", "latex"),
    "report_html": ("report", "one", "--format", "html"),
    "report_junit": ("report", "one", "--format", "junit"),
    "compare": ("compare", "one", "--limit", "1"),
    "compare_all": ("compare", "one", "--limit", "0", "--all"),
    "leaderboard": ("leaderboard", "one"),
    "leaderboard_markdown": ("leaderboard", "one", "--format", "md"),
    "gate": ("gate", "one", "--at-least", "0.6", "--missing-max", "4"),
    "gate_all": ("gate", "one", "--at-least", "0.6", "--missing-max", "4", "--all"),
}
NOT_PASSED = 7
NOISE = (
    (r"\d+(\.\d+)? m?s \(p50\), \d+(\.\d+)? m?s \(p90\)(, \d+(\.\d+)?k? output tokens/s)?", "(speed)"),
    (r"\b\d+\.\d s\b", "(time)"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "(date)"),
    (r"(?<![.])\b[0-9a-f]{16}\b", "(id)"),
)
"""What differs from run to run."""
REASONS = ("unfinished", "failed", "no score", "scorer failed", "empty")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two models, repeats and reducers, in which something of everything is missing."""
    made = tmp_path_factory.mktemp("golden")
    (made / "parts.py").write_text(PARTS)
    write_rows(made / "rows.jsonl", [{"id": f"s{i:02d}", "answer": str(i)} for i in range(1, SAMPLES + 1)])
    shared: dict[str, Any] = {
        "dataset": {"path": "rows.jsonl", "id": "id", "input": "id", "target": "answer"},
        "prompt": "{id}",
        "solver": "parts:solve",
        "sample_retries": 0,
    }
    repeated = {"repeats": REPEATS, "reduce": ["mean", "pass@2", "max"], "scorers": ["numeric", "parts:grade"]}
    single = {"scorers": ["parts:right_only", "parts:shaky", "parts:kind"]}
    spec = {
        "experiment": "golden",
        "models": [
            {"name": name, "provider": "mock", "options": {"reply": name}, "price": {"input": 1.0, "output": 2.0}}
            for name in ("strong", "weak")
        ],
        "tasks": [{"name": "sums", **shared, **repeated}, {"name": "once", **shared, **single}],
        "fail_on_error": 1.0,
        "anomalies_except": ["slow"],  # depends on the machine
        "concurrency": {"samples": 1},
        "limits": {"run": {"requests": ANSWERS - UNFINISHED}},
    }
    (made / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    done = call("run", "spec.yaml", "--id", "one", cwd=made)
    assert done.code == 6, done.said  # the budget is used up
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_is_the_one_that_was_read_by_eye(name: str, folder: Path) -> None:
    done = call(*COMMANDS[name], cwd=folder)
    assert done.code == (NOT_PASSED if name.startswith("gate") else 0), done.said
    found = comparable(name, done.said.replace(str(folder), "(folder)"))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.write_text(found, "utf-8")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    diff = difflib.unified_diff(lines, found.splitlines(), f"golden/{path.name}", "printed now", lineterm="")
    text = "\n".join(diff)
    assert not text, f"{text}\nIf the change is right, rewrite the files with HOLDFAST_GOLDEN=write and read them."


@pytest.mark.parametrize("name", [each for each in COMMANDS if each.startswith("report")])
def test_every_format_of_a_report_names_every_reason(name: str) -> None:
    text = (GOLDEN / f"{name}.txt").read_text("utf-8")
    assert [reason for reason in REASONS if reason not in text] == []
    assert "mean is" in text, "what the mean would be with the missing scores"


def comparable(name: str, text: str) -> str:
    if name == "report_html":
        text = "\n".join(html_lines(text))
    if name == "report_junit":  # the cases are no table
        text = "\n".join(line for line in text.splitlines() if line.startswith(("<property", "<testsuites")))
        text = re.sub(r' time="[0-9.]+"', "", text)
    for pattern, instead in NOISE:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def html_lines(page: str) -> list[str]:
    """Everything before the costs: the cells of a row on one line, and each text on a line of its own."""
    part = page.partition("<main>")[2].partition("<h2>Cost and time</h2>")[0]
    part = re.sub(r"<title>.*?</title>|</t[hd]>", lambda tag: " | " if tag[0].startswith("</t") else "", part)
    part = re.sub(r"<small>|</(dt|text|small)>", " ", part)
    part = re.sub(r"</(tr|thead|p|h[1-5]|li|dd|div|figcaption|summary|svg|strong)>", "\n", part)
    lines = (html.unescape(re.sub(r"<[^>]*>", "", line)).strip() for line in part.splitlines())
    return [line for line in lines if line]
