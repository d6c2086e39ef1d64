"""Instructions that code can check: IFEval."""

import msgspec

from holdfast.plan.benchmarks.card import NOTHING_FLATTERS, Benchmark
from holdfast.records import Row

_LANGUAGE = frozenset({"language:response_language", "change_case:english_capital", "change_case:english_lowercase"})
"""Instructions whose check detects the language of the answer."""
_DATA = {
    "hub": "google/IFEval",
    "split": "train",
    "revision": "966cd89545d6b6acfd7638bc708b98261ca58e84",
    "id": "id",
    "input": "prompt",
    "group": "id",
    "shuffle": {"seed": 1},
}


def _ifeval(row: Row) -> Row:
    """Arguments that an instruction does not use are null in tables."""
    names, arguments = row["instruction_id_list"], row["kwargs"]
    if not names or len(names) != len(arguments):
        raise ValueError("instruction_id_list and kwargs must have the same length, and not be empty")
    used = [{name: value for name, value in (each or {}).items() if value is not None} for each in arguments]
    return {"id": str(row["key"]), "prompt": row["prompt"], "instruction_id_list": list(names), "kwargs": used}


def _without_language(row: Row) -> Row | None:
    return None if _LANGUAGE.intersection(row["instruction_id_list"]) else _ifeval(row)


def _scorers(**arguments: bool) -> list[dict[str, dict[str, object]]]:
    return [
        {f"ifeval_{of}": {"name": f"{of}_{how}", "loose": how == "loose", **arguments}}
        for of in ("prompt", "instruction")
        for how in ("strict", "loose")
    ]


_DIFFERS = (
    "Sentences and words in capitals are found by own rules, not by nltk (docs/scorers.md). The means of "
    "instruction_strict and instruction_loose are shares of all instructions, as published; prompts are independent."
)
_IFEVAL = Benchmark(
    name="ifeval",
    title="IFEval: prompts with instructions that code can check",
    source="Zhou et al. 2023, Instruction-Following Evaluation for Large Language Models",
    licence="Apache-2.0",
    samples=541,
    metric="prompt_strict",
    columns=("key", "prompt", "instruction_id_list", "kwargs"),
    convert=_ifeval,
    needs=("the package langdetect",),
    task={"dataset": _DATA, "prompt": "{prompt}", "scorers": _scorers(), "counts": NOTHING_FLATTERS},
    comparable="lm-eval 0.4.13, task ifeval version 4",
    differs=f"The prompts are sent as they are. {_DIFFERS}",
    unverified=("the licence",),
)
_NO_LANGUAGE = msgspec.structs.replace(
    _IFEVAL,
    name="ifeval:no_language",
    title="IFEval, without the prompts whose instructions depend on the language of the answer",
    samples=None,
    convert=_without_language,
    needs=(),
    comparable="",
    task={**_IFEVAL.task, "scorers": _scorers(skip_language=True)},
    differs=f"Prompts that need the detection of a language are left out, so langdetect is not needed. {_DIFFERS}",
)

BENCHMARKS = [_IFEVAL, _NO_LANGUAGE]
