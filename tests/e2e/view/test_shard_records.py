"""Records and lives of a sharded run over HTTP: every place is that in the journal that a worker has written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from tests.e2e.commands import call, write_spec
from tests.e2e.view.served import Served, links_in, serving

ROWS, SHARDS = 40, 3
RUN = "/runs/sums/x"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded run; one score was set by hand after its shards had ended."""
    folder = tmp_path_factory.mktemp("sharded")
    spec = write_spec(folder, ROWS)
    store = folder / "runs"
    run = ("run", spec, "--id", "x", "--store", store, "--shards", str(SHARDS), "--this-host")
    assert call(*run, cwd=folder).code == 0
    key = "sums/arith/s0001/1"
    by_hand = call("score", "x", "--set", key, "numeric=1", "--reason", "read", "--store", store, cwd=folder)
    assert by_hand.code == 0, by_hand.said
    return store


@pytest.fixture(scope="module")
def viewer(store: Path) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def entries(journal: Path) -> dict[int, Entry]:
    return {each.line.n: each for each in Reader(str(journal)).read() if isinstance(each, Entry)}


def test_places_and_checksums_are_those_of_the_journals_that_workers_have_written(store: Path, viewer: Served) -> None:
    journals: dict[str, dict[int, Entry]] = {}
    folder, shards, count = store / "sums" / "x", set[str](), 0
    for row in range(1, ROWS + 1):
        sample = f"{RUN}/samples/sums/arith/s{row:04d}/1/records"
        for each in viewer.json(sample)["records"]:
            file = folder / each["file"]
            assert file.is_file(), "the file that the page names is in the folder of the run"
            stored = journals.setdefault(str(file.parent), entries(file.parent))[each["number"]]
            assert (each["offset"], each["checksum"]) == (stored.offset, stored.line.x)
            assert (each["type"], each["at"], each["is_merged"]) == (stored.line.t, stored.line.at, False)
            if file.suffix == ".jsonl":
                line = file.read_bytes()[each["offset"] : each["offset"] + each["bytes"]]
                assert viewer.get(f"{sample}/{each['n']}/line")[1].encode() == line
            shards.add(each["shard"])
            count += 1
    assert shards == {f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)}
    assert count > 2 * ROWS


def test_a_page_of_a_record_names_its_shard_and_file(viewer: Served) -> None:
    sample = f"{RUN}/samples/sums/arith/s0002/1/records"
    facts = viewer.json(sample)["records"][0]
    text = viewer.html(f"{sample}/{facts['n']}")
    assert f"<dd>{facts['shard']}</dd>" in text
    assert facts["file"] in text
    assert f"record {facts['number']:,} of its journal" in text
    assert facts["file"] in viewer.html(sample)


def test_a_record_whose_shard_is_gone_is_said_to_be_of_the_merged_copy(store: Path, viewer: Served) -> None:
    sample = f"{RUN}/samples/sums/arith/s0003/1/records"
    facts = viewer.json(sample)["records"][0]
    shards = store / "sums" / "x" / "shards"
    folder = shards / facts["file"].split("/")[1]
    journal = folder / "journal"
    journal.rename(folder / "away")
    try:
        found = viewer.json(sample)["records"][0]
        assert (found["is_merged"], found["shard"], found["checksum"] != facts["checksum"]) == (True, "", True)
        assert "are those of the copy" in viewer.html(f"{sample}/{facts['n']}")
    finally:
        (folder / "away").rename(journal)


def test_every_life_lists_the_samples_that_it_ended(viewer: Served) -> None:
    lives: list[Any] = viewer.json(f"{RUN}/lineage")["lineage"]["lives"]
    assert {life["shard"] for life in lives} == {f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)}
    links = [each for each in links_in(viewer.html(f"{RUN}/lineage")) if "life=" in each]
    assert len(links) == sum(life["began"] != "scored" for life in lives)
    found: list[str] = []
    for life in lives:
        chosen = viewer.json(f"{RUN}/lineage?life={life['number']}")["chosen"]
        assert len(chosen["samples"]) == life["finished"]
        found += [each["key"] for each in chosen["samples"]]
    assert sorted(found) == [f"sums/arith/s{row:04d}/1" for row in range(1, ROWS + 1)]
    assert viewer.get(f"{RUN}/lineage?life={len(lives) + 1}")[0] == 404
