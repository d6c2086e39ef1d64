"""Terms: numbered, created once, expired when their beat does not change on the observer's own clock."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import HeldError
from holdfast.journal import Lock
from holdfast.journal.ownership import terms
from holdfast.journal.ownership.terms import Term, is_term_held, observe_term

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


def test_the_term_of_a_process_that_was_killed_here_is_followed_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys; from holdfast.journal.ownership.terms import Term; Term(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    clock = Clock()
    take(tmp_path, clock=clock).end()
    assert clock.now == 0.0


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
    Term(str(tmp_path), NEVER, 0.5)
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


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.long)])
def test_of_two_that_race_for_a_free_run_one_wins(tmp_path: Path, times: int) -> None:
    for number in range(times):
        run = tmp_path / str(number)
        run.mkdir()
        ready, won, lost = threading.Barrier(2), list[Term](), list[HeldError]()

        def race(run: Path = run, ready: threading.Barrier = ready, won: list[Term] = won) -> None:
            ready.wait()
            try:
                won.append(take(run))
            except HeldError as error:
                lost.append(error)  # noqa: B023 - joined before the next round

        racers = [threading.Thread(target=race) for _ in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        # Both see a free run. The one whose file was created first owns it; the other may also have watched its beat
        # for an expiry of its own clock, which moves only while it sleeps.
        owners = [term for term in won if not term.look()]
        assert len(owners) == 1
        for term in won:
            term.end()


def test_many_terms_are_watched_at_once_and_none_is_waited_for(tmp_path: Path) -> None:
    clock, runs = Clock(), [tmp_path / str(number) for number in range(5)]
    for run in runs:
        run.mkdir()
    held = [take(run) for run in runs]
    assert [observe_term(str(run), clock) for run in runs] == [False] * 5
    for clock.now in (7.0, 13.0, 19.0):
        held[0]._beat(int(clock.now))  # noqa: SLF001 - this one is alive
        assert [observe_term(str(run), clock) for run in runs] == [False] * 5
    clock.now = 20.5
    assert [observe_term(str(run), clock) for run in runs] == [False, True, True, True, True]
    before = clock.now
    successor = Term(str(runs[1]), NEVER, 20.0, clock, clock.sleep)
    assert clock.now == before  # it was watched long enough already
    assert held[1].look()
    for term in (held[0], *held[2:], successor):
        term.end()
    assert observe_term(str(runs[2]), clock)


def test_one_that_was_stopped_while_it_watched_does_not_take_the_term_of_a_live_holder(tmp_path: Path) -> None:
    holder, clock = take(tmp_path), Clock()

    def be_stopped(seconds: float) -> None:
        clock.now += 30.0
        holder._beat(int(clock.now))  # noqa: SLF001 - it beats all the time

    with pytest.raises(HeldError):
        Term(str(tmp_path), NEVER, 20.0, clock, be_stopped)
    assert holder.is_confirmed
    holder.end()


def test_a_time_in_which_everything_stood_still_is_not_counted_against_the_holder(tmp_path: Path) -> None:
    """The file system hung, or the machine of both was paused: the holder beats when it continues."""
    holder, clock = take(tmp_path), Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds if clock.now else 60.0
        if clock.now > 62.0:
            holder._beat(1)  # noqa: SLF001

    with pytest.raises(HeldError):
        Term(str(tmp_path), NEVER, 20.0, clock, sleep)
    holder.end()


def test_a_stop_of_the_observer_counts_little_for_one_who_watches_many(tmp_path: Path) -> None:
    holder, clock = take(tmp_path), Clock()
    found = []
    for seconds in (60.0, 5.0, 6.0):
        found.append(observe_term(str(tmp_path), clock))
        clock.now += seconds
    assert [*found, observe_term(str(tmp_path), clock)] == [False, False, False, True]
    holder.end()


def test_a_holder_that_wakes_up_at_the_last_moment_is_given_time_to_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it acknowledges until it notices counts, so the taker must read the journal after that."""
    holder, clock = take(tmp_path), Clock()
    claim, noticed_at = terms._claim, list[float]()  # noqa: SLF001

    def claim_late(folder: str, number: int, nonce: str, expiry_seconds: float) -> bool:
        holder._beat(1)  # noqa: SLF001
        assert not holder.lost, "the run is still its own"
        return claim(folder, number, nonce, expiry_seconds)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 25.0 and not noticed_at and holder.look():
            noticed_at.append(clock.now)

    monkeypatch.setattr(terms, "_claim", claim_late)
    term = Term(str(tmp_path), NEVER, 20.0, clock, sleep)
    assert noticed_at
    assert clock.now >= 40.0
    term.end()


def test_a_holder_is_sure_only_while_its_beats_are_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now[0])
    term = take(tmp_path)
    sure = [term.is_confirmed]
    for seconds in (13.0, 1.0):  # after two thirds of the expiry: the machine slept
        now[0] += seconds
        sure.append(term.is_confirmed)
    term._beat(1)  # noqa: SLF001 - its thread continues
    assert [*sure, term.is_confirmed] == [True, True, False, True]
    other = terms._claim(str(tmp_path / "lease"), 2, "other", 20.0)  # noqa: SLF001 - another process takes over
    now[0] += 14.0
    term._beat(2)  # noqa: SLF001
    assert other
    assert not term.is_confirmed
    term.end()
