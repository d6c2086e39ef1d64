"""A moment means the last record that was written by then."""

from pathlib import Path

import pytest

from holdfast.journal import Entry, Reader, journal_folder
from holdfast.runs.store.lookup import RunLocation
from holdfast.view.sources import NotFoundError, ViewedRun
from holdfast.view.travel import parse_moment, record_at
from tests.unit.state.stories import ended, finished, new_run, resumed, started, write


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T10:00", "2026-01-31T10:00:00.000Z"),
        ("2026-01-31T10:00:05.25Z", "2026-01-31T10:00:05.250Z"),
        ("2026-01-31T10:00+02:00", "2026-01-31T08:00:00.000Z"),
    ],
)
def test_moments_are_utc(text: str, moment: str) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["yesterday", "<script>", "2026-13-01T00:00", "9" * 400, "0001-01-01T00:00+14:00"])
def test_what_is_no_moment_is_not_found(text: str) -> None:
    with pytest.raises(NotFoundError, match="is not a time"):
        parse_moment(text)


def test_it_is_the_same_record_as_by_reading_all(tmp_path: Path) -> None:
    folder = new_run(tmp_path, [started(9), *map(finished, range(3))])
    for o in range(3, 6):
        write(folder, [resumed(), finished(o)])
    write(folder, [ended()])
    run = ViewedRun(RunLocation(str(tmp_path), "e", "run", folder))
    run.refresh()
    found = [each.line for each in Reader(journal_folder(folder)).read() if isinstance(each, Entry)]
    for line in found:
        wanted = max(other.n for other in found if other.at <= line.at)
        assert record_at(run, line.at) == wanted
    assert record_at(run, "1999-01-01T00:00:00.000Z") == 0
    assert record_at(run, "2999-01-01T00:00:00.000Z") == found[-1].n
    run.close()
