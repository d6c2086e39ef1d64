"""What dead processes of a run left behind is ended and removed, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.journal.ownership.lease import OWNER, Holder, this_process
from holdfast.sandbox.confinement import MARKER
from holdfast.sandbox.orphans import clear

DEAD = Holder(1 << 22, os.uname().nodename, started="1")


def make(place: Path, uid: str, owner: Holder | None) -> Path:
    folder = place / f"holdfast-{uid}-{len(list(place.iterdir()))}"
    (folder / "files" / "locked").mkdir(parents=True)
    (folder / "files" / "locked").chmod(0)
    if owner is not None:
        (folder / OWNER).write_bytes(msgspec.json.encode(owner))
    return folder


def sleeper(marker: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], MARKER: marker})


@pytest.mark.skipif(sys.platform != "linux", reason="a dead process is told by when it began")
def test_only_what_is_of_this_run_and_of_the_dead_goes(tmp_path: Path) -> None:
    dead, unnamed = make(tmp_path, "u1", DEAD), make(tmp_path, "u1", None)
    live, other = make(tmp_path, "u1", this_process()), make(tmp_path, "u2", DEAD)
    orphan, working = sleeper(f"u1/{dead.name}"), sleeper(f"u1/{live.name}")
    foreign, unmarked = sleeper(f"u2/{other.name}"), sleeper("")
    try:
        assert clear("u1", str(tmp_path)) == (1, 2)
        assert orphan.wait(30) == -9
        assert [each.poll() for each in (working, foreign, unmarked)] == [None] * 3
        assert [each.exists() for each in (dead, unnamed, live, other)] == [False, False, True, True]
        assert clear("u1", str(tmp_path)) == (0, 0)
    finally:
        for each in (orphan, working, foreign, unmarked):
            each.kill()
            each.wait()
