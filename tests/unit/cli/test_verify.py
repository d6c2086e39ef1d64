"""`verify` looks at every byte of a run's files, also where no reader would."""

import contextlib
import io
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands.maintenance import verify_run

FILES = ["plan.jsonl.zst", "data.jsonl.zst", "journal/000001.jsonl.zst"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    rows = [{"id": "a", "q": "1+1"}, {"id": "b", "q": "2+2"}]
    with holdfast.run(holdfast.Task("t", rows, "{q}"), models=["mock"], id="x", store=str(folder)):
        pass
    return folder


def verdict(store: Path) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        return verify_run("x", str(store), as_json=True)


def overlooked(path: Path, store: Path, step: int, *, cut: bool) -> list[int]:
    """The places where a flip, or a cut, is not found."""
    whole = path.read_bytes()
    missed = []
    try:
        for at in range(0, len(whole), step):
            path.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            if verdict(store) != 5:
                missed.append(at)
    finally:
        path.write_bytes(whole)
    return missed


@pytest.mark.parametrize("cut", [False, True], ids=["flips", "cuts"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_wherever_it_is(store: Path, name: str, step: int, cut: bool) -> None:
    assert verdict(store) == 0
    assert overlooked(store / "default" / "x" / name, store, step, cut=cut) == []
    assert verdict(store) == 0
