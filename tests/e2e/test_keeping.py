"""Keeping a store as a user does it: doctor, gc, ls, tag, note, and exit codes of runs in which something fails."""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.journal import Lock
from holdfast.runs import find_run
from holdfast.runs.execution.session import is_too_many
from holdfast.runs.maintenance import retention
from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.caches import catalogue_file, index_file
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, sums, wait_until, write_rows, write_spec
from tests.e2e.test_secrets import SECRET, echo
from tests.unit.runs.stores import of_newer_format

ROWS = 6


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def make(folder: Path, *names: str, **changes: Any) -> None:
    write_spec(folder, ROWS, **changes)
    for name in names:
        done = call("run", "eval.yaml", "--id", name, cwd=folder)
        assert done.code == 0, done.err


def one_sentence(done: Done, code: int = 2) -> bool:
    """Refused as the contract says: a sentence on standard error, and nothing else."""
    return done.code == code and done.out == "" and done.err.count("\n") == 1 and "Traceback" not in done.err


def names(done: Done) -> list[str]:
    assert done.code == 0, done.err
    return [each["run_id"] for each in done.json()]


# doctor


@contextlib.contextmanager
def killed(folder: Path, behaviour: Behaviour, number: signal.Signals = signal.SIGKILL) -> Iterator[ServerProcess]:
    """A run that was ended by a signal when it had made some answers."""
    with start_server_process(behaviour) as server:
        write_spec(folder, 40, server.base_url, model={"max_connections": 2}, grace_seconds=0.2)
        with start("run", "eval.yaml", "--id", "x", cwd=folder) as process:
            assert wait_until(lambda: server.stats().requests >= 10, process)
            finish(process, number)
        yield server


def test_a_killed_run_is_reported_with_when_and_what_is_kept_and_the_command_works(tmp_path: Path, store: Path) -> None:
    with killed(tmp_path, Behaviour(latency_seconds=0.05)):
        done = call("doctor", "--json", cwd=tmp_path)
        (found,) = done.json()
        kept = shown("x", store)["finished"]
        assert found["what"].startswith("interrupted: killed at about 20")
        assert f"{kept} of 40 answers kept" in found["what"]
        assert {"what", "means", "command", "run", "fixed"} <= set(found)
        assert call("doctor", "--fix", cwd=tmp_path).code == 0
        again = run(*shlex.split(found["command"])[1:], cwd=tmp_path)
        assert again.code == 0, again.err
    healthy = call("doctor", cwd=tmp_path)
    assert (healthy.code, healthy.out) == (0, "No problems found.\n")
    assert call("doctor", "--json", cwd=tmp_path).json() == []


def test_a_command_that_doctor_offers_works_from_another_folder(tmp_path: Path, store: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with killed(tmp_path, Behaviour(latency_seconds=0.05)):
        (found,) = call("doctor", "--json", "--store", store, cwd=elsewhere).json()
        again = call(*shlex.split(found["command"])[1:], cwd=elsewhere)
    assert again.code == 0, again.err


def test_a_spec_file_that_was_edited_keeps_a_resume_away_until_doctor_restores_it(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "x")
    path = store / "sums" / "x" / "spec.yaml"
    path.write_text("experiment: another\n")
    assert call("resume", "x", cwd=tmp_path).code == 3
    said = call("doctor", "--fix", cwd=tmp_path)
    assert (said.code, "fixed" in said.out) == (0, True)
    assert call("resume", "x", cwd=tmp_path).code == 0
    assert path.with_name("spec.yaml.old").read_text() == "experiment: another\n"
    assert call("doctor", cwd=tmp_path).out == "No problems found.\n"


def test_doctor_for_a_run_or_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert one_sentence(call("doctor", "none", cwd=tmp_path))
    assert call("doctor", cwd=tmp_path).code == 0
    assert one_sentence(call("doctor", "--fix", "--json", "--store", "nowhere", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


# gc


def test_gc_shows_first_and_removes_only_with_yes(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b", "c")
    before = sorted(os.listdir(store / "sums"))
    shows = call("gc", "--keep", "1", cwd=tmp_path)
    assert (shows.code, "Nothing was changed" in shows.out) == (0, True)
    assert names(call("gc", "--keep", "1", "--json", cwd=tmp_path)) == ["a", "b"]
    assert sorted(os.listdir(store / "sums")) == before
    removed = call("gc", "--keep", "1", "--yes", "--json", cwd=tmp_path).json()
    assert [(each["run_id"], each["removed"]) for each in removed] == [("a", True), ("b", True)]
    assert os.listdir(store / "sums") == ["c"]
    assert names(call("ls", "--json", cwd=tmp_path)) == ["c"]
    assert call("gc", "--keep", "1", "--yes", cwd=tmp_path).code == 0


def test_gc_3_per_experiment_never_empties_an_experiment(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b", "c", "d")
    make(tmp_path, "only", experiment="other")
    assert call("gc", "--keep", "3", "--yes", cwd=tmp_path).code == 0
    assert sorted(names(call("ls", "--json", cwd=tmp_path))) == ["b", "c", "d", "only"]


def test_tagged_runs_and_the_newest_of_each_experiment_are_kept_unless_named(tmp_path: Path) -> None:
    make(tmp_path, "a", "b", "c")
    call("tag", "a", "paper", cwd=tmp_path)
    assert names(call("gc", "--max-size", "0", "--json", cwd=tmp_path)) == ["b"]
    assert names(call("gc", "--max-size", "0", "--tagged-too", "--json", cwd=tmp_path)) == ["a", "b"]
    assert names(call("gc", "--max-size", "0", "--latest-too", "--json", cwd=tmp_path)) == ["b", "c"]
    assert names(call("gc", "--older-than", "30d", "--json", cwd=tmp_path)) == []
    assert names(call("gc", "--max-size", "0", "--experiment", "other", "--json", cwd=tmp_path)) == []
    assert names(call("gc", "--max-size", "10GB", "--json", cwd=tmp_path)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--older-than soon",
        "--older-than 1.2.3",
        "--older-than .",
        "--older-than -5d",
        "--older-than 999999999999999999999999y",
        "--max-size much",
        "--max-size 1.2.3",
        "--max-size 10XB",
        f"--max-size {'9' * 400}",
        "no-such-run",
    ],
)
def test_a_gc_that_makes_no_sense_is_refused_in_one_sentence(tmp_path: Path, arguments: str) -> None:
    make(tmp_path, "a")
    assert one_sentence(call("gc", *arguments.split(), cwd=tmp_path))
    assert names(call("ls", "--json", cwd=tmp_path)) == ["a"]


def test_a_size_is_read_as_it_is_written_by_ls(tmp_path: Path) -> None:
    """1 MB is the same number of bytes in what is shown and in what is typed."""
    make(tmp_path, "a", "b")
    folders = [tmp_path / "runs" / "sums" / name for name in ("a", "b")]
    names(call("ls", "--json", cwd=tmp_path))
    used = sum(path.lstat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    with open(folders[0] / "mine", "wb") as file:
        file.truncate(1_020_000 - used)
    assert names(call("gc", "--max-size", "1MB", "--json", cwd=tmp_path)) == ["a"], "1.02 MB is more than 1 MB"


def test_rules_beside_names_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    assert one_sentence(call("gc", "a", "--older-than", "30d", "--yes", cwd=tmp_path))
    assert names(call("ls", "--json", cwd=tmp_path)) == ["a", "b"]


def test_a_run_that_is_named_twice_is_removed_once(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    done = call("gc", "a", "a", "--yes", cwd=tmp_path)
    assert done.code == 0, done.err
    assert names(call("ls", "--json", cwd=tmp_path)) == ["b"]


def test_what_a_killed_gc_left_is_removed_by_the_next(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b")
    os.rename(store / "sums" / "a", store / "sums" / ".gone-0123")
    assert names(call("ls", "--json", cwd=tmp_path)) == ["b"]
    assert call("gc", "--keep", "5", cwd=tmp_path).code == 0
    assert (store / "sums" / ".gone-0123").exists(), "without --yes nothing is changed"
    assert call("gc", "--keep", "5", "--yes", cwd=tmp_path).code == 0
    assert os.listdir(store / "sums") == ["b"]


def test_a_run_that_is_taken_meanwhile_does_not_keep_gc_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a", "b", "c")
    locks = []
    before = retention.remove

    def remove(doomed: retention.RemovalCandidate) -> None:
        if doomed.place.run_id == "a":
            locks.append(Lock(doomed.place.folder))
        before(doomed)

    monkeypatch.setattr("holdfast.cli.commands.maintenance.remove", remove)
    done = call("gc", "--keep", "1", "--yes", "--json", cwd=tmp_path)
    locks[0].release()
    assert names(call("ls", "--json", cwd=tmp_path)) == ["a", "c"]
    told = {each["run_id"]: each["removed"] for each in done.json()}
    assert told == {"a": False, "b": True}


# tags and notes


ODD = ["two words", "a,b", "ünï😀", "[bold]", "x=1", "/", "%2F", "q'\""]


def test_tags_of_any_kind_come_and_go_and_are_shown(tmp_path: Path) -> None:
    make(tmp_path, "a", tags=["spec"])
    for tag in ODD:
        done = call("tag", "a", *(["--", tag] if tag.startswith("-") else [tag]), cwd=tmp_path)
        assert done.code == 0, done.err
    plain = [tag for tag in ODD if not tag.startswith("-")]
    assert shown("a", tmp_path / "runs")["tags"] == ["spec", *plain]
    assert call("tag", "a", "-spec", "-[bold]", cwd=tmp_path).code == 0
    left = [tag for tag in plain if tag != "[bold]"]
    assert call("show", "a", "--json", cwd=tmp_path).json()["tags"] == left
    assert names(call("ls", "--tag", "two words", "--json", cwd=tmp_path)) == ["a"]
    assert names(call("ls", "--tag", "spec", "--json", cwd=tmp_path)) == []
    assert call("tag", "a", "high", "nightly", cwd=tmp_path).code == 0
    removed = call("tag", "a", "-high", "-nightly", cwd=tmp_path)
    assert (removed.code, "Usage" in removed.said) == (0, False), "-h inside a tag is not --help"
    assert call("show", "a", "--json", cwd=tmp_path).json()["tags"] == left
    assert "two words" in call("ls", cwd=tmp_path).out
    assert "two words" in call("show", "a", cwd=tmp_path).out


@pytest.mark.parametrize("arguments", [["tag", "a", ""], ["tag", "a", "-"], ["note", "a", ""], ["note", "a", "  \n"]])
def test_an_empty_tag_or_note_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    make(tmp_path, "a")
    assert one_sentence(call(*arguments, cwd=tmp_path))


def test_a_note_is_shown_and_changes_nothing_else(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a")
    answers, before = exported("a", store), shown("a", store)
    assert call("note", "a", "a good one: [red] 100 %", cwd=tmp_path).code == 0
    after = shown("a", store)
    assert [note["text"] for note in after["notes"]] == ["a good one: [red] 100 %"]
    assert "a good one: [red] 100 %" in call("show", "a", cwd=tmp_path).out
    assert exported("a", store) == answers
    same = ("status", "reason", "completed", "scores", "evaluations", "usage", "steps", "anomalies", "resumes")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert call("verify", "a", cwd=tmp_path).code == 0
    assert call("doctor", cwd=tmp_path).out == "No problems found.\n"
    assert call("run", "eval.yaml", "--id", "a", cwd=tmp_path).code == 0
    assert shown("a", store)["resumes"] == []


def test_a_note_on_an_interrupted_run_leaves_it_interrupted_and_resumable(tmp_path: Path, store: Path) -> None:
    with killed(tmp_path, Behaviour(latency_seconds=0.05)):
        before = shown("x", store)
        assert call("note", "x", "killed by me", cwd=tmp_path).code == 0
        assert call("tag", "x", "again", cwd=tmp_path).code == 0
        after = shown("x", store)
        assert (after["status"], after["finished"]) == ("interrupted", before["finished"])
        assert after["reason"] == before["reason"]
        assert call("resume", "x", cwd=tmp_path).code == 0
    assert shown("x", store)["tags"] == ["again"]


def test_a_note_from_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a")
    assert one_sentence(call("note", "a", "\udcff", cwd=tmp_path))
    assert shown("a", tmp_path / "runs")["notes"] == []


# a live run


def test_a_live_run_is_cancelled_and_both_commands_say_so_at_once(tmp_path: Path, store: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=30)) as server:
        write_spec(tmp_path, 4, server.base_url, grace_seconds=0)
        with start("run", "eval.yaml", "--id", "x", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 4, process)
            cancelled = call("cancel", "x", cwd=tmp_path)
            ended = finish(process)
    assert (cancelled.code, ended.code) == (0, 130), cancelled.err
    assert shown("x", store)["status"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_log_tells_that_a_signal_asked_the_run_to_stop(tmp_path: Path, store: Path, number: signal.Signals) -> None:
    with killed(tmp_path, Behaviour(latency_seconds=0.05), number):
        lines = [json.loads(line) for line in (store / "sums" / "x" / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run.started", "run.shutdown_requested", "run.interrupted"]


def test_a_key_is_not_in_the_log_nor_in_the_catalogue(tmp_path: Path, store: Path) -> None:
    model = {"request_retries": 0, "api_key_env": "OPENAI_API_KEY"}
    with echo(401) as (address, seen):
        write_spec(tmp_path, 2, f"http://{address}", task={"sample_retries": 0}, model=model)
        assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path, env={"OPENAI_API_KEY": SECRET}).code == 1
    assert any(SECRET in each for each in seen)
    call("ls", cwd=tmp_path)
    log = (store / "sums" / "x" / "log.jsonl").read_text()
    assert (log.count("cell.stopped"), SECRET in log) == (1, False)
    assert SECRET.encode() not in catalogue_file(store).read_bytes()


# what does not delay a run


def test_a_run_neither_waits_for_nor_fails_with_a_locked_catalogue_and_index(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a")
    call("ls", cwd=tmp_path)
    with contextlib.ExitStack() as stack:
        for path in (catalogue_file(store), index_file(store / "sums" / "a")):
            fcntl.flock(stack.enter_context(path.open("r+b")), fcntl.LOCK_EX)
        assert call("run", "eval.yaml", "--id", "b", cwd=tmp_path).code == 0
        assert call("resume", "a", cwd=tmp_path).code == 0
        assert sorted(names(call("ls", "--json", cwd=tmp_path))) == ["a", "b"]


# runs in which something fails


HALF = """\
async def half(sample, ctx):
    if sample.row["bad"]:
        raise ValueError("not this one")
    return "8"
"""


def failing(folder: Path, good: int, bad: int, **fields: Any) -> Done:
    """A solver of the user's own that answers some of its rows."""
    (folder / "half.py").write_text(HALF)
    write_spec(folder, good + bad, task={"solver": "half:half", "sample_retries": 0}, **fields)
    write_rows(folder / "sums.jsonl", [{**row, "bad": number >= good} for number, row in enumerate(sums(good + bad))])
    return call("run", "eval.yaml", "--id", "x", cwd=folder)


@pytest.mark.parametrize(
    ("bad", "allowed", "code"),
    [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1), (2, 2, 0), (2, 0.5, 0), (3, 0.5, 1), (1, 0.25, 0), (2, 0.25, 1)],
)
def test_as_many_samples_may_fail_as_fail_on_error_allows(tmp_path: Path, bad: int, allowed: float, code: int) -> None:
    done = failing(tmp_path, 4 - bad, bad, fail_on_error=allowed)
    assert done.code == code, done.err
    assert shown("x", tmp_path / "runs")["failed"] == bad


@pytest.mark.parametrize(
    ("allowed", "in_cell", "code"), [(99, None, 0), (99, 1, 1), (99, 2, 0), (99, 0.5, 0), (99, 0.49, 1), (1, 2, 1)]
)
def test_as_many_samples_of_a_cell_may_fail_as_fail_on_error_in_cell_allows(
    tmp_path: Path, allowed: float, in_cell: float | None, code: int
) -> None:
    done = failing(tmp_path, 2, 2, fail_on_error=allowed, fail_on_error_in_cell=in_cell)
    assert done.code == code, done.err


def test_a_share_is_exact_at_its_boundary_whatever_the_numbers() -> None:
    wrong = [
        (failed, total)
        for total in range(2, 201)
        for failed in range(1, total)
        if is_too_many(failed, total, float(f"{failed / total!r}"))
    ]
    assert wrong == []
    assert [failed for failed in range(1, 100) if is_too_many(failed, 100, float(f"0.{failed:02}"))] == []


def down() -> str:
    """An address at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}/v1"


def test_a_model_that_is_down_or_has_a_wrong_key_does_not_stop_the_other_cells(tmp_path: Path, store: Path) -> None:
    with (
        start_server_process() as fine,
        start_server_process(Behaviour(faults=[Fault("401")])) as refusing,
    ):
        path = write_spec(tmp_path, ROWS, fine.base_url)
        spec = yaml.safe_load(path.read_text())
        (good,) = spec["models"]
        spec["models"] = [
            {**good, "name": "down", "base_url": down(), "request_retries": 0},
            {**good, "name": "refused", "base_url": refusing.base_url, "request_retries": 0},
            {**good, "name": "fine"},
        ]
        spec["tasks"].append({**spec["tasks"][0], "name": "more"})
        spec["defaults"] = {"sample_retries": 0}
        path.write_text(yaml.safe_dump(spec))
        done = call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
        assert done.code == 1, done.err
    report = call("report", "x", "--json", cwd=tmp_path).json()
    cells = {(cell["task"], cell["model"]): cell for cell in report["cells"]}
    assert len(cells) == 6
    for (_, model), cell in cells.items():
        expected = {"fine": (ROWS, ROWS, 0), "down": (ROWS, 0, ROWS), "refused": (ROWS, 0, 0)}[model]
        assert (cell["planned"], cell["finished"], cell["failed"]) == expected, "what a wrong key stops has not failed"
    summary = shown("x", store)
    assert (summary["finished"], summary["failed"], summary["unfinished"]) == (2 * ROWS, 2 * ROWS, 2 * ROWS)
    assert {(each["model"], each["kind"]) for each in summary["failures"]} == {("down", "connection")}
    assert "auth" in summary["reason"]


def test_one_run_of_a_newer_version_does_not_hide_the_others_from_ls(tmp_path: Path, store: Path) -> None:
    make(tmp_path, "a", "b")
    of_newer_format(find_run(str(store), "a"))
    done = call("ls", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "b" in names(done)
