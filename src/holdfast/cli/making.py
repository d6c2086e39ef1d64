"""`init` and `schema`: files to begin with."""

import json
import os
import random

import msgspec

from holdfast.cli.output import console, print_json
from holdfast.errors import UsageError
from holdfast.spec import Spec

_SPEC = """\
# holdfast run eval.yaml --id first
experiment: arithmetic
models:
  - name: mock                        # the model part of a key
    provider: mock                    # offline; see below for a real one
    options: {reply: "{last}"}
  # - name: local
  #   provider: openai                # any OpenAI-compatible server
  #   model: qwen3-8b
  #   base_url: http://127.0.0.1:8000/v1
  #   api_key_env: OPENAI_API_KEY
  #   params: {temperature: 0.0, max_tokens: 256}
tasks:
  - name: sums
    dataset: {path: sums.jsonl, id: id, input: question, target: answer}
    system: "You are exact."
    prompt: "Compute: {question}"
    scorers: [numeric]
"""


def write_example(folder: str) -> None:
    """A spec and its data. Refuses to touch files that exist."""
    files = {"eval.yaml": _SPEC, "sums.jsonl": sums(20)}
    for name in files:
        if os.path.exists(os.path.join(folder, name)):
            raise UsageError(
                f"{os.path.join(folder, name)} exists already; choose another folder: holdfast init FOLDER"
            )
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        console.print(f"wrote {os.path.join(folder, name)}", markup=False)
    console.print(f"Next: holdfast run {os.path.join(folder, 'eval.yaml')} --id first", markup=False)


def sums(count: int, seed: int = 7) -> str:
    """Rows of small sums, always the same."""
    chance = random.Random(seed)
    rows = []
    for number in range(1, count + 1):
        left, right = chance.randrange(2, 100), chance.randrange(2, 100)
        sign, value = chance.choice([("+", left + right), ("-", left - right), ("*", left * right)])
        rows.append(json.dumps({"id": f"s{number:04d}", "question": f"{left} {sign} {right}", "answer": str(value)}))
    return "\n".join(rows) + "\n"


def print_schema() -> None:
    """For editors: completion and checking while a spec is written."""
    schema = msgspec.json.schema(Spec)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    properties = schema["$defs"]["Spec"]["properties"]
    properties["defaults"] = {
        "type": "object",
        "description": "Values for every task and model that does not say otherwise.",
    }
    print_json(schema)
