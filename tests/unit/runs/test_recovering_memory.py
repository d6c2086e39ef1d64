"""A recovery streams: its memory does not grow with the run."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal import OpenRequest, journal_folder, seal
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import open_objects
from holdfast.plan.files import LineFile, data_path, plan_path
from holdfast.records import Draft, draft
from holdfast.records.facts import Cell, RunStarted
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import write_spec_file
from holdfast.spec import build_spec, spec_mapping
from tests.journals import QUICK, UID, open_journal, plain_numbers
from tests.unit.state.stories import ended, finished, fold_of, key, score, scoring, step

ROOT = Path(__file__).parents[3]
BATCH = 2000
UPLOAD_SECONDS = 120.0
SPEC = build_spec(
    {
        "models": [{"name": "model", "provider": "mock"}],
        "tasks": [{"name": "task", "dataset": {"path": "rows.jsonl"}}],
    }
)
TEXT = "an answer that was paid for " * 40


def write_run(run: Path, count: int, segment_bytes: int) -> None:
    """A run as its process leaves it when it dies at the very end: all segments sealed but the last."""
    run.mkdir(parents=True)
    started = write_beginning(run, count)
    opened = open_journal(journal_folder(str(run)), wanted=OpenRequest(UID, segment_bytes=segment_bytes))
    records = itertools.chain([started, scoring()], samples(count), [ended()])
    while batch := list(itertools.islice(records, BATCH)):
        opened.appender.commit(batch)
    opened.appender.close()
    for number in plain_numbers(journal_folder(str(run)))[:-1]:
        seal(QUICK, journal_folder(str(run)), number)
    write_spec_file(RunLocation(str(run.parent), "sums", run.name, str(run)), fold_of(str(run)).story)
    assert opened.appender.tip is not None
    tip = opened.appender.tip
    mirror = MirrorUploader(str(run), UID, open_objects(url_of(run)), None, UploadSettings(lambda: tip))
    mirror.start()
    assert mirror.close(UPLOAD_SECONDS)


def write_beginning(run: Path, count: int) -> Draft:
    plan = LineFile(plan_path(str(run)), QUICK).write(key(o).encode() for o in range(count))
    data = LineFile(data_path(str(run)), QUICK).write(f"row {o}".encode() for o in range(count))
    cells = (Cell("task", "model", 0, count, 0, 0),)
    return draft("run.started", RunStarted(run.name, spec_mapping(SPEC), plan, data, cells))


def samples(count: int) -> Iterator[Draft]:
    """Three records each, behind the header of the segment, the beginning of the run and that of its evaluation; that
    a score names the right one matters to nobody here.
    """
    for o in range(count):
        yield step(o)
        yield finished(o, TEXT)
        yield score(o, 3 * o + 5)


def url_of(run: Path) -> str:
    return f"file://{run.parent}/mirror/sums/{run.name}"


def peak_bytes(folder: Path, count: int, segment_bytes: int) -> int:
    run = folder / str(count)
    write_run(run, count, segment_bytes)
    child = [sys.executable, "-m", "tests.unit.runs.child_recover", url_of(run), str(folder / "new")]
    printed = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    counted, peak = map(int, printed.stdout.split())
    assert counted == count
    return peak


@pytest.mark.long
def test_ten_times_the_samples_are_recovered_in_about_the_same_memory(tmp_path: Path) -> None:
    few = peak_bytes(tmp_path, 500, 1 << 20)
    many = peak_bytes(tmp_path, 5_000, 1 << 20)
    assert many - few < 8 << 20


@pytest.mark.long
def test_a_hundred_thousand_samples_are_recovered_in_less_than_200_mb(tmp_path: Path) -> None:
    assert peak_bytes(tmp_path, 100_000, 64 << 20) < 200 << 20
