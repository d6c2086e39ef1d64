"""Rules in the configuration of a store: what `gc` shows and `gc --yes` removes; mistakes; and a kill at each step."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.journal import Lock
from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import Done, call, environment, exported, finish, shown, start, wait_until, write_spec


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def make(folder: Path, *names: str, **changes: Any) -> None:
    write_spec(folder, 4, **changes)
    for name in names:
        done = call("run", "eval.yaml", "--id", name, cwd=folder)
        assert done.code == 0, done.err


def stop(folder: Path, *names: str, **changes: Any) -> None:
    """Runs that stopped at their budget: interrupted, with some answers."""
    write_spec(folder, 4, limits={"run": {"requests": 2}}, **changes)
    for name in names:
        assert call("run", "eval.yaml", "--id", name, cwd=folder).code == 6


def configure(store: Path, *rules: dict[str, Any]) -> None:
    (store / "store.yaml").write_text(yaml.safe_dump({"retention": list(rules)}))


def runs_in(store: Path) -> list[str]:
    return sorted(each["run_id"] for each in call("ls", "--store", store, "--json", cwd=store).json())


def is_refused(done: Done, said: str) -> bool:
    assert "Traceback" not in done.err
    return (done.code, done.out, done.err.count("\n")) == (2, "", 1) and said in done.err


def test_gc_without_options_shows_what_the_rules_select_and_yes_removes_it(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b", "c")
    make(tmp_path, "only", experiment="other")
    configure(store, {"keep": 1}, {"experiment": "other", "keep": 3})
    seen = call("gc", cwd=tmp_path)
    assert (seen.code, "Would remove 2 runs" in seen.out, "Nothing was changed" in seen.out) == (0, True, True), seen
    assert seen.out.count(f"rule 1 of {os.path.join('runs', 'store.yaml')}: not one of the newest 1 of sums") == 2
    assert runs_in(store) == ["a", "b", "c", "only"]
    removed = call("gc", "--yes", "--json", cwd=tmp_path).json()
    assert [(each["run_id"], each["rule"], each["removed"]) for each in removed] == [("a", 1, True), ("b", 1, True)]
    assert runs_in(store) == ["c", "only"]
    again = call("gc", "--yes", cwd=tmp_path)
    assert (again.code, "Nothing to remove" in again.out) == (0, True)
    assert sorted(os.listdir(store)) == ["other", "store.yaml", "sums"]
    assert call("doctor", cwd=tmp_path).out == "No problems found.\n"


def test_unfinished_runs_are_removed_only_if_a_rule_names_their_status(tmp_path: Path, store: Path) -> None:
    stop(tmp_path, "cut")
    with start_server_process(Behaviour(faults=[Fault("401")])) as server:
        write_spec(tmp_path, 2, server.base_url, model={"request_retries": 0})
        assert call("run", "eval.yaml", "--id", "bad", cwd=tmp_path).code == 1
    make(tmp_path, "done", "newest")
    assert {name: shown(name, store)["status"] for name in ("cut", "bad")} == {"cut": "interrupted", "bad": "failed"}
    configure(store, {"keep": 0})
    assert [each["run_id"] for each in call("gc", "--json", cwd=tmp_path).json()] == ["done", "newest"]
    configure(store, {"status": "interrupted", "keep": 0})
    assert [each["run_id"] for each in call("gc", "--json", cwd=tmp_path).json()] == ["cut"]
    configure(store, {"status": ["interrupted", "failed"], "keep": 1})
    assert call("gc", "--yes", cwd=tmp_path).code == 0
    assert runs_in(store) == ["done", "newest"]


@pytest.mark.long
def test_an_age_of_an_unfinished_run_counts_from_its_last_record(tmp_path: Path, store: Path) -> None:
    stop(tmp_path, "cut")
    make(tmp_path, "newest")
    configure(store, {"status": ["interrupted"], "older_than": "1h"}, {"older_than": "30d"})
    assert call("gc", "--json", cwd=tmp_path).json() == []
    seconds = 10
    time.sleep(seconds + 1)
    configure(store, {"status": ["interrupted"], "older_than": seconds / 86400})
    (found,) = call("gc", "--json", cwd=tmp_path).json()
    assert (found["run_id"], "interrupted, not written for" in found["why"]) == ("cut", True)
    assert call("note", "cut", "still needed", cwd=tmp_path).code == 0
    assert call("gc", "--yes", "--json", cwd=tmp_path).json() == []
    assert runs_in(store) == ["cut", "newest"]


def test_the_option_does_the_same_as_the_rule(tmp_path: Path, store: Path) -> None:
    stop(tmp_path, "cut", "too")
    make(tmp_path, "newest")
    found = call("gc", "--status", "interrupted", "--keep", "2", "--json", cwd=tmp_path).json()
    assert [(each["run_id"], each["rule"], each["why"]) for each in found] == [
        ("cut", None, "not one of the newest 2 of sums")
    ]
    configure(store, {"status": "interrupted", "keep": 2})
    (same,) = call("gc", "--json", cwd=tmp_path).json()
    assert same["run_id"] == "cut"
    by_option = call("gc", "--keep", "1", "--json", cwd=tmp_path).json()
    assert by_option == [], "options are used instead of the rules"


def test_tagged_live_and_newest_runs_stay_whatever_the_rules(tmp_path: Path, store: Path) -> None:
    stop(tmp_path, "a", "b", "c", "newest")
    assert call("tag", "a", "paper", cwd=tmp_path).code == 0
    configure(store, {"status": ["interrupted", "completed"], "max_size": 0})
    lock = Lock(str(store / "sums" / "b"))
    try:
        assert [each["run_id"] for each in call("gc", "--yes", "--json", cwd=tmp_path).json()] == ["c"]
    finally:
        lock.release()
    assert runs_in(store) == ["a", "b", "newest"]
    configure(store, {"status": "interrupted", "max_size": 0, "tagged_too": True, "latest_too": True})
    assert call("gc", "--yes", cwd=tmp_path).code == 0
    assert runs_in(store) == []


def test_a_run_that_is_resumed_while_gc_looks_is_kept(tmp_path: Path, store: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=30)) as server:
        write_spec(tmp_path, 4, server.base_url, grace_seconds=0)
        configure_at = store / "store.yaml"
        with start("run", "eval.yaml", "--id", "live", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 4, process)
            configure_at.write_text("retention: [{status: [interrupted, completed, failed, cancelled], keep: 0}]\n")
            assert call("gc", "--yes", "--json", cwd=tmp_path).json() == []
            finish(process, signal.SIGINT)
    assert shown("live", store)["status"] == "interrupted"
    assert call("gc", "--yes", cwd=tmp_path).code == 0
    assert runs_in(store) == []


def test_a_fork_is_whole_after_its_parent_was_removed_by_a_rule(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "parent")
    assert call("fork", "parent", "--id", "child", cwd=tmp_path).code == 0
    before = exported("child", store)
    configure(store, {"keep": 1})
    assert call("gc", "--yes", cwd=tmp_path).code == 0
    assert runs_in(store) == ["child"]
    assert exported("child", store) == before
    assert call("verify", "child", "--scores", cwd=tmp_path).code == 0
    assert call("resume", "child", cwd=tmp_path).code == 0


def test_mirrors_stay_unless_they_are_asked_for(tmp_path: Path, store: Path) -> None:
    mirror = {"url": f"file://{tmp_path}/mirror"}
    env = {"HOLDFAST_EXPIRY_SECONDS": "2"}
    write_spec(tmp_path, 4, limits={"run": {"requests": 2}}, mirror=mirror)
    for name in ("a", "b"):
        assert call("run", "eval.yaml", "--id", name, cwd=tmp_path, env=env).code == 6
    configure(store, {"status": "interrupted", "keep": 1})
    gone = call("gc", "--yes", cwd=tmp_path, env=env)
    assert (gone.code, f"The mirror of a is kept: file://{tmp_path}/mirror/sums/a" in gone.out) == (0, True), gone.out
    back = call("recover", f"file://{tmp_path}/mirror/sums/a", "--output", store, cwd=tmp_path, env=env)
    assert back.code == 0, back.err
    configure(store, {"status": "interrupted", "keep": 0})
    both = call("gc", "--yes", "--mirror", "--json", cwd=tmp_path, env=env)
    assert [(each["removed"], each["mirror_goes"]) for each in both.json()] == [(True, True)] * 2, both.said
    assert call("ls", "--store", f"file://{tmp_path}/mirror", "--json", cwd=tmp_path, env=env).json() == []


def test_only_the_runs_of_one_experiment_are_listed_with_its_option(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b")
    make(tmp_path, "c", "d", experiment="other")
    configure(store, {"keep": 1})
    assert [each["run_id"] for each in call("gc", "--experiment", "other", "--json", cwd=tmp_path).json()] == ["c"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that nothing removes."""
    folder = tmp_path_factory.mktemp("kept")
    make(folder, "a", "b")
    return folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention: [{kep: 5}]", "runs/store.yaml: retention[0]: unknown field 'kep'; did you mean 'keep'?"),
        ("retentions: []", "runs/store.yaml: unknown field 'retentions'; did you mean 'retention'?"),
        ("retention: {keep: 5}", "runs/store.yaml: retention: expected `array`, got `object`"),
        ("retention: [{keep: many}]", "runs/store.yaml: retention[0].keep: expected `int | null`, got `str`"),
        ("retention: [{keep: -1}]", "runs/store.yaml: retention[0].keep: expected `int` >= 0"),
        ("retention: [{older_than: soon}]", "runs/store.yaml: retention[0].older_than soon: write an age such as 12h"),
        ("retention: [{older_than: -3}]", "runs/store.yaml: retention[0].older_than -3: write an age"),
        ("retention: [{max_size: much}]", "runs/store.yaml: retention[0].max_size much: write a size such as 500MB"),
        ("retention: [{keep: 1, status: running}]", "retention[0].status 'running': a rule removes completed, interr"),
        ("retention: [{keep: 1, status: []}]", "retention[0].status '': a rule removes completed"),
        ("retention: [{keep: 1}, {experiment: x}]", "retention[1]: say what to remove: older_than, keep or max_size"),
        ("retention: [{}]", "retention[0]: say what to remove"),
        ("- keep: 5", "runs/store.yaml: expected `object`, got `array`"),
        ("retention: [{keep: 5", "runs/store.yaml, line 1, column"),
        ("keep: 1\nkeep: 2", "the key 'keep' is repeated"),
        ("\x00", "runs/store.yaml"),
        ("", "say which runs to remove: --older-than 30d, --keep 5, --max-size 10GB, or name runs; or write rules"),
        ("retention: []", "say which runs to remove"),
    ],
)
def test_a_configuration_with_a_mistake_removes_nothing(kept: Path, text: str, said: str) -> None:
    store = kept / "runs"
    (store / "store.yaml").write_text(text)
    for options in ([], ["--yes"], ["--yes", "--json"]):
        done = call("gc", *options, cwd=kept)
        assert is_refused(done, said), done
    assert runs_in(store) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--status", "failed"], "say which runs to remove"),
        (["--status", "running", "--keep", "1"], "--status 'running': a rule removes completed"),
        (["--status", "lost", "--keep", "1"], "--status 'lost'"),
        (["a", "--status", "failed"], "name runs, or select them with options"),
        (["--tagged-too"], "say which runs to remove"),
    ],
)
def test_options_that_select_nothing_are_refused_beside_rules(
    tmp_path: Path, store: Path, arguments: list[str], said: str
) -> None:
    make(tmp_path, "a", "b")
    configure(store, {"keep": 1})
    done = call("gc", *arguments, "--yes", cwd=tmp_path)
    assert is_refused(done, said), done
    assert runs_in(store) == ["a", "b"]


def test_an_experiment_with_the_name_of_the_configuration_is_an_experiment(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", experiment="store.yaml")
    assert is_refused(call("gc", cwd=tmp_path), "say which runs to remove")
    assert runs_in(store) == ["a"]


@pytest.mark.parametrize(
    ("module", "function"),
    [
        pytest.param("holdfast.runs.maintenance.retention", "Lock", marks=pytest.mark.long),
        ("holdfast.runs.maintenance.retention", "hide_folder"),
        pytest.param("holdfast.runs.maintenance.retention", "remove_note", marks=pytest.mark.long),
        ("shutil", "rmtree"),
        pytest.param("os", "unlink", marks=pytest.mark.long),
        pytest.param("os", "rmdir", marks=pytest.mark.long),
        pytest.param("holdfast.cli.commands.maintenance", "remove_stale_entries", marks=pytest.mark.long),
    ],
)
def test_a_gc_that_is_killed_at_any_step_leaves_whole_runs_and_the_next_one_finishes(
    tmp_path: Path, store: Path, module: str, function: str
) -> None:
    stop(tmp_path, "cut")
    make(tmp_path, "old", "newest")
    configure(store, {"keep": 1}, {"status": "interrupted", "keep": 1})
    answers = exported("newest", store)
    command = [
        sys.executable,
        "-m",
        "tests.e2e.child_killed_at",
        module,
        function,
        "gc",
        "--yes",
        "--store",
        str(store),
    ]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment(), capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    for name in runs_in(store):
        assert call("verify", name, cwd=tmp_path).code == 0, name
    assert call("gc", "--yes", cwd=tmp_path).code == 0
    assert os.listdir(store / "sums") == ["newest"], "hidden folders are removed too"
    assert exported("newest", store) == answers
    assert call("doctor", cwd=tmp_path).out == "No problems found.\n"
