"""`holdfast.recover`, from a script and beside other work of an event loop."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from tests.e2e.commands import call, write_spec
from tests.stores import Bucket


@pytest.fixture
def url(tmp_path: Path, bucket: Bucket) -> str:
    """Of a run that has ended, whose folder is gone."""
    spec = write_spec(tmp_path, 4, mirror={"url": bucket.url, "seconds": 0.2})
    assert call("run", spec, "--id", "x", "--store", tmp_path / "lost", cwd=tmp_path).code == 0
    return f"{bucket.url}/sums/x"


def test_a_run_comes_back_into_the_store_that_is_named(tmp_path: Path, url: str) -> None:
    found = holdfast.recover(url, output=tmp_path / "back")
    assert (found.finished, found.planned, found.lost, found.warnings) == (4, 4, 0, [])
    assert Path(found.folder) == tmp_path / "back" / "sums" / "x"
    with holdfast.open_run(found.folder) as run:
        assert run.status() == ("completed", "")
    again = holdfast.recover(url, output=tmp_path / "back")
    assert (again.finished, again.warnings) == (4, []), "the same call gives the same result"
    assert holdfast.recover(url, output=tmp_path / "back", overwrite=True).finished == 4


def test_a_run_that_was_not_recovered_is_added_to_on_request_only(tmp_path: Path, url: str) -> None:
    with pytest.raises(holdfast.HoldfastError, match="exists; merge into it with --overwrite"):
        holdfast.recover(url, output=tmp_path / "lost")
    with pytest.raises(holdfast.HoldfastError, match="exists; merge into it with --overwrite"):
        holdfast.recover(url, output=tmp_path / "lost")
    assert holdfast.recover(url, output=tmp_path / "lost", overwrite=True).finished == 4


def test_a_run_comes_back_without_the_steps_of_finished_keys(tmp_path: Path, url: str) -> None:
    found = holdfast.recover(url, output=str(tmp_path / "back"), events=False)
    assert found.finished == 4
    assert len(holdfast.open_run(found.folder).samples()) == 4


def test_a_copy_is_kept_or_removed_as_requested(tmp_path: Path, url: str) -> None:
    holdfast.recover(url, output=tmp_path / "copy")
    copy = tmp_path / "copy" / "sums" / "x"
    assert not holdfast.recover(copy, output=tmp_path / "first", cleanup=False).cleaned
    assert copy.exists()
    assert holdfast.recover(copy, output=tmp_path / "second").cleaned
    assert not copy.exists()


def test_an_event_loop_continues_meanwhile(tmp_path: Path, url: str) -> None:
    async def work() -> int:
        other = asyncio.ensure_future(asyncio.sleep(0, "done"))
        found = await holdfast.recover_async(url, output=tmp_path / "back")
        assert await other == "done"
        return found.finished

    assert asyncio.run(work()) == 4


def test_nothing_to_recover_is_reported_in_one_sentence(tmp_path: Path, bucket: Bucket) -> None:
    with pytest.raises(holdfast.HoldfastError, match="holds no run; list them with"):
        holdfast.recover(f"{bucket.url}/sums/x", output=tmp_path / "back")
    assert not (tmp_path / "back").exists()
