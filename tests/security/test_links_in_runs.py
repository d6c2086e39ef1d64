"""Somebody else's run holds links and pipes in the places of its files. No command reads, changes or creates anything
through them, waits for them, or ends with a traceback.
"""

import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import files
from holdfast.journal import writer
from tests.e2e.commands import Done, call, write_spec

RUN = "foreign"
KEY = "sums/arith/s0001/1"
CODES = {0, 1, 2, 3, 4, 5, 7}
HANG_SECONDS = 120
FOLDERS = {"journal", "journal/quarantine", "blobs", "control", "lease"}
QUICK = (("show", RUN, "--json"), ("verify", RUN), ("note", RUN, "a note"), ("resume", RUN))
READ = (
    *QUICK[:2],
    ("show", RUN),
    ("show", RUN, KEY),
    ("export", RUN),
    ("ls",),
    ("report", RUN),
    ("report", RUN, "--format", "junit"),
    ("compare", RUN),
    ("leaderboard", RUN),
    ("gate", RUN, "--at-least", "0.1"),
    ("cost", RUN),
    ("score", RUN, "--list"),
    ("recover", "--list"),
    ("doctor", RUN),
    ("gc", "--keep", "0"),
)
WRITE = (
    *QUICK[2:],
    ("tag", RUN, "seen"),
    ("cancel", RUN),
    ("tune", RUN, "--set", "concurrency.samples=2"),
    ("score", RUN, "--scorers", "exact_match"),
    ("retry", RUN),
    ("extend", RUN, "--set", "tasks.0.repeats=2"),
    ("doctor", RUN, "--fix"),
    ("recover", f"runs/sums/{RUN}"),
)
OWN = ("lock", "lease.json", "log.jsonl", "spec.yaml", "plan.jsonl.zst", "journal", "blobs", "control", "lease")
ORIGINALS = ("plan.jsonl.zst", "data.jsonl.zst", "journal", "journal/000001.jsonl.zst")
PLACES = (
    *OWN,
    "started.jsonl",
    "data.jsonl.zst",
    "journal/000001.jsonl.zst",
    "journal/000002.jsonl",
    "journal/000002.jsonl.e2.tmp",
    "blobs/BLOB",
    "lease.json.PID.tmp",
    "index.db",
)
MORE_PLACES = (
    "journal/quarantine",
    "journal/000002.jsonl.zst.tmp",
    "control/0123.wish",
    "lease/000001",
    "lease/000001.beat",
    "log.jsonl.1",
    "beat.json",
    "spec.yaml.tmp",
    "started.jsonl.tmp",
    "blobs/new-1.tmp",
    "../../catalog.db",
    f"../.removed-{RUN}.json",
)
"""What only a live run, a crash or an earlier version leaves."""
KINDS = ("absent", "victim", "pipe")


class Made(NamedTuple):
    """A finished run, and the environment that its commands have."""

    place: Path
    environment: dict[str, str]

    @property
    def run(self) -> Path:
        return self.place / "runs" / "sums" / RUN

    def copy(self, place: Path) -> Path:
        shutil.copytree(self.place, place, symlinks=True)
        return place / "runs" / "sums" / RUN

    def call(self, place: Path, arguments: tuple[str, ...]) -> Done:
        with no_hang(" ".join(arguments)):
            return call(*arguments, cwd=place, env=self.environment)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place, home = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    dataset = {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer", "files": ["picture"]}
    refusing = {"reply": "8", "failures": [{"kind": "content_filter", "every": 2}]}  # so that a resume has work to do
    spec = write_spec(place, rows=4, task={"dataset": dataset}, model={"options": refusing})
    (place / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    rows = (place / "sums.jsonl").read_text().replace("}", ', "picture": "picture.png"}')
    (place / "sums.jsonl").write_text(rows)
    done = call("run", spec, "--id", RUN, cwd=place, env=environment)
    assert done.code == 1, done.err
    (place / "runs" / "sums" / RUN / "journal" / "quarantine").mkdir()
    return Made(place, environment)


@contextlib.contextmanager
def no_hang(what: str) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Trap:
    """A link to nothing, a link to a victim, or a pipe, in the place of a file or folder of a run."""

    def __init__(self, run: Path, name: str, kind: str, elsewhere: Path) -> None:
        name = name.replace("BLOB", os.listdir(run / "blobs")[0]).replace("PID", str(os.getpid()))
        self.path = Path(os.path.normpath(run / name))
        self._elsewhere, target = elsewhere, elsewhere / "target"
        elsewhere.mkdir()
        if kind == "victim":
            _make_victim(target, self.path, is_folder=name in FOLDERS)
        self.path.parent.mkdir(exist_ok=True)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path) if kind == "pipe" else self.path.symlink_to(target)
        self._before = tree(elsewhere)

    def is_untouched(self) -> bool:
        return tree(self._elsewhere) == self._before


def _make_victim(target: Path, path: Path, *, is_folder: bool) -> None:
    """It has the content of what it replaces, so that a command that followed the link would find what it expects."""
    if path.is_dir():
        shutil.copytree(path, target)
    elif path.is_file():
        shutil.copy(path, target)
    elif is_folder:
        target.mkdir()
    else:
        target.write_text("mine")


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder: kind, mode, times and content."""
    found: dict[str, object] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
        found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_size, content)
    return found


def problems(made: Made, place: Path, name: str, kind: str, commands: Sequence[tuple[str, ...]]) -> Iterator[str]:
    run = made.copy(place / "copy")
    trap = Trap(run, name, kind, place / "elsewhere")
    before = tree(place / "copy")
    for arguments in commands:
        done = made.call(place / "copy", arguments)
        said = f"{' '.join(arguments)} with {name} as {kind}: exit {done.code}: {done.err[-300:]}"
        if "Traceback" in done.said or done.code not in CODES:
            yield said
        if not trap.is_untouched():
            yield f"changed through it: {said}"
        if arguments in READ and tree(place / "copy") != before:
            yield f"reading has changed the run: {said}"


@pytest.mark.parametrize("name", PLACES)
def test_nothing_is_read_or_written_through_a_link_or_pipe(made: Made, tmp_path: Path, name: str) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        assert list(problems(made, tmp_path / kind, name, kind, QUICK)) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*PLACES, *MORE_PLACES])
def test_no_command_reads_or_writes_through_a_link_or_pipe(made: Made, tmp_path: Path, name: str, kind: str) -> None:
    assert list(problems(made, tmp_path, name, kind, (*READ, *WRITE))) == []


@pytest.mark.parametrize("name", OWN)
def test_a_run_with_a_link_is_refused_by_name_before_anything_is_written(made: Made, tmp_path: Path, name: str) -> None:
    run = made.copy(tmp_path / "copy")
    trap = Trap(run, name, "victim", tmp_path / "elsewhere")
    for arguments in QUICK[2:]:
        done = made.call(tmp_path / "copy", arguments)
        assert done.code == 5, (arguments, done)
        assert str(trap.path) in done.err, done.err
    assert sorted(os.listdir(run / "journal")) == sorted(os.listdir(made.run / "journal"))


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_link_in_the_place_of_an_original_is_damage(made: Made, tmp_path: Path, name: str) -> None:
    Trap(made.copy(tmp_path / "copy"), name, "victim", tmp_path / "elsewhere")
    for arguments in QUICK[:2]:
        assert made.call(tmp_path / "copy", arguments).code == 5, arguments


@pytest.mark.parametrize(("name", "kind"), [("lock", "absent"), ("log.jsonl", "victim"), ("journal", "victim")])
def test_without_the_guards_a_link_is_written_through(
    made: Made, tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the attack works on this run if links are followed."""
    monkeypatch.setattr(files, "NO_FOLLOW", 0)
    monkeypatch.setattr(writer, "refuse_links", lambda run: None)
    found = list(problems(made, tmp_path, name, kind, [("extend", RUN, "--set", "tasks.0.repeats=2")]))
    assert any("changed through it" in each for each in found), found
