"""The mirror: what is confirmed is there, whatever the store, the disk or the process does."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import JournalError
from holdfast.journal import seal, verify
from holdfast.journal.mirror.pieces import MirrorSource, parse_piece
from holdfast.journal.mirror.restore import restore
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import Objects, open_objects
from holdfast.journal.opening import open_to_write
from holdfast.journal.ownership.claims import Beat, read_beat, take_epoch
from holdfast.journal.ownership.lease import Lease, this_process, write_lease
from holdfast.records import Draft, Fence, draft
from tests.journals import QUICK, UID, QuickDisk, hooks, note, notes, plain_numbers, read_all, request
from tests.stores import PATIENCE_SECONDS, Broken, Bucket, MemoryObjects, Outage, failing_every, lying, states

CHUNK = 400


class Session:
    """One process's writing of a run, record by record, with a mirror beside it."""

    def __init__(
        self,
        run: Path,
        objects: Objects,
        epoch: int | None = None,
        disk: QuickDisk = QUICK,
        uid: str = UID,
        **keeping: Any,
    ) -> None:
        self.run = run
        self.folder = str(run / "journal")
        run.mkdir(exist_ok=True)
        self.opened = open_to_write(disk, self.folder, request(uid, epoch=epoch), hooks())
        self.events_seen: list[tuple[str, str]] = []
        self.confirmed: list[int] = []
        self.observe: Callable[[int], None] = lambda n: None
        self.was_lost = threading.Event()
        self._news = threading.Condition()
        wanted = {"seconds": 0.01, "beat_seconds": 0.01, "chunk_bytes": CHUNK, **keeping}
        kept = UploadSettings(
            tip=lambda: self.tip,
            tell=self._tell,
            lost=self.was_lost.set,
            confirmed=self._confirm,
            **wanted,
        )
        self.mirror = MirrorUploader(str(run), uid, objects, epoch, kept)

    @property
    def tip(self) -> Fence:
        assert self.opened.appender.tip is not None
        return self.opened.appender.tip

    def write(self, *records: Draft) -> None:
        for record in records:
            self.opened.appender.commit([record])

    def seal(self) -> None:
        """Every segment but the hot one."""
        for number in plain_numbers(self.folder):
            if number < self.tip.segment:
                seal(QUICK, self.folder, number)

    def until(self, happened: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(happened, PATIENCE_SECONDS), self.events_seen

    def sent(self) -> None:
        self.until(lambda: self.mirror.mirrored >= self.tip.n)

    def end(self) -> bool:
        done = self.mirror.close(PATIENCE_SECONDS)
        self.opened.appender.close()
        return done

    def events(self) -> list[str]:
        return [event for event, _ in self.events_seen]

    def _tell(self, event: str, message: str) -> None:
        with self._news:
            self.events_seen.append((event, message))
            self._news.notify_all()

    def _confirm(self, n: int) -> None:
        with self._news:
            self.confirmed.append(n)
            self.observe(n)
            self._news.notify_all()


@contextmanager
def writing(run: Path, objects: Objects, epoch: int | None = None, **keeping: Any) -> Iterator[Session]:
    session = Session(run, objects, epoch, **keeping)
    session.mirror.start()
    try:
        yield session
    finally:
        session.mirror.close(0)
        session.opened.appender.close()


def restored(objects: Objects, place: Path) -> dict[int, bytes]:
    """Every record that a machine that has nothing gets from the store. Nothing may be damaged or warned of."""
    warnings: list[str] = []
    restore(str(place), [MirrorSource(objects)], warnings.append)
    found = verify(str(place / "journal"), UID)
    assert found.ok, found.errors
    assert warnings == []
    return read_all(str(place / "journal")).lines


def here(session: Session) -> dict[int, bytes]:
    return read_all(session.folder).lines


def names(objects: MemoryObjects) -> list[str]:
    return sorted(name for name in objects.held if name.startswith("journal/"))


def test_what_was_written_is_there_and_can_be_restored(bucket: Bucket, tmp_path: Path) -> None:
    objects = open_objects(f"{bucket.url}/runs @ 100%/x")
    with writing(tmp_path / "run", objects) as session:
        session.write(*notes("a", 12))
        session.sent()
        session.seal()
        session.write(*notes("b", 3))
        assert session.end()
    assert restored(open_objects(objects.url), tmp_path / "again") == here(session)


def test_chunks_are_cut_at_record_ends_and_no_longer_than_they_may_be(tmp_path: Path) -> None:
    objects = MemoryObjects()
    run = tmp_path / "run"
    session = Session(run, objects)
    session.write(*notes("a", 12))
    session.mirror.start()
    assert session.end()
    chunks = {name: data for name, data in objects.held.items() if name.startswith("journal/")}
    assert len(chunks) > 4
    for name, data in chunks.items():
        piece = parse_piece(name, len(data))
        assert piece is not None
        assert piece.last - piece.first == len(data)
        assert data.endswith(b"\n")
        assert len(data) <= CHUNK
    assert restored(objects, tmp_path / "again") == here(session)


def test_a_record_that_is_longer_than_a_chunk_is_one(tmp_path: Path) -> None:
    objects = MemoryObjects()
    session = Session(tmp_path / "run", objects)
    session.write(note("small"), draft("note", {"text": "x" * 5 * CHUNK}, "long"), note("after"))
    session.mirror.start()
    assert session.end()
    assert any(len(data) > 5 * CHUNK for data in objects.held.values())
    assert restored(objects, tmp_path / "again") == here(session)


def test_a_sealed_segment_takes_the_place_of_its_chunks(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "run", objects) as session:
        session.write(*notes("a", 12))
        session.sent()
        assert not any(name.endswith(".zst") for name in names(objects))
        session.seal()
        last = session.tip.segment
        assert session.end()
    sealed = [name for name in names(objects) if name.endswith(".zst")]
    assert len(sealed) == last - 1
    assert all(f"/{last:06d}/" in name for name in names(objects) if name not in sealed)
    assert restored(objects, tmp_path / "again") == here(session)


class Corrupting(MemoryObjects):
    """Keeps every sealed segment with one byte changed, until it is repaired."""

    corrupt = True

    def put(self, name: str, data: bytes) -> None:
        if name.endswith(".jsonl.zst") and name.startswith("journal/") and self.corrupt:
            data = data[:40] + bytes([data[40] ^ 1]) + data[41:]
        super().put(name, data)


def test_chunks_stay_while_the_sealed_object_does_not_read_back(tmp_path: Path) -> None:
    objects = Corrupting()
    with writing(tmp_path / "run", objects) as session:
        session.write(*notes("a", 12))
        session.sent()
        chunks = {name for name in names(objects) if not name.endswith(".zst")}
        session.seal()
        session.until(lambda: "mirror.failed" in session.events())
        assert chunks <= set(names(objects)), "a chunk is gone whose sealed object is damaged"
        assert "reads back differently" in dict(session.events_seen)["mirror.failed"]
        place, warnings = tmp_path / "meanwhile", list[str]()
        restore(str(place), [MirrorSource(MemoryObjects(dict(objects.held)))], warnings.append)
        assert read_all(str(place / "journal")).lines == here(session)
        objects.corrupt = False
        assert session.end()
    assert not chunks & {name for name in names(objects) if "/000001/000001/" in name}
    assert restored(objects, tmp_path / "again") == here(session)


def test_the_watermark_is_never_ahead_of_what_is_there(tmp_path: Path) -> None:
    """After each single confirmation, as far as it goes, all is there and whole."""
    objects = MemoryObjects()
    session = Session(tmp_path / "run", objects)
    checked: list[int] = []
    problems: list[str] = []

    def check(n: int) -> None:
        place = tmp_path / f"at-{n}"
        restore(str(place), [MirrorSource(MemoryObjects(dict(objects.held)))], problems.append)
        there = read_all(str(place / "journal")).lines
        problems.extend(f"{m} of {n} is not there" for m in range(1, n + 1) if m not in there)
        checked.append(n)

    session.observe = check
    session.write(*notes("a", 12))
    session.mirror.start()
    assert session.end()
    assert problems == []
    assert checked == sorted(set(checked))
    assert checked[-1] == session.tip.n
    assert len(checked) > 4


def test_a_store_that_keeps_nothing_is_what_these_checks_find(tmp_path: Path) -> None:
    """The negative control: the watermark of a store that lies is ahead of what is there."""
    objects = MemoryObjects()
    with writing(tmp_path / "run", Broken(objects, lying)) as session:
        session.write(*notes("a", 3))
        assert session.end()
        assert session.mirror.mirrored == session.tip.n
    with pytest.raises(JournalError, match="no journal"):
        restored(objects, tmp_path / "again")


@pytest.mark.parametrize("how", ["fail", "mumble"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_store_that_fails_every_third_time_gets_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, seed: int | None
) -> None:
    """Every third put, or by chance one of three calls of any kind."""
    monkeypatch.setattr("holdfast.journal.mirror.uploader._BACKOFF_SECONDS_MAX", 0.02)
    objects = MemoryObjects()
    fails = failing_every(3, how=how)
    if seed is not None:
        fails = failing_every(3, ("put", "get", "list", "delete"), how, random.Random(seed))
    with writing(tmp_path / "run", Broken(objects, fails)) as session:
        for round_number in range(4):
            session.write(*notes(f"r{round_number}", 4))
            session.sent()
            session.seal()
        session.end()
    assert restored(objects, tmp_path / "again") == here(session)


def test_an_outage_is_reported_once_and_nothing_is_lost(tmp_path: Path) -> None:
    objects, outage = MemoryObjects(), Outage()
    with writing(tmp_path / "run", Broken(objects, outage)) as session:
        session.write(*notes("before", 3))
        session.sent()
        known = session.mirror.mirrored
        outage.now = True
        session.write(*notes("during", 9))
        session.seal()
        session.until(lambda: "mirror.failed" in session.events())
        outage.wait(4)
        assert session.mirror.mirrored == known
        assert session.events() == ["mirror.failed"]
        outage.now = False
        session.sent()
        session.until(lambda: "mirror.restored" in session.events())
        assert session.end()
    assert restored(objects, tmp_path / "again") == here(session)


def test_an_outage_of_days_ends_as_one_of_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between two tries stays what it is."""
    monkeypatch.setattr("holdfast.journal.mirror.uploader._BACKOFF_SECONDS_MAX", 0.0001)
    objects, outage = MemoryObjects(), Outage()
    outage.now = True
    with writing(tmp_path / "run", Broken(objects, outage)) as session:
        session.write(note("a"))
        outage.wait(1200)
        outage.now = False
        session.sent()
        assert session.end()
    assert restored(objects, tmp_path / "again") == here(session)


def test_whatever_goes_wrong_the_thread_lives(tmp_path: Path) -> None:
    objects = MemoryObjects()
    odd = [ZeroDivisionError("a bug"), OverflowError()]

    def before(verb: str, name: str) -> str:
        if verb == "put" and odd:
            raise odd.pop()
        return "do"

    with writing(tmp_path / "run", Broken(objects, before)) as session:
        session.write(note("a"))
        session.sent()
    assert not odd


def test_segments_that_are_sealed_while_they_are_sent_are_no_trouble(tmp_path: Path) -> None:
    """Rotation is faster than the upload: between the look at the folder and the read, the plain file goes."""
    objects = MemoryObjects()

    def before(verb: str, name: str) -> str:
        if verb == "put" and name.startswith("journal/"):
            session.seal()
        return "do"

    session = Session(tmp_path / "run", Broken(objects, before))
    session.write(*notes("a", 30))
    session.mirror.start()
    assert session.end()
    assert session.events_seen == []
    assert restored(objects, tmp_path / "again") == here(session)


def test_a_resume_goes_on_where_the_store_is(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "run", objects) as first:
        first.write(*notes("a", 8))
        assert first.end()
    before = len(objects.changes)
    with writing(tmp_path / "run", objects) as second:
        second.write(*notes("b", 2))
        assert second.end()
    again = {change.name for change in objects.changes[:before]} & {change.name for change in objects.changes[before:]}
    assert again == {"lease/000000.beat"}, "something was sent twice"
    assert second.mirror.mirrored == second.tip.n
    assert restored(objects, tmp_path / "again") == here(second)


def test_a_resume_after_an_upload_that_was_cut_off_anywhere_completes_it(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "run", objects) as session:
        session.write(*notes("a", 9))
        session.sent()
        session.seal()
        assert session.end()
    wanted = here(session)
    for index, held in enumerate(states({}, objects.changes)):
        left = MemoryObjects(held)
        with writing(tmp_path / "run", left) as again:
            assert again.end()
        found = restored(left, tmp_path / f"again-{index}")
        assert {n: line for n, line in found.items() if n in wanted} == wanted, f"after change {index}"


def test_a_chunk_that_the_store_has_cut_is_sent_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "run", objects) as session:
        session.write(*notes("a", 5))
        assert session.end()
    for name in names(objects):
        left = MemoryObjects({**objects.held, name: objects.held[name][:-30]})
        with writing(tmp_path / "run", left) as again:
            assert again.end()
        assert restored(left, tmp_path / f"again-{name.replace('/', '-')}").items() >= here(session).items()


class FailingOnce(QuickDisk):
    """The next sync fails."""

    broken = False

    def sync(self, handle: int) -> None:
        if self.broken:
            self.broken = False
            raise OSError(5, "Input/output error")


def test_a_poisoned_segment_goes_up_as_far_as_it_was_acknowledged(tmp_path: Path) -> None:
    objects, disk = MemoryObjects(), FailingOnce()
    with writing(tmp_path / "run", objects, disk=disk) as session:
        for index in range(6):
            disk.broken = index == 3
            session.write(note(f"k{index}"))
            session.sent()
        assert session.tip.segment == 2
        assert session.end()
    assert set(restored(objects, tmp_path / "again")) == set(here(session))
    assert read_all(str(tmp_path / "again" / "journal")).keys == [f"k{index}" for index in range(6)]


def test_files_that_records_refer_to_are_there_before_them(tmp_path: Path) -> None:
    objects = MemoryObjects()
    run = tmp_path / "run"
    session = Session(run, objects)
    for name in ("plan.jsonl.zst", "data.jsonl.zst", "spec.yaml"):
        (run / name).write_text(name)
    session.mirror.start()
    session.write(note("a"))
    session.sent()
    (run / "blobs").mkdir()
    (run / "blobs" / ("a" * 64)).write_text("blob")
    (run / "plan-2.jsonl.zst").write_text("more")
    (run / "spec.yaml").write_text("changed")
    session.write(note("b"))
    assert session.end()
    order = [change.name for change in objects.changes]
    first = next(index for index, name in enumerate(order) if name.startswith("journal/"))
    assert {"plan.jsonl.zst", "data.jsonl.zst"} <= set(order[:first])
    with_b = next(index for index, change in enumerate(objects.changes) if b'"k":"b"' in (change.data or b""))
    assert {f"blobs/{'a' * 64}", "plan-2.jsonl.zst"} <= set(order[:with_b])
    assert objects.held["spec.yaml"] == b"changed"


def test_the_spec_file_is_never_ahead_of_the_records_that_it_is_made_of(tmp_path: Path) -> None:
    """A start that was killed between the two would find a spec.yaml of no run."""
    objects = MemoryObjects()
    run = tmp_path / "run"

    def before(verb: str, name: str) -> str:
        if verb == "put" and name == "plan.jsonl.zst":
            session.write(note("said in spec.yaml"))
            (run / "spec.yaml").write_text("newer")
        return "do"

    session = Session(run, Broken(objects, before))
    (run / "plan.jsonl.zst").write_text("plan")
    (run / "spec.yaml").write_text("older")
    session.mirror.start()
    session.end()  # what came meanwhile may not be there
    for held in states({}, objects.changes):
        said = any(b"said in spec.yaml" in data for name, data in held.items() if name.startswith("journal/"))
        assert held.get("spec.yaml") != b"newer" or said
    with writing(run, objects) as again:
        again.write(note("b"))
        assert again.end()
    assert objects.held["spec.yaml"] == b"newer"


def test_trouble_with_one_object_does_not_send_the_others_again(tmp_path: Path) -> None:
    """Plan and data may be large: a store that fails now and then would never get to the records."""
    objects, run = MemoryObjects(), tmp_path / "run"
    fails = failing_every(3)

    def before(verb: str, name: str) -> str:
        return "do" if name.startswith("lease/") else fails(verb, name)

    run.mkdir()
    for name in ("data.jsonl.zst", "plan.jsonl.zst"):
        (run / name).write_text(name)
    with writing(run, Broken(objects, before)) as session:
        session.write(note("a"))
        session.sent()
        assert session.end()
    sent = [change.name for change in objects.changes]
    assert sent.count("data.jsonl.zst") == sent.count("plan.jsonl.zst") == 1


def test_a_holder_beats_and_says_that_it_has_ended(tmp_path: Path) -> None:
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)
    with writing(tmp_path / "run", objects, epoch) as session:
        session.write(*notes("a", 3))
        session.sent()
        assert session.end()
    beat = read_beat(objects, epoch)
    assert beat is not None
    assert beat.ended
    assert beat.mirrored == session.tip.n


def test_a_holder_that_finds_a_greater_epoch_stops_and_confirms_nothing_more(tmp_path: Path) -> None:
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)
    with writing(tmp_path / "run", objects, epoch, beat_seconds=0.0) as session:
        session.write(note("a"))
        session.sent()
        before = session.mirror.mirrored
        objects.create("lease/000002", b"{}")
        session.write(note("b"))
        assert session.was_lost.wait(PATIENCE_SECONDS)
        assert not session.end()
    assert session.mirror.mirrored == before, "a record of one who has lost the run was confirmed"
    beat = read_beat(objects, epoch)
    assert beat is not None
    assert not beat.ended
    assert session.events() == ["lease.lost"]


def test_one_that_was_stopped_between_a_put_and_its_confirmation_does_not_confirm_it(tmp_path: Path) -> None:
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)

    def before(verb: str, name: str) -> str:
        if verb == "put" and name.startswith("journal/"):
            objects.create("lease/000002", b"{}")  # it slept here; meanwhile another has taken over
        return "do"

    with writing(tmp_path / "run", Broken(objects, before), epoch, beat_seconds=0.0) as session:
        session.write(note("a"))
        assert session.was_lost.wait(PATIENCE_SECONDS)
    assert session.confirmed == []


def test_a_holder_beats_before_it_looks_whether_the_run_is_still_its_own(tmp_path: Path) -> None:
    """Whoever takes it claims before the last look at the beat: in this order one of the two sees the other."""
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)
    looks: list[tuple[int, int]] = []

    def before(verb: str, name: str) -> str:
        if (verb, name) == ("list", "lease"):
            beat = read_beat(objects, epoch)
            looks.append((len(looks) + 1, beat.count if beat else 0))
        return "do"

    with writing(tmp_path / "run", Broken(objects, before), epoch, beat_seconds=0.0) as session:
        session.write(*notes("a", 3))
        assert session.end()
    assert looks
    assert all(look == count for look, count in looks), looks


class SlowUploads:
    """Each upload and each reading back of records waits until three more heartbeats were written."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self._beats = 0
        self._news = threading.Condition()

    def __call__(self, verb: str, name: str) -> str:
        with self._news:
            if name.endswith(".beat") and verb == "put":
                self._beats += 1
                self._news.notify_all()
            elif name.startswith("journal/"):
                wanted = self._beats + 3
                assert self._news.wait_for(lambda: self._beats >= wanted, PATIENCE_SECONDS), f"no beats: {verb} {name}"
                self.waited.append(f"{verb} {'sealed' if name.endswith('.zst') else 'chunk'}")
        return "do"


def test_a_holder_beats_while_an_upload_takes_long_and_claims_only_what_is_there(tmp_path: Path) -> None:
    objects, slow = MemoryObjects(), SlowUploads()
    epoch = take_epoch(objects, 1)
    with writing(tmp_path / "run", Broken(objects, slow), epoch) as session:
        session.write(*notes("a", 12))
        session.seal()
        ended = Lease(this_process(), epoch, 1, 1.0, 1.0, 30.0, end="run.completed", last_n=session.tip.n)
        write_lease(str(session.run), ended)
        assert session.end()
    assert {"put sealed", "get sealed", "put chunk"} <= set(slow.waited)
    uploads = [at for at, each in enumerate(objects.changes) if each.name.startswith("journal/") and each.data]
    beats = {
        at: msgspec.json.decode(each.data, type=Beat)
        for at, each in enumerate(objects.changes)
        if each.name.endswith(".beat") and each.data
    }
    for at, beat in beats.items():
        assert beat.lease is not None
        is_up = at > uploads[-1]
        assert is_up or (beat.mirrored < session.tip.n and not beat.lease.end), "it claims records that are not there"
    assert beats[max(beats)].lease == ended
    assert beats[max(beats)].ended


def test_a_holder_learns_during_an_upload_that_it_has_lost_the_run(tmp_path: Path) -> None:
    objects, go = MemoryObjects(), threading.Event()
    epoch = take_epoch(objects, 1)

    def before(verb: str, name: str) -> str:
        if verb == "put" and name.startswith("journal/"):
            objects.create("lease/000002", b"{}")
            assert go.wait(PATIENCE_SECONDS)
        return "do"

    with writing(tmp_path / "run", Broken(objects, before), epoch) as session:
        session.write(note("a"))
        assert session.was_lost.wait(PATIENCE_SECONDS / 3), "found out only after the upload"
        go.set()
        assert not session.end()
    assert session.confirmed == []
    assert session.events() == ["lease.lost"]


def test_without_an_epoch_nobody_claims_and_a_beat_tells_those_who_look(tmp_path: Path) -> None:
    objects = MemoryObjects({"lease/000009": b"{}"})
    with writing(tmp_path / "run", objects) as session:
        session.write(note("a"))
        assert session.end()
    assert [name for name in objects.held if name.startswith("lease/")] == ["lease/000009", "lease/000000.beat"]
    assert read_beat(objects, 9) is None
    last_beat = read_beat(objects, 0)
    assert last_beat is not None
    assert (last_beat.ended, last_beat.mirrored) == (True, session.tip.n)


def test_the_end_does_not_wait_for_a_store_that_is_gone(tmp_path: Path) -> None:
    outage = Outage()
    outage.now = True
    with writing(tmp_path / "run", Broken(MemoryObjects(), outage)) as session:
        session.write(note("a"))
        assert not session.mirror.close(0.2)
        assert session.mirror.behind_seconds >= 0.0


def test_every_single_change_of_the_store_leaves_what_was_confirmed_by_then(tmp_path: Path) -> None:
    """Sealing, several segments, a resume and an extension; the store dies after each single operation."""
    objects = MemoryObjects()
    marks: list[tuple[int, int]] = []
    run = tmp_path / "run"

    def session_with(epoch: int, prefix: str, count: int) -> dict[int, bytes]:
        with writing(run, objects, epoch, beat_seconds=1e9) as session:
            session.observe = lambda n: marks.append((len(objects.changes), n))
            for index in range(3):
                session.write(*notes(f"{prefix}{index}", count))
                session.sent()
                session.seal()
            (run / f"plan-{prefix}.jsonl.zst").write_text(prefix)
            session.write(note(f"{prefix}-last"))
            assert session.end()
            return here(session)

    session_with(take_epoch(objects, 1), "a", 4)
    wanted = session_with(take_epoch(objects, 2), "b", 3)
    checked = 0
    for index, held in enumerate(states({}, objects.changes)):
        mark = max((n for at, n in marks if at <= index), default=0)
        if not any(name.startswith("journal/") for name in held):
            assert mark == 0
            continue
        found = restored(MemoryObjects(held), tmp_path / f"state-{index}")
        assert set(range(1, mark + 1)) <= set(found), f"after change {index}"
        assert found.items() <= wanted.items(), f"after change {index} there is what was never written"
        checked += 1
    assert checked > 30
