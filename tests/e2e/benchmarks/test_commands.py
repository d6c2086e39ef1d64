"""Benchmarks on the command line: the list, the card, checks, copies, runs, resumes, and those of other packages."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.plan import all_benchmarks, prepare, resolve_benchmarks
from holdfast.spec import Spec, SpecFile
from holdfast.testing import FakeHub, ModelServer
from tests.e2e.benchmarks.offered import MINE, ROWS, Offer, changed, run
from tests.e2e.commands import Done, call, exported


def test_the_list_has_every_benchmark_with_its_result(tmp_path: Path) -> None:
    done = call("benchmarks", cwd=tmp_path)
    assert done.code == 0
    lines = done.out.splitlines()
    for name, benchmark in all_benchmarks().items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert benchmark.metric in line
        assert benchmark.samples is None or f"{benchmark.samples:,}" in line
    listed = call("benchmarks", "--json", cwd=tmp_path).json()
    assert [each["name"] for each in listed] == list(all_benchmarks())
    assert all({"version", "metric", "licence", "unverified"} <= set(each) for each in listed)


@pytest.mark.usefixtures("offer")
def test_a_card_has_the_prompt_of_the_first_sample_and_the_task_as_yaml(tmp_path: Path) -> None:
    done = call("benchmarks", "show", "mine", cwd=tmp_path)
    assert done.code == 0
    assert "mine  version 1\nSums of our own\n" in done.out
    assert "licence: MIT\nresult: numeric\nexamples: none\norder: shuffled with the seed 1\n" in done.out
    assert "unverified: the data has no fixed revision" in done.out
    assert "  user:\n    Compute: " in done.out
    (copied,) = yaml.safe_load(done.out.partition("to copy and change:\n")[2])
    found = call("benchmarks", "show", "mine", "--json", cwd=tmp_path).json()
    origin = {"name": "mine", "version": 1, "copy": True}
    assert found["task"] == copied == {"name": "mine", "benchmark": origin, **MINE.task}
    assert found["prompt"][0]["content"].startswith("Compute: ")
    assert found["problem"] == ""


@pytest.mark.usefixtures("hub")
def test_a_card_names_groups_and_strata(tmp_path: Path) -> None:
    done = call("benchmarks", "show", "coqa", cwd=tmp_path)
    assert "order: shuffled with the seed 1, alternating over source\n" in done.out
    assert "groups: samples with the same story_id are related" in done.out


def test_a_card_is_shown_without_its_data_too(tmp_path: Path, offer: Offer) -> None:
    offer(changed(dataset={"hub": "o/nowhere", "split": "test"}))
    done = call("benchmarks", "show", "mine", cwd=tmp_path)
    assert done.code == 0
    assert "The prompt (no sample: " in done.out
    assert "  user:\n    Compute: {question}\n" in done.out
    assert "o/nowhere" in call("benchmarks", "show", "mine", "--json", cwd=tmp_path).json()["problem"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("show",), "name a benchmark: holdfast benchmarks show gsm8k"),
        (("show", "gsm9k"), "there is no benchmark 'gsm9k'; did you mean 'gsm8k'?"),
        (("gsm8k",), "holdfast benchmarks show gsm8k prints its card, holdfast run gsm8k runs it"),
        (("chek",), "write `benchmarks`, `benchmarks show NAME` or `benchmarks check [NAME]`"),
        (("check", "gsm9k"), "there is no benchmark 'gsm9k'"),
        (("show", "mmlu:shots"), "there are: mmlu, mmlu:5shot"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    done = call("benchmarks", *arguments, cwd=tmp_path)
    assert (done.code, problem in done.err) == (2, True), done.err


def test_every_card_passes_the_check_without_the_network(tmp_path: Path, hub: FakeHub) -> None:
    before = sum(hub.requests.values())
    done = call("benchmarks", "check", cwd=tmp_path)
    assert (done.code, done.out) == (0, "".join(f"{name}: ok\n" for name in all_benchmarks()))
    assert "holdfast benchmarks check --online" in done.err
    assert sum(hub.requests.values()) == before


def test_a_check_finds_a_result_that_is_no_scorer_and_a_scorer_that_does_not_exist(
    tmp_path: Path, offer: Offer
) -> None:
    offer(changed(scorers=["includes"]))
    done = call("benchmarks", "check", "mine", cwd=tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (2, "mine: its result 'numeric' is none of its scorers (includes)")
    offer(changed(scorers=["numerc"]))
    done = call("benchmarks", "check", "mine", "--json", cwd=tmp_path)
    assert done.code == 2
    assert "numerc" in done.json()[0]["problems"][0]


def test_an_online_check_compares_columns_samples_and_the_first_row(tmp_path: Path, offer: Offer) -> None:
    def check(**card: Any) -> tuple[int, str]:
        offer(msgspec.structs.replace(MINE, **card))
        done = call("benchmarks", "check", "mine", "--online", cwd=tmp_path)
        return done.code, done.out.splitlines()[0]

    assert check() == (0, "mine: ok")
    assert check(columns=("question", "level")) == (
        2,
        "mine: the rows have no column level; they have question, answer",
    )
    assert check(samples=7) == (2, "mine: there are 6 samples, the card says 7")
    digest = MINE.first_row
    assert check(first_row="0") == (2, f"mine: the first row has the digest {digest}, the card says 0")
    code, problem = check(task={**MINE.task, "dataset": {"hub": "o/nowhere"}})
    assert (code, "o/nowhere" in problem) == (2, True)


def test_an_online_check_finds_rows_that_the_conversion_does_not_understand(tmp_path: Path, offer: Offer) -> None:
    offer(msgspec.structs.replace(MINE, convert=lambda row: {"question": row["problem"]}))
    done = call("benchmarks", "check", "mine", "--online", cwd=tmp_path)
    assert done.code == 2
    assert "the row has no column 'problem'; it has: question, answer; its layout may have changed" in done.out


def planned(spec: Spec) -> list[Any]:
    (work,) = prepare(spec, {}, {}).values()
    return [(each.id, each.row, each.target, work.renderer.messages(each)) for each in work.samples(spec)]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", sorted(all_benchmarks()))
def test_a_copy_passes_the_check_and_plans_the_same_samples(tmp_path: Path, name: str) -> None:
    done = call("init", "copy", "--benchmark", name, cwd=tmp_path)
    assert done.code == 0, done.err
    path = tmp_path / "copy" / f"{name.replace(':', '-')}.yaml"
    checked = call("check", path, cwd=tmp_path)
    assert checked.code == 0, checked.err
    roles = {"judge": {"provider": "mock"}}
    raw = {"models": [{"name": "m", "provider": "mock"}], "roles": roles, "tasks": [name]}
    copied, own = (resolve_benchmarks(SpecFile("", each)).spec for each in (yaml.safe_load(path.read_text()), raw))
    assert planned(copied) == planned(own)
    assert copied.tasks[0].share == own.tasks[0].share
    origin = copied.tasks[0].benchmark
    assert origin is not None
    assert (origin.name, origin.copy, origin.changed) == (name, True, [])
    again = call("init", "copy", "--benchmark", name, cwd=tmp_path)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.usefixtures("offer")
def test_a_run_of_a_copy_asks_the_same_and_has_the_same_keys(tmp_path: Path, server: ModelServer) -> None:
    assert run(tmp_path, server, "mine", "--id", "x").code == 0
    assert call("init", ".", "--benchmark", "mine", cwd=tmp_path).code == 0
    model = f"models.parrot={{provider: openai, model: m, base_url: {server.base_url}}}"
    assert call("run", "mine.yaml", "--set", model, "--id", "y", "--store", "runs", cwd=tmp_path).code == 0
    own, copied = exported("x", tmp_path / "runs"), exported("y", tmp_path / "runs")
    assert [line["key"] for line in own] == [line["key"] for line in copied]
    assert [line["input"] for line in own] == [line["input"] for line in copied]
    assert "mine is a copy of the benchmark mine version 1\n" in call("report", "y", cwd=tmp_path).out


@pytest.mark.usefixtures("offer")
def test_the_report_of_an_edited_copy_names_what_was_edited(tmp_path: Path) -> None:
    assert call("init", ".", "--benchmark", "mine", cwd=tmp_path).code == 0
    path = tmp_path / "mine.yaml"
    path.write_text(path.read_text().replace("Compute: ", "Please compute: ").replace("seed: 1", "seed: 2"))
    done = call("run", path, "--id", "x", cwd=tmp_path)
    said = "mine is an edited copy of the benchmark mine version 1, changed in: dataset.shuffle.seed, prompt\n"
    assert (done.code, said in done.out) == (0, True), done.said
    assert "\nbenchmark: " not in done.out


@pytest.mark.usefixtures("hub")
def test_a_copy_of_restricted_data_stays_restricted(tmp_path: Path) -> None:
    assert call("init", ".", "--benchmark", "gpqa_diamond", cwd=tmp_path).code == 0
    path = tmp_path / "gpqa_diamond.yaml"
    text = path.read_text()
    assert "share: no-text" in text
    path.write_text(text.replace("share: no-text\n", "system: Be brief.\n"))
    done = call("run", path, "--id", "x", cwd=tmp_path)
    assert done.code in (0, 1), done.err
    page = call("report", "x", "--format", "html", cwd=tmp_path).out
    assert "Withheld: the terms of this data set forbid publishing its text." in page
    path.write_text(text.replace("share: no-text\n", "share: ok\n"))
    done = call("run", path, cwd=tmp_path)
    said = "tasks[0].share: the terms of the data of gpqa_diamond forbid publishing its text; remove this field"
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.usefixtures("offer")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mine", "--prompt", "Say {question}"), "--prompt would change the benchmark mine; write a spec with"),
        (("mine", "--data", "rows.jsonl"), "--data would change the benchmark mine"),
        (("mine", "--scorer", "includes"), "--scorer would change the benchmark mine"),
        (("mine", "--target", "answer"), "--target would change the benchmark mine"),
        (("mien",), "there is no benchmark 'mien'; did you mean 'mine'?"),
        (("mine", "mien"), "there is no benchmark 'mien'"),
        (("mine", "eval.yaml"), "mine is a benchmark, eval.yaml a spec: run them one by one"),
    ],
)
def test_a_run_refuses_what_would_change_a_benchmark(
    tmp_path: Path, server: ModelServer, arguments: tuple[str, ...], problem: str
) -> None:
    done = run(tmp_path, server, *arguments)
    assert (done.code, problem in done.err) == (2, True), done.err
    assert server.stats().requests == 0
    assert not (tmp_path / "runs").exists()


def test_check_points_to_the_commands_for_benchmarks(tmp_path: Path) -> None:
    done = call("check", "gsm8k", cwd=tmp_path)
    said = "gsm8k is a benchmark; to check it: holdfast benchmarks check gsm8k; to see its requests: holdfast run gsm8k"
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_check_finds_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.commands.benchmarks._HUB_PACKAGES", ("huggingface_hub", "not_installed"))
    done = call("benchmarks", "check", "gsm8k", cwd=tmp_path)
    assert done.code == 2
    assert done.out.startswith("gsm8k: its data needs not_installed: pip install 'holdfast[hub,parquet]'\n")
    assert "holdfast benchmarks check gsm8k --online" in done.err


@pytest.mark.usefixtures("offer")
def test_a_run_without_a_model_says_how(tmp_path: Path) -> None:
    done = call("run", "mine", cwd=tmp_path)
    assert (done.code, "--model is missing: holdfast run mine --model" in done.err) == (2, True)


def test_several_benchmarks_are_tasks_of_one_run(tmp_path: Path, offer: Offer, server: ModelServer) -> None:
    offer(MINE, msgspec.structs.replace(changed(prompt="{question}?"), name="mine:other"))
    done = run(tmp_path, server, "mine", "mine:other", "--id", "x", "--limit", "4")
    assert done.code == 0, done.err
    assert (tmp_path / "runs" / "benchmarks" / "x").is_dir()
    tasks = [line["task"] for line in exported("x", tmp_path / "runs")]
    assert (tasks.count("mine"), tasks.count("mine:other")) == (4, 4)


@pytest.mark.parametrize("name", sorted(all_benchmarks()))
def test_a_card_says_once_that_its_revision_is_not_fixed(name: str, tmp_path: Path) -> None:
    doubts = call("benchmarks", "show", name, "--json", cwd=tmp_path).json()["unverified"]
    assert "revision" not in doubts
    assert ("the data has no fixed revision; the run stores the one that it used" in doubts) is not (
        all_benchmarks()[name].is_pinned
    )


@pytest.mark.parametrize(
    ("address", "hub"),
    [("hf://datasets/o/mine", "o/mine"), ("hf://o/mine@main/x.parquet", "o/mine"), ("HF://mine", "OWNER/NAME")],
)
def test_addresses_of_the_hub_point_to_the_field_for_them(address: str, hub: str, tmp_path: Path) -> None:
    task = {"name": "t", "dataset": {"path": address}, "prompt": "{q}", "scorers": ["includes"]}
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump({"models": ["mock"], "tasks": [task]}))
    said = f"write dataset: {{hub: {hub}, split: …}}"
    for arguments in (("run", "eval.yaml"), ("check", "eval.yaml")):
        done = call(*arguments, cwd=tmp_path)
        assert (done.code, f"tasks[0].dataset.path: a data set of the Hub has no path; {said}" in done.err) == (2, True)
    said = f"write a spec with dataset: {{hub: {hub}, split: …}}"
    done = call("run", address, "--model", "mock", cwd=tmp_path)
    assert (done.code, f"{address} is a data set of the Hub, not a spec; {said}" in done.err) == (2, True)
    done = call("run", "--data", address, "--model", "mock", "--prompt", "{q}", cwd=tmp_path)
    assert (done.code, "write a spec for a data set of the Hub" in done.err) == (2, True), done.err


def prompts(server: ModelServer) -> list[str]:
    return [seen.body["messages"][-1]["content"] for seen in server.requests()]


def test_a_resume_after_a_new_version_asks_with_the_stored_prompt_and_nothing_twice(
    tmp_path: Path, offer: Offer, server: ModelServer
) -> None:
    stopped = run(tmp_path, server, "mine", "--id", "x", "--set", "limits.run.requests=2")
    assert stopped.code == 6, stopped.err
    asked = server.stats().requests
    assert 0 < asked < len(ROWS)
    offer(changed(version=2, prompt="A new prompt: {question}"))
    done = run(tmp_path, server, "mine", "--id", "x")
    assert done.code == 0, done.err
    assert server.stats().requests == len(ROWS)
    lines = exported("x", tmp_path / "runs")
    assert [line["status"] for line in lines] == ["finished"] * len(ROWS)
    assert sorted(prompts(server)) == sorted(f"Compute: {row['question']}" for row in ROWS)
    assert run(tmp_path, server, "mine", "--id", "x").code == 0
    assert run(tmp_path, server, "mine", "--id", "new").code == 0
    assert prompts(server)[-1].startswith("A new prompt: ")


@pytest.mark.parametrize("first", [(), ("--system", "Be brief.")])
def test_other_changes_of_the_user_are_refused_also_after_a_new_version(
    tmp_path: Path, offer: Offer, server: ModelServer, first: tuple[str, ...]
) -> None:
    assert run(tmp_path, server, "mine", "--id", "x", *first).code == 0
    asked = server.stats().requests
    for version in (1, 2):
        offer(changed(version=version, prompt="Compute: {question}" if version == 1 else "New: {question}"))
        refused = run(tmp_path, server, "mine", "--id", "x", "--system", "Be long.")
        assert refused.code == 3, (version, refused.said)
        assert "system" in refused.err
        assert run(tmp_path, server, "mine", "--id", "x", *first).code == 0
        if first:
            assert run(tmp_path, server, "mine", "--id", "x").code == 3, version
    assert server.stats().requests == asked


def test_a_resume_with_examples_needs_no_network(
    tmp_path: Path, offer: Offer, server: ModelServer, hub: FakeHub
) -> None:
    offer(changed(fewshot={"split": "train", "n": 3, "style": "text"}))
    stopped = run(tmp_path, server, "mine", "--id", "x", "--set", "limits.run.requests=2")
    assert stopped.code == 6, stopped.err
    before = sum(hub.requests.values())
    done = run(tmp_path, server, "mine", "--id", "x")
    assert done.code == 0, done.err
    assert sum(hub.requests.values()) == before
    shown = {text.rpartition("Compute: ")[0] for text in prompts(server)}
    assert len(prompts(server)) == len(ROWS)
    assert len(shown) == 1
    assert shown.pop().count("Compute: ") == 3


PACKAGE = """
from holdfast.plan.benchmarks import Benchmark

SUMS = Benchmark(
    name="tiny", title="Tiny sums", source="a package", licence="MIT", metric="numeric",
    task={"dataset": {"hub": "o/mine", "split": "test"}, "prompt": "Add: {question}", "scorers": ["numeric"]},
)
TAKEN = [Benchmark(name="gsm8k", title="Not GSM8K", source="a package", licence="MIT", metric="numeric", task={})]
WORDS = "no benchmark"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offer: Offer) -> Offer:
    """A function that installs a distribution with entry points, as pip leaves it."""

    def write(**points: str) -> None:
        about = tmp_path / "site" / "tiny_sums-1.0.dist-info"
        about.mkdir(parents=True)
        (tmp_path / "site" / "tiny_sums.py").write_text(PACKAGE)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-sums\nVersion: 1.0\n")
        lines = (f"{name} = tiny_sums:{what}" for name, what in points.items())
        (about / "entry_points.txt").write_text("\n".join(["[holdfast.benchmarks]", *lines, ""]))
        monkeypatch.syspath_prepend(os.fspath(tmp_path / "site"))
        offer(MINE)

    return write


def test_a_benchmark_of_another_package_is_listed_and_runs(tmp_path: Path, install: Offer, server: ModelServer) -> None:
    install(tiny="SUMS", taken="TAKEN")
    assert "tiny" in call("benchmarks", cwd=tmp_path).out.split()
    assert "Tiny sums" in call("benchmarks", "show", "tiny", cwd=tmp_path).out
    assert "Not GSM8K" not in call("benchmarks", "show", "gsm8k", cwd=tmp_path).out  # Holdfast's own wins
    done = run(tmp_path, server, "tiny", "--id", "x")
    assert done.code == 0, done.err
    assert all(prompt.startswith("Add: ") for prompt in prompts(server))


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("WORDS", "the entry point 'tiny' (tiny_sums:WORDS) is neither a Benchmark nor a list of them"),
        ("GONE", "the benchmark 'tiny' (tiny_sums:GONE) cannot be loaded"),
    ],
)
def test_an_entry_point_that_offers_something_else_is_named(
    tmp_path: Path, install: Offer, what: str, problem: str
) -> None:
    install(tiny=what)
    done = call("benchmarks", cwd=tmp_path)
    assert (done.code, problem in done.err, "gsm8k" in done.out) == (0, True, True), done.err
    done = call("run", "tiny", "--model", "mock", cwd=tmp_path)
    assert (done.code, problem in done.err) == (2, True), done.err


@pytest.mark.parametrize("subset", [["anatomy", "astronmy"], "astronmy"])
def test_a_misspelt_subset_is_refused(tmp_path: Path, subset: Any, hub: FakeHub) -> None:
    tasks = [{"benchmark": "mmlu", "subset": subset}]
    spec = {"models": [{"name": "m", "provider": "mock"}], "tasks": tasks}
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(spec))
    done = call("run", "eval.yaml", cwd=tmp_path)
    assert (done.code, "tasks[0].subset: no row has the subject 'astronmy'" in done.err) == (2, True), done.err


@pytest.mark.usefixtures("hub")
def test_a_subset_can_be_set_on_the_command_line_and_for_a_fork(tmp_path: Path) -> None:
    setting = ("--set", "tasks.mmlu.subset=anatomy")
    done = call("run", "mmlu", "--model", "mock", "--id", "x", *setting, cwd=tmp_path)
    assert (done.code, "mmlu differs from the benchmark mmlu version 1 in: dataset.where" in done.out) == (0, True)
    asked = [line["input"] for line in exported("x", tmp_path / "runs")]
    assert asked
    assert call("run", "mmlu", "--model", "mock", "--id", "x", *setting, cwd=tmp_path).code == 0
    refused = call("run", "mmlu", "--model", "mock", "--id", "x", cwd=tmp_path)
    assert (refused.code, "dataset.where" in refused.err) == (3, True), refused.err
    forked = call("fork", "x", "--set", "tasks.mmlu.subset=[high_school_us_history]", "--id", "y", cwd=tmp_path)
    assert forked.code == 0, forked.err
    others = [line["input"] for line in exported("y", tmp_path / "runs")]
    assert others
    assert not set(asked) & set(others)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mmlu", "--set", "tasks.mmlu.subset=antomy"), "mmlu: subset: no row has the subject 'antomy'; did you mean"),
        (("mgsm", "--set", "tasks.mgsm.subset=dee"), "mgsm: subset: there is no 'dee'; did you mean 'de'?"),
        (("gsm8k", "--set", "tasks.gsm8k.subset=x"), "gsm8k: subset: the benchmark 'gsm8k' has no subsets"),
        (("mmlu", "--set", "tasks.mmlu.benchmark=mmlu:5shot"), "mmlu: benchmark: 'mmlu:5shot' would be another task"),
        (("mmlu", "--set", "tasks.mmul.subset=anatomy"), "there is no entry 'mmul'; there are mmlu"),
        (("mmlu", "--set", "tasks.mmlu.promt=x"), "mmlu: unknown field 'promt'; did you mean 'prompt'?"),
        (("mmlu", "--set", "mmlu.subset=anatomy"), "mmlu is one of the tasks; write --set tasks.mmlu.subset=…"),
        (("mmlu", "--set", "subset=anatomy"), "unknown field 'subset'; it is a field of a task: tasks.NAME.subset"),
        (("mmlu", "--set", "tasks.mmlu.fewshot=3"), "mmlu: fewshot: expected a mapping, got a number; write one, such"),
        (("gsm8k.yaml",), "gsm8k.yaml: no such file; to run the benchmark, write gsm8k"),
        (("simpleqa",), "simpleqa: scorers[0]: grade calls the role 'judge', which has no model; add it with --set ro"),
        (("mmlu:4shot",), "there is no benchmark 'mmlu:4shot'; there are: mmlu, mmlu:5shot, mmlu:likelihood,"),
        (("GSM8K",), "there is no benchmark 'GSM8K'; did you mean 'gsm8k'?"),
        (("arc-challenge",), "there is no benchmark 'arc-challenge'; did you mean 'arc_challenge'?"),
        (("gpqa",), "there is no benchmark 'gpqa'; there are: gpqa_diamond, gpqa_main"),
    ],
)
def test_a_typo_is_one_sentence_with_the_remedy(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    done = call("run", *arguments, "--model", "mock", cwd=tmp_path)
    assert (done.code, problem in done.err, done.err.count("\n")) == (2, True, 1), done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("hub")
def test_examples_for_a_benchmark_without_them_are_those_of_its_variant(tmp_path: Path) -> None:
    setting = ("--set", "tasks.mmlu.fewshot.n=2")
    done = call("run", "mmlu", "--model", "mock", "--limit", "1", *setting, "--dry-run", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    (messages,) = done.json()["cells"][0]["first"].values()
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert "mmlu has no examples of its own; mmlu:5shot has, with a prompt for them" in done.err
    none = call("run", "mmlu:5shot", "--model", "mock", "--limit", "1", "--set", "tasks[0].fewshot.n=0", cwd=tmp_path)
    assert none.code == 0, none.err
    assert "mmlu:5shot differs from the benchmark mmlu:5shot version 1 in: fewshot" in none.out


@pytest.mark.usefixtures("hub")
def test_an_id_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    def start(name: str, *more: str) -> Done:
        return call("run", name, "--model", "mock", "--limit", "1", "--id", "x", *more, cwd=tmp_path)

    assert start("gsm8k").code == 0
    refused = start("arc_easy")
    said = "the id x is that of the run gsm8k/x, and this would be another run, arc_easy/x; choose another --id"
    assert (refused.code, said in refused.err) == (3, True), refused.err
    assert os.listdir(tmp_path / "runs") == ["gsm8k"]
    assert start("gsm8k:5shot").code == 3  # the same experiment, and another task
    assert start("arc_easy", "--set", "experiment=arc_easy").code == 0
    assert (start("gsm8k").code, start("arc_easy").code) == (0, 0)  # each continues its own


@pytest.mark.usefixtures("hub")
def test_a_dry_run_and_a_card_show_the_continuations_that_are_scored(tmp_path: Path) -> None:
    model = ("--model", "vllm/base", "--base-url", "http://127.0.0.1:1/v1", "--limit", "1", "--dry-run")
    done = call("run", "winogrande:likelihood", *model, cwd=tmp_path)
    assert done.code == 0, done.err
    lines = [line.strip().partition(": ") for line in done.out.splitlines()]
    contexts = [text for name, _, text in lines if name == "context"]
    scored = [text for name, _, text in lines if name.startswith("continuation ")]
    assert (len(set(contexts)), len(scored), len(set(scored))) == (2, 2, 1), done.out
    found = call("run", "arc_easy:likelihood", *model, "--json", cwd=tmp_path).json()
    ((_, choices),) = found["cells"][0]["continuations"].items()
    assert {each["context"][-7:] for each in choices} == {"Answer:"}
    assert all(each["continuation"] == f" {each['text']}" for each in choices)
    assert found["estimate"]["requests"] == {"low": len(choices), "high": len(choices)}
    card = call("benchmarks", "show", "arc_easy:likelihood", cwd=tmp_path).out
    assert f'continuation {choices[0]["label"]}: "{choices[0]["continuation"]}"\n' in card
