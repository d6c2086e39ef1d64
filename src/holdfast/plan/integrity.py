"""Whether a run's plan and data files are what the run recorded when it wrote them.

Cheap checks come first: the file exists, has its recorded size and a readable frame index. The full digest is computed
once for each state of a file; a caller that remembers `stamps` skips it while device, inode, size and times stay equal.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.errors import JournalError
from holdfast.files import status_of
from holdfast.journal.content import SealedContent
from holdfast.journal.disk import OS_DISK
from holdfast.plan.blobs import check_kept
from holdfast.plan.files import StoredRows, digest_file, originals
from holdfast.records.exchange import Row
from holdfast.records.facts import Block, Cell, Stored, TaskInputs
from holdfast.records.references import Reference, parse_reference, references_in
from holdfast.spec import Spec
from holdfast.state import Stamps, stamp_of_file


class Flaw(msgspec.Struct, frozen=True):
    """A plan or data file that is not what was written."""

    path: str
    problem: str

    @property
    def is_plan(self) -> bool:
        return os.path.basename(self.path).startswith("plan")

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def check_originals(run: str, blocks: Iterable[Block], stamps: Stamps) -> list[Flaw]:
    """Every plan and data file that differs from its record. Remembers in `stamps` those that were digested and are
    right.
    """
    flaws = []
    for path, stored in originals(run, blocks):
        name = os.path.basename(path)
        stamp = stamp_of_file(path)
        if stamp and stamps.get(name) == stamp:
            continue
        problem = find_problem(path, stored)
        if problem:
            flaws.append(Flaw(path, problem))
            stamps.pop(name, None)
        else:
            stamps[name] = stamp
    return flaws


def check_sizes(run: str, blocks: Iterable[Block]) -> list[Flaw]:
    """The part of the check that reads no content, for listings of many runs."""
    found = ((path, _find_size_problem(path, stored)) for path, stored in originals(run, blocks))
    return [Flaw(path, problem) for path, problem in found if problem]


def find_problem(path: str, stored: Stored) -> str:
    """What is wrong with the content of one file; empty if it is what was written."""
    problem = _find_size_problem(path, stored)
    if problem:
        return problem
    try:
        found = digest_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except JournalError:
        return "is damaged"
    if found.count != stored.count:
        return f"is damaged: it has {found.count} of {stored.count} lines"
    return "" if found.digest == stored.digest else "is damaged: its content is not what was written"


def _find_size_problem(path: str, stored: Stored) -> str:
    try:
        found = status_of(path)
        if found is None:
            return "is missing"
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        size = found.st_size
        if stored.size and size != stored.size:
            return f"is damaged: it has {size} of {stored.size} bytes"
        if not stored.size:  # runs of earlier versions: the frame index is at the end, so a cut file has none
            content = SealedContent(OS_DISK, OS_DISK.open(path))
            try:
                return "is damaged: its end is missing" if content.cut else ""
            finally:
                content.close()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def check_blobs(run: str, spec: Spec, cells: Sequence[Cell], inputs: Mapping[str, TaskInputs]) -> Iterator[str]:
    """What is wrong with the content that a run's rows and examples name; each is looked at once."""
    seen: set[bytes] = set()
    for reference in _references_of(run, spec, cells, inputs):
        key = bytes.fromhex(reference.digest)
        if key in seen:
            continue
        seen.add(key)
        yield from check_kept(run, [reference.digest])


def _references_of(
    run: str, spec: Spec, cells: Sequence[Cell], inputs: Mapping[str, TaskInputs]
) -> Iterator[Reference]:
    for task in spec.tasks:
        if not task.dataset.files:
            continue
        mine = [cell for cell in cells if cell.task == task.name]
        for row in StoredRows(run, mine):
            yield from _references(row, task.dataset.files)
        for shot in inputs.get(task.name, TaskInputs()).shots:
            yield from _references(shot, task.dataset.files)


def _references(row: Row, columns: Sequence[str]) -> Iterator[Reference]:
    for column in columns:
        for text in references_in(row.get(column)):
            reference = parse_reference(text)
            if reference is not None:
                yield reference
