"""`init` and `schema`: a working example, and the schema for editors."""

import json
import os
from collections.abc import Mapping

import msgspec

from holdfast.cli.output import print_json, print_line
from holdfast.errors import UsageError, error_of_path
from holdfast.plan import find_benchmark
from holdfast.spec import Spec

_SPEC = """\
# holdfast run eval.yaml --id first
experiment: first-steps
models:
  - name: parrot                      # the model part of a key
    provider: mock                    # offline: repeats the last message. A real one:
  # - name: local
  #   provider: openai                # any OpenAI-compatible server
  #   model: qwen3-8b
  #   base_url: http://127.0.0.1:8000/v1
  #   api_key_env: OPENAI_API_KEY
  #   params: {temperature: 0.0, max_tokens: 256}
tasks:
  - name: echo
    dataset: {path: words.jsonl, id: id, input: word, target: target}
    system: "You are a parrot."
    prompt: "Say: {word}"
    scorers: [includes]
"""
_WORDS = [
    "anchor",
    "bollard",
    "cleat",
    "davit",
    "fender",
    "halyard",
    "jib",
    "keel",
    "lanyard",
    "mast",
    "rudder",
    "tiller",
]


def write_example(folder: str) -> None:
    """Write a spec and its data. Raises UsageError instead of changing files that exist."""
    targets = [*_WORDS[:-2], *_WORDS[:2]]  # two wrong ones, so that the report has wrong answers to look at
    rows = [{"id": f"w{i:02d}", "word": word, "target": targets[i - 1]} for i, word in enumerate(_WORDS, 1)]
    _write_files(folder, {"eval.yaml": _SPEC, "words.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    print_line(f"Next: holdfast run {os.path.join(folder, 'eval.yaml')} --id first")


def write_benchmark(folder: str, name: str) -> None:
    """Write a spec with a copy of a benchmark. Raises UsageError instead of changing a file that exists."""
    from holdfast.cli.commands.benchmarks import spec_yaml

    file = f"{name.replace(':', '-')}.yaml"
    _write_files(folder, {file: spec_yaml(find_benchmark(name))}, f" --benchmark {name}")
    print_line(f"Next: holdfast run {os.path.join(folder, file)} --limit 5")


def _write_files(folder: str, files: Mapping[str, str], options: str = "") -> None:
    """`options`: those of the command, for the one that errors suggest."""
    other = f"choose another folder: holdfast init FOLDER{options}"
    for name in files:
        if os.path.exists(os.path.join(folder, name)):
            raise UsageError(f"{os.path.join(folder, name)} exists already; {other}")
    for name, text in files.items():
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise error_of_path(error, f"{folder}: {error.strerror}; {other}") from error
        print_line(f"wrote {os.path.join(folder, name)}")


def print_schema() -> None:
    """Print the JSON Schema of a spec, for completion and checks in editors."""
    schema = msgspec.json.schema(Spec)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    properties = schema["$defs"]["Spec"]["properties"]
    properties["defaults"] = {"type": "object", "description": "Default values for tasks and models."}
    properties["include"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Files whose fields this spec takes over, relative to this file; its own fields win.",
    }
    schema["$defs"]["Spec"].pop("required")  # an included file may have them
    schema["$defs"]["Spec"]["anyOf"] = [{"required": ["models", "tasks"]}, {"required": ["include"]}]
    for kind in ("Model", "Task"):
        schema["$defs"][kind]["properties"]["when"] = {
            "anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}],
            "description": "Which combinations of swept values to run: swept fields, each with its value or values.",
        }
    schema["$defs"]["Model"].pop("required")  # the name defaults to the model, the provider may be in defaults
    schema["$defs"]["Model"]["properties"]["batch"]["anyOf"].append({"type": "boolean"})
    schema["$defs"]["Dataset"]["properties"]["shuffle"]["anyOf"].append({"type": "integer"})
    print_json(schema)
