"""A refused writer says who holds the run, where the kernel tells."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import DamagedError, HeldError
from holdfast.journal import Lock, write_lease
from holdfast.journal.ownership import lock
from holdfast.journal.ownership.lease import Holder, Lease
from holdfast.state import is_held

LISTED = """\
1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:01:77 0 EOF
3: FLOCK  ADVISORY  READ  13 fe:00:77 0 EOF
4: FLOCK  ADVISORY  WRITE {holder} fe:00:77 0 EOF
4: -> FLOCK  ADVISORY  WRITE 15 fe:00:77 0 EOF
"""


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="this kernel does not list its locks")
def test_a_refusal_names_the_process_and_the_host(tmp_path: Path) -> None:
    held = Lock(str(tmp_path))
    with pytest.raises(HeldError, match=rf"\(process {os.getpid()} on {os.uname().nodename}\); wait for it"):
        Lock(str(tmp_path), wait_seconds=0)
    held.release()


def test_a_refusal_does_without_a_name_where_the_kernel_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "KERNEL_LIST", str(tmp_path / "nothing"))
    held = Lock(str(tmp_path))
    with pytest.raises(HeldError, match="by another live process; wait for it"):
        Lock(str(tmp_path), wait_seconds=0)
    held.release()


@pytest.mark.parametrize(("holder", "found"), [("14", 14), ("0", 0), ("-1", 0)], ids=["ours", "of a container", "none"])
def test_only_the_exclusive_holder_of_the_same_file_is_named(holder: str, found: int) -> None:
    assert lock.writer_of("fe:00:77", LISTED.format(holder=holder).splitlines()) == found


def test_a_list_that_looks_different_names_nobody() -> None:
    assert lock.writer_of("fe:00:77", ["", "1:", "4: FLOCK  ADVISORY  WRITE", "what else?"]) == 0


def test_a_folder_or_link_in_the_place_of_the_lock_is_refused_and_not_followed(tmp_path: Path) -> None:
    other, run = tmp_path / "other", tmp_path / "run"
    other.mkdir()
    run.mkdir()
    held = Lock(str(other))
    for target in (other / "lock", run / "nowhere"):
        (run / "lock").symlink_to(target)
        assert not is_held(str(run))
        with pytest.raises(DamagedError, match="remove it"):
            Lock(str(run))
        assert not (run / "nowhere").exists()
        (run / "lock").unlink()
    (run / "lock").mkdir()
    with pytest.raises(DamagedError, match="remove it"):
        Lock(str(run))
    held.release()


def test_a_released_lock_counts_as_lost(tmp_path: Path) -> None:
    """A heartbeat thread that ends after the release must not replace the next holder's lease."""
    lock = Lock(str(tmp_path))
    assert not lock.look()
    lock.release()
    assert lock.look()


def test_one_that_was_stopped_while_it_watched_a_holder_with_another_lock_file_is_refused(tmp_path: Path) -> None:
    now = [0.0]
    lease = Lease(Holder(4711, "elsewhere"), 1, 1, time.time(), time.time(), 60.0, lock=12345)
    write_lease(str(tmp_path), lease)

    def be_stopped(seconds: float) -> None:
        now[0] += 10.0
        write_lease(str(tmp_path), msgspec.structs.replace(lease, beat=int(now[0])))

    with pytest.raises(HeldError, match="4711 on elsewhere"):
        Lock(str(tmp_path), clock=lambda: now[0], sleep=be_stopped)
