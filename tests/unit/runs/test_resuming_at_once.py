"""A process that waits for the lock while another one resumes: what it has compared before is no longer what is stored.

The other one works from its beginning to its end at the moment when the first one tries to take the lock.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import DriftError
from holdfast.journal import Lock
from holdfast.plan import check_originals
from holdfast.plan.files import digest_file
from holdfast.records.facts import StoredFile
from holdfast.runs import Given, extend, new_run_location
from holdfast.state import Index
from tests.journals import tree_of
from tests.unit.engine.runs import RUN, Asked, folder, given, go, lines, records, rows


def wanted(samples: int = 256, repeats: int = 1) -> Given:
    return given([Asked(rows=rows(3), fields={"repeats": repeats})], concurrency={"samples": samples})


def go_further(store: Path, asked: Given) -> None:
    asyncio.run(extend(asked, new_run_location(asked, str(store), RUN)))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Arrange what another process does when the next one tries to take the lock."""
    waiting: list[Callable[[], Any]] = []
    take: Callable[..., bool] = vars(Lock)["_try"]

    def interrupted(*arguments: Any) -> bool:
        if waiting:
            other = threading.Thread(target=waiting.pop())
            other.start()
            other.join()
        return take(*arguments)

    monkeypatch.setattr(Lock, "_try", interrupted)
    return waiting.append


def changes(store: Path) -> list[tuple[str, Any, Any]]:
    """All that resumes and extensions have recorded, in order."""
    told = [data.get("changes", []) for kind, data in records(store) if kind in {"run.resumed", "run.extended"}]
    return [(change["field"], change["old"], change["new"]) for every in told for change in every]


def test_a_resume_tells_the_change_from_what_the_other_process_left(
    tmp_path: Path, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    go(tmp_path, wanted())
    meanwhile(lambda: go(tmp_path, wanted(samples=2)))
    go(tmp_path, wanted(samples=3))
    assert changes(tmp_path) == [("concurrency.samples", 256, 2), ("concurrency.samples", 2, 3)]
    assert yaml.safe_load(Path(folder(tmp_path), "spec.yaml").read_text())["concurrency"]["samples"] == 3


@pytest.mark.parametrize("further", [False, True])
def test_what_nobody_has_changed_meanwhile_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: bool
) -> None:
    """Comparing digests every original of the run and reads all of its data: minutes, for a large one."""
    go(tmp_path, wanted())
    digested: list[str] = []

    def counted(path: str) -> StoredFile:
        digested.append(Path(path).name)
        return digest_file(path)

    monkeypatch.setattr("holdfast.plan.files.digest_file", counted)
    if further:
        go_further(tmp_path, wanted(repeats=2))
    else:
        go(tmp_path, wanted(samples=3))
    assert sorted(digested) == ["data.jsonl.zst", "plan.jsonl.zst"]


def test_verified_originals_of_a_finished_run_are_digested_again_only_if_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path, wanted())
    run = folder(tmp_path)
    with contextlib.closing(Index(run)) as index:
        stamps = dict(index.checked.stamps)
        assert check_originals(run, index.story.blocks, stamps) == []
        index.checked.remember(stamps)
    digested: list[str] = []

    def counted(path: str) -> StoredFile:
        digested.append(Path(path).name)
        return digest_file(path)

    monkeypatch.setattr("holdfast.plan.files.digest_file", counted)
    go(tmp_path, wanted())
    assert digested == []
    os.utime(Path(run, "plan.jsonl.zst"))
    go(tmp_path, wanted())
    assert digested == ["plan.jsonl.zst"]


def test_a_resume_is_refused_if_the_other_process_has_extended_the_run(
    tmp_path: Path, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    """A resume with the earlier spec would leave a spec that is not the plan's: nobody could resume it any more."""
    go(tmp_path, wanted())
    left: list[dict[str, bytes]] = []

    def extend_meanwhile() -> None:
        go_further(tmp_path, wanted(repeats=2))
        left.append(tree_of(folder(tmp_path)))

    meanwhile(extend_meanwhile)
    with pytest.raises(DriftError, match="repeats"):
        go(tmp_path, wanted(samples=3))
    assert tree_of(folder(tmp_path)) == left[0]
    assert go(tmp_path, wanted(repeats=2)).finished == 6
    assert len(lines(tmp_path)) == 6


def test_an_extension_tells_the_change_from_what_the_other_process_left(
    tmp_path: Path, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    go(tmp_path, wanted())
    meanwhile(lambda: go_further(tmp_path, wanted(repeats=2)))
    go_further(tmp_path, wanted(repeats=3))
    assert changes(tmp_path) == [("tasks.task.repeats", 1, 2), ("tasks.task.repeats", 2, 3)]
    assert [line.key for line in lines(tmp_path)].count("task/mock/s0/3") == 1
    assert len(lines(tmp_path)) == 9
    assert go(tmp_path, wanted(repeats=3)).finished == 9
