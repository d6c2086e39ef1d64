"""`holdfast recover` from a damaged mirror: one warning for each loss, right counts, never a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.journal.start_copy import START_FILE
from tests.e2e.commands import Done, call
from tests.journals import flipped, frames_of
from tests.mirrors import RUN, SAMPLES, Kept, copied, finished_so_far, run_and_mirror

FINISHED = 10


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A run that was killed; its mirror has chunks of one segment."""
    return run_and_mirror(tmp_path_factory.mktemp("cut"), keep=finished_so_far(FINISHED))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A complete run; its mirror has sealed segments."""
    return run_and_mirror(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Another run."""
    return run_and_mirror(tmp_path_factory.mktemp("other"), keep=finished_so_far(FINISHED))


def recover(kept: Kept, *more: str) -> Done:
    done = call("recover", kept.url, "--output", kept.store, "--json", *more, cwd=kept.mirror)
    assert "Traceback" not in done.err
    return done


def warnings(done: Done) -> list[str]:
    return [line.removeprefix("warning: ") for line in done.err.splitlines() if line.startswith("warning: ")]


def flip(*paths: Path) -> None:
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(flipped(data, len(data) // 2))


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def empty(*paths: Path) -> None:
    for path in paths:
        path.write_bytes(b"")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-150])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more\n")


class Case(NamedTuple):
    """A damage, and how many warnings there must be of it; `lost`: whether records are."""

    name: str
    damage: Callable[[Kept, Kept], Any]
    warnings: int = 1
    lost: bool = True


CHUNKS = [
    Case("nothing", lambda kept, other: None, warnings=0, lost=False),
    Case("a chunk in the middle is missing", lambda kept, other: kept.chunks()[2].unlink()),
    Case("the first chunk is missing", lambda kept, other: kept.chunks()[0].unlink()),
    Case("two neighbours are missing", lambda kept, other: remove(*kept.chunks()[1:3])),
    Case("a chunk is cut short", lambda kept, other: cut_short(kept.chunks()[2])),
    Case("the last chunk is cut short", lambda kept, other: cut_short(kept.chunks()[-1])),
    Case("a chunk is empty", lambda kept, other: kept.chunks()[2].write_bytes(b"")),
    Case("a chunk is longer", lambda kept, other: lengthen(kept.chunks()[2]), 0, lost=False),
    Case("a byte is flipped", lambda kept, other: flip(kept.chunks()[2])),
    Case("a byte is flipped in two", lambda kept, other: flip(*kept.chunks()[2:4]), 2),
    Case("the last has a flipped byte", lambda kept, other: flip(kept.chunks()[-1])),
    Case("one is of another run", lambda kept, other: shutil.copy(other.chunks()[2], kept.chunks()[2])),
    Case("there is a note", lambda kept, other: (kept.objects / "NOTE").write_text("hello"), lost=False),
    Case("there is a note inside", lambda kept, other: (kept.objects / "journal/note").write_text("x"), lost=False),
    Case("spec.yaml is missing", lambda kept, other: (kept.objects / "spec.yaml").unlink(), lost=False),
    Case("the plan is missing", lambda kept, other: (kept.objects / "plan.jsonl.zst").unlink(), lost=False),
    Case("the data is missing", lambda kept, other: (kept.objects / "data.jsonl.zst").unlink(), lost=False),
    Case("the plan is damaged", lambda kept, other: flip(kept.objects / "plan.jsonl.zst"), lost=False),
]


@pytest.mark.parametrize("case", CHUNKS, ids=lambda case: case.name)
def test_each_damage_is_reported_once_and_the_counts_are_right(
    cut: Kept, other: Kept, tmp_path: Path, case: Case
) -> None:
    kept = copied(cut, tmp_path)
    case.damage(kept, other)
    done = recover(kept)
    assert done.code == 0, done.err
    assert len(warnings(done)) == case.warnings, done.err
    found = done.json()
    assert found["warnings"] == warnings(done)
    assert (found["lost"] > 0) == case.lost
    assert found["planned"] == SAMPLES
    assert found["finished"] == FINISHED if not case.lost else found["finished"] <= FINISHED
    shown = call("show", RUN, "--store", kept.store, "--json", cwd=tmp_path).json()
    assert (shown["planned"], shown["finished"]) == (SAMPLES, found["finished"])
    if "plan" in case.name or "data" in case.name:
        return
    went_on = call("resume", RUN, "--store", kept.store, cwd=tmp_path)
    assert went_on.code == 0, went_on.err
    lines = call("export", RUN, "--store", kept.store, cwd=tmp_path).out.splitlines()
    assert len(lines) == SAMPLES
    assert call("verify", RUN, "--store", kept.store, cwd=tmp_path).code == 0


def test_every_chunk_that_can_be_lost_alone_loses_its_own_records_only(cut: Kept, tmp_path: Path) -> None:
    for index in range(1, len(cut.chunks()) - 1):
        folder = tmp_path / str(index)
        folder.mkdir()
        kept = copied(cut, folder)
        gone = kept.chunks()[index].read_bytes()
        kept.chunks()[index].unlink()
        found = recover(kept).json()
        assert found["lost"] == gone.count(b"\n")
        assert found["finished"] == FINISHED - gone.count(b'"t":"sample.finished"')


SEALED = [
    (Case("the frame of run.started is damaged", lambda kept, other: spoil_frame(kept.sealed()[0], 1)), SAMPLES),
    (Case("the frame of the answers is damaged", lambda kept, other: spoil_frame(kept.sealed()[0], 2)), 0),
    (Case("it is cut short", lambda kept, other: cut_short(kept.sealed()[0])), 0),
    (Case("only its table is damaged", lambda kept, other: spoil(kept.sealed()[0], -3), 0, lost=False), SAMPLES),
]


def spoil_frame(path: Path, number: int) -> None:
    spoil(path, frames_of(path.read_bytes())[number])


def spoil(path: Path, at: int) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, at % len(data)))


@pytest.mark.parametrize(("case", "finished"), SEALED, ids=[case.name for case, _ in SEALED])
def test_a_damaged_sealed_segment_is_reported(
    whole: Kept, other: Kept, tmp_path: Path, case: Case, finished: int
) -> None:
    """A run with one segment of three frames: its header, run.started, and all other records."""
    kept = copied(whole, tmp_path)
    case.damage(kept, other)
    done = recover(kept)
    assert done.code == 0, done.err
    assert len(warnings(done)) == case.warnings, done.err
    assert (done.json()["lost"] > 0) == case.lost
    assert done.json()["finished"] == finished
    assert (call("verify", RUN, "--store", kept.store, cwd=tmp_path).code == 0) == (not case.lost)


def test_a_flipped_byte_inside_a_frame_is_reported_whatever_it_spoils(whole: Kept, tmp_path: Path) -> None:
    """A literal spoils its line and those packed by reference to it, anything else the whole frame."""
    kept = copied(whole, tmp_path)
    flip(kept.sealed()[0])
    done = recover(kept)
    found = done.json()
    assert done.code == 0, done.err
    assert found["warnings"] == warnings(done)
    assert found["warnings"]
    assert found["lost"] > 0
    assert found["finished"] <= SAMPLES
    assert call("verify", RUN, "--store", kept.store, cwd=tmp_path).code != 0


@pytest.mark.parametrize(
    ("damage", "code", "says"),
    [
        (
            lambda kept: remove(kept.chunks()[0], kept.objects / START_FILE),
            5,
            "no beginning of any segment can be read",
        ),
        (lambda kept: empty(kept.chunks()[0], kept.objects / START_FILE), 5, "no beginning of any segment can be read"),
        (lambda kept: shutil.rmtree(kept.objects / "journal"), 5, "there is no journal to recover"),
        (lambda kept: shutil.rmtree(kept.objects), 2, "holds no run"),
        (lambda kept: shutil.rmtree(kept.mirror), 2, "holds no run"),
    ],
    ids=["the first chunk is missing", "the first chunk is empty", "no journal", "an empty prefix", "no mirror"],
)
def test_where_nothing_is_left_that_is_said(
    cut: Kept, tmp_path: Path, damage: Callable[[Kept], None], code: int, says: str
) -> None:
    kept = copied(cut, tmp_path)
    damage(kept)
    done = call("recover", kept.url, "--output", kept.store, cwd=tmp_path)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (kept.store / "sums" / RUN).exists()


def test_garbage_that_pretends_to_be_of_a_later_epoch_takes_nothing_away(cut: Kept, tmp_path: Path) -> None:
    kept = copied(cut, tmp_path)
    fake = kept.objects / "journal" / "000009" / "000001"
    fake.mkdir(parents=True)
    (fake / "000000000000-000000000006").write_bytes(b"{'no'}")
    done = recover(kept)
    assert done.json()["finished"] == FINISHED
    assert done.json()["lost"] == 0
    assert len(warnings(done)) == 1


def test_an_object_whose_name_climbs_out_of_the_folder_is_not_followed(cut: Kept, tmp_path: Path) -> None:
    from holdfast.journal.mirror.pieces import is_original

    assert is_original("blobs/" + "a" * 64)
    assert not any(map(is_original, ["blobs/../../evil", "blobs/..", "blobs/a/b", "../x.jsonl.zst", ".x.jsonl.zst"]))


def test_recovering_twice_changes_nothing(cut: Kept, tmp_path: Path) -> None:
    kept = copied(cut, tmp_path)
    assert recover(kept).code == 0
    files = {path: path.read_bytes() for path in (kept.store / "sums" / RUN).rglob("*") if path.is_file()}
    for more in ((), ("--overwrite",)):
        again = recover(kept, *more)
        assert again.code == 0, again.err
        assert {path: path.read_bytes() for path in files} == files


def test_a_run_that_has_more_keeps_it(cut: Kept, tmp_path: Path) -> None:
    kept = copied(cut, tmp_path)
    assert recover(kept).code == 0
    assert call("resume", RUN, "--store", kept.store, cwd=tmp_path).code == 0
    before = call("export", RUN, "--store", kept.store, cwd=tmp_path).out
    done = recover(kept, "--overwrite")
    assert done.code == 0, done.err
    assert done.json()["finished"] == SAMPLES
    assert call("export", RUN, "--store", kept.store, cwd=tmp_path).out == before
    assert call("verify", RUN, "--store", kept.store, cwd=tmp_path).code == 0


def test_what_a_damaged_mirror_has_lost_is_taken_from_the_folder(cut: Kept, tmp_path: Path) -> None:
    """Two halves of a run make a whole."""
    kept = copied(cut, tmp_path)
    kept.chunks()[2].unlink()
    assert recover(kept).json()["lost"] > 0
    shutil.rmtree(kept.mirror)
    shutil.copytree(cut.mirror, kept.mirror)
    kept.chunks()[3].unlink()
    kept.chunks()[1].unlink()
    done = recover(kept, "--overwrite")
    assert done.json()["lost"] == 0, done.err
    assert done.json()["finished"] == FINISHED
    assert warnings(done) == []


def test_the_list_tells_what_can_be_recovered(cut: Kept, tmp_path: Path) -> None:
    done = call("recover", "--list", cut.mirror.as_uri(), "--json", cwd=tmp_path)
    assert [(each["experiment"], each["run_id"], each["source"]) for each in done.json()] == [("sums", RUN, "mirror")]
    truth = recover(copied(cut, tmp_path)).json()
    for name in ("planned", "finished", "failed", "in_flight"):
        assert done.json()[0][name] == truth[name], name
    empty = call("recover", "--list", f"file://{tmp_path}/nothing", cwd=tmp_path)
    assert (empty.code, "Nothing to recover" in empty.out + empty.err) == (0, True)
