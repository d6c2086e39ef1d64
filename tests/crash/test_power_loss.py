"""Power loss on the simulated disk: in every state that it may leave, what was acknowledged is there and the run goes
on.

A failure names its state as `scenario:seed:index`; HOLDFAST_STATE=scenario:seed:index checks that one alone.
"""

import errno
import os
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.crash.scenarios import RUN, SCENARIOS, Story, base_state, complaint, replace_file, tell
from tests.crash.simulated_disk import SimulatedDisk, State, states_after


def moments(story: Story, seed: int) -> Iterator[tuple[int, State]]:
    """Every state after every operation of a story, each different one once."""
    seen: set[tuple[int, int]] = set()
    for point in range(len(story.disk.log) + 1):
        promised = sum(when <= point for when in story.acknowledged.values())
        for state in states_after(story.disk, point, random.Random(f"{seed}:{point}")):
            mark = (promised, state.fingerprint())
            if mark not in seen:
                seen.add(mark)
                yield point, state


def failures(story: Story, name: str, seed: int, limit: int) -> tuple[int, list[str]]:
    """How many states were checked, and the complaints about them, each with what replays it."""
    crash_points = list(moments(story, seed))
    chosen = (
        range(len(crash_points))
        if len(crash_points) <= limit
        else sorted(random.Random(seed).sample(range(len(crash_points)), limit))
    )
    only = os.environ.get("HOLDFAST_STATE", "").split(":")
    if only[:2] == [name, str(seed)]:
        chosen = range(int(only[2]), int(only[2]) + 1)
    found = []
    for index in chosen:
        wrong = complaint(story, *crash_points[index])
        if wrong:
            found.append(f"HOLDFAST_STATE={name}:{seed}:{index}: {wrong}")
    return len(chosen), found


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_acknowledged_is_lost_in_a_sample_of_power_losses(name: str) -> None:
    checked, found = failures(tell(name, seed=1), name, seed=1, limit=150)
    assert checked > 40
    assert found == []


@pytest.mark.long
def test_nothing_acknowledged_is_lost_in_ten_thousand_power_losses() -> None:
    checked, found = 0, list[str]()
    for seed in range(2, 11):
        for name in SCENARIOS:
            count, wrong = failures(tell(name, seed), name, seed, limit=1_000_000)
            checked += count
            found += wrong
    assert found == []
    assert checked >= 10_000


def crashed_recoveries(name: str, seed: int, count: int) -> Iterator[str]:
    """Power fails, the run is opened again, and power fails during that: complaints about what is left then."""
    chance = random.Random(f"again:{name}:{seed}")
    story = tell(name, seed)
    crash_points = list(moments(story, seed))
    for point, state in chance.sample(crash_points, min(count, len(crash_points))):
        again = Story(SimulatedDisk(state), random.Random(0), next_id=500_000)
        again.submitted.update({identity: 0 for identity, when in story.submitted.items() if when <= point})
        again.acknowledged.update({identity: 0 for identity, when in story.acknowledged.items() if when <= point})
        again.void.update({identity: 0 for identity, when in story.void.items() if when <= point})
        again.commit(again.open(sealing=True))
        for later, left in chance.sample(list(moments(again, seed)), 8):
            wrong = complaint(again, later, left)
            if wrong:
                yield f"{name}:{seed} again: {wrong}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_loss_while_recovering_from_one_loses_nothing(name: str) -> None:
    assert list(crashed_recoveries(name, seed=1, count=6)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_loss_while_recovering_from_one_loses_nothing_in_many_states(name: str) -> None:
    assert list(crashed_recoveries(name, seed=2, count=60)) == []


def broken_replacements(disk: SimulatedDisk) -> list[str]:
    """States in which a file that is replaced atomically is neither its old nor its new version."""
    promised = replace_file(disk)
    versions = [f"version {version}".encode() * 100 for version in range(3)]
    found = []
    for point in range(len(disk.log) + 1):
        least = sum(when <= point for when in promised)
        for state in states_after(disk, point, random.Random(point)):
            inode = state.folders[RUN].get("lease.json")
            content = None if inode is None else bytes(state.files[inode])
            number = 0 if content is None else versions.index(content) + 1 if content in versions else -1
            if number < least:
                found.append(f"after {point} operations: version {number} where {least} was promised")
    return found


def test_a_replaced_file_is_its_old_or_its_new_version_after_any_power_loss() -> None:
    assert broken_replacements(SimulatedDisk(base_state())) == []


# Negative controls: the same harness must catch each classic mistake, or it proves nothing.


class NoSync(SimulatedDisk):
    def sync(self, handle: int) -> None:
        pass


class NoFolderSync(SimulatedDisk):
    def sync_folder(self, path: str) -> None:
        pass


class AcknowledgesBeforeSync(SimulatedDisk):
    """A sync is asked for, and happens only when the next write comes."""

    late: int | None = None

    def sync(self, handle: int) -> None:
        self.late = handle

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        if self.late in self._handles:
            super().sync(self.late)
        return super().write(handle, buffers)


class RetriesAfterFailedSync(SimulatedDisk):
    def sync(self, handle: int) -> None:
        try:
            super().sync(handle)
        except OSError:
            super().sync(handle)


class RenamesBeforeSync(SimulatedDisk):
    """A temporary file is synced only long after it has got its name."""

    held: Sequence[int] = ()

    def sync(self, handle: int) -> None:
        name = next(
            name
            for names in self.now.folders.values()
            for name, inode in names.items()
            if inode == self._handles[handle]
        )
        if name.endswith(".tmp"):
            self.held = [*self.held, self._handles[handle]]
        else:
            super().sync(handle)

    def create(self, path: str) -> int:
        for inode in self.held:
            super().sync(self._handle(inode))
        self.held = ()
        return super().create(path)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (NoSync, "append"),
        pytest.param(NoSync, "rotation", marks=pytest.mark.long),
        (NoFolderSync, "append"),
        pytest.param(NoFolderSync, "rotation", marks=pytest.mark.long),
        (AcknowledgesBeforeSync, "append"),
        (RetriesAfterFailedSync, "poisoned"),
        (RenamesBeforeSync, "sealing"),
    ],
)
def test_the_harness_catches_a_journal_that(broken: type[SimulatedDisk], name: str) -> None:
    _, found = failures(tell(name, 1, broken(base_state())), name, seed=1, limit=1_000_000)
    assert found


@pytest.mark.parametrize("broken", [NoSync, NoFolderSync, AcknowledgesBeforeSync, RenamesBeforeSync])
def test_the_harness_catches_an_atomic_replacement_that(broken: type[SimulatedDisk]) -> None:
    assert broken_replacements(broken(base_state()))


def test_a_failed_sync_on_the_simulated_disk_leaves_its_data_unsafe() -> None:
    disk = SimulatedDisk(base_state())
    disk.fail = lambda call, count: errno.EIO if (call, count) == ("sync", 1) else 0
    handle = disk.create(f"{RUN}/file")
    disk.sync_folder(RUN)
    disk.write(handle, [b"data"])
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(handle)
    disk.sync(handle)
    left = {
        bytes(state.files[state.folders[RUN]["file"]]) for state in states_after(disk, len(disk.log), random.Random(0))
    }
    assert b"" in left
