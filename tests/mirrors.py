"""A run's mirror as files of a folder, made without a store, so that each object can be damaged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.journal import Reader
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import open_objects
from holdfast.records import Fence
from tests.e2e.commands import call, write_spec
from tests.unit.engine.runs import cut_after

SAMPLES = 12
CHUNK = 2500
RUN = "x"


class Kept(NamedTuple):
    """A run in a store, and its mirror."""

    store: Path
    mirror: Path

    @property
    def url(self) -> str:
        return f"file://{self.mirror}/sums/{RUN}"

    @property
    def objects(self) -> Path:
        return self.mirror / "sums" / RUN

    @property
    def journal(self) -> Path:
        return self.store / "sums" / RUN / "journal"

    def chunks(self) -> list[Path]:
        return sorted(path for path in self.objects.rglob("*-*") if path.is_file())

    def sealed(self) -> list[Path]:
        return sorted((self.objects / "journal").rglob("*.zst"))


def run_and_mirror(folder: Path, *, keep: Callable[[str, dict[str, Any]], bool] | None = None) -> Kept:
    """A run of a mock, to its end or, cut where `keep` says, as a kill leaves it; with a mirror of small chunks."""
    write_spec(folder, SAMPLES)
    store, mirror = folder / "runs", folder / "mirror"
    done = call("run", folder / "eval.yaml", "--id", RUN, "--store", store, cwd=folder)
    assert done.code == 0, done.err
    if keep is not None:
        cut_after(store, keep, RUN)
        os.unlink(store / "sums" / RUN / "lease.json")
    kept = Kept(store, mirror)
    upload(kept)
    return kept


def upload(kept: Kept) -> None:
    reader = Reader(str(kept.journal))
    for _ in reader.read():
        pass
    end = reader.cursor
    keeping = UploadSettings(lambda: Fence(end.segment, end.offset, end.n, end.x), chunk_bytes=CHUNK)
    mirror = MirrorUploader(str(kept.journal.parent), reader.uid, open_objects(kept.url), None, keeping)
    mirror.start()
    assert mirror.close(30)


def finished_so_far(count: int) -> Callable[[str, dict[str, Any]], bool]:
    """Keep everything up to so many answers."""
    seen = 0

    def keep(kind: str, data: dict[str, Any]) -> bool:
        nonlocal seen
        seen += kind == "sample.finished"
        return seen <= count

    return keep


def copied(kept: Kept, folder: Path) -> Kept:
    """The mirror alone, at another place, to be damaged."""
    shutil.copytree(kept.mirror, folder / "mirror")
    return Kept(folder / "new", folder / "mirror")
