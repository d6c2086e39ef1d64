"""Runs that stay open: locked one after the other, closed to make room, never under a reader."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.report import KeyRecords
from holdfast.runs.store.lookup import RunLocation, runs_in
from holdfast.view import sources as module
from holdfast.view.sources import KeyOutline, NotFoundError, RunRef, Sources
from tests.e2e.commands import call, write_spec


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in ("a", "b", "c"):
        assert call("run", write_spec(folder, 3), "--id", name, cwd=folder).code == 0
    return folder / "runs"


@pytest.fixture
def sources(store: Path) -> Sources:
    return Sources([str(store)], str(store))


A, B, C = (RunRef("sums", name) for name in "abc")


def test_requests_for_the_same_runs_in_another_order_do_not_wait_for_ever(sources: Sources) -> None:
    begin, done = threading.Barrier(2), []

    def read(refs: list[RunRef]) -> None:
        begin.wait()
        for _ in range(50):
            with sources.open_several(refs) as runs:
                done.append([run.run_id for run in runs])

    threads = [threading.Thread(target=read, args=(refs,), daemon=True) for refs in ([A, B], [B, A])]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(done) == 100
    assert {tuple(each) for each in done} == {("a", "b"), ("b", "a")}
    sources.close()


def test_a_run_may_be_opened_again_by_its_reader_but_no_other(sources: Sources) -> None:
    with sources.open(A) as run:
        with sources.open(A) as again:
            assert again is run
        with pytest.raises(RuntimeError, match="wait for each other"), sources.open(B):
            pass
    with sources.open_several([A, A]) as (one, other):
        assert one is other
    with sources.open(B):
        pass
    sources.close()


def test_room_is_made_without_closing_what_is_read(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_MAX", 1)
    with sources.open_several([A, B, C]) as runs:
        assert [run.summary().finished for run in runs] == [3, 3, 3]
        assert not any(run.is_evicted for run in runs)
    with sources.open(B) as run:
        assert run.summary().finished == 3
    with sources.open(C) as run:
        assert run.summary().run_id == "c"
    sources.close()
    assert all(run.is_evicted for run in runs)


def test_a_run_that_was_closed_while_a_thread_waited_is_opened_again(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OPEN_MAX", 1)
    found = sources._find_open([A])[0]  # noqa: SLF001
    with sources.open(B):
        pass
    assert found.is_evicted
    with sources.open(A) as run:
        assert run is not found
        assert run.summary().finished == 3
    sources.close()


def test_few_states_of_the_past_are_kept(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(5, 12):
        with sources.open(RunRef("sums", "a", at=at)) as run:
            assert run.index.last_n <= at
    assert len(sources._open) == module._PAST_MAX  # noqa: SLF001
    sources.close()


def test_a_run_that_is_read_is_not_closed_at_the_end(sources: Sources) -> None:
    reading, end = threading.Event(), threading.Event()

    def read() -> None:
        with sources.open(A) as run:
            reading.set()
            end.wait(60)
            assert run.summary().finished == 3

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait(60)
    sources.close()  # does not wait
    end.set()
    thread.join()
    sources.close()


def test_what_is_not_there_is_not_found(sources: Sources) -> None:
    for ref in (RunRef("sums", "no"), RunRef("no", "a"), RunRef("..", "a"), RunRef("sums", "../sums/a")):
        with pytest.raises(NotFoundError), sources.open(ref):
            pass


def test_a_record_that_is_not_there_yet_is_not_shown_as_the_past(sources: Sources) -> None:
    with sources.open(A) as run:
        last = run.index.last_n
    with sources.open(RunRef("sums", "a", at=last)) as run:
        assert run.index.last_n == last
    with pytest.raises(NotFoundError, match=f"no record {last + 1}: the last one is {last}"):
        sources.open(RunRef("sums", "a", at=last + 1)).__enter__()
    sources.close()


def test_an_address_with_the_uid_of_another_run_shows_none(sources: Sources) -> None:
    with pytest.raises(NotFoundError, match="there is no run sums/a"):
        sources.open(RunRef("sums", "a", uid="another")).__enter__()
    with sources.open(A) as run:
        uid = run.uid
    with sources.open(RunRef("sums", "a", uid)) as run:
        assert run.uid == uid
    sources.close()


def test_a_mirror_that_cannot_be_read_does_not_hide_the_runs_of_other_stores(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise StoreError("s3://bucket cannot be reached")

    monkeypatch.setattr(module, "find_to_read", unreachable)
    both = Sources([str(store), "s3://bucket"], str(store))
    with both.open(A) as run:
        assert run.summary().finished == 3
    with pytest.raises(StoreError, match="cannot be reached"):
        both.open(RunRef("sums", "elsewhere")).__enter__()
    both.close()


def test_stores_are_not_looked_through_for_every_request(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(folder: str) -> Iterator[RunLocation]:
        looked.append(folder)
        return runs_in(folder)

    monkeypatch.setattr(module, "runs_in", look)
    both = Sources([str(store), str(store / "sums" / "a")], str(store))
    for _ in range(3):
        with both.open(A):
            pass
    assert len(looked) == 1
    monkeypatch.setattr(module, "_LOCATED_SECONDS", -1.0)
    for _ in range(3):
        with both.open(B):
            pass
    assert len(looked) == 4
    both.close()


def test_a_run_that_replaced_another_in_its_folder_is_not_mixed_with_it(tmp_path: Path) -> None:
    spec, past = write_spec(tmp_path, 3), RunRef("sums", "a", at=5)
    assert call("run", spec, "--id", "a", cwd=tmp_path).code == 0
    sources = Sources([str(tmp_path / "runs")], "")
    with sources.open(A) as run:
        uid, run.outline = run.uid, KeyOutline("sums/arith/s0001/1", [], KeyRecords(texts=False))
    with sources.open(past) as run:
        index = run.index
    shutil.rmtree(tmp_path / "runs" / "sums" / "a")
    assert call("run", spec, "--id", "a", cwd=tmp_path).code == 0
    with sources.open(A) as run:
        assert run.uid != uid
        assert run.outline is None
        uid = run.uid
    with sources.open(past) as run:
        assert run.uid == uid
        assert run.index is not index
    sources.close()
