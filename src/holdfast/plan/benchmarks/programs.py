"""Python functions that must pass tests: HumanEval and MBPP. The code of answers runs only in a sandbox."""

from typing import Any

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_NEEDS = ("a sandbox",)


def _humaneval(row: Row) -> Row:
    named = ("prompt", "test", "entry_point")
    return {"id": row["task_id"], **{name: row[name] for name in named}, "solution": row["canonical_solution"]}


_HUMANEVAL = Benchmark(
    name="humaneval",
    title="HumanEval: complete a Python function",
    source="Chen et al. 2021, Evaluating Large Language Models Trained on Code",
    licence="MIT",
    samples=164,
    metric="code_tests",
    columns=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    convert=_humaneval,
    needs=_NEEDS,
    task={
        "dataset": {
            "hub": "openai/openai_humaneval",
            "split": "test",
            "revision": "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
            "id": "id",
            "input": "prompt",
            "target": "solution",
            "shuffle": {"seed": 1},
        },
        "prompt": (
            "Complete this Python function. Reply with the whole function in one fenced code block.\n\n"
            "```python\n{prompt}\n```"
        ),
        "scorers": [{"code_tests": {"before": "prompt", "tests": "{test}\ncheck({entry_point})"}}],
        "counts": NOTHING_FLATTERS,
    },
    differs=(
        "An instruction for chat models; the paper lets base models continue the code. An answer that is only the body "
        "counts too. For pass@k set `repeats` and `reduce: pass@k`."
    ),
)


def _mbpp(row: Row) -> Row:
    """The column of the task is `text` in the config full, and `prompt` in sanitized."""
    tests = row["test_list"]
    if not tests:
        raise ValueError("test_list is empty")
    setup: Any = row["test_setup_code"] if "test_setup_code" in row else row["test_imports"]
    return {
        "id": str(row["task_id"]),
        "question": row["text"] if "text" in row else row["prompt"],
        "tests": "\n".join(tests),
        "setup": setup if isinstance(setup, str) else "\n".join(setup or ()),
        "solution": row["code"],
    }


def _mbpp_of(name: str, config: str, samples: int, task: str, setup: str) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"MBPP: write a short Python function (config {config})",
        source="Austin et al. 2021, Program Synthesis with Large Language Models",
        licence="CC-BY-4.0",
        samples=samples,
        metric="code_tests",
        columns=("task_id", task, "code", "test_list", setup),
        convert=_mbpp,
        needs=_NEEDS,
        task={
            "dataset": {
                "hub": "google-research-datasets/mbpp",
                "config": config,
                "split": "test",
                "revision": "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
                "id": "id",
                "input": "question",
                "target": "solution",
                "shuffle": {"seed": 1},
            },
            "prompt": (
                "Write Python code for the task below. It must pass the tests. Reply with the code in one fenced code "
                "block, without the tests.\n\nTask: {question}\n\n```python\n{tests}\n```"
            ),
            "scorers": [{"code_tests": {"before": "setup", "tests": "tests"}}],
            "counts": NOTHING_FLATTERS,
        },
        differs=(
            "No examples, where the paper shows 3 of the prompt split. All tests are shown and run; those of "
            "challenge_test_list are not used."
        ),
    )


BENCHMARKS = [
    _HUMANEVAL,
    _mbpp_of("mbpp", "full", 500, "text", "test_setup_code"),
    _mbpp_of("mbpp:sanitized", "sanitized", 257, "prompt", "test_imports"),
]
