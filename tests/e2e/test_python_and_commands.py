"""Python does what the commands do: the same numbers, the same files, the same changes of a run."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import DamagedError, HeldError, UsageError
from tests.e2e.commands import call, environment, exported, shown, write_spec
from tests.e2e.known_answers import once, run_known
from tests.e2e.live_runs import RUN, alive, begun, ends, gate, stage
from tests.stores import Bucket


@pytest.fixture(autouse=True)
def unchanged_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in this process make the user's modules importable: later tests must not find these."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine", None)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Of two runs, `one` and `two`, whose answers are known."""
    run_known(tmp_path, {"one": once(0, 1, 2, of=12), "two": once(0, 1, 3, 4, 5, 6, 7, 8, 9, of=12)})
    return str(tmp_path / "runs")


def as_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def commanded(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = call(*arguments, "--store", folder / "runs", "--json", cwd=folder)
    assert done.code == code, done.err
    return done.json()


def test_compare_gives_the_numbers_of_the_command(tmp_path: Path, store: str) -> None:
    found = holdfast.compare("one", "two", store=store)
    assert as_json(found) == commanded(tmp_path, "compare", "one", "two")
    with holdfast.open_run("one", store=store) as one:
        assert holdfast.compare(one, Path(store, "known", "two"), store=store) == found
        assert one.status() == ("completed", ""), "a run that the caller opened stays open"
    assert asyncio.run(holdfast.compare_async("one", "two", store=store, adjust="bh")) == holdfast.compare(
        "one", "two", store=store, adjust="bh"
    )
    (only,) = found.comparisons
    assert only.difference is not None
    assert f"{only.difference.mean:+.4f}" in str(found)
    assert f"{only.mean_second:.4f}" in str(found.table(all_columns=True))
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize(("margin", "code"), [(0.9, 0), (0.0, 7)])
def test_gate_gives_the_verdict_of_the_command(tmp_path: Path, store: str, margin: float, code: int) -> None:
    found = holdfast.gate("two", "one", margin=margin, store=store, confidence=0.9999)
    arguments = ("--baseline", "one", "--margin", str(margin), "--confidence", "0.9999")
    assert as_json(found) == commanded(tmp_path, "gate", "two", *arguments, code=code)
    assert found.passed is (code == 0)
    assert ("not passed" in str(found)) is (code == 7)
    level = asyncio.run(holdfast.gate_async("two", at_least=0.1, store=store, scorer="numeric"))
    assert as_json(level) == commanded(tmp_path, "gate", "two", "--at-least", "0.1", "--scorer", "numeric")


def test_leaderboard_gives_the_ranks_of_the_command(tmp_path: Path, store: str) -> None:
    found = holdfast.leaderboard("one", "two", store=store)
    assert as_json(found) == commanded(tmp_path, "leaderboard", "one", "two")
    assert asyncio.run(holdfast.leaderboard_async("one", "two", store=store, task="quiz")) == found
    assert "rank" in str(found)


def test_lists_of_runs_are_those_of_the_commands(tmp_path: Path, store: str) -> None:
    found = holdfast.list_runs(store)
    assert as_json(list(found)) == commanded(tmp_path, "ls")
    assert [line.run_id for line in holdfast.list_runs(store, limit=1)] == [found[-1].run_id]
    assert len(asyncio.run(holdfast.list_runs_async(store, status="failed"))) == 0
    assert list(found.to_pandas()["run_id"]) == ["one", "two"]
    assert len(holdfast.recoverable(store)) == 0


def test_recoverable_lists_what_the_command_lists(tmp_path: Path, bucket: Bucket) -> None:
    spec = write_spec(tmp_path, 4, mirror={"url": bucket.url, "seconds": 0.2})
    assert call("run", spec, "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    (found,) = asyncio.run(holdfast.recoverable_async(bucket.url))
    (listed,) = call("recover", bucket.url, "--list", "--json", cwd=tmp_path).json()
    assert {**as_json(found), "age_seconds": 0} == {**listed, "age_seconds": 0}
    with holdfast.open_run(found.place) as copy:
        assert copy.verify().ok
        with pytest.raises(UsageError, match=r"restore it: holdfast.recover\("):
            copy.resume()


@pytest.mark.parametrize(
    ("call_it", "message"),
    [
        (lambda store: holdfast.compare("one", scorer="no", store=store), "scorer no: nothing to compare"),
        (lambda store: holdfast.compare("one", store=store), "one has one model for each task"),
        (lambda store: holdfast.compare(store=store), "name a run"),
        (lambda store: holdfast.gate("one", store=store), "give either baseline RUN or at_least NUMBER"),
        (lambda store: holdfast.gate("one", at_least=0.5, task="no", store=store), "task no: one has no such task"),
        (lambda store: holdfast.list_runs(store, status="complete"), "status complete: there is no such status"),
        (lambda store: holdfast.open_run("one", store=store).plot("skores"), "did you mean 'scores'"),
        (lambda store: holdfast.open_run("one", store=store).export("x.txt"), "name the format"),
        (lambda store: holdfast.open_run("one", store=store).export("x.csv", tasks=["no"]), "task no: one has none"),
        (lambda store: holdfast.open_run("one", store=store).export("x.csv", events=True), "cannot hold events"),
        (lambda store: holdfast.open_run("one", store=store).cancel(), "no process is working on it"),
        (lambda store: holdfast.open_run("one", store=store).tag(" "), "at least one letter"),
    ],
)
def test_errors_name_parameters_not_options(store: str, call_it: Callable[[str], Any], message: str) -> None:
    with pytest.raises(UsageError) as found:
        call_it(store)
    assert message in str(found.value)


def test_a_damaged_run_is_not_compared(store: str) -> None:
    Path(store, "known", "one", "plan.jsonl.zst").unlink()
    with pytest.warns(holdfast.errors.DamageWarning), pytest.raises(DamagedError):
        holdfast.compare("one", "two", store=store)


@pytest.mark.parametrize("options", [{}, {"wrong": True}, {"events": True}])
def test_an_export_has_the_bytes_of_the_command(tmp_path: Path, store: str, options: dict[str, Any]) -> None:
    flags = [f"--{name}" for name in options]
    there = ("--store", store, "--output", tmp_path / "command.jsonl")
    assert call("export", "one", *flags, *there, cwd=tmp_path).code == 0
    with holdfast.open_run("one", store=store) as run:
        run.export(tmp_path / "python.jsonl", **options)
        asyncio.run(run.export_async(tmp_path / "again.txt", "jsonl", **options))
    expected = (tmp_path / "command.jsonl").read_bytes()
    assert expected.count(b"\n") == (9 if options.get("wrong") else 12)
    assert (tmp_path / "python.jsonl").read_bytes() == (tmp_path / "again.txt").read_bytes() == expected


def test_a_run_is_verified_as_by_the_command(tmp_path: Path, store: str) -> None:
    with holdfast.open_run("one", store=store) as run:
        found = run.verify(scores=True)
        assert found.ok
        assert as_json(found.as_json()) == commanded(tmp_path, "verify", "one", "--scores")
        assert "no damage" in str(asyncio.run(run.verify_async()))
        journal = next(Path(store, "known", "one", "journal").glob("*.jsonl*"))
        journal.write_bytes(journal.read_bytes()[:-3])
        assert not run.verify().ok


def test_a_plot_is_the_one_of_the_report(tmp_path: Path, store: str) -> None:
    assert call("report", "one", "--plots", "p", "--plot-format", "svg", "--store", store, cwd=tmp_path).code == 0
    with holdfast.open_run("one", store=store) as run:
        plot = run.plot("scores", scorer="numeric")
        assert asyncio.run(run.plot_async("seconds")).name == "seconds.svg"
        assert run.plot(image="png")._repr_png_() is not None
    plot.save(tmp_path / "mine.svg")
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "p" / "scores-numeric.svg").read_bytes()
    assert "<svg" in (plot._repr_svg_() or "")


def test_a_run_is_scored_extended_forked_and_tagged(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, 6), tmp_path / "runs"
    assert call("run", spec, "--id", "x", "--limit", "2", "--store", store, cwd=tmp_path).code == 0
    with holdfast.open_run("x", store=str(store)) as run:
        assert run.extend(limit=4) is run
        assert (shown("x", store)["planned"], run.summary().planned) == (4, 4)
        report = run.score("includes", name="loose")
        assert [each.scorer for cell in report.cells for each in cell.scorers] == ["includes"]
        listed = commanded(tmp_path, "score", "x", "--list")
        assert [(each["evaluation"], each["name"]) for each in listed][-1] == (report.evaluation, "loose")
        with run.fork("y", changes={"models.arith.options.reply": "9"}) as fork:
            assert {line.output for line in fork.samples()} == {"9"}
            assert fork.summary().parent is not None
        run.tag("nightly", "old")
        run.tag("-old")
        run.note("looked at")
        assert run.retry() is run, "without failed samples, nothing happens"
        assert shown("x", store)["tags"] == run.summary().tags == ["nightly"]
        assert [note["text"] for note in shown("x", store)["notes"]] == ["looked at"]
        with pytest.raises(holdfast.DriftError):
            run.resume(changes={"models.arith.options.reply": "9"})
        assert run.resume(changes={"concurrency.samples": 2}).status() == ("completed", "")


def test_failed_samples_are_retried(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import pathlib\nasync def solve(sample, ctx):\n"
        "    if sample.id == 's0001' and not pathlib.Path('go').exists():\n        raise ValueError('not yet')\n"
        "    return await ctx.generate()\n"
    )
    spec = write_spec(tmp_path, 3, task={"solver": "mine:solve", "sample_retries": 0})
    call("run", spec, "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path)
    script = (
        "import holdfast, pathlib\nrun = holdfast.open_run('x')\nassert len(run.failed()) == 1\n"
        "run.resume(keep_failed=True)\nassert len(run.failed()) == 1\npathlib.Path('go').touch()\n"
        "run.retry('sums/arith/s0001/1')\nassert len(run.failed()) == 0, run.failed()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {line["status"] for line in exported("x", tmp_path / "runs")} == {"finished"}


def test_a_live_run_is_tuned_held_and_cancelled_from_python(tmp_path: Path) -> None:
    door = gate(tmp_path, free=2)
    course = stage(tmp_path, 12, model=door.model | {"max_connections": 2})
    with alive(course) as process:
        begun(course, process)
        with holdfast.open_run(RUN, store=str(course.store)) as run:
            run.tune({"concurrency.samples": 3})
            with pytest.raises(HeldError):
                run.resume(trust=True)
            asyncio.run(run.cancel_async())
            assert ends(process)
            assert run.status()[0] == "cancelled"
    assert "run.tuned" in course.events()


def test_a_script_without_a_terminal_says_what_it_waits_for(tmp_path: Path) -> None:
    script = (
        "import holdfast\n"
        "model = {'name': 'm', 'provider': 'openai', 'base_url': 'http://127.0.0.1:9/v1', 'api_key_env': '',"
        " 'patience_seconds': 4}\n"
        "holdfast.run(holdfast.Task('t', [{'q': '1'}], '{q}'), models=[model], id='x', quiet=QUIET)\n"
    )
    started = {  # both wait for the server at the same time
        quiet: subprocess.Popen(
            [sys.executable, "-c", script.replace("QUIET", str(quiet)).replace("'x'", f"'x{quiet}'")],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for quiet in (False, True)
    }
    said = {quiet: process.communicate()[1] for quiet, process in started.items()}
    assert [process.returncode for process in started.values()] == [0, 0], said
    assert "holdfast: xFalse: 0/1 done, none finished for 3." in said[False]
    assert "connection: the connection failed" in said[False]
    assert said[True] == ""
