"""A process of its own in which the installed lm-eval makes its requests and scores for hand-made rows.

Standard input has a list of jobs as JSON, standard output the list of their results. `datasets` is replaced by the rows
of the job. Packages that are not installed are replaced by mocks; only the metrics of CoQA, HumanEval and MBPP use
them. So templates, few-shot examples, filters and other metrics are lm-eval's own code.
"""

import hashlib
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

SEEDS = 24
TAIL = 20
"""The end of a context decides its likelihoods, so that prompts that only begin differently have the same."""
MOCKED = ("dill", "evaluate", "immutabledict", "langdetect", "transformers", "transformers.data.metrics.squad_metrics")


def likelihood(seed: int, context: str, continuation: str) -> float:
    """A made-up log-probability that is the same in both tools."""
    digest = hashlib.sha256(f"{seed}\0{context[-TAIL:]}\0{continuation}".encode()).digest()
    return -int.from_bytes(digest[:4], "big") / 2**32 * 2 * len(continuation)


class Rows(list[dict[str, Any]]):
    """What lm-eval needs of a data set."""

    @property
    def features(self) -> dict[str, None]:
        return dict.fromkeys(self[0]) if self else {}

    def map(self, function: Any) -> "Rows":
        return Rows({**row, **function(row)} for row in self)

    def filter(self, function: Any) -> "Rows":
        return Rows(row for row in self if function(row))


class Splits(dict[str, Rows]):
    """Splits of which the job has no rows are empty."""

    def __missing__(self, split: str) -> Rows:
        return Rows()


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the version of a task, and for each row its requests and scores."""
    splits = Splits({split: Rows(rows) for split, rows in job["splits"].items()})
    sys.modules["datasets"].load_dataset = lambda **given: splits  # type: ignore[attr-defined]
    tasks = Path(importlib.import_module("lm_eval").__path__[0]) / "tasks"
    config = importlib.import_module("lm_eval.tasks._yaml_loader").load_yaml(tasks / job["task"])
    for name in ("group", "tag", "task_alias"):
        config.pop(name, None)
    task = importlib.import_module("lm_eval.api.task").ConfigurableTask(config={**config, **job["config"]})
    made = [requests(task, doc, job["shots"]) for doc in task.eval_docs]
    scored = [
        [generated(task, doc, text, sent[0][1].get("until") or []) for text in job["answers"]]
        if task.OUTPUT_TYPE == "generate_until"
        else ranked(task, doc, sent)
        for doc, sent in zip(task.eval_docs, made, strict=True)
    ]
    return {"version": task.VERSION, "requests": made, "scores": scored}


def requests(task: Any, doc: dict[str, Any], shots: int) -> list[Any]:
    """The context and continuation of each request; for generated answers the context and its options."""
    context = task.fewshot_context(doc, shots)
    found = task.construct_requests(doc, context, metadata=("", 0, 1))
    return [list(each.args) for each in (found if isinstance(found, list) else [found])]


def ranked(task: Any, doc: dict[str, Any], sent: list[Any]) -> list[dict[str, float]]:
    """The metrics for the made-up likelihoods of each seed."""
    return [
        task.process_results(doc, [(likelihood(seed, *request), False) for request in sent]) for seed in range(SEEDS)
    ]


def generated(task: Any, doc: dict[str, Any], text: str, until: list[str]) -> dict[str, dict[str, float]]:
    """The metrics of an answer by filter. A server ends it at the first of the texts in `until`."""
    for stop in until:
        text = text.partition(stop)[0]
    instance = importlib.import_module("lm_eval.api.instance").Instance
    found = instance("generate_until", doc, ("", {}), 0, metadata=("", 0, 1), resps=[text])
    vars(task)["_instances"] = [found]
    task.apply_filters()
    return {name: task.process_results(doc, [kept]) for name, kept in found.filtered_resps.items()}


def replace_packages() -> None:
    """Languages are detected as in the other tests: only texts that begin with `deutsch` are German."""
    for name in MOCKED:
        sys.modules[name] = MagicMock()
    data = sys.modules["datasets"] = MagicMock()
    data.Dataset, data.__version__ = Rows, "4.0.0"
    sys.modules["immutabledict"].immutabledict = dict  # type: ignore[attr-defined]
    languages: Any = sys.modules["langdetect"]
    languages.LangDetectException = ValueError
    languages.detect = lambda text: "de" if text.startswith("deutsch") else "en"
    importlib.import_module("nltk").data.find = lambda name: name  # it would download models for sentences


def main() -> None:
    logging.disable(logging.WARNING)
    replace_packages()
    json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout, default=float)


if __name__ == "__main__":
    main()
