"""A journal against a simple model: a list of acknowledged keys, and the few that damage has hit.

Whatever the order of appending, crashing, damaging, sealing and opening: every acknowledged record that was not hit
is read, in order and unchanged, and nothing else is, except what was being written at a crash.
"""

import os
import re
import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import StaleCursorError
from holdfast.journal import START, Cursor, Entry, Reader, frames, seal, verify
from holdfast.journal.frames import read_table
from holdfast.journal.opening import Opened
from holdfast.records import line_of, seed_of
from tests.journals import QUICK, UID, flipped, note, open_journal, plain_numbers, read_all, unpacked

KEY = re.compile(rb'"k":"([^"]*)"')
AT = b"2024-01-01T00:00:00.000000Z"


class JournalMachine(RuleBasedStateMachine):
    """`opened` is None while no writer is at work."""

    cursors = Bundle("cursors")

    def __init__(self) -> None:
        super().__init__()
        self._frame_bytes = frames.FRAME_BYTES
        frames.FRAME_BYTES = 400
        self.store = tempfile.mkdtemp()
        self.folder = os.path.join(self.store, "journal")
        self.acknowledged: list[str] = []
        self.unpromised: set[str] = set()  # was being written at a crash: may be there or not
        self.hit: set[str] = set()  # may be lost
        self.damaged: set[int] = set()  # segments that were damaged, once each
        self.opened: Opened | None = None
        self.clean = True  # the last segment was closed by its writer
        self.made = 0
        self.reopen()

    def teardown(self) -> None:
        frames.FRAME_BYTES = self._frame_bytes
        self.let_go()
        shutil.rmtree(self.store)

    # What a run does.

    @precondition(lambda self: self.opened is not None)
    @rule(count=st.integers(1, 4), text=st.text('abc \u00fc\n"\\', max_size=80))
    def append(self, count: int, text: str) -> None:
        assert self.opened is not None
        keys = [self.new_key() for _ in range(count)]
        positions = self.opened.appender.commit([note(key, text) for key in keys])
        assert [position.n for position in positions] == list(range(positions[0].n, positions[0].n + count))
        self.acknowledged += keys

    @precondition(lambda self: self.opened is None)
    @rule()
    def reopen(self) -> None:
        self.opened = open_journal(self.folder)
        self.clean = False

    @precondition(lambda self: self.opened is not None)
    @rule()
    def close(self) -> None:
        self.let_go()
        self.clean = True

    @precondition(lambda self: self.opened is not None)
    @rule(left=st.integers(0, 400), count=st.integers(1, 2))
    def crash(self, left: int, count: int) -> None:
        """A batch was being written: the file has its first `left` bytes."""
        assert self.opened is not None
        tip = self.opened.appender.tip
        assert tip is not None
        self.let_go()
        batch = b""
        for index in range(count):
            key = self.new_key()
            self.unpromised.add(key)
            batch += line_of(note(key), tip.n + 1 + index, AT, seed_of(UID))
        with open(os.path.join(self.folder, f"{tip.segment:06d}.jsonl"), "ab") as file:
            file.write(batch[:left])

    @rule()
    def seal_what_is_closed(self) -> None:
        numbers = plain_numbers(self.folder)
        for number in numbers if self.clean else numbers[:-1]:
            seal(QUICK, self.folder, number)

    # What happens to it.

    @precondition(lambda self: self.opened is None)
    @rule(
        data=st.data(),
        mask=st.sampled_from([0x01, 0x80, 0x20, 0xFF]),
        distance=st.integers(0, 800),
        from_end=st.booleans(),
    )
    def damage(self, data: st.DataObject, mask: int, distance: int, from_end: bool) -> None:
        """One byte, near the beginning or the end, where headers, tails and tables are."""
        names = [name for name in self.segment_names() if int(name.split(".")[0]) not in self.damaged]
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        path = os.path.join(self.folder, name)
        with open(path, "rb") as file:
            content = file.read()
        at = distance % len(content)
        at = len(content) - 1 - at if from_end else at
        self.hit |= keys_hit(path, content, at)
        self.damaged.add(int(name.split(".")[0]))
        with open(path, "wb") as file:
            file.write(flipped(content, at, mask))
        result = verify(self.folder, UID, disk=QUICK)
        assert result.errors or result.warnings, "the damage is not found"

    # What is read of it.

    @rule(target=cursors, data=st.data())
    def save_a_cursor(self, data: st.DataObject) -> Cursor:
        entries = read_all(self.folder).entries
        entry = data.draw(st.sampled_from([None, *entries[-40:]]))
        if entry is None or self.opened is None:
            return START  # behind a crash, the last line may lack its newline
        return Cursor(entry.segment, entry.end, entry.line.n, entry.line.x)

    @rule(cursor=cursors)
    def read_from_a_saved_cursor(self, cursor: Cursor) -> None:
        everything = read_all(self.folder).entries
        try:
            found = list(Reader(self.folder, UID, cursor, QUICK).read())
        except StaleCursorError:
            assert cursor.segment in self.damaged
            return
        rest = [entry for entry in everything if (entry.segment, entry.offset) >= (cursor.segment, cursor.offset)]
        assert [each for each in found if isinstance(each, Entry)] == rest

    @rule(data=st.data())
    def find_one_record(self, data: st.DataObject) -> None:
        entries = read_all(self.folder).entries
        if entries:
            entry = data.draw(st.sampled_from(entries[-40:]))
            assert Reader(self.folder, UID, disk=QUICK).record_at(entry.segment, entry.offset) == entry

    @invariant()
    def what_was_acknowledged_and_not_hit_is_read_in_order(self) -> None:
        keys = read_all(self.folder).keys
        assert len(keys) == len(set(keys))
        assert set(keys) <= set(self.acknowledged) | self.unpromised
        assert set(self.acknowledged) - self.hit <= set(keys)
        known = set(keys) - self.unpromised
        assert [key for key in keys if key in known] == [key for key in self.acknowledged if key in known]

    @invariant()
    def a_loss_is_recorded_at_most_once(self) -> None:
        anomalies = [(one.segment, one.first, one.last, one.n_first) for one in read_all(self.folder).anomalies]
        assert len(anomalies) == len(set(anomalies))

    @invariant()
    def an_undamaged_journal_is_ok(self) -> None:
        if not self.damaged:
            assert verify(self.folder, UID, disk=QUICK).ok

    def new_key(self) -> str:
        self.made += 1
        return f"key-{self.made}"

    def let_go(self) -> None:
        if self.opened is not None:
            self.opened.appender.close()
            self.opened = None

    def segment_names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if name.endswith((".jsonl", ".zst")))


def keys_hit(path: str, content: bytes, at: int) -> set[str]:
    """The keys of the line that a byte is in and, for a newline, of the next; in a sealed file those of its frame."""
    if path.endswith(".zst"):
        table = read_table(lambda offset, size: content[offset : offset + size], len(content))
        assert table
        plain = unpacked(path)
        parts = [plain[each.first : each.first + each.size] for each in table if each.at <= at < each.at + each.length]
    else:
        first = content.rfind(b"\n", 0, at) + 1
        last = content.find(b"\n", at + (content[at : at + 1] == b"\n"))
        parts = [content[first : None if last < 0 else last]]
    return {key.decode() for part in parts for key in KEY.findall(part)}


class LongJournalMachine(JournalMachine):
    """The same, many more times."""


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=60, stateful_step_count=30)
TestJournalLong = pytest.mark.long(LongJournalMachine.TestCase)
TestJournalLong.settings = settings(max_examples=500, stateful_step_count=40)
