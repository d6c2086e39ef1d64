"""Which rows a run has: several files, `where`, `shuffle`, `sample` and `limit`, over resumes, extensions and forks."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
import yaml

import holdfast
from tests.e2e.commands import call, exported, write_rows

pq: Any = pytest.importorskip("pyarrow.parquet")
pa: Any = pytest.importorskip("pyarrow")

ROWS: list[dict[str, Any]] = [
    {"question": f"{i} + 1", "answer": str(i + 1), "level": i % 5, "subject": "abc"[i // 20]} for i in range(60)
]
MODEL = {"name": "m", "provider": "mock", "options": {"reply": "8"}}


def write_spec(folder: Path, dataset: dict[str, Any], **fields: Any) -> Path:
    task = {"name": "t", "dataset": dataset, "prompt": "{question}", "scorers": ["numeric"]}
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump({"models": [MODEL], "tasks": [task], **fields}))
    return path


def lines(folder: Path, id: str = "x") -> list[dict[str, Any]]:
    return exported(id, folder / "runs")


def ids(folder: Path, id: str = "x") -> list[str]:
    return [line["sample_id"] for line in lines(folder, id)]


def test_a_selection_is_resumed_extended_and_forked(tmp_path: Path) -> None:
    write_rows(tmp_path / "1.jsonl", ROWS[:30])
    write_rows(tmp_path / "2.jsonl", ROWS[30:])
    chosen = {"path": "[12].jsonl", "where": "level >= 1", "shuffle": {"seed": 7, "by": "subject"}, "limit": 12}
    write_spec(tmp_path, chosen)
    done = call("run", "s.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 0, done.err
    first = ids(tmp_path)
    assert Counter(ROWS[int(id) - 1]["subject"] for id in first) == {"a": 4, "b": 4, "c": 4}
    assert all(ROWS[int(id) - 1]["level"] >= 1 for id in first)  # without an id column: the number of the row

    # Each of these fields is of class `result`.
    for field, value in (("where", "level >= 2"), ("shuffle", 8), ("shuffle.by", "level"), ("limit", 11)):
        done = call("run", "s.yaml", "--id", "x", "--set", f"tasks[0].dataset.{field}={value}", cwd=tmp_path)
        assert done.code == 3, done.err
        assert f"tasks.t.dataset.{field}" in done.err

    # A larger limit continues the same order.
    write_spec(tmp_path, {**chosen, "limit": 20})
    done = call("extend", "x", "s.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert ids(tmp_path)[:12] == first
    assert len(ids(tmp_path)) == 20

    # Without the files the stored rows are used, in their order and with their ids.
    before = [(line["sample_id"], line["input"]) for line in lines(tmp_path)]
    (tmp_path / "1.jsonl").unlink()
    (tmp_path / "2.jsonl").unlink()
    done = call("extend", "x", "--set", "tasks[0].repeats=2", cwd=tmp_path)
    assert done.code == 0, done.err
    assert [(line["sample_id"], line["input"]) for line in lines(tmp_path) if line["repeat"] == 1] == before
    assert call("run", "s.yaml", "--id", "x", "--set", "tasks[0].repeats=2", cwd=tmp_path).code == 0
    done = call("fork", "x", "--id", "y", "--set", "tasks[0].prompt=Say: {question}", cwd=tmp_path)
    assert done.code == 0, done.err
    assert [(line["sample_id"], line["input"]) for line in lines(tmp_path, "y") if line["repeat"] == 1] == before
    done = call("fork", "x", "--id", "z", "--set", "tasks[0].dataset.where=level >= 2", cwd=tmp_path)
    assert done.code == 2  # other rows than those that are stored
    assert "no file matches this pattern" in done.err


def test_a_changed_file_of_several_is_noticed(tmp_path: Path) -> None:
    first, second = write_rows(tmp_path / "1.jsonl", ROWS[:3]), write_rows(tmp_path / "2.jsonl", ROWS[3:6])
    write_spec(tmp_path, {"path": [first.name, second.name]})
    assert call("run", "s.yaml", "--id", "x", cwd=tmp_path).code == 0
    assert [line["input"] for line in lines(tmp_path)] == [row["question"] for row in ROWS[:6]]
    write_rows(second, ROWS[3:5])
    done = call("run", "s.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 3
    assert "1 sample removed (6)" in done.err
    write_rows(second, ROWS[3:6])
    write_spec(tmp_path, {"path": "*.jsonl"})  # another place with the same rows
    assert call("run", "s.yaml", "--id", "x", cwd=tmp_path).code == 0


def test_only_the_files_of_selected_rows_are_stored(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + name.encode())
    rows = [{"question": "What?", "image": f"{name}.png", "answer": i} for i, name in enumerate("abcd")]  # no d.png
    write_rows(tmp_path / "x.jsonl", rows)
    write_spec(tmp_path, {"path": "x.jsonl", "files": ["image"], "where": "answer < 2", "shuffle": 1})
    done = call("run", "s.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 0, done.err
    blobs = [path for path in (tmp_path / "runs" / "default" / "x" / "blobs").rglob("*") if path.is_file()]
    assert len(blobs) == 2


def test_parquet_with_images_of_a_struct(tmp_path: Path) -> None:
    image = {"bytes": b"\x89PNG\r\n\x1a\nx", "path": "x.png"}
    pq.write_table(pa.Table.from_pylist([{"id": "a", "image": image, "question": "What?"}]), tmp_path / "x.parquet")
    write_spec(tmp_path, {"path": "x.parquet", "files": ["image"]})
    done = call("run", "s.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ({"path": "x.jsonl", "hub": "a/b"}, "dataset.hub: the rows come either from `hub` or from `path`"),
        ({"path": "x.jsonl", "split": "test"}, "dataset.split: only a data set of the Hub has one"),
        ({"path": "https://h/x.jsonl"}, "dataset.sha256: https://h/x.jsonl may change; add the SHA-256"),
        ({"path": "https://h/x.jsonl", "sha256": "12"}, "dataset.sha256: expected 64 hexadecimal digits"),
        ({"path": "https://u:p@h/x.jsonl", "sha256": "0" * 64}, "dataset.path: "),
        ({"path": ["https://h/x.jsonl", "y.jsonl"], "sha256": "0" * 64}, "several URLs are not supported"),
        ({"path": "x.jsonl", "sha256": "0" * 64}, "dataset.sha256: only a file at a URL needs one"),
        ({"path": ["x.jsonl", ""]}, "dataset.path: an entry of the list is empty"),
        ({"path": "x.jsonl", "where": "open('x')"}, "dataset.where: there is no function 'open'"),
        ({"path": "x.jsonl", "where": "levle > 1"}, "where: no row has a column 'levle'; did you mean 'level'?"),
        ({"path": "x.jsonl", "where": "level > 9"}, "no sample of 't' is selected; check `where` and `limit`"),
        ({"path": "x.jsonl", "sample": {"n": 61, "by": "subject"}}, "sample.n is 61, but only 60 rows are left"),
        ({"path": "x.jsonl", "shuffle": {"by": "topic"}}, "no column 'topic', which `by` names"),
        ({"path": "*.csv"}, "no file matches this pattern"),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path: Path, dataset: dict[str, Any], words: str) -> None:
    write_rows(tmp_path / "x.jsonl", ROWS)
    write_spec(tmp_path, dataset)
    done = call("run", "s.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "runs").exists()


def test_tables_of_python_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = [row["question"] for row in ROWS if row["level"] == 1]
    tables = {
        "pandas": pd.DataFrame(ROWS),
        "polars": pl.DataFrame(ROWS),
        "arrow": pa.Table.from_pylist(ROWS),
        "generator": (row for row in ROWS),
    }
    tasks = [
        holdfast.Task(name, table, prompt="{question}", dataset={"where": "level == 1"})
        for name, table in tables.items()
    ]
    with holdfast.run(tasks, models=[MODEL], id="x", quiet=True) as run:
        found: dict[str, list[Any]] = {}
        for line in run.samples():
            found.setdefault(line.task, []).append(line.input)
    assert found == dict.fromkeys(tables, expected)
    holdfast.run(tasks, models=[MODEL], id="x", quiet=True).close()  # the same rows again, also from the generator


def test_a_token_of_the_hub_may_come_from_the_env_file_and_its_address_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.spec import fill_environment

    (tmp_path / ".env").write_text("HF_TOKEN=hf_x\nHF_ENDPOINT=http://evil\n")
    raw = {"tasks": [{"name": "t", "dataset": {"hub": "a/b"}, "prompt": "${HF_ENDPOINT}"}]}
    environ: dict[str, str] = {}
    fill_environment(raw, environ=environ, path=str(tmp_path / ".env"))
    assert json.dumps(environ) == '{"HF_TOKEN": "hf_x"}'
