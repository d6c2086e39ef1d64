"""The runs that version 0.1.0 made, kept in `tests/fixtures/runs_0_1_0`: their spec, their models, what was asked.

`tests/fixtures/make_runs_0_1_0.py` made them. Each request is asked only once in a whole run, so that a request that
is seen twice is one that was paid for twice.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from holdfast.records.samples import Message
from holdfast.testing import Seen

FIXTURE = Path(__file__).parent / "fixtures" / "runs_0_1_0"
EXPERIMENT = "old"
SAMPLES = 10
FIRST_SAMPLES = 4
"""Of each task, before the run was extended."""
_COMMANDS = ("echo {n} > numbers", "echo {n} >> numbers; wc -l < numbers")


def reply(messages: list[Message]) -> str | Message:
    """A model that adds, an agent that uses bash, and the judges of both. Sums of 5 are wrong."""
    text = str(messages[-1]["content"])
    first = str(messages[0]["content"]) if messages[0]["role"] == "user" else str(messages[1]["content"])
    if "better" in text and "Answer A" in text:
        return json.dumps({"reason": "they say the same", "better": "tie"})
    if "Answer to judge" in text:
        return json.dumps({"criterion": {"reason": "read", "score": len(text) % 5 + 1}})
    number = int(first.split()[-1])
    if first.startswith("Add"):
        return f"The sum is {number + 1 + (number % 5 == 0)}"
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == len(_COMMANDS):
        return f"There are two lines of {number}."
    called = {"name": "bash", "arguments": json.dumps({"command": _COMMANDS[turn].format(n=number)})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call-{turn}", "type": "function", "function": called}],
    }


def write_spec(folder: Path, base_url: str) -> Path:
    """The spec of all these runs, and its data. Only places differ from one folder to another."""
    model = {"provider": "openai", "base_url": base_url}
    rows = [
        {
            "id": f"s{n}",
            "question": f"Add 1 to {n}",
            "work": f"Count lines of {n}",
            "answer": str(n + 1),
            "lines": "two",
        }
        for n in range(1, SAMPLES + 1)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checked = {"of": ["numeric", {"regex": {"pattern": "sum"}}], "name": "checked"}
    spec: dict[str, Any] = {
        "experiment": EXPERIMENT,
        "models": [{"name": "m", "model": "m-1", **model}],
        "roles": {"judge": {"model": "j-1", **model}, "strict": {"model": "j-2", **model}},
        "tasks": [
            {
                "name": "sums",
                "dataset": {"path": "rows.jsonl", "id": "id", "input": "question", "target": "answer"},
                "prompt": "{question}",
                "scorers": [
                    {"exact_match": {"extract": ["last_line", {"regex": {"pattern": "[0-9]+"}}]}},
                    {"all_of": checked},
                    {"rubric": {"criteria": "It is right.", "name": "right"}},
                    {"rubric": {"criteria": "It is short.", "name": "short", "role": "strict", "pass_at": 3}},
                ],
            },
            {
                "name": "agent",
                "dataset": {"path": "rows.jsonl", "id": "id", "input": "work", "target": "lines"},
                "prompt": "{work}",
                "solver": {"react": {"tools": ["bash"]}},
                "sandbox": {"seconds": 30},
                "scorers": ["includes", {"pairwise": {"swap": False}}],
            },
        ],
        "concurrency": {"samples": 64},
        "mirror": {"url": f"file://{folder}/mirror", "seconds": 0.2},
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def digests(requests: Iterable[Seen]) -> list[str]:
    """What was asked of whom, in short."""
    asked = [json.dumps([each.body["model"], each.body["messages"]], sort_keys=True) for each in requests]
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in asked]


def verification_facts(found: dict[str, Any]) -> dict[str, Any]:
    """What `verify --scores --json` found, without texts, which may be reworded, and without the count of the numbers
    that were compared, which grows with the report.
    """
    scores = found["scores"]
    return {
        **{field: found[field] for field in ("records", "segments", "errors")},
        **{field: scores[field] for field in ("rescored", "differences")},
        "skipped": list(scores["skipped"]),
    }
