"""A sharded run as one journal, in the user's cache: what every reader of a sharded run reads.

The copy has the plan and the data of the run, and one journal with the records of the root journal and of all shards
(see `merger`). It is updated incrementally: a reader remembers how far it has read each journal, and appends what is
new. A journal whose files have not changed is not opened, so an update of a run that has ended costs a few looks at
file states per shard. Its heartbeat sums up those of all workers, so that the status of the run is derived as for a run
in a mirror.

Everything here is derived. `merged.json` is written after the records that it counts; what a crash leaves behind it is
cut by the next update. If a journal was rewritten, or anything does not fit, the copy is made again.
"""

import contextlib
import heapq
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from holdfast import files
from holdfast.errors import StaleCursorError
from holdfast.journal import (
    START,
    Beat,
    CopyWriter,
    Cursor,
    Damage,
    Entry,
    Reader,
    describe,
    unrecorded,
)
from holdfast.plan import originals
from holdfast.records import Anomaly, Fence, RunEnded, RunStarted, Segment, Shard, decode, draft, parse_shard
from holdfast.runs.shards.fenced import FencedAnswer, find_fenced
from holdfast.runs.shards.layout import is_sharded, read_started, shard_location
from holdfast.runs.shards.merger import Merger, MergeSource, NumberFile, ordinals_by_shard
from holdfast.runs.shards.sessions import SessionLog, ShardState, describe_shard, write_shards
from holdfast.runs.shards.sources import hold_copies, root_to_read, shards_to_read
from holdfast.runs.store.damage import COPIED_DAMAGE
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import (
    ENDS,
    CheckedFiles,
    Fold,
    Stamps,
    Standing,
    are_unchanged,
    have_changed,
    keep_beat,
    make_room,
    stamp_segments,
    standing_of,
)

_STATE = "merged.json"
_VERSION = 1
"""Of the copy. One that another version of Holdfast has made differently is made again."""
_TOGETHER_MAX = 200
"""So many journals are read at once, in the order of time. More would need too many open files."""
_BLOBS = "blobs"
_ROOT = "root"


class SourceState(msgspec.Struct):
    """How far one journal has been read."""

    cursor: Cursor = START
    numbers: int = 0
    epoch: int = 0
    end: str = ""
    """The type of the record that ended it; empty if there is none."""
    ended: RunEnded | None = None
    ended_at: str = ""
    log: SessionLog = msgspec.field(default_factory=SessionLog)
    """Its processes. Their records are left out of the merged journal."""
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    damage: list[Damage] = msgspec.field(default_factory=list)
    segments: Stamps = msgspec.field(default_factory=dict)
    """The states of its files, taken before they were read."""
    fenced: list[FencedAnswer] = msgspec.field(default_factory=list)


class MergeState(msgspec.Struct):
    """What `merged.json` holds."""

    uid: str
    version: int = 0
    tip: Fence | None = None
    blocks: int = 0
    """How many blocks of the plan were copied."""
    planned: int = 0
    """How many keys these blocks have."""
    ordinals: dict[str, int] = msgspec.field(default_factory=dict)
    """How many keys of these blocks each shard has, by the name of its folder."""
    evaluations: dict[str, str] = msgspec.field(default_factory=dict)
    sources: dict[str, SourceState] = msgspec.field(default_factory=dict)
    """By the name of the shard's folder, and `root`."""
    is_completed: bool = False


def readable(place: RunLocation) -> RunLocation:
    """Where the records of a run can be read: its own folder or, if it is sharded, an up-to-date copy of all shards."""
    if place.root or place.shard or not (place.url or is_sharded(place)):
        return place
    started = read_started(place)
    if started is None or not started.shards:
        return place  # a reader reports what is wrong with it
    return _copy_for_reading(place, started, Reader(place.journal).uid)


def mirror_of(spec: Mapping[str, Any]) -> str:
    """The URL of the mirror in a stored spec; empty if there is none."""
    return str((spec.get("mirror") or {}).get("url", ""))


class _Shards(msgspec.Struct, frozen=True):
    """How many shards a run has, those that have begun, and where its root journal is read."""

    root: RunLocation
    count: int
    begun: Sequence[RunLocation]


def _copy_for_reading(place: RunLocation, started: RunStarted, uid: str) -> RunLocation:
    mirror = mirror_of(started.spec)
    with hold_copies(place, uid) as above:
        copied = msgspec.structs.replace(place, folder=os.path.join(above, "run"), root=place.folder)
        shards = _Shards(root_to_read(place, mirror), started.shards, shards_to_read(place, mirror, above))
        try:
            has_grown = _Update(copied, shards, uid).run()
        except (StaleCursorError, FileNotFoundError, msgspec.MsgspecError):
            shutil.rmtree(copied.folder, ignore_errors=True)
            has_grown = _Update(copied, shards, uid).run()
    if has_grown:
        make_room(os.path.dirname(os.path.dirname(above)), keep=above)
    return copied


class _Update:
    """One update of a copy. The caller holds its lock."""

    def __init__(self, copied: RunLocation, shards: _Shards, uid: str) -> None:
        self._root = shards.root
        self._copied = copied
        self._shards = shards.begun
        self._count = shards.count
        os.makedirs(copied.journal, mode=0o700, exist_ok=True)
        self._state = self._load(uid)

    def run(self) -> bool:
        """Whether anything was appended."""
        # Heartbeats before journals: otherwise a shard that ends in between would look interrupted.
        standings = {_name(each): standing_of(each.folder) for each in self._shards}
        places = {_ROOT: self._root, **{_name(each): each for each in self._shards}}
        changed = [name for name, place in places.items() if not self._is_copied(name, place, standings.get(name))]
        if changed:
            self._append({name: places[name] for name in changed})
        keep_beat(self._copied.folder, sum_up_beats(list(standings.values()), self._state.planned))
        damage = {name: found for name in self._state.sources if (found := self._describe_damage(name, standings))}
        self._replace(COPIED_DAMAGE, damage)
        write_shards(self._copied.folder, self._describe_shards(standings))
        return bool(changed)

    def _is_copied(self, name: str, place: RunLocation, standing: Standing | None) -> bool:
        """Whether a journal has nothing new, without opening it. A network file system may show an old state of a file
        for a minute, so the journals of live workers, and those behind their lease, are read in any case.
        """
        source, lease = self._state.sources.get(name), standing.lease if standing is not None else None
        if source is None or (standing is not None and standing.held):
            return False
        if lease is not None and (lease.epoch, lease.durable_n) > (source.epoch, source.cursor.n):
            return False
        return are_unchanged(place.journal, source.segments)

    def _append(self, places: Mapping[str, RunLocation]) -> None:
        """Append what is new in the journals of these places."""
        state = self._state
        if _ROOT in places:
            self._copy_originals(Fold().read(Reader(self._root.journal).read(live=True)))
        writer = CopyWriter(self._copied.journal, state.uid, state.tip)
        merger, names = Merger(writer, state.evaluations), list(places)
        for start in range(0, len(names), _TOGETHER_MAX):
            part = names[start : start + _TOGETHER_MAX]
            self._merge({name: places[name].journal for name in part}, merger)
        for each in (place for name, place in places.items() if name != _ROOT):
            own = shard_location(
                self._copied.whole, parse_shard(each.shard)
            )  # here, also if the root is read elsewhere
            state.sources[_name(each)].fenced = list(find_fenced(each, own))
        self._complete(writer)
        writer.close(sealed=False)
        state.tip = writer.tip
        self._link_blobs(list(places.values()))  # after their records were read: a record follows its blobs
        self._save()

    def _replace(self, name: str, content: object) -> None:
        files.replace_file(os.path.join(self._copied.folder, name), msgspec.json.encode(content))

    def _merge(self, journals: Mapping[str, str], merger: Merger) -> None:
        """Append the new records of some journals in the order of their times."""
        states = {name: self._state.sources.setdefault(name, SourceState()) for name in journals}
        for name, journal in journals.items():
            states[name].segments = self._stamp(journal, states[name].segments)
        readers = {name: Reader(journal, cursor=states[name].cursor) for name, journal in journals.items()}
        with contextlib.ExitStack() as stack:
            sources = {name: stack.enter_context(self._open_source(name)) for name in journals}
            streams = [self._entries(name, reader) for name, reader in readers.items()]
            for _, name, entry in heapq.merge(*streams, key=itemgetter(0)):
                self._note(name, entry)
                merger.add(sources[name], entry)
        for name, reader in readers.items():
            states[name].cursor = reader.cursor

    def _stamp(self, journal: str, before: Stamps) -> Stamps:
        """The states of a journal's files now. StaleCursorError if one that was read is gone or was rewritten."""
        now = stamp_segments(journal)
        if have_changed(journal, before, now, CheckedFiles(os.path.dirname(journal), self._state.uid)):
            raise StaleCursorError(f"{journal}: a segment has changed since it was copied")
        return now

    def _entries(self, name: str, reader: Reader) -> Iterator[tuple[str, str, Entry]]:
        source = self._state.sources[name]
        for each in reader.read(live=True):
            if isinstance(each, Damage):
                if each not in source.damage:
                    source.damage.append(each)
            else:
                yield each.line.at, name, each

    def _note(self, name: str, entry: Entry) -> None:
        """Remember what a record says about its journal."""
        source, line = self._state.sources[name], entry.line
        if name != _ROOT and not entry.is_copy:
            source.log.note(line)
        if line.t == "segment":
            source.epoch = decode(line, Segment).epoch
        elif line.t in ENDS:
            source.end, source.ended, source.ended_at = line.t, decode(line, RunEnded), line.at
        elif line.t in ("run.resumed", "run.extended", "run.started"):
            source.end, source.ended = "", None
        elif line.t == "anomaly" and line.k is None:
            source.anomalies.append(decode(line, Anomaly))
        else:
            return
        if name == _ROOT or line.t != "anomaly":
            self._state.is_completed = self._state.is_completed and line.t == "segment"

    def _complete(self, writer: CopyWriter) -> None:
        """Append `run.completed` if all shards have ended so. Together they must have all keys of the plan."""
        state = self._state
        ended = [each.ended for name, each in state.sources.items() if name != _ROOT and each.end == "run.completed"]
        if state.is_completed or len(ended) < self._count:
            return
        total = RunEnded(
            sum(each.finished for each in ended if each),
            sum(each.failed for each in ended if each),
            sum(each.unfinished for each in ended if each),
        )
        if total.finished + total.failed + total.unfinished == state.planned:
            writer.append(draft("run.completed", total), max(each.ended_at for each in state.sources.values()))
            state.is_completed = True

    @contextlib.contextmanager
    def _open_source(self, name: str) -> Iterator[MergeSource]:
        state, ordinals = self._state.sources[name], None
        numbers = NumberFile(self._path(f"numbers-{name}"), state.numbers)
        try:
            if name != _ROOT:
                ordinals = NumberFile(self._path(f"ordinals-{name}"), self._state.ordinals[name])
            yield MergeSource(_label(name), numbers, ordinals, is_root=name == _ROOT)
            numbers.flush()
            state.numbers = len(numbers)
        finally:
            numbers.close()
            if ordinals is not None:
                ordinals.close()

    def _copy_originals(self, fold: Fold) -> None:
        """Copy the plan and data files of new blocks, and map the keys of all shards to those of the whole plan."""
        new = fold.story.blocks[self._state.blocks :]
        for path, _ in originals(self._root.folder, new):
            link_file(path, os.path.join(self._copied.folder, os.path.basename(path)))
        for number, ordinals in enumerate(ordinals_by_shard(self._root.folder, new, self._count), 1):
            name = Shard(number, self._count).folder
            file = NumberFile(self._path(f"ordinals-{name}"), self._state.ordinals.get(name, 0))
            file.extend(ordinals)
            file.flush()
            self._state.ordinals[name] = len(file)
            file.close()
        self._state.blocks += len(new)
        self._state.planned = fold.story.planned

    def _path(self, name: str) -> str:
        """A file beside the copy."""
        return os.path.join(os.path.dirname(self._copied.folder), name)

    def _link_blobs(self, places: Sequence[RunLocation]) -> None:
        """Files that rows and answers refer to. Each is named by its content, so none is copied twice."""
        target = os.path.join(self._copied.folder, _BLOBS)
        for place in places:
            folder = os.path.join(place.folder, _BLOBS)
            for above, _, names in os.walk(folder) if os.path.isdir(folder) else ():
                inner = os.path.join(target, os.path.relpath(above, folder))
                for name in names:
                    if not os.path.exists(os.path.join(inner, name)):
                        os.makedirs(inner, mode=0o700, exist_ok=True)
                        link_file(os.path.join(above, name), os.path.join(inner, name))

    def _describe_damage(self, name: str, standings: Mapping[str, Standing]) -> list[str]:
        """What a journal has lost, unless it is recorded; also records that its lease knows and that are missing."""
        source, label = self._state.sources[name], _label(name)
        lost = [
            each for each in unrecorded(source.damage, source.anomalies) if each.records_lost or each.kind == "fence"
        ]
        found = [f"{label}: its journal is damaged ({describe(each)})" for each in lost[:3]]
        standing = standings.get(name)
        lease = standing.lease if standing is not None and not standing.held else None
        if not found and lease is not None and lease.epoch == source.epoch and lease.durable_n > source.cursor.n:
            found.append(
                f"{label}: records {source.cursor.n + 1} to {lease.durable_n} were durable and are missing from the "
                "end of its journal"
            )
        return found

    def _describe_shards(self, standings: Mapping[str, Standing]) -> Iterator[ShardState]:
        """The state of every shard, also of those that have not begun."""
        for shard in (Shard(number, self._count) for number in range(1, self._count + 1)):
            source, name = self._state.sources.get(shard.folder), shard.folder
            planned, standing = self._state.ordinals[name], standings.get(name)
            if source is None:
                yield describe_shard(str(shard), planned, None, standing)
            else:
                yield describe_shard(str(shard), planned, source.log, standing, source.fenced)

    def _load(self, uid: str) -> MergeState:
        path = self._path(_STATE)
        try:
            state = msgspec.json.decode(files.read_own_file(path), type=MergeState)
        except FileNotFoundError:
            state = None
        if (
            state is None
            or (state.uid, state.version) != (uid, _VERSION)
            or (state.tip is not None and not os.listdir(self._copied.journal))
        ):
            shutil.rmtree(self._copied.folder, ignore_errors=True)
            os.makedirs(self._copied.journal, mode=0o700)
            return MergeState(uid, _VERSION)
        return state

    def _save(self) -> None:
        files.replace_file(self._path(_STATE), msgspec.json.encode(self._state))


def sum_up_beats(standings: Sequence[Standing], planned: int) -> Beat:
    """One heartbeat for all workers: that of the live worker that was seen last, with the counts of all."""
    leases = [each.lease for each in standings if each.lease is not None]
    if not leases:
        return Beat(0, ended=True)
    live = [each.lease for each in standings if each.held and each.lease is not None]
    # A worker that makes progress speaks for the run; one that is stalled only if all are.
    last = max(live or leases, key=lambda lease: (lease.stall is None, lease.at))
    total = msgspec.structs.replace(
        last,
        planned=planned,
        finished=sum(lease.finished for lease in leases),
        failed=sum(lease.failed for lease in leases),
        in_flight=sum(lease.in_flight for lease in live),
        acknowledged=0,
        last_n=0,
        mirrored=None,  # each shard has its own
        oldest=[sample for lease in live for sample in lease.oldest][:10],
        end="",
        released=not live,
    )
    return Beat(1, ended=not live, lease=total)


def _label(name: str) -> str:
    return "the root journal" if name == _ROOT else f"shard {parse_shard(name)}"


def _name(place: RunLocation) -> str:
    return parse_shard(place.shard).folder


def link_file(path: str, target: str) -> None:
    """A second name for a file that never changes, or a copy on another file system."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(path, target, follow_symlinks=False)
