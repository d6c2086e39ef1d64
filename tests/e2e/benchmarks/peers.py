"""Benchmarks of other tools that ask the same questions: which task belongs to which of ours, and what differs.

The packages are installed by `make setup` in the folder `peers` of the environment, without their dependencies. They
run in processes of their own (`child_lm_eval`, `child_inspect`), on our hand-made rows.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow  # type: ignore[import-untyped]

from holdfast.plan import all_benchmarks
from tests.e2e.benchmarks.cases import all_cases

PEERS = Path(sys.prefix, "peers")
_PINNED = dict(re.findall(r"^([a-z-]+)==([0-9.]+)", Path("requirements-peers.txt").read_text(), re.MULTILINE))
LM_EVAL = f"lm-eval {_PINNED['lm-eval']}"
IS_INSTALLED = all(
    Path(PEERS, f"{name.replace('-', '_')}-{_PINNED[name]}.dist-info").is_dir() for name in ("inspect-evals", "lm-eval")
)
_SPLITS = ("test", "train", "validation", "dev")

Row = Mapping[str, Any]
Relation = Literal["equal", "equal prompts", "different"]
"""`equal`: requests and scores on the same data, which the card claims as `comparable`. `equal prompts`: of the same
rows, but something else differs. `different`: no prompt is equal."""


class LmTask(NamedTuple):
    """A task of lm-eval."""

    path: str
    """Its YAML file below lm_eval/tasks."""
    relation: Relation = "different"
    differs: str = ""
    """Words of the card that say how ours differs."""
    claim: str = ""
    """What the card claims, with `{version}` of the task."""
    shots: int = 0
    config: Row = MappingProxyType({})
    """Settings of the task that are changed for the comparison."""
    part: str = ""
    """Only rows of files whose path has this part."""
    only: tuple[str, str] | None = None
    """Only rows with this value in this column."""
    convert: Callable[[Row], Row] = dict
    """From our layout to that of lm-eval's source."""


def _ranked(path: str, name: str) -> list[LmTask]:
    return [LmTask(path, "equal", claim=f"task {name}, without examples")]


def _mmlu(shots: int, claim: str) -> list[LmTask]:
    return [
        LmTask(
            f"mmlu/default/mmlu_{subject}.yaml",
            "equal",
            claim=f"group mmlu version 2, {claim}; its figure is the mean over questions",
            shots=shots,
            only=("subject", subject),
        )
        for subject in ("anatomy", "high_school_us_history")
    ]


def _boolq(row: Row) -> Row:
    return {**row, "label": int(row["answer"])}


def _pubmedqa(row: Row) -> Row:
    texts = row["context"]["contexts"]
    return {"QUESTION": row["question"], "CONTEXTS": texts, "final_decision": row["final_decision"]}


def _coqa(row: Row) -> Row:
    return {**row, "questions": {"input_text": row["questions"]}}


def _math_500(row: Row) -> Row:
    return {**row, "solution": f"\\boxed{{{row['answer']}}}"}


def _mbpp(row: Row) -> Row:
    """It shows exactly three tests."""
    return {**row, "test_list": [*row["test_list"], "assert True"]}


_CHAT = "A chat model"
_OWN = "own instruction"
_PRIMER = "Without the 6 questions and answers"
_TRAIN = {"test_split": "train"}
_FIRST_N = {"fewshot_config": {"sampler": "first_n"}}
LM_TASKS: dict[str, list[LmTask]] = {
    "aime_2024": [LmTask("aime/aime24.yaml", differs=_OWN)],
    "aime_2025": [LmTask("aime/aime25.yaml", differs=_OWN)],
    "arc_challenge": [LmTask("arc/arc_challenge_chat.yaml", differs=_CHAT)],
    "arc_challenge:likelihood": _ranked("arc/arc_challenge.yaml", "arc_challenge version {version}"),
    "arc_easy": [LmTask("arc/arc_easy.yaml", differs=_CHAT)],
    "arc_easy:likelihood": _ranked("arc/arc_easy.yaml", "arc_easy version {version}"),
    "bbh": [LmTask("bbh/cot_zeroshot/navigate.yaml", differs="No examples", part="navigate/")],
    "boolq": [LmTask("super_glue/boolq/default.yaml", differs=_CHAT, convert=_boolq)],
    "boolq:likelihood": [
        LmTask("super_glue/boolq/default.yaml", "equal prompts", "the copy of SuperGLUE", convert=_boolq)
    ],
    "commonsense_qa": [LmTask("commonsense_qa/default.yaml", differs=_CHAT)],
    "commonsense_qa:likelihood": _ranked("commonsense_qa/default.yaml", "commonsense_qa"),
    "competition_math": [LmTask("hendrycks_math/hendrycks_math_algebra.yaml", differs="No examples")],
    "coqa": [LmTask("coqa/default.yaml", differs="lm-eval has only the last one", convert=_coqa)],
    "drop": [LmTask("drop/default.yaml", differs="ends an answer at its first dot")],
    "gpqa_diamond": [LmTask("gpqa/zeroshot/gpqa_diamond_zeroshot.yaml", differs="Own prompt", part="gpqa_diamond")],
    "gpqa_main": [LmTask("gpqa/zeroshot/gpqa_main_zeroshot.yaml", differs="Own prompt", part="gpqa_main")],
    "gsm8k": [LmTask("gsm8k/gsm8k.yaml", differs="an instruction")],
    "gsm8k:5shot": [LmTask("gsm8k/gsm8k.yaml", "equal prompts", "lm-eval draws 5 at random", shots=5, config=_FIRST_N)],
    "hellaswag": [LmTask("hellaswag/hellaswag.yaml", differs=_CHAT)],
    "hellaswag:likelihood": _ranked("hellaswag/hellaswag.yaml", "hellaswag version {version}"),
    "humaneval": [LmTask("humaneval/humaneval.yaml", differs="An instruction")],
    "ifeval": [LmTask("ifeval/ifeval.yaml", "equal", "own rules", claim="task ifeval version {version}")],
    "math_500": [LmTask("hendrycks_math/hendrycks_math500.yaml", differs=_OWN, convert=_math_500)],
    "mbpp": [LmTask("mbpp/mbpp.yaml", differs="No examples", convert=_mbpp)],
    "medmcqa": [LmTask("medmcqa/medmcqa.yaml", differs=_CHAT)],
    "medmcqa:likelihood": _ranked("medmcqa/medmcqa.yaml", "medmcqa"),
    "medqa": [LmTask("medqa/medqa.yaml", differs=_CHAT)],
    "medqa:likelihood": _ranked("medqa/medqa.yaml", "medqa_4options"),
    "mgsm": [LmTask("mgsm/direct/mgsm_direct_en.yaml", differs="The instruction is Holdfast's own", part="en/")],
    "mmlu": [LmTask("mmlu/default/mmlu_anatomy.yaml", differs=_CHAT, only=("subject", "anatomy"))],
    "mmlu:5shot": [
        LmTask(
            "mmlu/default/mmlu_anatomy.yaml", differs="earlier turns of a chat", shots=5, only=("subject", "anatomy")
        )
    ],
    "mmlu:likelihood": _mmlu(0, "without examples"),
    "mmlu:likelihood_5shot": _mmlu(5, "with --num_fewshot 5"),
    "mmlu_pro": [LmTask("mmlu_pro/mmlu_pro_math.yaml", differs="No examples")],
    "piqa": [LmTask("piqa/piqa.yaml", differs=_CHAT)],
    "piqa:likelihood": _ranked("piqa/piqa.yaml", "piqa version {version}"),
    "pubmedqa": [LmTask("pubmedqa/pubmedqa.yaml", differs=_CHAT, config=_TRAIN, convert=_pubmedqa)],
    "pubmedqa:likelihood": [
        LmTask("pubmedqa/pubmedqa.yaml", "equal prompts", "of 500 of them", config=_TRAIN, convert=_pubmedqa)
    ],
    "sciq": [LmTask("sciq/sciq.yaml", differs=_CHAT)],
    "sciq:likelihood": _ranked("sciq/sciq.yaml", "sciq version {version}"),
    "social_iqa": [LmTask("siqa/siqa.yaml", differs=_CHAT)],
    "social_iqa:likelihood": _ranked("siqa/siqa.yaml", "social_iqa version {version}"),
    "triviaqa": [LmTask("triviaqa/default.yaml", differs="No examples")],
    "truthfulqa": [LmTask("truthfulqa/truthfulqa_mc1.yaml", differs=_CHAT)],
    "truthfulqa:likelihood": [LmTask("truthfulqa/truthfulqa_mc1.yaml", differs=_PRIMER)],
    "truthfulqa_mc2:likelihood": [LmTask("truthfulqa/truthfulqa_mc2.yaml", differs=_PRIMER)],
    "winogrande": [LmTask("winogrande/default.yaml", differs=_CHAT)],
    "winogrande:likelihood": _ranked("winogrande/default.yaml", "winogrande version {version}"),
}
NOT_IN_LM_EVAL = {
    "gsm_symbolic": "not among its tasks",
    "gsm_symbolic:p1": "not among its tasks",
    "gsm_symbolic:p2": "not among its tasks",
    "ifeval:no_language": "only some rows of ifeval",
    "mbpp:sanitized": "only the config full",
    "simpleqa": "not among its tasks",
    "supergpqa": "not among its tasks",
}


class InspectEval(NamedTuple):
    """A benchmark of inspect_evals."""

    module: str
    task: str
    """Its name in eval.yaml."""
    function: str = "record_to_sample"
    """What turns a row into a sample; empty: nothing that can be called on its own."""
    hub: str = ""
    """Its repository, if it is another one."""
    samples: int | None = None
    """Its number of samples, if it is another one."""
    why: str = ""
    """Why repository, number of samples or targets differ."""
    part: str = ""
    read: Callable[[Any], Any] = lambda text: text
    """Turns its targets and choices into ours."""
    column: str = ""
    """Our column with its target, if that is not our target."""


def _box(text: str) -> str:
    return f"\\boxed{{{text}}}"


def _spans(texts: list[str]) -> list[list[str]]:
    return [text.split(",") for text in texts]


def _without_marks(text: str) -> str:
    """Endings of HellaSwag."""
    return re.sub(r"\[.*?\]", "", text.replace(" [title]", ". ")).replace("  ", " ")


INSPECT_EVALS_TASKS = {
    "aime_2024": InspectEval("aime2024.aime2024", "aime2024"),
    "aime_2025": InspectEval(
        "aime2025.aime2025", "aime2025", why="with leading zeros", read=lambda text: text.lstrip("0") or "0"
    ),
    "arc_challenge": InspectEval("arc.arc", "arc_challenge"),
    "arc_easy": InspectEval("arc.arc", "arc_easy"),
    "bbh": InspectEval("bbh.bbh", "bbh", "", "Joschka/big_bench_hard", 6509, "another copy, without 2 rows"),
    "boolq": InspectEval("boolq.boolq", "boolq", why="the target is Yes or No", read=str.lower),
    "commonsense_qa": InspectEval("commonsense_qa.commonsense_qa", "commonsense_qa"),
    "competition_math": InspectEval("math.math", "math", samples=12500, why="with the train split", read=_box),
    "drop": InspectEval("drop.drop", "drop", samples=9535, why="without one of two rows with the same id", read=_spans),
    "gpqa_diamond": InspectEval(
        "gpqa.gpqa",
        "gpqa_diamond",
        hub="openaipublic",
        why="a CSV file; choices are shuffled later",
        part="diamond",
        read=str.strip,
    ),
    "gsm8k": InspectEval("gsm8k.gsm8k", "gsm8k", why="with commas", read=lambda text: text.replace(",", "")),
    "hellaswag": InspectEval("hellaswag.hellaswag", "hellaswag", why="with marks in brackets", read=_without_marks),
    "humaneval": InspectEval("humaneval.humaneval", "humaneval", ""),
    "ifeval": InspectEval("ifeval.ifeval", "ifeval"),
    "mbpp:sanitized": InspectEval("mbpp.mbpp", "mbpp", why="the targets are the tests", read="\n".join, column="tests"),
    "medqa": InspectEval("medqa.medqa", "medqa", "", "bigbio/med_qa", why="a script repository"),
    "mgsm": InspectEval("mgsm.mgsm", "mgsm", "", "openaipublic", why="TSV files of simple-evals"),
    "mmlu": InspectEval("mmlu.mmlu", "mmlu_0_shot", "record_to_sample_mmlu", "", 13937, "without duplicates"),
    "mmlu_pro": InspectEval("mmlu_pro.mmlu_pro", "mmlu_pro", why="with options that only fill up the list"),
    "piqa": InspectEval("piqa.piqa", "piqa", hub="ybisk/piqa", why="a script repository"),
    "pubmedqa": InspectEval("pubmedqa.pubmedqa", "pubmedqa", samples=500, why="only the 500 rows of the test list"),
    "simpleqa": InspectEval(
        "simpleqa.dataset", "simpleqa", "simpleqa_record_to_sample", "openaipublic", why="the original CSV file"
    ),
    "truthfulqa": InspectEval("truthfulqa.truthfulqa", "truthfulqa", ""),
    "winogrande": InspectEval("winogrande.winogrande", "winogrande"),
}


def rows_of(name: str, part: str = "") -> dict[str, list[Row]]:
    """The hand-made rows of a benchmark by split, as a reader of their files returns them."""
    found: dict[str, list[Row]] = {}
    for path, rows in all_cases()[name].files.items():
        if part in path:
            split = next((each for each in _SPLITS if re.search(rf"\b{each}\b", path)), "")
            read = pyarrow.Table.from_pylist(list(map(dict, rows))).to_pylist() if path.endswith(".parquet") else rows
            found.setdefault(split or all_benchmarks()[name].task["dataset"]["split"], []).extend(read)
    return found


_KEYS = frozenset(
    {"answer", "answerKey", "final_decision", "id", "label", "labels", "source_id", "split_type", "subject"}
)
"""Columns that are not texts."""
_TRAP = " {question} {{b}} {% c %} {# d #} 100%s \u2028é [x]  \\n\n\n$y$ <<z>> "


def with_traps(row: Any) -> Any:
    """A row with characters in every text that templates or readers might change."""
    if isinstance(row, dict):
        return {name: value if name in _KEYS else with_traps(value) for name, value in row.items()}
    if isinstance(row, list):
        return [with_traps(value) for value in row]
    return row + _TRAP if isinstance(row, str) else row


def lm_job(name: str, task: LmTask, answers: Sequence[str] = (), change: Callable[[Row], Row] = dict) -> Row:
    splits = {
        split: [task.convert(change(row)) for row in rows if task.only is None or row[task.only[0]] == task.only[1]]
        for split, rows in rows_of(name, task.part).items()
    }
    return {"task": task.path, "splits": splits, "shots": task.shots, "config": dict(task.config), "answers": answers}


def run_process(program: str, jobs: Sequence[Row]) -> list[dict[str, Any]]:
    """Run jobs in one of the programs beside this module."""
    path = Path(__file__).with_name(f"{program}.py")
    given = {**os.environ, "PYTHONPATH": str(PEERS), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], input=json.dumps(jobs), capture_output=True, text=True, env=given, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results
