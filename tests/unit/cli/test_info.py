"""`holdfast info`: everything that a spec may name is listed, and every example can be used as it is."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from holdfast.cli.commands.info import KINDS, Topic, topics
from holdfast.cli.main import COMMANDS, app
from holdfast.datasets import FORMATS as DATA_FORMATS
from holdfast.errors import UsageError
from holdfast.models import open_provider
from holdfast.models.providers.mock import MockOptions
from holdfast.plan import all_benchmarks
from holdfast.report import FORMATS
from holdfast.score import EXTRACTORS, SCORERS, resolve
from holdfast.solve import SOLVERS, TOOLS, resolve_solver
from holdfast.spec import PROVIDERS, build_spec
from tests.e2e.commands import call, write_spec

EVERY = list(topics())


def named(kind: str) -> dict[str, Topic]:
    return {each.name: each for each in EVERY if each.kind == kind}


def show(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["info", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("provider", set(PROVIDERS)),
        ("scorer", set(SCORERS)),
        ("extractor", set(EXTRACTORS)),
        ("solver", set(SOLVERS)),
        ("tool", set(TOOLS)),
        ("export format", {each.name for each in FORMATS if each.kind == "export"}),
        ("report format", {each.name for each in FORMATS if each.kind == "report"}),
        ("data format", set(DATA_FORMATS)),
        ("benchmark", set(all_benchmarks())),
        ("command", {each.__name__ for commands in COMMANDS.values() for each in commands}),
    ],
)
def test_every_row_of_every_table_is_listed(kind: str, names: set[str]) -> None:
    assert names <= set(named(kind))


def test_every_kind_of_name_that_users_look_for_is_listed() -> None:
    assert list(KINDS) == [
        *("providers", "scorers", "extractors", "solvers", "tools", "formats", "benchmarks", "extras", "commands")
    ]


def test_a_benchmark_has_its_title_its_variants_and_a_command_that_runs_it() -> None:
    assert set(named("benchmark")) == set(all_benchmarks())
    shown = show("arc_challenge")
    assert shown.startswith("arc_challenge: benchmark\n")
    assert " ".join(all_benchmarks()["arc_challenge"].title.split()[:3]) in shown
    assert "  variants: arc_challenge:likelihood\n" in shown
    assert shown.endswith("Example:\n  holdfast run arc_challenge --model openai/MODEL --limit 50\n")


def test_every_name_has_a_description_and_an_example() -> None:
    assert [each.name for each in EVERY if not each.text or not each.example] == []
    overview = show().replace("\n", " ")
    assert [each.name for each in EVERY if each.name not in overview] == []


@pytest.mark.parametrize("name", [name for name, each in SCORERS.items() if not each.extra])
def test_the_example_of_a_scorer_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.scorers.instructions.version_of", lambda package: "1")  # langdetect
    entries = yaml.safe_load(named("scorer")[name].example)["scorers"]
    assert [resolve(each, "scorers").name for each in entries] == [name]


def test_the_example_of_every_command_works(tmp_path: Path) -> None:
    """`view`, `demo` and `launch` do not return at once; `merge` needs runs of one plan; `init` needs an empty folder;
    `cancel` and `tune` a run that works.
    """
    spec = write_spec(tmp_path)
    for run_id in ("RUN", "OTHER"):
        assert call("run", spec, "--id", run_id, cwd=tmp_path).code == 0
    actual = {"SPEC": str(spec), "KEY": "sums/arith/s0001/1"}
    codes = {}
    for name, command in named("command").items():
        words = [actual.get(word, word).replace("NAME", "sums") for word in command.example.split()]
        assert words[:2] == ["holdfast", name]
        if name not in {"view", "demo", "launch", "merge", "init", "cancel", "tune"}:
            codes[name] = call(*words[1:], cwd=tmp_path).code
    assert {name: code for name, code in codes.items() if code != (7 if name == "gate" else 0)} == {}
    not_running = call(*named("command")["tune"].example.split()[1:], cwd=tmp_path)
    assert (not_running.code, "no process" in not_running.err) == (2, True), not_running.err


@pytest.mark.parametrize("name", EXTRACTORS)
def test_the_example_of_an_extractor_is_accepted(name: str) -> None:
    (entry,) = yaml.safe_load(named("extractor")[name].example)["scorers"]
    assert [each.name for each in resolve(entry, "scorers").extract] == [name]


@pytest.mark.parametrize("topic", [*named("solver").values(), *named("tool").values()], ids=lambda topic: topic.name)
def test_the_example_of_a_solver_or_a_tool_is_accepted(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_module.py").write_text("def my_function(text, target, row):\n    return ''\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_solver(yaml.safe_load(topic.example)["solver"], "solver").name in (topic.name, "react")


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_example_of_a_provider_is_accepted(name: str) -> None:
    models = yaml.safe_load(named("provider")[name].example)["models"]
    spec = build_spec({"experiment": "e", "models": models, "tasks": [{"name": "t", "dataset": {"path": "x.jsonl"}}]})
    for model in spec.models:
        assert model.provider in (name, PROVIDERS[name].speaks)
        if name != "litellm":  # its package is not installed everywhere
            open_provider(model, "models[0]")


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_lists_its_options_with_a_sentence_each(name: str) -> None:
    options = [each for each in named("provider")[name].arguments if each.name.startswith("options")]
    assert options
    assert all(each.meaning.endswith(".") for each in options)


def test_the_mock_shows_every_option_and_an_example_that_runs(tmp_path: Path) -> None:
    text = show("mock")
    for option in MockOptions.__struct_fields__:
        assert f"  options.{option} " in text
    example = text.partition("Example:\n")[2]
    (tmp_path / "rows.jsonl").write_text('{"question": "2 + 2"}\n')
    spec = f"{inspect.cleandoc(example)}\ntasks: [{{name: t, dataset: {{path: rows.jsonl}}, prompt: '{{question}}'}}]\n"
    (tmp_path / "spec.yaml").write_text(spec)
    arguments = ["run", str(tmp_path / "spec.yaml"), "--store", str(tmp_path / "runs")]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0


def test_one_name_shows_arguments_with_types_and_defaults() -> None:
    text = show("numeric")
    assert text.startswith("numeric: scorer\n")
    assert "  tolerance  number; default 1e-06\n" in text
    assert "scale: bool" in text
    assert text.endswith("Example:\n  scorers: [numeric]\n")


def test_a_name_of_several_kinds_shows_all_of_them() -> None:
    assert [line for line in show("fork").splitlines() if line.startswith("fork: ")] == [
        "fork: solver",
        "fork: command",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_lists_its_names_with_summaries(kind: str) -> None:
    lines = show(kind).splitlines()
    assert [each.name for each in KINDS[kind]() if not any(line.split()[0] == each.name for line in lines)] == []


def test_json_has_versions_places_and_all_topics() -> None:
    found = json.loads(show("--json"))
    assert set(found) == {"version", "python", "places", "topics"}
    assert set(found["places"]) == {"runs", "settings", "cache", "state", "code"}
    assert found["places"]["settings"] == os.path.join(found["places"]["runs"], "store.yaml")
    assert len(found["topics"]) == len(EVERY)
    one = json.loads(show("regex", "--json"))["topics"]
    assert [each["kind"] for each in one] == ["scorer", "extractor"]
    assert one[0]["arguments"][0] == {"name": "pattern", "type": "text", "default": None, "meaning": ""}


@pytest.mark.parametrize(("name", "near"), [("exact_mach", "'exact_match'"), ("anthropc", "'anthropic'")])
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {near}\\? List all names with: holdfast info"):
        CliRunner().invoke(app, ["info", name], catch_exceptions=False)


def complete(words: str) -> list[str]:
    """What bash offers for the last of the words."""
    asked: dict[str, Any] = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast']\nmain()"],
        env={**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_names_and_formats_are_completed() -> None:
    assert complete("holdfast info exact") == ["exact_match"]
    assert complete("holdfast info solv") == ["solvers"]
    assert complete("holdfast info humane") == ["humaneval"]
    assert complete("holdfast export --format p") == ["parquet"]
    assert complete("holdfast report --format j") == ["junit", "json"]
    assert complete("holdfast leaderboard --format m") == ["markdown"]
    assert complete("holdfast run humane") == ["humaneval"]
    assert complete("holdfast run --scorer exact_") == complete("holdfast score r --scorers exact_") == ["exact_match"]


def test_files_evaluations_and_columns_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = write_spec(tmp_path)
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 0
    (evaluation,) = json.loads(call("show", "r", "--json", cwd=tmp_path).out)["evaluations"]
    assert complete(f"holdfast run {spec.name[:3]}") == [spec.name]
    assert complete("holdfast report r --evaluation ") == [evaluation]
    assert complete("holdfast export r --columns ques") == ["question"]
    assert complete("holdfast export r --columns id,ans") == ["id,answer"]
