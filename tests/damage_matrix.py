"""The damage matrix: every file of a run, damaged in every way, looked at by every command, then continued.

A case is a name that tells everything: the run, the file, what happens to it, and whether its index existed before.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.matrix_oracle import (
    DAMAGED,
    DRIFTED,
    EXPORT,
    FAILED_SAMPLES,
    READING,
    VERIFY,
    Command,
    Said,
    Truth,
    answers_of,
    continue_run,
    first_difference,
    last_lines,
    problems_of_reading,
    run_command,
)
from tests.matrix_runs import Copy, Made, has_picture

CUTS = 20
FLIPS = 200
DERIVED = ("spec.yaml", "started.jsonl", "lease.json", "lock", "log.jsonl", ":index", ":catalog")
_SEED = 20240611


class Way(NamedTuple):
    """What happens to a file. `at`: the first byte that changes; 0 if the whole file does."""

    name: str
    damage: Callable[[Path, Path], None]
    at: int = 0


class Case(NamedTuple):
    run: str
    file: str
    way: Way
    warm: bool
    """Whether the index and the catalogue had been made before the damage."""

    def __str__(self) -> str:
        return f"{self.run}: {self.file} {self.way.name}, {'warm' if self.warm else 'cold'}"

    @property
    def is_derived(self) -> bool:
        is_other_run = self.file == "started.jsonl" and self.way.name == "replaced by another run's"
        return self.file in DERIVED and not is_other_run  # nothing says which of journal and copy is the right one


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _delete(path: Path, _: Path) -> None:
    _remove(path)


def _empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def _take_other(path: Path, other: Path) -> None:
    _remove(path)
    (shutil.copytree if other.is_dir() else shutil.copyfile)(other, path)


def _become_folder(path: Path, _: Path) -> None:
    _remove(path)
    path.mkdir()


def _become_file(path: Path, _: Path) -> None:
    _remove(path)
    path.write_bytes(b"no folder\n")


def _link_nowhere(path: Path, _: Path) -> None:
    _remove(path)
    path.symlink_to(path.parent / "nowhere")


def _link_to_other(path: Path, other: Path) -> None:
    _remove(path)
    path.symlink_to(other)


REPLACED = (
    Way("deleted", _delete),
    Way("replaced by another run's", _take_other),
    Way("replaced by a folder", _become_folder),
    Way("replaced by a link to nowhere", _link_nowhere),
    Way("replaced by a link to another run's", _link_to_other),
)
OF_FILES = (*REPLACED, Way("emptied", _empty))
OF_FOLDERS = (*REPLACED, Way("replaced by a file", _become_file))


def cut_at(size: int) -> Way:
    def cut(path: Path, _: Path) -> None:
        os.truncate(path, size)

    return Way(f"cut at {size}", cut, size)


def flip_at(at: int, bit: int) -> Way:
    def flip(path: Path, _: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << bit
        path.write_bytes(data)

    return Way(f"bit {bit} of byte {at} flipped", flip, at)


def ways_of(size: int) -> Iterator[Way]:
    """All that happens to a file of so many bytes: the large damages, cuts, and flips that are always the same."""
    yield from OF_FILES
    yield from map(cut_at, sorted({*(size * index // CUTS for index in range(1, CUTS)), size - 1} if size else ()))
    chance = random.Random(_SEED + size)
    yield from (flip_at(chance.randrange(size), chance.randrange(8)) for _ in range(FLIPS if size else 0))


def file_of(made: Made, role: str) -> str:
    """The file with a role in a run; empty if it has none. Names that begin with a colon are derived files."""
    segments = [f"journal/{path.name}" for path in sorted((made.folder / "journal").glob("0*"))]
    named = {
        "first segment": segments[0],
        "middle segment": segments[len(segments) // 2] if len(segments) > 2 else "",
        "last segment": segments[-1],
        "blob": f"blobs/{min(os.listdir(made.folder / 'blobs'))}",
    }
    file = named.get(role, role)
    return file if file.startswith(":") or (made.folder / file).exists() else ""


class Matrix:
    """Prepared runs, and what is true of them."""

    def __init__(self, runs: dict[str, Made], place: Path) -> None:
        self.runs = runs
        self._place = place
        self._count = 0
        self._truths: dict[str, Truth] = {}
        self._ends: dict[str, Any] = {}
        self._others: dict[str, Copy] = {}

    def cases(self, run: str, file: str) -> list[Case]:
        made = self.runs[run]
        if (made.folder / file).is_dir():
            ways: Iterable[Way] = OF_FOLDERS
        else:
            with self._copied(made, warm=file.startswith(":")) as copy:
                ways = list(ways_of(copy.path(file).stat().st_size))
        return [Case(run, file, way, bool(number % 2) or file.startswith(":")) for number, way in enumerate(ways)]

    def problems(self, case: Case, commands: Sequence[Command] = READING, verb: str = "") -> list[str]:
        """What is wrong with what the commands say of one damage. `verb`: how to continue the run afterwards."""
        with self._copied(self.runs[case.run], case.warm) as copy:
            case.way.damage(copy.path(case.file), self._counterpart(case))
            before = _stamps(copy.folder)
            said = {command: command.look(copy) for command in commands}
            found = [
                f"{command.name}: {each}" for command in said for each in self._of_reading(case, command, said[command])
            ]
            if _stamps(copy.folder) != before:
                found.append("reading has changed the run's folder")
            if verb:
                found += [f"{verb}: {each}" for each in self._of_continuing(case, copy, verb)]
        return [f"{case}: {each}" for each in found]

    def _of_reading(self, case: Case, command: Command, said: Said) -> Iterator[str]:
        yield from problems_of_reading(command, said, self._truth(case), is_derived=case.is_derived)
        if command is VERIFY and said.code == 0 and not case.is_derived and not self._is_unpromised(case):
            yield "exit 0, though an original was changed"

    def _of_continuing(self, case: Case, copy: Copy, verb: str) -> Iterator[str]:
        """It is refused as damaged, or ends as if nothing had happened and requests only what was lost."""
        left = EXPORT.look(copy)
        kept = {line["key"] for line in left.data or () if line["status"] == "finished"}
        said, asked = continue_run(copy, verb)
        if said.crash:
            yield f"traceback: {last_lines(said.crash)}"
        elif said.code == DAMAGED or (said.code == DRIFTED and case.file == "spec.yaml"):
            if asked or not said.errors:
                yield f"exit {said.code} with {len(asked)} requests: {' / '.join(said.errors)[:300]}"
        elif said.code != FAILED_SAMPLES:
            yield f"exit {said.code}: {' / '.join(said.errors)[:300]}"
        else:
            if asked & kept:
                yield f"it asked again for {len(asked & kept)} answers that the run has, such as {min(asked & kept)}"
            after = EXPORT.look(copy)
            if after.crash or after.code != 0:
                yield f"afterwards export says {after.code}: {after.crash[-300:]}{' / '.join(after.errors)[:300]}"
            else:
                difference = first_difference(self._true_end(case), _answers(case, after.data))
                if difference:
                    yield f"afterwards an answer is another: {difference}"

    def _true_end(self, case: Case) -> dict[str, Any]:
        if case.run not in self._ends:
            with self._copied(self.runs[case.run], warm=False) as copy:
                assert continue_run(copy, "run").said.code == FAILED_SAMPLES
                self._ends[case.run] = EXPORT.look(copy).data
        return _answers(case, self._ends[case.run])

    def _is_unpromised(self, case: Case) -> bool:
        """Whether only records were hit that no heartbeat has acknowledged: that they existed cannot be known."""
        made = self.runs[case.run]
        return case.file == made.hot and case.way.at >= max(made.promised(), 1)

    def _truth(self, case: Case) -> Truth:
        """Of records that were not promised several things are true: that they were written, and that they were not. A
        last record that lacks only its newline may count or not.
        """
        made, ends = self.runs[case.run], set()
        if self._is_unpromised(case):
            ends = {max(end for _, end in made.ends() if end <= case.way.at + more) for more in (0, 1)}
        name = "-".join(map(str, (case.run, *sorted(ends))))
        if name not in self._truths:
            copies = [made.copy(self._place / f"truth-{name}" / "whole")]
            for end in ends:
                copies.append(made.copy(self._place / f"truth-{name}" / str(end)))
                os.truncate(copies[-1].folder / made.hot, end)
            self._truths[name] = Truth(*copies)
        return self._truths[name]

    def _counterpart(self, case: Case) -> Path:
        """The same file of the other run; a segment or blob that it does not have is another one."""
        if case.run not in self._others:
            self._others[case.run] = self.runs[case.run].counterpart().copy(self._place / f"other-{case.run}")
            _make_derived(self._others[case.run])
        found = self._others[case.run].path(case.file)
        return found if found.exists() else max(found.parent.iterdir())

    def new_place(self) -> Path:
        """A folder that does not exist yet."""
        self._count += 1
        return self._place / f"case-{self._count}"

    @contextlib.contextmanager
    def _copied(self, made: Made, warm: bool) -> Iterator[Copy]:
        place = self.new_place()
        copy = made.copy(place)
        if warm:
            _make_derived(copy)
        try:
            yield copy
        finally:
            shutil.rmtree(place)


def _answers(case: Case, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Without the samples that fail, each with its reason, because a file that they need is damaged."""
    is_lost = case.file.startswith("blobs")
    return answers_of([line for line in lines if not (is_lost and has_picture(line["sample_id"]))])


def _make_derived(copy: Copy) -> None:
    """Look at the run and at its store: the first one makes the index and the catalogue."""
    for arguments in (("show", copy.of.name), ("ls",)):
        said = run_command(copy, *arguments)
        assert said.code == 0, said


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Of all that lies below a folder: what changes when it is written. Indexes inside it are no part of the run."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if ".db" not in path.name:
            stat = path.lstat()
            found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns if not path.is_dir() else 0)
    return found
