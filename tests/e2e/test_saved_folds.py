"""The command on a run whose fold is saved: the same answers, the same refusals, and nothing is requested twice."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal import Reader
from holdfast.runs.execution import resume
from holdfast.runs.store.lookup import run_location
from holdfast.state import fold_snapshot
from tests.e2e.commands import call, exported, shown, write_spec

RUN = ("run", "eval.yaml", "--id", "r")


class CountingReader(Reader):
    """Counts what resumes read of journals."""

    count = 0

    def read(self, *, live: bool = False) -> Iterator[object]:  # type: ignore[override]
        for each in super().read(live=live):
            CountingReader.count += 1
            yield each


@pytest.fixture(autouse=True)
def _saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fold_snapshot, "_RECORDS_MIN", 1)
    monkeypatch.setattr(resume, "Reader", CountingReader)


def read_by(*words: str, cwd: Path) -> tuple[int, str, int]:
    """The exit code of a command, what it printed on standard error, and how many records it folded."""
    CountingReader.count = 0
    done = call(*words, cwd=cwd)
    return done.code, done.err, CountingReader.count


def test_the_finished_run_is_read_once(tmp_path: Path) -> None:
    write_spec(tmp_path)
    assert read_by(*RUN, cwd=tmp_path)[0] == 0
    before = exported("r", tmp_path / "runs")
    code, said, count = read_by(*RUN, cwd=tmp_path)
    assert (code, count > 6) == (0, True)
    code, said, count = read_by(*RUN, cwd=tmp_path)
    assert (code, "no request was sent" in said, count) == (0, True, 0)
    assert exported("r", tmp_path / "runs") == before


def test_a_run_that_is_extended_again_and_again_has_every_answer_once(tmp_path: Path) -> None:
    for limit in range(1, 6):
        write_spec(tmp_path, limit=limit)
        verb = RUN if limit == 1 else ("extend", "r", "eval.yaml")
        code, said, _ = read_by(*verb, cwd=tmp_path)
        assert code == 0, said
        found = shown("r", tmp_path / "runs")
        assert (found["finished"], found["planned"], found["steps"]["live"]) == (limit, limit, limit)
    assert call("verify", "r", cwd=tmp_path).code == 0


def test_the_spec_of_a_run_is_found_behind_a_saved_fold(tmp_path: Path) -> None:
    """`resume` without a spec takes the stored one: also its changes, and blocks that were added since."""
    place = run_location(str(tmp_path / "runs"), "sums", "r")
    for limit in range(1, 5):
        write_spec(tmp_path, limit=limit)
        assert call(*(RUN if limit == 1 else ("extend", "r", "eval.yaml")), cwd=tmp_path).code == 0
        for samples in (limit, limit + 10):
            change = ("--set", f"concurrency.samples={samples}")
            code, said, _ = read_by("resume", "r", *change, cwd=tmp_path)
            assert code == 0, said
            found, uid = resume.read_story(place)
            whole = resume.read_fold(place)
            assert uid == Reader(place.journal).uid
            for name in ("spec", "started", "resumes", "extensions", "cells", "inputs", "end", "evaluations"):
                assert getattr(found.story, name) == getattr(whole.story, name)
            assert found.story.spec["concurrency"]["samples"] == samples
            assert not found.trails
    code, said, count = read_by("resume", "r", cwd=tmp_path)
    assert (code, "no request was sent" in said) == (0, True)
    code, said, count = read_by("resume", "r", cwd=tmp_path)
    assert (code, count) == (0, 0)


def test_a_damaged_file_costs_one_warning_and_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_spec(tmp_path)
    for _ in range(2):
        assert read_by(*RUN, cwd=tmp_path)[0] == 0
    (path,) = (tmp_path / "cache" / "folds").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    code, said, count = read_by(*RUN, cwd=tmp_path)
    warnings = [each for each in caplog.messages if "the saved state of" in each]
    assert (code, len(warnings), count > 6) == (0, 1, True)
    assert "no request was sent" in said


def test_verify_reads_every_byte_although_the_fold_is_saved(tmp_path: Path) -> None:
    write_spec(tmp_path)
    for _ in range(2):
        assert read_by(*RUN, cwd=tmp_path)[0] == 0
    path = max((tmp_path / "runs" / "sums" / "r" / "journal").iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    about = os.stat(path)
    path.write_bytes(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert call("verify", "r", cwd=tmp_path).code == 5
