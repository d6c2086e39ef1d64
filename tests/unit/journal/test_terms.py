"""Terms: numbered, created once, expired when their beat does not change on the observer's own clock."""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import HeldError
from holdfast.journal import Lock
from holdfast.journal.ownership import terms
from holdfast.journal.ownership.terms import Term, is_term_held

NEVER = 3600.0


class Clock:
    """Moves only when someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def beat_of(run: Path, number: int = 1) -> str:
    return (run / "lease" / f"{number:06}.beat").read_text()


def take(run: Path, beat_seconds: float = NEVER, clock: Clock | None = None) -> Term:
    chosen = clock or Clock()
    return Term(str(run), beat_seconds, 20.0, chosen, chosen.sleep)


def test_a_term_that_was_ended_is_followed_at_once(tmp_path: Path) -> None:
    take(tmp_path).end()
    clock = Clock()
    second = take(tmp_path, clock=clock)
    assert clock.now == 0.0
    assert sorted(os.listdir(tmp_path / "lease")) == ["000001", "000001.beat", "000002", "000002.beat"]
    second.end()
    assert not is_term_held(str(tmp_path))


def test_a_term_whose_beat_does_not_change_expires_and_its_holder_learns_that_it_lost(tmp_path: Path) -> None:
    first = take(tmp_path, beat_seconds=0.02)
    first._over.set()  # noqa: SLF001 - its process is stopped
    time.sleep(0.05)
    clock = Clock()
    second = take(tmp_path, clock=clock)
    assert 20 <= clock.now < 21
    stopped = threading.Thread(target=first._keep_beating)  # noqa: SLF001 - and continued
    first._over.clear()  # noqa: SLF001
    stopped.start()
    stopped.join(5)
    assert first.lost
    assert not second.lost
    second.end()


def test_a_term_that_beats_is_held_and_the_refusal_names_its_holder(tmp_path: Path) -> None:
    first = Term(str(tmp_path), 0.02, 5.0)
    with pytest.raises(HeldError, match=rf"process {os.getpid()} on .*recognised after 5 s"):
        Term(str(tmp_path), 0.02, 5.0)
    assert is_term_held(str(tmp_path))
    first.end()


def test_of_many_that_claim_an_expired_term_one_gets_it(tmp_path: Path) -> None:
    take(tmp_path)
    got: list[Term] = []
    refused: list[HeldError] = []

    def claim() -> None:
        try:
            got.append(Term(str(tmp_path), 0.05, 0.5))
        except HeldError as error:
            refused.append(error)

    racers = [threading.Thread(target=claim) for _ in range(12)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert (len(got), len(refused)) == (1, 11)
    got[0].end()


def test_a_claim_without_a_beat_or_a_nonce_expires_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "000007").write_bytes(b"")
    assert not is_term_held(str(tmp_path))
    term = take(tmp_path)
    assert (tmp_path / "lease" / "000008").exists()
    term.end()


def test_a_term_that_ends_while_it_beats_stays_ended(tmp_path: Path) -> None:
    """Else the next process waits for an expiry that nobody needs."""
    ends = []
    for number in range(1, 101):
        term = Term(str(tmp_path), 0.0005, 20.0)
        time.sleep(0.003)
        term.end()
        time.sleep(0.003)
        ends.append(beat_of(tmp_path, number))
        (tmp_path / "lease" / f"{number:06}.beat").write_text("-1")
    assert set(ends) == {"-1"}


def test_a_term_whose_beat_does_not_change_is_shown_as_free(tmp_path: Path) -> None:
    term = take(tmp_path)
    assert is_term_held(str(tmp_path))
    old = time.time() - terms.EXPIRY_SECONDS - 1
    os.utime(tmp_path / "lease" / "000001.beat", (old, old))
    assert not is_term_held(str(tmp_path))
    term.end()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_flock_a_lock_is_a_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = Lock(str(tmp_path))
    assert not lock.lost
    assert is_term_held(str(tmp_path))
    lock.release()
    assert not is_term_held(str(tmp_path))
    Lock(str(tmp_path)).release()


def test_a_folder_that_cannot_hold_terms_is_an_error_of_the_system_not_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / "lease").write_text("a file")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="lease"):
        Lock(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before, "the lock file's handle is left open"
