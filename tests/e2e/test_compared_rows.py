"""A resume reads the data only if its file may have changed since the rows were compared with the plan."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.datasets import open_rows, sources
from holdfast.plan import stamps
from tests.e2e.commands import call, run, write_spec

RUN = ("run", "eval.yaml", "--id", "r")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that were read. Files that were just written count as settled."""
    paths: list[str] = []

    def reading(path: str, *arguments: Any) -> Any:
        paths.append(os.path.basename(path))
        return open_rows(path, *arguments)

    monkeypatch.setattr(sources, "open_rows", reading)
    monkeypatch.setattr(stamps, "SETTLED_SECONDS", -3600.0)
    return paths


def test_the_start_reads_the_data_once_and_the_next_start_not_at_all(tmp_path: Path, opened: list[str]) -> None:
    write_spec(tmp_path)
    assert call(*RUN, cwd=tmp_path).code == 0
    assert opened == ["sums.jsonl"]
    done = call(*RUN, cwd=tmp_path)
    assert (done.code, "no request was sent" in done.err) == (0, True)
    assert opened == ["sums.jsonl"]


def test_a_changed_row_is_refused_although_size_and_time_are_the_same(tmp_path: Path, opened: list[str]) -> None:
    write_spec(tmp_path)
    assert call(*RUN, cwd=tmp_path).code == 0
    path = tmp_path / "sums.jsonl"
    before, text = os.stat(path), path.read_text()
    path.write_text(text.replace(text[text.index("question") + 12], "9", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.read_text() != text
    assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    done = call(*RUN, cwd=tmp_path)
    assert (done.code, "tasks.sums.dataset" in done.err) == (3, True)


def test_other_code_is_refused_although_the_data_is_unchanged(tmp_path: Path, opened: list[str]) -> None:
    code = "async def solve(sample, ctx):\n    return await ctx.generate({})\n"
    (tmp_path / "own_code_a.py").write_text(code.format("sample.input"))
    write_spec(tmp_path, task={"solver": "own_code_a:solve"})
    assert run(*RUN, cwd=tmp_path).code == 0
    (tmp_path / "own_code_a.py").write_text(code.format("sample.input + ' '"))
    assert call(*RUN, cwd=tmp_path).code == 3
    assert opened == []
