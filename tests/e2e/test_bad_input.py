"""What cannot be run is refused with exit 2 and one sentence that says where; nothing is created on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.commands import call, run, snapshot, sums, write_rows, write_spec


class Slip(NamedTuple):
    """A change to a good spec that makes it bad, and what the message has to name beside the file."""

    change: dict[str, Any]
    named: tuple[str, ...]


def task(**changes: Any) -> dict[str, Any]:
    return {"task": changes}


def model(**changes: Any) -> dict[str, Any]:
    return {"model": changes}


TASK = {"name": "sums", "dataset": {"path": "sums.jsonl"}}
MODEL = {"name": "arith", "provider": "mock"}

SLIPS: dict[str, Slip] = {
    "unknown field at the top": Slip({"taks": []}, ("'taks'", "'tasks'")),
    "unknown field in a task": Slip(task(promt="x"), ("tasks[0]", "'promt'", "'prompt'")),
    "unknown field in a model": Slip(model(parms={}), ("models[0]", "'parms'", "'params'")),
    "unknown field in a data set": Slip(
        task(dataset={"path": "sums.jsonl", "inputs": "question"}), ("tasks[0].dataset", "'inputs'", "'input'")
    ),
    "unknown field in limits": Slip({"limits": {"sample": {"second": 1}}}, ("limits.sample", "'second'", "'seconds'")),
    "unknown field in concurrency": Slip({"concurrency": {"sample": 1}}, ("concurrency", "'sample'", "'samples'")),
    "unknown field in defaults": Slip({"defaults": {"repeat": 1}}, ("defaults", "'repeat'", "'repeats'")),
    "unknown field in a role": Slip(
        {"roles": {"judge": {"provider": "mock", "modell": "x"}}}, ("roles", "'modell'", "'model'")
    ),
    "a secret written into the spec": Slip(model(api_key="sk-123456"), ("models[0]", "api_key_env")),
    "text for a number": Slip(task(repeats="three"), ("tasks[0].repeats", "int")),
    "a number for text": Slip(task(prompt=3), ("tasks[0].prompt", "str")),
    "a mapping for a list": Slip({"tasks": {"name": "sums"}}, ("tasks",)),
    "a list for a mapping": Slip({"limits": []}, ("limits",)),
    "text for scorers": Slip(task(scorers="numeric"), ("tasks[0].scorers",)),
    "null for a name": Slip(task(name=None), ("tasks[0].name",)),
    "an empty name": Slip(task(name=""), ("tasks[0].name",)),
    "no tasks": Slip({"tasks": []}, ("tasks",)),
    "no models": Slip({"models": []}, ("models",)),
    "tasks left empty": Slip({"tasks": None}, ("tasks",)),
    "a task that is text": Slip({"tasks": ["sums"]}, ("tasks[0]",)),
    "defaults that are a list": Slip({"defaults": [1]}, ("defaults",)),
    "roles that are a list": Slip({"roles": [1]}, ("roles",)),
    "a model without a provider": Slip({"models": [{"name": "a"}]}, ("models[0]", "provider")),
    "a model without a name": Slip({"models": [{"provider": "mock"}]}, ("models[0]", "name")),
    "a task without data": Slip({"tasks": [{"name": "sums"}]}, ("tasks[0].dataset", "sums")),
    "a missing data file": Slip(
        task(dataset={"path": "sumz.jsonl"}), ("sumz.jsonl", "did you mean sums.jsonl", "tasks[0].dataset")
    ),
    "a data file of unknown format": Slip(task(dataset={"path": "sums.txt"}), ("sums.txt", "tasks[0].dataset")),
    "an unknown data format": Slip(
        task(dataset={"path": "sums.jsonl", "format": "jsnol"}), ("'jsnol'", "'jsonl'", "tasks[0].dataset")
    ),
    "two tasks of one name": Slip({"tasks": [TASK, TASK]}, ("tasks[1].name", "'sums'", "tasks[0]")),
    "two models of one name": Slip({"models": [MODEL, MODEL]}, ("models[1].name", "'arith'", "models[0]")),
    "two scorers of one name": Slip(
        task(scorers=["numeric", {"numeric": {"tolerance": 0.1}}]), ("tasks[0].scorers[1]", "'numeric'", "name")
    ),
    "a task for a model that is not there": Slip(task(models=["arit"]), ("tasks[0].models", "'arit'", "'arith'")),
    "a prompt with a missing column": Slip(task(prompt="{qestion}"), ("tasks[0].prompt", "'qestion'", "question")),
    "a system prompt with a missing column": Slip(
        task(system="{persona}"), ("tasks[0].system", "'persona'", "question")
    ),
    "a message with a missing column": Slip(
        task(prompt="", messages=[{"role": "user", "content": "{qestion}"}]), ("tasks[0].messages", "'qestion'")
    ),
    "a bad jinja template": Slip(task(template="jinja", prompt="{% if %}"), ("tasks[0].prompt", "Jinja")),
    "a jinja template with a missing column": Slip(
        task(template="jinja", prompt="{{ qestion }}"), ("tasks[0].prompt", "qestion")
    ),
    "an unknown kind of template": Slip(task(template="mustache"), ("tasks[0].template",)),
    "an unknown scorer": Slip(
        task(scorers=["numeric", "exact_mach"]), ("tasks[0].scorers[1]", "'exact_mach'", "'exact_match'")
    ),
    "a scorer's unknown argument": Slip(
        task(scorers=[{"numeric": {"tolerence": 1}}]), ("tasks[0].scorers[0]", "'tolerence'", "'tolerance'")
    ),
    "a scorer's argument of the wrong type": Slip(
        task(scorers=[{"numeric": {"tolerance": "wide"}}]), ("tasks[0].scorers[0]", "'tolerance'")
    ),
    "a scorer's argument that is missing": Slip(task(scorers=["regex"]), ("tasks[0].scorers[0]", "'pattern'")),
    "a scorer in a module that is not there": Slip(
        task(scorers=["no_such_module:f"]), ("tasks[0].scorers[0]", "no_such_module")
    ),
    "two scorers in one entry": Slip(task(scorers=[{"numeric": {}, "includes": {}}]), ("tasks[0].scorers[0]",)),
    "an unknown solver": Slip(task(solver="chatt"), ("tasks[0].solver", "'chatt'", "'chat'")),
    "a solver in a module that is not there": Slip(task(solver="no_such_module:f"), ("tasks[0].solver",)),
    "a solver with unknown arguments": Slip(task(solver={"chat": {"turns": 3}}), ("tasks[0].solver", "turns")),
    "a solver that is not async": Slip(task(solver="json:dumps"), ("tasks[0].solver", "async")),
    "two solvers": Slip(task(solver={"chat": {}, "react": {}}), ("tasks[0].solver",)),
    "an unknown provider": Slip(model(provider="opnai"), ("models[0].provider", "'opnai'", "'openai'")),
    "an unknown provider of a role": Slip(
        {"roles": {"judge": {"provider": "mok"}}}, ("roles.judge", "'mok'", "'mock'")
    ),
    "a provider in a module that is not there": Slip(
        model(provider="no_such_module:f"), ("models[0].provider", "no_such_module")
    ),
    "an unknown option of the mock": Slip(model(options={"replies": "x"}), ("models[0].options", "replies", "reply")),
    "a base_url that is none": Slip(
        model(provider="openai", model="x", base_url="localhost:8000", options={}), ("models[0].base_url", "http://")
    ),
    "negative seconds": Slip({"limits": {"sample": {"seconds": -1}}}, ("limits.sample.seconds",)),
    "no seconds at all": Slip({"limits": {"sample": {"seconds": 0}}}, ("limits.sample.seconds",)),
    "negative tokens": Slip({"limits": {"sample": {"tokens": -5}}}, ("limits.sample.tokens",)),
    "negative steps": Slip({"limits": {"sample": {"steps": -5}}}, ("limits.sample.steps",)),
    "negative repeats": Slip(task(repeats=-1), ("tasks[0].repeats",)),
    "no repeats": Slip(task(repeats=0), ("tasks[0].repeats",)),
    "negative retries": Slip(task(sample_retries=-1), ("tasks[0].sample_retries",)),
    "negative request retries": Slip(model(request_retries=-1), ("models[0].request_retries",)),
    "negative connections": Slip(model(max_connections=-1), ("models[0].max_connections",)),
    "negative limit": Slip({"limit": -1}, ("limit",)),
    "negative concurrency": Slip({"concurrency": {"samples": -1}}, ("concurrency.samples",)),
    "negative allowance of failures": Slip({"fail_on_error": -0.5}, ("fail_on_error",)),
    "negative default": Slip({"defaults": {"sample_retries": -1}}, ("sample_retries",)),
    "an unset variable": Slip(task(system="Be ${NO_SUCH_VARIABLE}"), ("tasks[0].system", "NO_SUCH_VARIABLE")),
    "an unset variable in a header": Slip(
        model(
            provider="openai",
            model="x",
            base_url="http://127.0.0.1:9/v1",
            request_retries=0,
            headers={"Authorization": "Bearer ${NO_SUCH_VARIABLE}"},
        ),
        ("models[0].headers.Authorization", "NO_SUCH_VARIABLE"),
    ),
    "a limit that leaves nothing": Slip({"samples": ["nobody"]}, ("samples", "nobody")),
    "few-shot examples that are not there": Slip(
        task(fewshot={"path": "shot.jsonl"}), ("tasks[0].fewshot", "shot.jsonl")
    ),
    "more few-shot examples than there are": Slip(
        task(fewshot={"path": "sums.jsonl", "n": 99}), ("tasks[0].fewshot.n", "6", "99")
    ),
    "an experiment that cannot be a folder": Slip({"experiment": "a\nb"}, ("experiment", "printable")),
}


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_in_a_spec_is_refused_with_its_place(tmp_path: Path, name: str, command: str) -> None:
    slip = SLIPS[name]
    (tmp_path / "sums.txt").write_text("hello")
    spec = write_spec(tmp_path, **json.loads(json.dumps(slip.change)))
    refuses(tmp_path, spec, (spec.name, *slip.named), command)


def write_broken_row(folder: Path) -> tuple[str, ...]:
    (folder / "sums.jsonl").write_text('{"id": "a", "question": "1 + 1", "answer": "2"}\n{"id": "b", "question": \n')
    return "sums.jsonl, line 2", "JSON"


def write_row_that_is_a_list(folder: Path) -> tuple[str, ...]:
    (folder / "sums.jsonl").write_text('["a", "1 + 1"]\n')
    return ("sums.jsonl, line 1",)


def write_row_without_an_answer(folder: Path) -> tuple[str, ...]:
    write_rows(folder / "sums.jsonl", [*sums(2), {"id": "c", "question": "3 + 3"}])
    return "sums.jsonl, line 3", "'answer'"


def write_same_id_twice(folder: Path) -> tuple[str, ...]:
    write_rows(folder / "sums.jsonl", [*sums(3), sums(2)[1]])
    return "sums.jsonl, line 4", "'s0002'", "line 2"


def write_nothing(folder: Path) -> tuple[str, ...]:
    (folder / "sums.jsonl").write_text("")
    return "sums.jsonl", "empty"


def write_bytes_that_are_no_text(folder: Path) -> tuple[str, ...]:
    (folder / "sums.jsonl").write_bytes(b'{"id": "a", "question": "\xff", "answer": "2"}\n')
    return "sums.jsonl, line 1", "UTF-8"


def write_empty_id(folder: Path) -> tuple[str, ...]:
    write_rows(folder / "sums.jsonl", [{**sums(1)[0], "id": ""}])
    return "sums.jsonl, line 1", "id"


def write_no_column_of_inputs(folder: Path) -> tuple[str, ...]:
    write_spec(folder, task={"dataset": {"path": "sums.jsonl", "input": "qestion"}})
    return "sums.jsonl, line 1", "'qestion'", "'question'"


def write_column_only_in_the_first_row(folder: Path) -> tuple[str, ...]:
    write_rows(folder / "sums.jsonl", [{**sums(1)[0], "hint": "x"}, sums(2)[1]])
    spec = yaml.safe_load((folder / "eval.yaml").read_text())
    spec["tasks"][0]["prompt"] = "{question} ({hint})"
    (folder / "eval.yaml").write_text(yaml.safe_dump(spec))
    return "tasks[0].prompt", "'hint'", "s0002"


@pytest.mark.parametrize(
    "write",
    [
        write_broken_row,
        write_row_that_is_a_list,
        write_row_without_an_answer,
        write_same_id_twice,
        write_nothing,
        write_bytes_that_are_no_text,
        write_empty_id,
        write_no_column_of_inputs,
        write_column_only_in_the_first_row,
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(tmp_path: Path, write: Callable[[Path], tuple[str, ...]]) -> None:
    spec = write_spec(tmp_path)
    refuses(tmp_path, spec, write(tmp_path))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tasks: [", ("line 1", "YAML")),
        ("tasks:\n\t- name: x\n", ("line 2", "YAML")),
        ("seed: 1\nmodels: []\nseed: 2\n", ("line 3", "'seed'", "repeated")),
        ("- a\n- b\n", ("mapping", "a list")),
        ("", ("mapping", "empty")),
        ("# nothing but a comment\n", ("mapping", "empty")),
        ("just words\n", ("mapping", "text")),
        ("3\n", ("mapping", "number")),
        ("a: 1\n---\nb: 2\n", ("YAML",)),
        ("tasks: !!python/object:os.system {}\n", ("line 1", "YAML")),
        ("tasks: *nobody\n", ("line 1", "YAML")),
        ("tasks: &loop [*loop]\nmodels: []\n", ("contains itself",)),
        ("tasks: " + "[" * 5000 + "]" * 5000, ()),
        ('description: "\\ud800"\n', ("surrogates",)),
        ("? {a: b}\n: c\n", ()),
        ("1: x\n", ()),
        ("\x00", ()),
        ("date: 2024-01-01\n", ("'date'",)),
        ("seed: 2024-01-01\n", ("seed",)),
    ],
    ids=[
        "no end",
        "a tab",
        "a key twice",
        "a list",
        "nothing",
        "a comment",
        "words",
        "a number",
        "two documents",
        "an object",
        "an unknown alias",
        "a loop",
        "very deep",
        "half a character",
        "a mapping as key",
        "a number as key",
        "a zero byte",
        "an unknown date",
        "a date for a number",
    ],
)
def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    good = write_spec(tmp_path)
    spec = tmp_path / "bad.yaml"
    mapping = text.startswith(("description", "? ", "1:", "date", "seed: 2024"))
    spec.write_text(text + good.read_text() if mapping else text, encoding="utf-8")
    refuses(tmp_path, spec, ("bad.yaml", *named))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    spec.write_bytes(spec.read_bytes() + b"# \xff\n")
    refuses(tmp_path, spec, ("eval.yaml",))


def test_a_spec_that_is_not_there_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write_spec(tmp_path)
    refuses(tmp_path, tmp_path / "evil.yaml", ("evil.yaml", "no such file", "eval.yaml"))


def test_a_spec_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    refuses(tmp_path, tmp_path, (str(tmp_path),))


def test_a_module_that_does_not_compile_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "broken_syntax.py").write_text("async def solve(sample, ctx)\n")
    for change, place in (
        (task(solver="broken_syntax:solve"), "solver"),
        (task(scorers=["broken_syntax:f"]), "scorers"),
    ):
        spec = write_spec(tmp_path, **change)
        refuses(tmp_path, spec, (f"tasks[0].{place}", "broken_syntax", "line 1"))


def test_a_module_that_fails_on_import_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "broken_import.py").write_text("raise RuntimeError('no licence')\n")
    for change, place in (
        (task(solver="broken_import:solve"), "solver"),
        (task(scorers=["broken_import:f"]), "scorers"),
    ):
        spec = write_spec(tmp_path, **change)
        refuses(tmp_path, spec, (f"tasks[0].{place}", "broken_import", "no licence"))


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    (tmp_path / "runs").write_text("mine")
    before = snapshot(tmp_path)
    done = call("run", spec, "--id", "x", cwd=tmp_path)
    assert done.code == 2
    assert str(tmp_path / "runs") in done.err
    assert len(done.err.splitlines()) == 1
    assert snapshot(tmp_path) == before


def test_the_real_command_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, **task(scorers=["numeric", "exact_mach"]))
    done = run("run", spec, "--id", "x", cwd=tmp_path)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "tasks[0].scorers[1]" in done.err


def refuses(folder: Path, spec: Path, named: tuple[str, ...], command: str = "run") -> None:
    """Exit 2, one line on standard error besides warnings that names all of it, and nothing on disk."""
    before = snapshot(folder)
    extra = ("--id", "x", "--store", folder / "store") if command == "run" else ()
    done = call(command, spec, *extra, cwd=folder)
    assert (done.code, done.out) == (2, ""), done.err
    assert len([line for line in done.err.splitlines() if not line.startswith("warning: ")]) == 1
    missing = [name for name in named if name not in done.err]
    assert missing == [], done.err
    after = snapshot(folder)
    made = {name for name in after if "__pycache__" not in name} - before.keys()
    assert made == set()
    assert not (folder / "store").exists()
    assert not (folder / "runs").exists()
