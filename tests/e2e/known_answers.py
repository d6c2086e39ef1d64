"""Runs whose every answer is known: models that say what a table says, so that each figure can be worked out again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.commands import call, exported, write_rows

TALK = '''
"""Models that say what talk.json says, repeat after repeat, and a scorer that takes an answer for its mark."""
import collections, json, os, pathlib

said = collections.Counter()

def speaker(name):
    async def speak(request):
        sample = request.messages[-1]["content"]
        texts = json.loads(pathlib.Path("talk.json").read_text())[name][sample]
        said[os.getcwd(), name, sample] += 1
        return texts[(said[os.getcwd(), name, sample] - 1) % len(texts)]
    return speak

one, two, three, four = map(speaker, ("one", "two", "three", "four"))

def mark(sample, answer):
    return float(answer.text)
'''
Said = Mapping[str, Mapping[str, Sequence[str]]]
"""By model, then by sample: what each repeat answers. 1 is right."""


def write_known(folder: Path, said: Said, models: Mapping[str, str], **task: Any) -> Path:
    """A spec whose models, by name, speak as `said` says. Every target is 1."""
    (folder / "talk.py").write_text(TALK)
    (folder / "talk.json").write_text(json.dumps(said))
    samples = list(next(iter(said.values())))
    write_rows(folder / "rows.jsonl", [{"id": sample, "answer": "1"} for sample in samples])
    made = {
        "name": "quiz",
        "dataset": {"path": "rows.jsonl", "id": "id", "input": "id", "target": "answer"},
        "prompt": "{id}",
        "scorers": ["numeric"],
        "repeats": max(len(texts) for each in said.values() for texts in each.values()),
        **task,
    }
    spec = {
        "experiment": "known",
        "models": [{"name": name, "provider": f"talk:{voice}"} for name, voice in models.items()],
        "tasks": [made],
    }
    path = folder / "known.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def run_known(folder: Path, said: Said, **task: Any) -> None:
    """One run for each voice, called like it; its model is `m` in all of them."""
    for voice in said:
        path = write_known(folder, said, {"m": voice}, **task)
        assert call("run", path, "--id", voice, "--store", folder / "runs", cwd=folder).code == 0


def marks(folder: Path, run: str, scorer: str = "numeric", model: str = "m") -> dict[str, list[float]]:
    """By sample, what each repeat scored, from the export."""
    found: dict[str, list[float]] = {}
    for line in exported(run, folder / "runs"):
        if line["model"] == model:
            found.setdefault(line["sample_id"], []).append(float(line["scores"][scorer]))
    return found


def once(*right: int, of: int) -> dict[str, list[str]]:
    """One answer a sample, right on these."""
    return {f"s{i:02d}": ["1" if i in right else "0"] for i in range(of)}
