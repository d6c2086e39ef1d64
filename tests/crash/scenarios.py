"""What a journal goes through on the simulated disk, and what must hold after a power loss at any moment of it."""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import FencedError, HoldfastError
from holdfast.journal.appender import Appender, Hooks
from holdfast.journal.disk import write_file
from holdfast.journal.opening import OpenRequest, open_to_write
from holdfast.journal.positions import Damage, Entry
from holdfast.journal.reader import Reader
from holdfast.journal.sealing import seal
from holdfast.journal.verification import verify
from holdfast.records import Draft, draft
from tests.crash.simulated_disk import ROOT, SimulatedDisk, State

RUN = f"{ROOT}/run"
JOURNAL = f"{RUN}/journal"
UID = "run-1"
_data = msgspec.json.Decoder(dict[str, object])


def base_state() -> State:
    """The run's folder exists; nothing is in it."""
    disk = SimulatedDisk()
    disk.make_folder(RUN)
    return disk.now


@dataclass
class Story:
    """One run of a scenario: the disk with its log, and which records were acknowledged after how many operations."""

    disk: SimulatedDisk
    chance: random.Random
    submitted: dict[int, int] = field(default_factory=dict)  # id -> operations when it was handed over
    acknowledged: dict[int, int] = field(default_factory=dict)  # id -> operations when it was acknowledged
    void: dict[int, int] = field(default_factory=dict)  # id -> operations from which on it must not be read
    next_id: int = 0

    def records(self, count: int, size: int) -> list[Draft]:
        made = []
        for _ in range(count):
            self.submitted[self.next_id] = len(self.disk.log)
            data = {"id": self.next_id, "pad": "x" * self.chance.randrange(size)}
            made.append(draft("note", data, f"k/{self.next_id}"))
            self.next_id += 1
        return made

    def commit(self, appender: Appender, count: int = 3, size: int = 300) -> None:
        first = self.next_id
        appender.commit(self.records(count, size))
        for identity in range(first, self.next_id):
            self.acknowledged[identity] = len(self.disk.log)

    def open(self, segment_bytes: int = 1 << 20, *, sealing: bool = False, epoch: int | None = None) -> Appender:
        def rotated(number: int) -> None:
            if sealing:
                seal(self.disk, JOURNAL, number)

        hooks = Hooks(lambda: 0.0, rotated, wait_for_space=lambda error: None)
        opened = open_to_write(self.disk, JOURNAL, OpenRequest(UID, epoch=epoch, segment_bytes=segment_bytes), hooks)
        if sealing:
            for number in opened.unsealed:
                seal(self.disk, JOURNAL, number)
        return opened.appender


def append(story: Story) -> None:
    appender = story.open()
    for _ in range(4):
        story.commit(appender, count=story.chance.randrange(1, 6), size=story.chance.choice([50, 2000]))


def rotation(story: Story) -> None:
    appender = story.open(segment_bytes=600)
    for _ in range(6):
        story.commit(appender)


def sealing(story: Story) -> None:
    appender = story.open(segment_bytes=600, sealing=True)
    for _ in range(4):
        story.commit(appender)
    appender.close()
    appender = story.open(segment_bytes=600, sealing=True)
    story.commit(appender)


def quarantine(story: Story) -> None:
    """A crash left a torn tail, then another one a whole last line without its newline."""
    appender = story.open()
    story.commit(appender)
    for junk in (b'{"n":9,"at":"2026', b"\0" * 700, b"no record\n" + b"x" * 40):
        handle = story.disk.open(_hot(story.disk), write=True)
        story.disk.write(handle, [junk])
        story.disk.sync(handle)
        appender = story.open()
        story.commit(appender, count=2)


def lost_newline(story: Story) -> None:
    appender = story.open()
    story.commit(appender)
    handle = story.disk.open(_hot(story.disk), write=True)
    story.disk.truncate(handle, story.disk.size(handle) - 1)
    story.disk.sync(handle)
    story.commit(story.open())


def takeover(story: Story) -> None:
    """A second writer takes the run over while the first one still believes it has it."""
    zombie = story.open(segment_bytes=900)
    story.commit(zombie)
    heir = story.open(epoch=2)
    after = len(story.disk.log)
    story.commit(heir)
    try:
        for _ in range(3):
            first = story.next_id
            batch = story.records(2, 300)
            zombie.commit(batch)
            story.void.update(dict.fromkeys(range(first, story.next_id), after))
    except FencedError:
        story.void.update(dict.fromkeys(range(first, story.next_id), after))
    story.commit(heir)


def poisoned(story: Story) -> None:
    """Syncs and writes fail now and then; the disk is full for a while."""
    failing = {("sync", 4): errno.EIO, ("write", 7): errno.EIO, ("sync", 11): errno.ENOSPC, ("create", 5): errno.ENOSPC}
    story.disk.fail = lambda call, count: failing.get((call, count), 0)
    appender = story.open(segment_bytes=2000)
    for _ in range(7):
        story.commit(appender, count=2)


SCENARIOS: dict[str, Callable[[Story], None]] = {
    each.__name__: each for each in (append, rotation, sealing, quarantine, lost_newline, takeover, poisoned)
}


def tell(name: str, seed: int, disk: SimulatedDisk | None = None) -> Story:
    story = Story(disk or SimulatedDisk(base_state()), random.Random(f"{name}:{seed}"))
    SCENARIOS[name](story)
    return story


def complaint(story: Story, point: int, state: State) -> str | None:
    """What is wrong with a state after `point` operations of a story; None if every promise holds."""
    promised = [identity for identity, when in story.acknowledged.items() if when <= point]
    allowed = {identity for identity, when in story.submitted.items() if when <= point}
    allowed -= {identity for identity, when in story.void.items() if when <= point}
    disk = SimulatedDisk(state)
    try:
        if "journal" in state.folders.get(RUN, {}):
            wrong = _judge("read after the loss", _ids(disk), promised, allowed)
            if wrong:
                return wrong
        new = Story(disk, random.Random(0), next_id=1_000_000)
        new.commit(new.open())
        appender = new.open(sealing=True)
        new.commit(appender)
        promised += new.acknowledged
        allowed |= set(new.acknowledged)
        wrong = _judge("read after continuing", _ids(disk), promised, allowed)
        checked = verify(JOURNAL, UID, disk)
    except (HoldfastError, OSError) as error:
        return f"did not open or read: {error!r}"
    return wrong or (f"verify: {checked.errors}" if checked.errors else None) or _repeated_anomalies(disk)


def _judge(when: str, found: list[int], promised: list[int], allowed: set[int]) -> str | None:
    if len(set(found)) != len(found):
        return f"{when}: a record was read twice: {found}"
    lost = [identity for identity in promised if identity not in set(found)]
    if lost:
        return f"{when}: acknowledged and lost: {lost}"
    invented = [identity for identity in found if identity not in allowed]
    if invented:
        return f"{when}: never written, or void: {invented}"
    order = [identity for identity in found if identity in set(promised)]
    return None if order == promised else f"{when}: out of order: {found}"


def _ids(disk: SimulatedDisk) -> list[int]:
    found = []
    for each in Reader(JOURNAL, UID, disk=disk).read():
        if isinstance(each, Entry) and each.line.t == "note":
            identity = _data.decode(each.line.d)["id"]
            assert isinstance(identity, int)
            found.append(identity)
    return found


def _repeated_anomalies(disk: SimulatedDisk) -> str | None:
    losses = [
        bytes(each.line.d)
        for each in Reader(JOURNAL, UID, disk=disk).read()
        if not isinstance(each, Damage) and each.line.t == "anomaly"
    ]
    return f"an anomaly was recorded twice: {losses}" if len(set(losses)) != len(losses) else None


def _hot(disk: SimulatedDisk) -> str:
    return os.path.join(JOURNAL, max(name for name in disk.names(JOURNAL) if name.endswith(".jsonl")))


def replace_file(disk: SimulatedDisk) -> list[int]:
    """Replace one small file three times; returns after how many operations each version was promised."""
    done = []
    for version in range(3):
        write_file(disk, f"{RUN}/lease.json", f"{RUN}/lease.json.tmp", f"version {version}".encode() * 100)
        done.append(len(disk.log))
    return done
