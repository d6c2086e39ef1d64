"""What reports, comparisons, leaderboards and gates say about benchmarks, from the command line and from Python."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.testing import Behaviour, FakeHub, ModelServer
from tests.e2e.benchmarks.cases import encode
from tests.e2e.benchmarks.offered import MINE, ROWS, Offer, changed, run
from tests.e2e.commands import Done, call
from tests.servers import serve_model


def add_up(messages: list[Any]) -> str:
    """Right for every row, without the mark that a strict scorer looks for."""
    one, other = str(messages[-1]["content"]).partition("Compute: ")[2].split(" + ")
    return f"It is {int(one) + int(other)}."


@pytest.fixture
def adder() -> Iterator[ModelServer]:
    with serve_model(Behaviour(reply=add_up)) as started:
        yield started


def test_reports_say_that_a_run_has_a_part_of_a_benchmark(tmp_path: Path, offer: Offer, server: ModelServer) -> None:
    assert run(tmp_path, server, "mine", "--id", "whole").code == 0
    assert run(tmp_path, server, "mine", "--id", "part", "--limit", "4").code == 0
    said = "part of a benchmark: 4 of 6 samples of mine"
    for options in (("--json",), (), ("--format", "markdown"), ("--format", "html")):
        part, whole = (call("report", name, *options, "--store", "runs", cwd=tmp_path) for name in ("part", "whole"))
        assert (said in part.out, "part of a benchmark" in whole.out) == (True, False), (options, part.said)
    assert call("report", "part", "--store", "runs", "--json", cwd=tmp_path).json()["benchmarks"][-1] == said
    offer(msgspec.structs.replace(MINE, samples=None))
    assert run(tmp_path, server, "mine", "--id", "unknown", "--limit", "4").code == 0
    assert (
        "part of a benchmark: 4 samples of mine, selected by limit"
        in call("report", "unknown", "--store", "runs", cwd=tmp_path).out
    )


def test_comparisons_and_leaderboards_say_how_benchmarks_differ(
    tmp_path: Path, offer: Offer, server: ModelServer
) -> None:
    assert run(tmp_path, server, "mine", "--id", "x").code == 0
    commit = commit_of("x", tmp_path)
    assert run(tmp_path, server, "mine", "--id", "y", "--system", "Be brief.").code == 0
    offer(changed(version=2))
    assert run(tmp_path, server, "mine", "--id", "z").code == 0
    for command in ("compare", "leaderboard"):
        done = call(command, "x", "y", "--store", "runs", cwd=tmp_path)
        assert "y: mine differs from the benchmark mine version 1 in: system" in " ".join(done.err.split()), done.said
        done = call(command, "x", "z", "--store", "runs", cwd=tmp_path)
        data = f"data main@{commit[:7]} (unverified)"
        said = f"mine is not the same benchmark in all runs: mine version 1, {data} in x; mine version 2, {data} in z"
        assert said in " ".join(done.err.split()), done.said
        assert "benchmark" not in call(command, "x", "x", "--store", "runs", cwd=tmp_path).err


def commit_of(run_id: str, folder: Path) -> str:
    (data,) = call("report", run_id, "--store", "runs", "--json", cwd=folder).json()["benchmark_data"]
    return str(data["commit"])


def test_runs_and_reports_name_the_data_of_benchmarks(
    tmp_path: Path, offer: Offer, server: ModelServer, hub: FakeHub
) -> None:
    done = run(tmp_path, server, "mine", "--id", "x")
    first = commit_of("x", tmp_path)
    said = f"benchmark: mine version 1, data main@{first[:7]} (unverified)"
    assert said in done.out, done.said
    for options in ((), ("--format", "markdown"), ("--format", "html")):
        out = call("report", "x", *options, "--store", "runs", cwd=tmp_path).out
        assert said in out.replace("\\", ""), options
    found = call("report", "x", "--store", "runs", "--json", cwd=tmp_path).json()
    data = {"task": "mine", "benchmark": "mine", "version": 1}
    data |= {"revision": f"main@{first}", "commit": first, "unverified": True}
    assert found["benchmark_data"] == [data]
    assert list(found)[-1] == "benchmark_data"

    second = hub.add("o/mine", {"test.jsonl": encode("x", [*ROWS[1:], ROWS[0]])})
    assert run(tmp_path, server, "mine", "--id", "y").code == 0
    for command in ("compare", "leaderboard"):
        done = call(command, "x", "y", "--store", "runs", cwd=tmp_path)
        said = "mine is not the same benchmark in all runs: "
        said += "; ".join(
            f"mine version 1, data main@{commit[:7]} (unverified) in {name}"
            for commit, name in ((first, "x"), (second, "y"))
        )
        assert said in " ".join(done.err.split()), done.said

    pinned = {**MINE.task["dataset"], "revision": first}
    offer(changed(dataset=pinned))
    assert f"benchmark: mine version 1, data {first[:7]}\n" in run(tmp_path, server, "mine", "--id", "z").out
    assert "not the same benchmark" not in call("compare", "x", "z", "--store", "runs", cwd=tmp_path).err
    assert run(tmp_path, server, "mine", "--id", "edited", "--system", "Be brief.").code == 0
    assert f"mine has the data {first[:7]}\n" in call("report", "edited", "--store", "runs", cwd=tmp_path).out


def test_reports_show_the_result_of_a_benchmark_first(tmp_path: Path, offer: Offer, adder: ModelServer) -> None:
    both = [
        {"numeric": {"name": "exactly", "extract": {"after": {"marker": "####"}}}},
        {"numeric": {"name": "flexible"}},
    ]
    offer(msgspec.structs.replace(changed(scorers=both), metric="flexible"))
    assert run(tmp_path, adder, "mine", "--id", "x").code == 0
    for options in ((), ("--all",), ("--format", "markdown"), ("--format", "html"), ("--format", "latex")):
        text = call("report", "x", *options, "--store", "runs", cwd=tmp_path).out
        text = text[text.index("scorer") :]
        assert 0 < text.index("flexible (result)") < text.index("exactly"), options
        assert "exactly (result)" not in text
    (cell,) = call("report", "x", "--store", "runs", "--json", cwd=tmp_path).json()["cells"]
    assert ([each["scorer"] for each in cell["scorers"]], cell["result"]) == (["exactly", "flexible"], "flexible")


def test_a_gate_judges_the_result_of_a_benchmark(tmp_path: Path, offer: Offer, adder: ModelServer) -> None:
    strict = {"numeric": {"name": "strict", "extract": {"after": {"marker": "####"}}}}
    offer(msgspec.structs.replace(changed(scorers=[strict, {"numeric": {"name": "flexible"}}]), metric="flexible"))
    for name in ("x", "y"):
        assert run(tmp_path, adder, "mine", "--id", name).code == 0

    def gate(*options: str) -> Done:
        return call("gate", "x", *options, "--store", "runs", cwd=tmp_path)

    done = gate("--at-least", "0.3")
    assert (done.code, "strict" in done.out) == (0, False), done.said
    assert "mine: judged by flexible, the result of the benchmark; for another scorer, add --scorer" in done.err
    assert gate("--at-least", "0.3", "--scorer", "strict").code == 7
    done = gate("--baseline", "y", "--margin", "0.1", "--identical-passes", "--json")
    assert [each["scorer"] for each in done.json()["verdicts"]] == ["flexible"]
    done = call("leaderboard", "x", "--store", "runs", "--json", cwd=tmp_path)
    assert {board["scorer"] for board in done.json()["boards"]} == {"strict", "flexible"}


def test_python_files_runs_of_benchmarks_as_the_command_line_does(
    tmp_path: Path, offer: Offer, server: ModelServer
) -> None:
    offer(MINE, msgspec.structs.replace(MINE, name="mine:other"))
    model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
    given: dict[str, Any] = {"models": [model], "store": str(tmp_path / "runs"), "quiet": True}
    holdfast.run("mine", id="same", **given)
    holdfast.run(["mine", "mine:other"], id="both", **given)
    holdfast.run(holdfast.benchmark("mine", system="Be brief."), id="edited", **given)
    holdfast.run("mine", id="named", experiment="own", **given)
    holdfast.run(holdfast.Task("t", [{"q": "?"}], "{q}", scorers=["includes"]), id="plain", **given)
    found = {path.parent.name: path.name for path in (tmp_path / "runs").glob("*/*") if path.is_dir()}
    assert found == {"benchmarks": "both", "own": "named", "default": "plain"} | {"mine": found["mine"]}
    assert {path.name for path in (tmp_path / "runs" / "mine").iterdir() if path.is_dir()} == {"same", "edited"}
    with pytest.raises(holdfast.DriftError, match="the id both is that of the run benchmarks/both"):
        holdfast.run("mine", id="both", **given)
