"""The lease: what a process says of itself, and what its silence means."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.journal.ownership import lease as leases
from holdfast.journal.ownership.lease import (
    Holder,
    InFlight,
    Lease,
    Stall,
    describe_death,
    is_alive,
    read_lease,
    this_process,
)

HOST = socket.gethostname()


def lease(holder: Holder | None = None, at: float = 1.7e9, oom_kills: int = 0) -> Lease:
    return Lease(holder or this_process(), 1, 1, at, at, 30.0, oom_kills=oom_kills)


def test_a_lease_is_read_as_it_was_written(tmp_path: Path) -> None:
    stuck = InFlight("t/m/1/1", "solving", 1.0, True, ["a.py:1 in f"])
    written = Lease(this_process(), 3, 4, 1.0, 0.5, 30.0, stall=Stall(1.0, "why", [stuck]), acknowledged=9)
    leases.write_lease(str(tmp_path), written)
    assert read_lease(str(tmp_path)) == written
    assert os.listdir(tmp_path) == ["lease.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"holder": 1}', b'{"at": "x"}'])
def test_a_lease_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease.json").write_bytes(content)
    assert read_lease(str(tmp_path)) is None


def test_no_flipped_bit_of_a_lease_is_believed(tmp_path: Path) -> None:
    """A count that looks right would make readers report records as missing."""
    written = lease()
    leases.write_lease(str(tmp_path), written)
    path = tmp_path / "lease.json"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert read_lease(str(tmp_path)) in (None, written), bit


def test_a_lease_of_an_older_version_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_bytes(msgspec.json.encode(lease()))
    assert read_lease(str(tmp_path)) == lease()


def test_a_lease_that_is_missing_is_none(tmp_path: Path) -> None:
    assert read_lease(str(tmp_path)) is None


def test_a_lease_that_cannot_be_written_keeps_nobody_from_working(tmp_path: Path) -> None:
    leases.write_lease(str(tmp_path / "nowhere"), lease())
    assert read_lease(str(tmp_path / "nowhere")) is None


def test_this_process_lives() -> None:
    assert is_alive(this_process()) is True


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell when a process began")
def test_another_process_with_the_same_number_is_not_the_holder() -> None:
    assert is_alive(Holder(os.getpid(), HOST, leases.boot_id(), "12345")) is False


@pytest.mark.skipif(not leases.boot_id(), reason="this system has no boot id")
def test_no_process_survives_a_restart_of_the_machine() -> None:
    before = Holder(os.getpid(), HOST, "another boot", this_process().started)
    assert is_alive(before) is False
    assert "restarted" in describe_death(lease(before))


def test_of_a_process_on_another_host_nothing_is_known() -> None:
    away = Holder(os.getpid(), "elsewhere")
    assert is_alive(away) is None
    assert "elsewhere was last seen at" in describe_death(lease(away))


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    started = leases._started(child.pid)  # noqa: SLF001 - as its own lease would say
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    holder = Holder(child.pid, HOST, leases.boot_id(), started)
    alive = is_alive(holder)
    child.communicate()
    assert alive is False


def test_too_little_memory_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "oom_kills", lambda: 3)
    assert "memory ran out" in describe_death(lease(oom_kills=2))
    assert "memory" not in describe_death(lease(oom_kills=3))


@pytest.mark.parametrize("at", [1e300, -1e300, -1e18, 1e18])
def test_an_impossible_time_is_still_formatted(at: float) -> None:
    assert "killed" in describe_death(lease(at=at))


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 2**40])
def test_a_process_number_that_no_process_has_is_not_alive(pid: int) -> None:
    assert is_alive(Holder(pid, HOST)) in {False, None}
