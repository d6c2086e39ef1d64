"""Plan, data and journal are checked before any number is shown: every reading command reports damage with exit 5."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import DamagedError, DamageWarning
from tests.e2e.commands import Done, call, write_spec

READING = (
    ("show", "r"),
    ("report", "r"),
    ("export", "r"),
    ("cost", "r"),
    ("ls",),
    ("score", "r", "--list"),
    ("verify", "r"),
    ("doctor",),
    ("show", "r", "sums/arith/s0001/1"),
)
JUDGING = (("leaderboard", "r"), ("compare", "r", "r"), ("gate", "r", "--at-least", "0.0"))
CONTINUING = (("run", "eval.yaml", "--id", "r"), ("resume", "r"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run of 300 samples, one of them right."""
    folder = tmp_path_factory.mktemp("finished")
    write_spec(folder, rows=300)
    assert call("run", "eval.yaml", "--id", "r", cwd=folder).code == 0
    return folder


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    copy = tmp_path / "home"
    shutil.copytree(finished, copy, symlinks=True)
    return copy


def run_folder(home: Path) -> Path:
    return home / "runs" / "sums" / "r"


def cut(path: Path, share: float = 0.9) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(bytes(data))


def sentences(done: Done) -> list[str]:
    assert "Traceback" not in done.err
    return [line for line in done.err.splitlines() if line.startswith("holdfast:")]


def assert_reported(home: Path, *commands: tuple[str, ...]) -> None:
    for command in commands:
        done = call(*command, cwd=home)
        assert done.code == 5, (command, done)
        if command[0] not in ("verify", "doctor"):
            assert len(sentences(done)) == 1, (command, done.err)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_a_damaged_plan_is_reported_by_every_command(home: Path, harm: Callable[[Path], None]) -> None:
    harm(run_folder(home) / "plan.jsonl.zst")
    commands = [each for each in READING if each[0] not in ("export", "ls")]
    assert_reported(home, *commands, *JUDGING, *CONTINUING)
    done = call("export", "r", "--output", "out.jsonl", cwd=home)
    assert done.code == 5
    assert not (home / "out.jsonl").exists()
    if harm is not flip:  # a listing looks at sizes only
        assert_reported(home, ("ls",))


def test_numbers_that_do_not_need_the_plan_are_still_shown(home: Path) -> None:
    before = call("report", "r", "--format", "json", cwd=home).json()
    cut(run_folder(home) / "plan.jsonl.zst")
    after = call("report", "r", "--format", "json", cwd=home)
    assert after.code == 5
    found = json.loads(after.out)
    assert found["cells"] == before["cells"]
    assert "plan.jsonl.zst is damaged" in found["damage"][0]


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_damaged_data_is_reported_by_every_command(home: Path, harm: Callable[[Path], None]) -> None:
    harm(run_folder(home) / "data.jsonl.zst")
    commands = [each for each in READING if each != ("ls",)]
    assert_reported(home, *commands, *JUDGING, *CONTINUING)


def test_a_plan_is_digested_once_and_again_when_its_file_changes(home: Path) -> None:
    path = run_folder(home) / "plan.jsonl.zst"
    assert call("show", "r", cwd=home).code == 0
    flip(path)
    assert call("show", "r", cwd=home).code == 5
    flip(path)
    assert call("show", "r", cwd=home).code == 0


def test_a_plan_of_an_earlier_version_has_no_recorded_size_and_is_checked(home: Path) -> None:
    """Sizes are a shortcut: without them the frame index and the digest decide."""
    from holdfast.plan import check_originals, check_sizes
    from holdfast.records.facts import Block, StoredFile
    from holdfast.state import Index

    index = Index(str(run_folder(home)))
    block = index.story.blocks[0]
    index.close()
    assert block.data is not None
    plan, data = (StoredFile(each.count, each.digest) for each in (block.plan, block.data))
    old = Block(1, plan, data, block.cells)
    assert check_originals(str(run_folder(home)), [old], {}) == []
    cut(run_folder(home) / "plan.jsonl.zst")
    assert [flaw.is_plan for flaw in check_sizes(str(run_folder(home)), [old])] == [True]


def delete_segments(folder: Path) -> None:
    for path in (folder / "journal").iterdir():
        path.unlink()


def empty_segments(folder: Path) -> None:
    for path in (folder / "journal").iterdir():
        path.write_bytes(b"")


def delete_journal(folder: Path) -> None:
    shutil.rmtree(folder / "journal")


def replace_journal_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder / "journal")
    (folder / "journal").write_text("")


@pytest.mark.parametrize("harm", [delete_segments, empty_segments, delete_journal, replace_journal_by_a_file])
def test_a_missing_journal_is_damage_and_not_a_crash(home: Path, harm: Callable[[Path], None]) -> None:
    harm(run_folder(home))
    assert_reported(home, *READING, *JUDGING, *CONTINUING)


def test_a_cut_sealed_journal_is_reported_until_a_resume_repairs_it(home: Path) -> None:
    truth = call("export", "r", cwd=home).out
    folder = run_folder(home)
    (folder / "lease.json").unlink()  # without it nothing but the file itself shows that its end is missing
    cut(next((folder / "journal").glob("*.zst")), 0.5)
    assert_reported(home, *READING, *JUDGING)
    assert call("resume", "r", cwd=home).code == 0
    after = call("export", "r", cwd=home)
    assert after.code == 0
    columns = ("key", "status", "output", "scores")
    assert [[json.loads(line)[name] for name in columns] for line in after.out.splitlines()] == [
        [json.loads(line)[name] for name in columns] for line in truth.splitlines()
    ]
    assert call("gate", "r", "--at-least", "0.0", cwd=home).code == 0


def test_a_journal_that_is_cut_after_it_was_indexed_is_noticed(home: Path) -> None:
    assert call("show", "r", cwd=home).code == 0
    cut(next((run_folder(home) / "journal").glob("*.zst")), 0.5)
    assert call("show", "r", cwd=home).code == 5


def test_python_warns_of_damage_and_refuses_without_a_journal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    cut(run_folder(home) / "plan.jsonl.zst")
    with holdfast.open_run("r") as run:
        with pytest.warns(DamageWarning, match=r"plan\.jsonl\.zst is damaged"):
            report = run.report()
        assert report.damage
        with pytest.raises(DamagedError, match=r"plan\.jsonl\.zst is damaged"):
            run.samples()
    delete_journal(run_folder(home))
    with holdfast.open_run("r") as run, pytest.raises(DamagedError, match="journal"):
        run.report()


def test_reports_for_others_say_that_the_run_is_damaged(home: Path) -> None:
    cut(run_folder(home) / "data.jsonl.zst")
    for name in ("markdown", "latex", "html"):
        done = call("report", "r", "--format", name, cwd=home)
        assert done.code == 5
        assert "damaged" in done.out, name


def test_a_damaged_run_is_listed_among_the_others(home: Path) -> None:
    shutil.copytree(run_folder(home), home / "runs" / "sums" / "whole")
    os.truncate(run_folder(home) / "data.jsonl.zst", 10)
    done = call("ls", "--json", cwd=home)
    assert done.code == 5
    found = {each["run_id"]: bool(each["damage"]) for each in done.json()}
    assert found == {"r": True, "whole": False}
