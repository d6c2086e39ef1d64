"""Running a spec for the first time and again: who begins, what is refused, what a crash in between leaves."""

import asyncio
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.api import Task, run_async
from holdfast.errors import DamagedError, DriftError, HeldError, HoldfastError, SpecError
from holdfast.journal import Lock, journal_folder, verify
from holdfast.journal.start_copy import START_FILE
from holdfast.models import Request
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Run, RunOutcome, execute, new_run_location
from tests.journals import flipped, tree_of
from tests.unit.engine.runs import RUN, Asked, cut_after, echo, folder, given, go, lines, model, records, rows


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


def wrong(sample: Sample, answer: Answer) -> bool:
    return False


def status(store: Path) -> str:
    with Run.find(str(store), RUN) as run:
        return run.status()[0]


def test_the_same_command_again_sends_no_request_and_says_the_same(tmp_path: Path) -> None:
    asked: list[Request] = []

    async def reply(request: Request) -> str:
        asked.append(request)
        return await echo(request)

    wanted = given([Asked(rows=rows(5), scorers=[right])], [model("m", reply)])
    first = go(tmp_path, wanted)
    before = tree_of(os.path.join(folder(tmp_path), "journal"))
    again = go(tmp_path, wanted)
    assert (again.complete, msgspec.structs.replace(again, complete=False)) == (True, first)
    assert len(asked) == 5
    assert tree_of(os.path.join(folder(tmp_path), "journal")) == before
    assert status(tmp_path) == "completed"


def test_an_id_of_another_experiment_is_refused_if_the_user_named_no_experiment(tmp_path: Path) -> None:
    wanted = given([Asked(rows=rows(1))])
    go(tmp_path, wanted)
    spec = msgspec.structs.replace(wanted.spec, experiment="other one")
    named = msgspec.structs.replace(wanted, spec=spec)
    unnamed = msgspec.structs.replace(named, names_experiment=False)
    said = f"the id {RUN} is that of the run {wanted.spec.experiment}/{RUN}, and this would be another run, other one/"
    with pytest.raises(DriftError, match=said):
        new_run_location(unnamed, str(tmp_path), RUN)
    assert new_run_location(unnamed, str(tmp_path)).experiment == "other one"
    go(tmp_path, named)
    assert new_run_location(unnamed, str(tmp_path), RUN).began  # it continues its own run
    assert new_run_location(unnamed, str(tmp_path), RUN).experiments_with_id() == [wanted.spec.experiment]


def test_a_run_killed_before_its_last_word_is_completed_by_the_next_start(tmp_path: Path) -> None:
    wanted = given([Asked(rows=rows(3), scorers=[right])])
    go(tmp_path, wanted)
    cut_after(tmp_path, lambda kind, data: kind != "run.completed")
    assert status(tmp_path) == "interrupted"
    assert go(tmp_path, wanted).finished == 3
    assert status(tmp_path) == "completed"


def test_a_changed_result_field_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(3))]))
    before = tree_of(str(tmp_path))
    with pytest.raises(DriftError, match="seed"):
        go(tmp_path, given([Asked(rows=rows(3))], seed=5))
    assert tree_of(str(tmp_path)) == before


def test_other_rows_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(3))]))
    before = tree_of(str(tmp_path))
    changed = rows(3)
    changed[1]["input"] = "another question"
    with pytest.raises(DriftError, match="s1"):
        go(tmp_path, given([Asked(rows=changed)]))
    assert tree_of(str(tmp_path)) == before


def test_a_spec_that_cannot_run_creates_nothing(tmp_path: Path) -> None:
    broken = given([Asked(rows=rows(3), fields={"prompt": "{no_such_column}"})])
    with pytest.raises(SpecError, match="no_such_column"):
        go(tmp_path / "store", broken)
    assert not (tmp_path / "store").exists()


def test_a_changed_throughput_field_is_accepted_and_recorded(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(3))]))
    go(tmp_path, given([Asked(rows=rows(3))], concurrency={"samples": 2}))
    resumed = [data for kind, data in records(tmp_path) if kind == "run.resumed"]
    assert [change["field"] for change in resumed[-1]["changes"]] == ["concurrency.samples"]
    text = Path(folder(tmp_path), "spec.yaml").read_text()
    assert "concurrency.samples: 256 -> 2" in text
    assert yaml.safe_load(text)["concurrency"]["samples"] == 2


def test_a_crash_between_the_resume_record_and_spec_yaml_is_repaired_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.runs.execution.resume as resuming

    go(tmp_path, given([Asked(rows=rows(3))]))
    old = Path(folder(tmp_path), "spec.yaml").read_text()

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    changed = given([Asked(rows=rows(3))], concurrency={"samples": 2})
    with monkeypatch.context() as patch:
        patch.setattr(resuming, "write_spec_file", die)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, changed)
    assert Path(folder(tmp_path), "spec.yaml").read_text() == old
    go(tmp_path, changed)
    text = Path(folder(tmp_path), "spec.yaml").read_text()
    assert yaml.safe_load(text)["concurrency"]["samples"] == 2
    assert text.count("concurrency.samples: 256 -> 2") == 1
    assert status(tmp_path) == "completed"


def test_scorers_added_to_a_finished_run_score_its_answers_without_asking(tmp_path: Path) -> None:
    asked: list[Request] = []

    async def reply(request: Request) -> str:
        asked.append(request)
        return await echo(request)

    models = [model("m", reply)]
    go(tmp_path, given([Asked(rows=rows(4))], models))
    go(tmp_path, given([Asked(rows=rows(4), scorers=[right])], models))
    assert [line.scores for line in lines(tmp_path)] == [{"right": True}] * 4
    assert len(asked) == 4


def test_changed_scorers_open_a_new_evaluation_and_blend_nothing(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(4), scorers=[right])]))
    go(tmp_path, given([Asked(rows=rows(4), scorers=[wrong])]))
    assert [line.scores for line in lines(tmp_path)] == [{"wrong": False}] * 4


def test_going_back_to_earlier_scorers_shows_their_scores_again(tmp_path: Path) -> None:
    for scorers in ([right], [wrong], [right]):
        go(tmp_path, given([Asked(rows=rows(4), scorers=scorers)]))
    assert [line.scores for line in lines(tmp_path)] == [{"right": True}] * 4


def test_a_folder_that_holds_no_run_yet_begins_anew(tmp_path: Path) -> None:
    """What a kill before the first record can leave: temporary files, a plan, a journal without a run."""
    wanted = given([Asked(rows=rows(3))])
    go(tmp_path, wanted)
    place = folder(tmp_path)
    for kept in ([], ["plan.jsonl.zst"], ["plan.jsonl.zst", "data.jsonl.zst"], ["plan.jsonl.zst.tmp"]):
        for name, content in tree_of(place).items():
            os.unlink(os.path.join(place, name))
            if name in kept:
                Path(place, name).write_bytes(content[: len(content) // 2])
        Path(place, "plan.jsonl.zst.tmp").write_bytes(b"half")
        os.makedirs(journal_folder(place), exist_ok=True)
        assert go(tmp_path, wanted).finished == 3
        assert [line.status for line in lines(tmp_path)] == ["finished"] * 3


def test_a_run_whose_journal_is_missing_is_not_started_again_in_its_place(tmp_path: Path) -> None:
    """Its answers may be in a copy, and would be bought twice."""
    wanted = given([Asked(rows=rows(3))])
    go(tmp_path, wanted)
    assert status(tmp_path) == "completed"
    place = Path(folder(tmp_path))
    shutil.rmtree(place / "journal")
    with pytest.raises(DamagedError, match="journal is missing"):
        go(tmp_path, wanted)
    assert not (place / "journal").exists()


def test_a_journal_with_a_segment_and_no_run_begins_anew(tmp_path: Path) -> None:
    wanted = given([Asked(rows=rows(3))])
    go(tmp_path, wanted)
    assert cut_after(tmp_path, lambda kind, data: kind == "segment") == 1
    Path(folder(tmp_path), START_FILE).unlink()  # it would restore the start of the run
    with pytest.raises(DamagedError, match="is empty"):  # spec.yaml shows that there was one
        go(tmp_path, wanted)
    Path(folder(tmp_path), "spec.yaml").unlink()
    assert go(tmp_path, wanted).finished == 3
    assert sum(kind == "run.started" for kind, _ in records(tmp_path)) == 1


def test_a_run_whose_first_record_is_damaged_is_not_begun_anew_over_its_answers(tmp_path: Path) -> None:
    """Nothing says any more what was requested: a resume could mix two experiments."""
    go(tmp_path, given([Asked(rows=rows(3))]))
    cut_after(tmp_path, lambda kind, data: kind != "run.completed")
    path = Path(journal_folder(folder(tmp_path)), "000001.jsonl")
    content = path.read_bytes()
    path.write_bytes(flipped(content, content.index(b'"run.started"') + 40))
    with pytest.raises(HoldfastError):
        go(tmp_path, given([Asked(rows=rows(3))], seed=99))


def test_a_run_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    wanted = given([Asked(rows=rows(3))])
    go(tmp_path, wanted)
    lock = Lock(folder(tmp_path))
    try:
        assert status(tmp_path) == "running"
        with pytest.raises(HeldError):
            go(tmp_path, given([Asked(rows=rows(3))], concurrency={"samples": 3}))
    finally:
        lock.release()


def test_two_that_race_to_begin_the_same_id_make_one_run(tmp_path: Path) -> None:
    asked: list[str] = []

    async def reply(request: Request) -> str:
        asked.append(str(request.messages[-1]["content"]))
        return asked[-1]

    wanted = given([Asked(rows=rows(20), scorers=[right])], [model("m", reply)])
    together = threading.Barrier(4)
    found: list[RunOutcome | BaseException] = []

    def begin() -> None:
        together.wait()
        try:
            found.append(asyncio.run(execute(wanted, new_run_location(wanted, str(tmp_path), RUN))))
        except HoldfastError as error:
            found.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(isinstance(each, HeldError) or (isinstance(each, RunOutcome) and each.finished == 20) for each in found)
    assert any(isinstance(each, RunOutcome) for each in found)
    assert sum(kind == "run.started" for kind, _ in records(tmp_path)) == 1
    assert sorted(asked) == sorted(f"question {number}" for number in range(20))


def test_an_observer_that_fails_does_not_take_the_run_with_it(tmp_path: Path) -> None:
    async def broken(engine: object, place: object) -> None:
        raise OSError("the terminal is gone")

    ended = go(tmp_path, given([Asked(rows=rows(3))]), broken)
    assert ended.finished == 3
    assert status(tmp_path) == "completed"


def test_a_loss_in_an_older_segment_is_recorded_once_by_the_resumes_that_meet_it(tmp_path: Path) -> None:
    store = str(tmp_path / "runs")
    noise = [random.Random(i).randbytes(400_000).hex() for i in range(4)]  # several blocks: one of them is hit
    task = Task("t", [{"id": i, "q": f"say {noise[i]}"} for i in range(4)], "{q}")
    run = asyncio.run(run_async(task, ["mock"], id="x", store=store))
    sealed = next(Path(run.place.journal).glob("*.zst"))
    packed = bytearray(sealed.read_bytes())
    packed[len(packed) * 3 // 4] ^= 0x40
    sealed.write_bytes(packed)
    for _ in range(3):
        run = asyncio.run(run_async(task, ["mock"], id="x", store=store))
    assert verify(run.place.journal).errors == ()
    assert f"{sealed}: the sealed file has changed since it was written" in verify(run.place.journal).warnings
    assert len({(each.segment, each.first) for each in run.summary().anomalies}) == len(run.summary().anomalies)
    assert run.summary().finished == 4
