"""A store on a read-only file system: every look works, and what is derived is kept in the user's cache.

Root ignores permissions, so the store is really mounted read-only, in a mount namespace of its own that ends with the
command.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import Done, call, environment, snapshot, write_spec

_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


def look(store: Path, cache: Path, *arguments: str) -> Done:
    """A command that sees the store read-only."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--store", str(store)]
    done = _mounted(store, command, {"HOLDFAST_CACHE": str(cache), "TMPDIR": str(cache)})
    return Done(done.returncode, done.stdout, done.stderr)


def _mounted(store: Path, command: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(store), *command],
        env=environment(env),
        capture_output=True,
        text=True,
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """With one complete run, which nobody has looked at."""
    store = tmp_path / "runs"
    assert call("run", write_spec(tmp_path, 8), "--id", "x", cwd=tmp_path).code in (0, 1)
    try:
        probe = _mounted(store, ["sh", "-c", f"! touch {store}/probe 2>/dev/null"], {})
    except FileNotFoundError:
        pytest.skip("there is no unshare here: the store cannot be mounted read-only")
    if probe.returncode:
        pytest.skip(f"the store cannot be mounted read-only here: {probe.stderr.strip() or 'it could be written'}")
    return store


def files_of(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.db"))


def test_a_read_only_store_is_listed_and_shown_as_any_other(store: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = snapshot(store)
    listed, shown, again = (look(store, cache, *each, "--json") for each in (["ls"], ["show", "x"], ["show", "x"]))
    assert (listed.code, shown.code, again.code) == (0, 0, 0), listed.err + shown.err
    assert (shown.json()["status"], shown.json()["finished"]) == ("completed", 8)
    assert [each["run_id"] for each in listed.json()] == ["x"]
    assert shown.out == again.out
    assert snapshot(store) == before
    assert sorted(path.parent.name for path in files_of(cache)) == ["runs", "stores"]
    exported = look(store, cache, "export", "x")
    assert (exported.code, len(exported.out.splitlines())) == (0, 8)


def test_an_index_in_the_cache_is_brought_up_to_date_by_the_next_look(store: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    look(store, cache, "show", "x")
    (index,) = files_of(cache)
    assert call("note", "x", "seen", "--store", store, cwd=tmp_path).code == 0
    assert [each["text"] for each in look(store, cache, "show", "x", "--json").json()["notes"]] == ["seen"]
    assert files_of(cache) == [index]


def test_a_read_only_store_without_a_cache_is_no_obstacle(store: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "a file"
    nowhere.touch()
    assert look(store, nowhere, "show", "x", "--json").json()["finished"] == 8
    assert look(store, nowhere, "ls").code == 0
