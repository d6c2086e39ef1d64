"""Tables of the keys behind a comparison: every key once, in plan order, forwards and backwards."""

import mmap
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.report import CommonKeys, Side
from holdfast.report.compare.sides import SideAnswers
from holdfast.runs.compare import changes as module
from holdfast.runs.compare.changes import KeyTable, TableRow, make_table


class Ordinals(SideAnswers):
    """A side that knows only ordinals."""

    def __init__(self, name: str, first: int) -> None:
        super().__init__(Side("run", "task", name))
        self._at = first

    def ordinal(self, pair: tuple[str, int]) -> int | None:
        return self._at + int(pair[0])


def table(before: list[Any], after: list[Any], repeat: int = 1) -> KeyTable:
    pairs = [(str(number), repeat) for number in range(len(before))]
    keys = CommonKeys(Ordinals("a", 0), Ordinals("b", 10**6), "right", pairs, before, after)
    return KeyTable(*make_table(keys))


def ordinals(rows: list[TableRow]) -> list[int]:
    return [row.first for row in rows]


VALUES: list[list[Any]] = [
    [True, False],
    ["A", "B", "none"],
    [0, 1, 2, 3, 4, 5],
    [number / 7 for number in range(40)],
    [f"label {number}" for number in range(40)],
    [number / 7 for number in range(3000)],
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: f"{type(values[0]).__name__} {len(values)}")
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_the_rows_of_a_change_are_exactly_the_keys_that_changed_so(
    values: list[Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    draw = random.Random(1)
    before = [draw.choice(values) for _ in range(500)]
    after = [draw.choice([one, draw.choice(values)]) for one in before]
    found = table(before, after)
    assert sum(found.counts().values()) == 500
    for change, count in found.counts().items():
        kinds = found.kinds([change])
        rows = list(found.rows(kinds))
        assert len(rows) == count
        for row in rows:
            one, other = before[row.first], after[row.first]
            assert (row.second, row.change) == (row.first + 10**6, change)
            assert (row.before, row.after) == pytest.approx((one, other)) if not isinstance(one, str) else True
            is_number = not isinstance(one, str)
            assert change == (
                "equal" if one == other else "other" if not is_number else "higher" if other > one else "lower"
            )
        behind = list(found.rows(kinds, after=250))
        assert ordinals(behind) == [o for o in ordinals(rows) if o > 250]
        in_front = list(found.rows(kinds, before=250))
        assert ordinals(in_front) == [o for o in ordinals(rows) if o < 250][::-1]


def test_the_cells_of_a_matrix_add_up_and_open_their_keys() -> None:
    before, after = [True, True, False, False, False], [True, False, True, False, False]
    found = table(before, after)
    cells = {(cell.before, cell.after): (cell.count, cell.change) for cell in found.matrix()}
    assert cells == {
        (True, True): (1, "equal"),
        (True, False): (1, "lower"),
        (False, True): (1, "higher"),
        (False, False): (2, "equal"),
    }
    assert ordinals(list(found.rows(found.kinds(["equal"], (False, False))))) == [3, 4]
    assert ordinals(list(found.rows(found.kinds(["lower", "higher"])))) == [1, 2]
    assert not list(found.rows(found.kinds(["other"])))


def test_many_values_have_no_matrix_but_keep_their_values() -> None:
    found = table([number / 3 for number in range(2000)], [0.0] * 2000)
    assert found.matrix() == []
    row = next(found.rows(found.kinds(["lower"]), after=1000))
    assert row.before == pytest.approx(1001 / 3)


def test_values_that_are_no_texts_and_no_numbers_are_labels() -> None:
    found = table([["a"], {"b": 1}], [["a"], None])
    assert [row.change for row in found.rows(found.kinds(["equal", "other"]))] == ["equal", "other"]


def test_reduced_values_are_known_as_such() -> None:
    assert table([0.5], [1.0], repeat=0).head.is_reduced
    assert not table([0.5], [1.0]).head.is_reduced


def test_a_table_works_on_a_mapped_file(tmp_path: Path) -> None:
    pairs = [(str(number), 1) for number in range(11)]
    keys = CommonKeys(Ordinals("a", 0), Ordinals("b", 0), "right", pairs, [True] * 11, [True, False] * 5 + [False])
    head, content = make_table(keys)
    path = tmp_path / "table"
    path.write_bytes(content)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = KeyTable(head, mapped)
    assert ordinals(list(found.rows(found.kinds(["lower"])))) == [1, 3, 5, 7, 9, 10]
    assert ordinals(list(found.rows(found.kinds(["lower"]), before=10))) == [9, 7, 5, 3, 1]


def test_an_empty_comparison_has_an_empty_table() -> None:
    found = table([], [])
    assert (found.matrix(), sum(found.counts().values())) == ([], 0)
    assert not list(found.rows(found.kinds(["equal", "higher"])))
