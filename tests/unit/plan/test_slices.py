"""The division of a plan into shards: every key is in exactly one."""

from pathlib import Path

import msgspec
import pytest

from holdfast.errors import DamagedError
from holdfast.plan import PlanDivision
from holdfast.plan.files import LineFile, PlanLine, plan_path
from holdfast.records import Block, Cell, Shard

KEYS = 600


def write_plan(folder: Path, keys: int = 2 * KEYS) -> Block:
    lines = [PlanLine(number, f"t/m/s{number}/1", number, "x") for number in range(keys)]
    file = LineFile(plan_path(str(folder)))
    encoded = [msgspec.json.encode(line) for line in lines]
    stored = file.write(encoded)
    at = sum(len(line) + 1 for line in encoded[:KEYS])
    return Block(1, stored, None, (Cell("t", "a", 0, KEYS, 0, 0), Cell("t", "b", KEYS, KEYS, at, 0)))


@pytest.mark.parametrize("count", [1, 3, 256, 257, 70_000])
def test_every_key_is_in_exactly_one_shard(tmp_path: Path, count: int) -> None:
    block = write_plan(tmp_path)
    division = PlanDivision(str(tmp_path), count)
    division.add(block)
    assert (division.blocks, sum(division.planned)) == (1, 2 * KEYS)
    for cell in block.cells:
        found = []
        for number, planned in enumerate(division.planned, 1):
            if planned:
                lines = division.lines_of(cell, Shard(number, count))
                assert lines == sorted(lines, key=lambda line: line.o)
                assert all(Shard(number, count).has(line.k.rpartition("/")[0]) for line in lines)
                found += lines
        assert sorted(line.o for line in found) == list(range(cell.first, cell.first + cell.count))


def test_keys_that_were_lost_since_are_reported(tmp_path: Path) -> None:
    block = write_plan(tmp_path)
    division = PlanDivision(str(tmp_path), 2)
    division.add(block)
    write_plan(tmp_path, KEYS - 100)
    with pytest.raises(DamagedError, match=r"keys of t are lost; restore it"):
        division.lines_of(block.cells[0], Shard(1, 2))
