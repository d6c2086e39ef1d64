"""Pictures and other files in the data, as a user has them: stored once, sent as they are, killed and resumed."""

import asyncio
import base64
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.report import ExportLine
from holdfast.testing import Behaviour, ModelServer, ServerProcess, start_server_process
from tests.e2e.commands import call, environment, exported, kill_when, run, shown, snapshot, write_rows
from tests.e2e.test_kill_and_resume import without_times

RUN = "x"
PNG = b"\x89PNG\r\n\x1a\n"
MEGABYTE = 1_000_000


def picture(number: int, size: int = 2000) -> bytes:
    return PNG + random.Random(number).randbytes(size)


def write_files_spec(folder: Path, count: int, server: ServerProcess | None, size: int = 2000, **task: Any) -> Path:
    """Rows that name pictures in a folder beside them."""
    (folder / "pictures").mkdir(exist_ok=True)
    rows = []
    for number in range(count):
        (folder / "pictures" / f"{number}.png").write_bytes(picture(number, size))
        rows.append({"id": f"p{number}", "question": f"{number} + 1", "picture": f"pictures/{number}.png"})
    return write_files_yaml(folder, rows, server, **task)


def write_files_yaml(folder: Path, rows: list[dict[str, Any]], server: ServerProcess | None, **task: Any) -> Path:
    write_rows(folder / "rows.jsonl", rows)
    model: dict[str, Any] = {"name": "m", "provider": "mock"}
    if server is not None:
        model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url, "max_connections": 4}
    spec = {
        "experiment": "files",
        "models": [model],
        "tasks": [
            {"name": "t", "dataset": {"path": "rows.jsonl", "files": ["picture"]}, "prompt": "{question}", **task}
        ],
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def blobs(folder: Path, name: str = RUN) -> list[str]:
    return sorted(os.listdir(folder / "runs" / "files" / name / "blobs"))


def sent(server: ServerProcess) -> dict[str, bytes]:
    """By question: the picture that the server got with it."""
    found = {}
    for seen in server.requests():
        text, image = seen.body["messages"][-1]["content"]
        head, _, body = image["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        found[text["text"]] = base64.b64decode(body, validate=True)
    return found


def test_the_server_gets_the_pictures_and_the_run_holds_each_once(tmp_path: Path) -> None:
    with start_server_process(Behaviour(kept=10)) as server:
        spec = write_files_spec(tmp_path, 3, server)
        for number in (1, 2):
            (tmp_path / "pictures" / f"{number}.png").write_bytes(picture(0))
        done = run("run", spec, "--id", RUN, cwd=tmp_path)
        assert done.code == 0, done.said
        assert sent(server) == {f"{number} + 1": picture(0) for number in range(3)}
    assert blobs(tmp_path) == [hashlib.sha256(picture(0)).hexdigest()]
    story = call("show", RUN, "t/m/p0/1", cwd=tmp_path).out
    assert "[user] 0 + 1 [image/png 2.0 kB]" in story
    told = call("show", RUN, "t/m/p0/1", "--json", cwd=tmp_path).out
    assert f"blob:sha256-{blobs(tmp_path)[0]};image/png" in told
    assert "base64" not in told
    assert call("verify", RUN, cwd=tmp_path).code == 0


def test_a_run_with_files_that_is_killed_continues_with_the_stored_ones(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.05, kept=100)) as server:
        spec = write_files_spec(tmp_path, 30, server)
        killed = kill_when(lambda: server.stats().requests >= 10, "run", spec, "--id", RUN, cwd=tmp_path)
        assert killed
        (tmp_path / "pictures").rename(tmp_path / "moved")
        done = run("run", spec, "--id", RUN, cwd=tmp_path)
        assert done.code == 2, "the files are not where the data says"
        assert "holdfast resume x" in done.err
        assert run("resume", RUN, cwd=tmp_path).code == 0
        assert sent(server) == {f"{number} + 1": picture(number) for number in range(30)}
        stats = server.stats()
    assert stats.requests <= 30 + 4
    assert shown(RUN, tmp_path / "runs")["status"] == "completed"
    with start_server_process() as server:
        (other := tmp_path / "other").mkdir()
        assert run("run", write_files_spec(other, 30, server), "--id", RUN, cwd=other).code == 0
    assert without_times(exported(RUN, other / "runs")) == without_times(exported(RUN, tmp_path / "runs"))


def test_a_run_that_is_killed_while_it_stores_files_is_begun_again(tmp_path: Path) -> None:
    spec = write_files_spec(tmp_path, 120, None, size=200_000)
    folder = tmp_path / "runs" / "files" / RUN / "blobs"
    assert kill_when(
        lambda: folder.exists() and len(list(folder.iterdir())) > 5, "run", spec, "--id", RUN, cwd=tmp_path
    )
    done = run("run", spec, "--id", RUN, cwd=tmp_path)
    assert done.code == 0, done.err
    assert blobs(tmp_path) == sorted(hashlib.sha256(picture(number, 200_000)).hexdigest() for number in range(120))
    assert call("verify", RUN, cwd=tmp_path).code == 0


def test_a_key_that_was_not_asked_yet_tells_its_file_short(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        spec = write_files_spec(tmp_path, 20, server)
        assert kill_when(lambda: server.stats().requests >= 1, "run", spec, "--id", RUN, cwd=tmp_path)
    told = call("show", RUN, "t/m/p19/1", cwd=tmp_path).out
    assert '"picture":"[image/png 2.0 kB]"' in told


def test_files_that_moved_are_the_same_and_files_that_changed_are_named(tmp_path: Path) -> None:
    write_files_spec(tmp_path, 3, None)
    spec = tmp_path / "eval.yaml"
    assert call("run", spec, "--id", RUN, cwd=tmp_path).code == 0
    (tmp_path / "pictures").rename(tmp_path / "moved")
    rows = [{"id": f"p{i}", "question": f"{i} + 1", "picture": f"{tmp_path}/moved/{i}.png"} for i in range(3)]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert call("run", spec, "--id", RUN, cwd=tmp_path).code == 0
    (tmp_path / "moved" / "1.png").write_bytes(picture(99))
    before = snapshot(tmp_path / "runs")
    done = call("run", spec, "--id", RUN, cwd=tmp_path)
    assert done.code == 3
    assert "1 sample changed (p1)" in done.err
    assert snapshot(tmp_path / "runs") == before


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("gone.png", "rows.jsonl, line 2: column 'picture': no such file: "),
        ("pictures", "is a folder"),
        (3, "expected a path, a URL, a data: URI or bytes, found int"),
    ],
)
def test_what_is_no_file_is_refused_and_nothing_is_made(tmp_path: Path, value: Any, said: str) -> None:
    spec = write_files_spec(tmp_path, 1, None)
    rows = [{"id": "p0", "question": "1", "picture": "pictures/0.png"}, {"id": "p1", "question": "1", "picture": value}]
    write_rows(tmp_path / "rows.jsonl", rows)
    done = call("run", spec, "--id", RUN, cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    spec = write_files_spec(tmp_path, 1, None, dataset={"path": "rows.jsonl", "files": ["image"]})
    done = call("check", spec, cwd=tmp_path)
    assert done.code == 2
    assert "line 1: no column 'image', which dataset.files names" in done.err


def test_a_dry_run_tells_files_short_and_does_not_count_them_as_text(tmp_path: Path) -> None:
    spec = write_files_spec(tmp_path, 2, None, size=20_000)
    done = call("run", spec, "--dry-run", cwd=tmp_path)
    assert done.code == 0
    assert "user: 0 + 1 [image/png 20.0 kB]" in done.out
    assert "about 16 input tokens and 2 files" in done.out
    assert not (tmp_path / "runs").exists()
    assert "base64" not in call("run", spec, "--dry-run", "--json", cwd=tmp_path).out


def test_a_damaged_or_missing_blob_is_found_by_verify_and_fails_its_samples_only(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.05)) as server:
        spec = write_files_spec(tmp_path, 8, server, sample_retries=0)
        assert kill_when(lambda: server.stats().requests >= 1, "run", spec, "--id", RUN, cwd=tmp_path)
        digest = hashlib.sha256(picture(7)).hexdigest()
        blob = tmp_path / "runs" / "files" / RUN / "blobs" / digest
        blob.write_bytes(picture(7)[:-1])
        done = call("verify", RUN, cwd=tmp_path)
        assert done.code == 5
        assert digest in done.said
        done = run("resume", RUN, cwd=tmp_path)
        assert done.code == 1
        lines = {line["sample_id"]: line for line in exported(RUN, tmp_path / "runs")}
        assert [each for each, line in lines.items() if line["status"] == "failed"] == ["p7"]
        assert lines["p7"]["error"]["kind"] == "file"
        assert digest in lines["p7"]["error"]["message"]
        blob.write_bytes(picture(7))
        assert run("retry", RUN, "--kind", "file", cwd=tmp_path).code == 0
    assert call("verify", RUN, cwd=tmp_path).code == 0


def test_a_fork_and_an_extension_hold_what_they_need(tmp_path: Path) -> None:
    spec = write_files_spec(tmp_path, 3, None)
    assert call("run", spec, "--id", RUN, "--limit", "2", cwd=tmp_path).code == 0
    assert len(blobs(tmp_path)) == 2
    assert call("extend", RUN, "--set", "limit=null", cwd=tmp_path).code == 0
    assert len(blobs(tmp_path)) == 3
    os.unlink(tmp_path / "rows.jsonl")
    (tmp_path / "pictures").rename(tmp_path / "gone")
    done = call("fork", RUN, "--id", "y", "--set", "seed=3", cwd=tmp_path)
    assert done.code == 0, done.err
    assert blobs(tmp_path, "y") == blobs(tmp_path)
    assert all(path.stat().st_nlink == 2 for path in (tmp_path / "runs" / "files" / "y" / "blobs").iterdir())
    for name in (RUN, "y"):
        assert call("verify", name, cwd=tmp_path).code == 0


_SOLVER = '''\
async def describe(sample, ctx):
    """Its own use of a file, beside what the model sees."""
    data = await ctx.file(sample.row["picture"])
    answer = await ctx.generate([{"role": "user", "content": f"{len(data)} + 1"}])
    return answer.text
'''


def test_a_solver_reads_a_file_and_replays_with_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_SOLVER)
    spec = write_files_spec(tmp_path, 2, None, solver="own:describe")
    assert run("run", spec, "--id", RUN, cwd=tmp_path).code == 0
    assert [line["output"] for line in exported(RUN, tmp_path / "runs")] == ["2008 + 1"] * 2
    assert "answer: 2008 + 1" in run("replay", RUN, "t/m/p0/1", cwd=tmp_path).out
    (tmp_path / "own.py").write_text(_SOLVER.replace('sample.row["picture"]', '"eval.yaml"'))
    assert run("run", spec, "--id", "y", cwd=tmp_path).code == 1
    error = exported("y", tmp_path / "runs")[0]["error"]
    assert (error["kind"], "not a file of this run" in error["message"]) == ("solver", True)


_SCRIPT = """\
import holdfast
png = b"\\x89PNG\\r\\n\\x1a\\n" + b"p" * 50
rows = [{"q": "1 + 1", "picture": png}, {"q": "2 + 2", "picture": None}, {"q": "3 + 3", "picture": "https://x/y"}]
task = holdfast.Task("t", data=rows, prompt="{q}", dataset={"files": ["picture"]})
for _ in range(2):
    with holdfast.run(task, models=[{"name": "m", "provider": "mock"}], id="scripted") as run:
        print([line.output for line in run.samples()])
"""


def test_python_rows_hold_bytes_urls_or_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "['1 + 1', '2 + 2', '3 + 3']\n" * 2), done.stderr
    assert len(list((tmp_path / "runs" / "default" / "scripted" / "blobs").iterdir())) == 1


_PEAK = """\
import sys
from holdfast.cli.main import main
sys.argv = ["holdfast", *sys.argv[1:]]
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print("VmHWM", next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    peaks = {}
    with start_server_process() as server:
        for count in (10, 100):
            (folder := tmp_path / str(count)).mkdir()
            spec = write_files_spec(folder, count, server, size=MEGABYTE)
            command = [sys.executable, "-c", _PEAK, "run", str(spec), "--id", RUN]
            done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert len(blobs(folder)) == count
            peaks[count] = int(done.stderr.rpartition("VmHWM ")[2]) * 1024
    assert peaks[100] < peaks[10] + 30 * MEGABYTE, peaks


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}


def test_tool_calls_of_an_answer_reach_scorers_and_exports(tmp_path: Path) -> None:
    seen: list[Any] = []

    @holdfast.scorer
    def calls(sample: holdfast.Sample, answer: holdfast.Answer) -> int:
        seen.append(answer.tool_calls)
        return len(answer.tool_calls)

    async def go() -> list[ExportLine]:
        reply: Any = lambda messages: {"content": None, "tool_calls": [CALL]}  # noqa: E731 - one line of a test
        async with ModelServer(Behaviour(reply=reply)) as server:
            model = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
            solver: dict[str, Any] = {"chat": {"tools": []}}
            task = holdfast.Task("t", data=[{"q": "Look."}], prompt="{q}", solver=solver, scorers=[calls])
            with await holdfast.run_async(task, models=[model], id=RUN, store=str(tmp_path)) as run:
                return list(run.samples())

    (line,) = asyncio.run(go())
    assert (seen, line.tool_calls, line.scores) == ([[CALL]], [CALL], {"calls": 1})
    assert "[tool call] look(" in call("show", RUN, "t/m/1/1", "--store", tmp_path, cwd=tmp_path).out


def test_an_answer_that_is_not_the_json_it_should_be_fails_its_sample(tmp_path: Path) -> None:
    async def value(sample: holdfast.Sample, ctx: holdfast.Context) -> str:
        answer = await ctx.generate(response_format={"type": "json_object"})
        return str(answer.json()["value"])

    rows = [{"q": '{"value": 4}'}, {"q": "It is 4."}]
    task = holdfast.Task("t", data=rows, prompt="{q}", solver=value, sample_retries=0)
    with holdfast.run(task, models=["mock"], id=RUN, store=str(tmp_path)) as run:
        good, bad = run.samples()
    assert good.output == "4"
    assert bad.error is not None
    assert bad.error.kind == "solver"
    assert "the answer is not JSON" in bad.error.message
    assert "'It is 4.'" in bad.error.message


def test_tools_of_the_spec_reach_the_server_and_structured_output_too(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with start_server_process(Behaviour(kept=1)) as server:
        spec = write_files_spec(tmp_path, 1, server, solver={"chat": {"tools": tools}})
        shape = {"type": "json_object"}
        setting = f"models.m.params={json.dumps({'response_format': shape, 'top_k': 3})}"
        headers = 'models.m.headers={"X-Team": "evals"}'
        done = run("run", spec, "--id", RUN, "--set", setting, "--set", headers, cwd=tmp_path)
        assert done.code == 0, done.err
        (seen,) = server.requests()
    assert (seen.body["tools"], seen.body["response_format"], seen.body["top_k"]) == (tools, shape, 3)
    assert seen.headers["X-Team"] == "evals"


def test_a_picture_that_the_mirror_has_lost_is_reported_by_recover(tmp_path: Path) -> None:
    spec, mirror = write_files_spec(tmp_path, 3, None), tmp_path / "mirror"
    done = call("run", spec, "--id", RUN, "--set", f"mirror.url={mirror.as_uri()}", cwd=tmp_path)
    assert done.code == 0, done.err
    kept = sorted((mirror / "files" / RUN / "blobs").iterdir())
    kept[0].unlink()
    kept[1].write_bytes(picture(99))
    found = call("recover", f"{mirror.as_uri()}/files/{RUN}", "--output", tmp_path / "new", "--json", cwd=tmp_path)
    assert found.code == 0, found.err
    warned = found.json()["warnings"]
    assert len(warned) == 2
    assert all(any(path.name in line for line in warned) for path in kept[:2])
