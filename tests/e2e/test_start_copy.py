"""A run whose journal has lost its beginning is read and resumed with started.jsonl, the second copy of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, shown, write_spec
from tests.journals import flipped, frames_of

SAMPLES = 300
COPY = "started.jsonl"
COLUMNS = ("key", "status", "output", "scores")


class Finished(NamedTuple):
    """A completed run of a real server, and what it answered."""

    folder: Path
    server: ServerProcess
    truth: list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("finished")
    with start_server_process() as server:
        write_spec(folder, SAMPLES, server.base_url)
        assert call("run", "eval.yaml", "--id", "r", cwd=folder).code == 0
        assert len(frames_of(sealed(folder).read_bytes())) > 4, "the answers must be in several frames"
        yield Finished(folder, server, columns(folder))


@pytest.fixture
def home(finished: Finished, tmp_path: Path) -> Path:
    """A copy to damage."""
    copy = tmp_path / "home"
    shutil.copytree(finished.folder, copy)
    return copy


def run_folder(home: Path) -> Path:
    return home / "runs" / "sums" / "r"


def sealed(home: Path) -> Path:
    return next((run_folder(home) / "journal").glob("*.zst"))


def columns(home: Path) -> list[dict[str, Any]]:
    return [{name: line[name] for name in COLUMNS} for line in exported("r", home / "runs")]


def flip_frames(path: Path, *numbers: int) -> None:
    data = path.read_bytes()
    for number in numbers:
        data = flipped(data, frames_of(data)[number] + 20)
    path.write_bytes(data)


def cut_in_frame(path: Path, number: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: frames_of(data)[number] + 20])


def lose_start_and_half(path: Path) -> None:
    flip_frames(path, 1)
    cut_in_frame(path, len(frames_of(path.read_bytes())) // 2)


def assert_damaged(done: Done) -> None:
    assert done.code == 5, done.said
    assert "Traceback" not in done.err
    assert done.err.startswith("holdfast:"), done.err


HARMS: dict[str, Callable[[Path], None]] = {
    "run.started is flipped": lambda path: flip_frames(path, 1),
    "the only header is flipped": lambda path: flip_frames(path, 0),
    "header and run.started are flipped": lambda path: flip_frames(path, 0, 1),
    "cut inside run.started": lambda path: cut_in_frame(path, 1),
    "cut inside the first answers": lambda path: cut_in_frame(path, 2),
    "run.started is flipped and half is cut": lose_start_and_half,
}


QUICK_HARMS = ("run.started is flipped", "the only header is flipped", "cut inside run.started")
"""The others are combinations of these."""


@pytest.mark.parametrize(
    "harm", [pytest.param(harm, marks=() if harm in QUICK_HARMS else pytest.mark.long) for harm in HARMS]
)
def test_a_run_that_lost_its_beginning_is_shown_and_resumed(finished: Finished, home: Path, harm: str) -> None:
    (run_folder(home) / "lease.json").unlink()
    HARMS[harm](sealed(home))
    done = call("show", "r", "--json", cwd=home)
    assert_damaged(done)
    before = done.json()
    assert before["planned"] == SAMPLES
    assert before["finished"] == (SAMPLES if harm.endswith("flipped") else before["finished"])
    if "cut" in harm:
        assert before["finished"] < SAMPLES
    assert_damaged(call("gate", "r", "--at-least", "0.0", cwd=home))
    requests = finished.server.stats().requests
    assert call("resume", "r", cwd=home).code == 0
    assert finished.server.stats().requests - requests == SAMPLES - before["steps"]["live"]
    assert columns(home) == finished.truth
    after = shown("r", home / "runs")
    assert (after["status"], after["finished"]) == ("completed", SAMPLES)
    assert call("verify", "r", cwd=home).code == 0
    requests = finished.server.stats().requests
    assert call("resume", "r", cwd=home).code == 0, "the repaired run has nothing left to do"
    assert finished.server.stats().requests == requests


def test_without_the_copy_the_same_damage_is_final(finished: Finished, home: Path) -> None:
    """The negative control: it is the copy that made the tests above pass."""
    (run_folder(home) / COPY).unlink()
    flip_frames(sealed(home), 1)
    requests = finished.server.stats().requests
    for command in ("show", "resume"):
        done = call(command, "r", cwd=home)
        assert_damaged(done)
        assert "its first record (run.started) is damaged" in done.err
    assert finished.server.stats().requests == requests


def test_losing_only_the_copy_is_harmless_and_a_resume_writes_it_again(home: Path) -> None:
    path = run_folder(home) / COPY
    truth = path.read_bytes()
    for content in (None, b"", b"x" * 100, flipped(truth, 20), truth[:-10]):
        path.unlink() if content is None else path.write_bytes(content)
        assert call("show", "r", cwd=home).code == 0
        verified = call("verify", "r", cwd=home)
        assert verified.code == 0
        assert COPY in verified.said
        assert call("resume", "r", cwd=home).code == 0
        assert path.read_bytes() == truth
    assert COPY not in call("verify", "r", cwd=home).said


def test_a_folder_in_place_of_the_copy_does_not_stop_the_run(home: Path) -> None:
    path = run_folder(home) / COPY
    path.unlink()
    path.mkdir()
    assert call("show", "r", cwd=home).code == 0
    assert call("resume", "r", cwd=home).code == 0
    assert call("verify", "r", cwd=home).code == 0


def test_the_journal_of_another_run_is_damage(finished: Finished, home: Path) -> None:
    assert call("run", "eval.yaml", "--id", "other", "--limit", "3", cwd=home).code == 0
    journal = run_folder(home) / "journal"
    shutil.rmtree(journal)
    shutil.copytree(home / "runs" / "sums" / "other" / "journal", journal)
    requests = finished.server.stats().requests
    for command in (("show", "r"), ("report", "r"), ("run", "eval.yaml", "--id", "r"), ("resume", "r")):
        done = call(*command, cwd=home)
        assert_damaged(done)
        assert "belongs to another run" in done.err
    assert call("verify", "r", cwd=home).code == 5
    listed = call("ls", "--json", cwd=home)
    assert listed.code == 5
    assert "other" in [each["run_id"] for each in listed.json()]
    assert finished.server.stats().requests == requests


def test_a_journal_without_any_record_is_not_replaced_by_the_copy(finished: Finished, home: Path) -> None:
    """All answers are lost here, but perhaps not in a backup: asking for all of them again is for the user to say."""
    (run_folder(home) / "spec.yaml").unlink()
    sealed(home).write_bytes(b"")
    requests = finished.server.stats().requests
    for command in ("show", "resume", "verify"):
        assert call(command, "r", cwd=home).code == 5
    shutil.rmtree(run_folder(home) / "journal")
    assert_damaged(call("show", "r", cwd=home))
    assert_damaged(call("run", "eval.yaml", "--id", "r", cwd=home))
    assert finished.server.stats().requests == requests


def test_a_lost_extension_is_read_from_the_copy(finished: Finished, home: Path) -> None:
    assert call("extend", "r", "--set", "tasks.sums.repeats=2", cwd=home).code == 0
    lines = [json.loads(line) for line in (run_folder(home) / COPY).read_text().splitlines()]
    assert [line["t"] for line in lines] == ["segment", "run.started", "segment", "run.extended"]
    truth = columns(home)
    extended = sorted((run_folder(home) / "journal").glob("*.zst"))[-1]
    flip_frames(extended, 0, 1)
    done = call("show", "r", "--json", cwd=home)
    assert_damaged(done)
    assert done.json()["planned"] == 2 * SAMPLES
    requests = finished.server.stats().requests
    assert call("resume", "r", cwd=home).code == 0
    assert finished.server.stats().requests - requests == 2 * SAMPLES - done.json()["steps"]["live"]
    assert columns(home) == truth


def test_a_mirror_and_a_recovered_run_have_the_copy(finished: Finished, tmp_path: Path) -> None:
    write_spec(tmp_path, 3, finished.server.base_url, mirror={"url": f"file://{tmp_path}/mirror", "seconds": 0.1})
    assert call("run", "eval.yaml", "--id", "r", cwd=tmp_path).code == 0
    truth = (run_folder(tmp_path) / COPY).read_bytes()
    assert (tmp_path / "mirror" / "sums" / "r" / COPY).read_bytes() == truth
    url = f"file://{tmp_path}/mirror/sums/r"
    done = call("recover", url, "--output", tmp_path / "back", "--json", cwd=tmp_path)
    assert (done.code, done.json()["warnings"]) == (0, [])
    assert (tmp_path / "back" / "sums" / "r" / COPY).read_bytes() == truth


def test_copies_of_a_run_that_get_a_journal_of_their_own_get_the_file_too(home: Path) -> None:
    assert call("fork", "r", "--id", "f", "--set", "seed=1", cwd=home).code == 0
    done = call("recover", run_folder(home), "--output", home / "small", "--no-events", cwd=home)
    assert done.code == 0, done.err
    for folder in (home / "runs" / "sums" / "f", home / "small" / "sums" / "r"):
        header = json.loads((folder / COPY).read_text().splitlines()[0])
        assert header["d"]["run"] not in (run_folder(home) / COPY).read_text()
        done = call("verify", folder, cwd=home)
        assert done.code == 0
        assert COPY not in done.said
