"""Data sets of the Hub and files at URLs, with the real command and a fake Hub on this machine."""

import hashlib
import http.server
import io
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import FakeHub
from tests.e2e.commands import Done, exported, finish, run, start, wait_until
from tests.servers import serve

pq: Any = pytest.importorskip("pyarrow.parquet")
pa: Any = pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")

ROWS = [{"question": f"{i} + {7 * i}", "answer": str(8 * i), "level": i % 5} for i in range(60)]
CARD = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: test, path: data/te*.jsonl}\n---\n# Sums\n"


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        yield server


class Folder:
    """A folder with a spec, and the environment of its commands."""

    def __init__(self, path: Path, hub: FakeHub) -> None:
        self.path = path
        self.env = {**hub.environment(path / "hf"), "HOLDFAST_CACHE": str(path / "cache")}

    def write(self, dataset: Mapping[str, Any], **fields: Any) -> None:
        task = {"name": "sums", "dataset": dict(dataset), "prompt": "Compute: {question}", "scorers": ["numeric"]}
        options = {"reply": "8", "latency_seconds": fields.pop("latency", 0.0)}
        model = {"name": "m", "provider": "mock", "options": options, "max_connections": 2, "adaptive": False}
        self.path.joinpath("s.yaml").write_text(yaml.safe_dump({"models": [model], "tasks": [task], **fields}))

    def run(self, *arguments: str, **env: str) -> Done:
        return run(*arguments, cwd=self.path, env={**self.env, **env})

    def questions(self, id: str) -> list[str]:
        return [line["input"] for line in exported(id, self.path / "runs")]

    def revision(self, id: str) -> str:
        spec = yaml.safe_load((self.path / "runs" / "default" / id / "spec.yaml").read_text())
        return str(spec["tasks"][0]["dataset"]["revision"])


@pytest.fixture
def folder(tmp_path: Path, hub: FakeHub) -> Folder:
    return Folder(tmp_path, hub)


def test_a_killed_run_is_resumed_without_the_hub_and_without_the_package(folder: Folder, hub: FakeHub) -> None:
    commit = hub.add("owner/sums", {"README.md": CARD, "data/test.jsonl": jsonl(ROWS)})
    folder.write({"hub": "owner/sums", "split": "test", "shuffle": 7}, latency=0.05)
    journal = folder.path / "runs" / "default" / "x" / "journal" / "000001.jsonl"
    with start("run", "s.yaml", "--id", "x", cwd=folder.path, env=folder.env) as process:
        assert wait_until(lambda: journal.exists() and journal.read_bytes().count(b"answer") > 5, process)
        finish(process, signal.SIGKILL)
    assert folder.revision("x") == f"main@{commit}"
    assert hub.hosts == {"127.0.0.1", "localhost"}  # small files come from the Hub, large ones by a redirect
    hub.close()
    missing = folder.path / "nothing"
    missing.mkdir()
    (missing / "huggingface_hub.py").write_text("raise ImportError('not installed')\n")
    env = {**folder.env, "PYTHONPATH": str(missing)}
    with start("run", "s.yaml", "--id", "x", cwd=folder.path, env=env, fresh=True) as process:
        done = finish(process)
    assert done.code == 0, done.err
    assert "continuing:" in done.err
    assert sorted(folder.questions("x")) == sorted(str(row["question"]) for row in ROWS)
    assert folder.run("resume", "x").code == 0
    # A second run needs the package, and says so in one sentence.
    with start("run", "s.yaml", "--id", "y", cwd=folder.path, env=env, fresh=True) as process:
        done = finish(process)
    assert done.code == 2
    assert "data sets of the Hub need huggingface_hub: pip install 'holdfast[hub,parquet]'" in done.err


def test_parquet_jsonl_and_csv_give_the_same_rows(folder: Folder, hub: FakeHub) -> None:
    text = [{**row, "level": str(row["level"])} for row in ROWS]
    csv = "question,answer,level\n" + "".join(f"{row['question']},{row['answer']},{row['level']}\n" for row in ROWS)
    half = parquet(text[:30]), parquet(text[30:])
    hub.add("o/parquet", {"data/test-00000-of-00002.parquet": half[0], "data/test-00001-of-00002.parquet": half[1]})
    hub.add("o/jsonl", {"main/test.jsonl": jsonl(text), "main/train.jsonl": b""})
    hub.add("o/csv", {"main_test.csv": csv.encode()})
    found = []
    for name in ("parquet", "jsonl", "csv"):
        folder.write({"hub": f"o/{name}", "split": "test", "shuffle": 3, "where": "level in ['1', '2']"}, limit=10)
        done = folder.run("run", "s.yaml", "--id", name)
        assert done.code == 0, done.err
        lines = folder.run("export", name, "--columns", "row.*").out.splitlines()
        found.append([json.loads(line)["row"] for line in lines])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 10


def test_a_branch_that_moved_changes_nothing_and_another_revision_is_compared(folder: Folder, hub: FakeHub) -> None:
    first = hub.add("owner/sums", {"README.md": CARD, "data/test.jsonl": jsonl(ROWS)})
    folder.write({"hub": "owner/sums", "split": "test", "shuffle": 7}, limit=5)
    assert folder.run("run", "s.yaml", "--id", "x").code == 0
    before = folder.questions("x")
    same = hub.add("owner/sums", {"README.md": CARD + b"more", "data/test.jsonl": jsonl(ROWS)}, "same")
    changed = [{**row, "answer": "0"} for row in ROWS]
    hub.add("owner/sums", {"README.md": CARD, "data/test.jsonl": jsonl(changed)})
    asked = hub.requests["api"]
    done = folder.run("run", "s.yaml", "--id", "x")
    assert (done.code, hub.requests["api"]) == (0, asked), done.err
    # An extension continues the order of the commit that the run has.
    assert folder.run("extend", "x", "--limit", "9").code == 0
    assert folder.questions("x")[:5] == before
    assert folder.revision("x") == f"main@{first}"
    assert len(folder.questions("x")) == 9
    folder.write({"hub": "owner/sums", "split": "test", "shuffle": 7}, limit=9)
    done = folder.run("run", "s.yaml", "--id", "x", "--set", "tasks[0].dataset.revision=same")
    assert done.code == 0, done.err
    assert folder.revision("x") == f"same@{same}"
    done = folder.run("run", "s.yaml", "--id", "x", "--set", "tasks[0].dataset.revision=main")
    assert done.code == 3
    assert "9 samples changed" in done.err
    done = folder.run("resume", "x", "--set", "tasks[0].dataset.revision=main")
    assert done.code == 3
    assert "9 samples changed" in done.err


def test_a_cut_download_continues_and_a_damaged_file_is_not_kept(folder: Folder, hub: FakeHub) -> None:
    hub.add("owner/sums", {"test.jsonl": jsonl(ROWS)})
    folder.write({"hub": "owner/sums", "split": "test"})
    hub.damaged = True
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 2
    assert "test.jsonl arrived damaged: its SHA-256 is" in done.err
    hub.damaged = False
    hub.cut_after = [700]
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 0, done.err
    assert len(folder.questions("x")) == len(ROWS)


@pytest.mark.parametrize(
    ("dataset", "env", "words"),
    [
        ({"hub": "owner/smus"}, {}, "there is no such data set, or it is private"),
        ({"hub": "owner/gated"}, {}, "the data set is gated: accept its terms on its page, and log in"),
        ({"hub": "owner/gated"}, {"HF_TOKEN": "hf_x"}, "the data set is gated: accept its terms on its page"),
        ({"hub": "owner/sums", "revision": "v9"}, {}, "there is no such revision; check dataset.revision"),
        ({"hub": "owner/sums", "split": "tset"}, {}, "there is no split 'tset'; did you mean 'test'? there are: test"),
        ({"hub": "owner/script"}, {}, "set dataset.revision to refs/convert/parquet"),
        ({"hub": "owner/sums"}, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, and owner/sums@main is not in"),
        ({"hub": "o/w/n/er"}, {}, "this is not the name of a data set; write OWNER/NAME"),
        ({"hub": "owner/sums"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the download failed (["),
    ],
)
def test_each_failure_is_one_sentence(
    folder: Folder, hub: FakeHub, dataset: dict[str, Any], env: dict[str, str], words: str
) -> None:
    hub.add("owner/sums", {"test.jsonl": jsonl(ROWS)})
    hub.add("owner/gated", {"test.jsonl": jsonl(ROWS)})
    hub.add("owner/script", {"README.md": b"# x", "script.py": b"pass"})
    hub.gate("owner/gated")
    folder.write({"split": "test", **dataset})
    done = folder.run("run", "s.yaml", "--id", "x", **env)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert not (folder.path / "runs").exists()


def test_a_busy_hub_is_asked_again_and_then_reported(folder: Folder, hub: FakeHub) -> None:
    hub.add("owner/sums", {"test.jsonl": jsonl(ROWS)})
    folder.write({"hub": "owner/sums"})
    hub.refusals = [429] * 3
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 2
    assert "the Hub answers 429: too many requests" in done.err
    hub.refusals = [429]
    assert folder.run("run", "s.yaml", "--id", "x").code == 0


def test_what_was_downloaded_once_is_used_offline(folder: Folder, hub: FakeHub) -> None:
    hub.add("owner/sums", {"README.md": CARD, "data/test.jsonl": jsonl(ROWS)})
    folder.write({"hub": "owner/sums", "split": "test"}, limit=3)
    assert folder.run("run", "s.yaml", "--id", "x").code == 0
    hub.close()
    done = folder.run("run", "s.yaml", "--id", "y", HF_HUB_OFFLINE="1")
    assert done.code == 0, done.err
    assert folder.questions("y") == folder.questions("x")


def test_a_run_without_its_rows_takes_them_from_the_cache(folder: Folder, hub: FakeHub) -> None:
    commit = hub.add("owner/script", {"main/test/0000.parquet": parquet(ROWS)}, "refs/convert/parquet")
    dataset = {"hub": "owner/script", "split": "test", "revision": "refs/convert/parquet", "shuffle": 1}
    folder.write(dataset, record_data=False, limits={"run": {"requests": 10}})
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 6, done.err
    assert folder.revision("x") == f"refs/convert/parquet@{commit}"
    hub.close()
    folder.write(dataset, record_data=False)
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 0, done.err
    assert len(folder.questions("x")) == len(ROWS)


def test_a_file_at_a_url_is_verified_and_a_resume_needs_no_server(folder: Folder) -> None:
    content = jsonl(ROWS)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with serve(Handler) as address:
        url = f"http://{address}/sums.jsonl"
        folder.write({"path": url})
        done = folder.run("run", "s.yaml", "--id", "x")
        assert done.code == 2
        assert "sha256: " in done.err
        folder.write({"path": url, "sha256": "0" * 64})
        done = folder.run("run", "s.yaml", "--id", "x")
        assert done.code == 2
        assert "nothing was kept" in done.err
        folder.write({"path": url, "sha256": hashlib.sha256(content).hexdigest()}, limits={"run": {"requests": 10}})
        assert folder.run("run", "s.yaml", "--id", "x").code == 6
    for each in (folder.path / "cache" / "downloads").iterdir():
        each.unlink()
    folder.write({"path": url, "sha256": hashlib.sha256(content).hexdigest()})
    done = folder.run("run", "s.yaml", "--id", "x")
    assert done.code == 0, done.err
    assert folder.questions("x") == [row["question"] for row in ROWS]
