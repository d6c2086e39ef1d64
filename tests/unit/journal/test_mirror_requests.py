"""Requests of other machines reach the owner of an epoch through the mirror, and its replies come back."""

import time
import uuid
from pathlib import Path

import pytest

from holdfast.errors import FencedError
from holdfast.journal.mirror.heartbeat import BEATS, Heartbeat
from holdfast.journal.mirror.requests import CONTROL, REPLY_SUFFIX, RequestRelay, request_name
from holdfast.journal.ownership.claims import take_epoch
from tests.journals import UID
from tests.stores import Broken, MemoryObjects, Outage


def send(objects: MemoryObjects, epoch: int, data: bytes = b"request") -> str:
    name = request_name(epoch, uuid.uuid4().hex)
    objects.put(name, data)
    return name


def test_a_request_becomes_a_file_and_its_reply_an_object(tmp_path: Path) -> None:
    objects = MemoryObjects()
    relay = RequestRelay(str(tmp_path), objects, 3)
    name = send(objects, 3)
    for _ in range(2):  # also if it is listed again
        relay.receive(list(objects.held))
    (path,) = (tmp_path / CONTROL).iterdir()
    assert path.read_bytes() == b"request"
    relay.reply()
    waited = relay.is_waiting
    path.with_name(f"{path.name}{REPLY_SUFFIX}").write_bytes(b"reply")
    relay.reply()
    assert objects.held[f"{name}{REPLY_SUFFIX}"] == b"reply"
    assert (waited, relay.is_waiting) == (True, False)
    assert list((tmp_path / CONTROL).iterdir()) == []
    relay.receive(list(objects.held))
    assert list((tmp_path / CONTROL).iterdir()) == []


@pytest.mark.parametrize("name", [request_name(2, "0" * 32), request_name(4, "0" * 32), "lease/000003-../../x.wish"])
def test_a_request_to_another_owner_is_ignored(tmp_path: Path, name: str) -> None:
    objects = MemoryObjects({name: b"request"})
    RequestRelay(str(tmp_path), objects, 3).receive(list(objects.held))
    assert list(tmp_path.iterdir()) == []


def test_an_owner_is_sure_only_while_its_beats_reach_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now[0])
    outage, stored = Outage(), MemoryObjects()
    epoch = take_epoch(stored, 1)
    heartbeat = Heartbeat(str(tmp_path), UID, Broken(stored, outage), epoch, 10.0, lambda: 0)
    assert not heartbeat.is_confirmed
    heartbeat.beat()
    sure = [heartbeat.is_confirmed]
    outage.now = True
    for seconds in (19.0, 2.0):  # after two thirds of the expiry
        now[0] += seconds
        with pytest.raises(Exception, match="no route to host"):
            heartbeat.beat()
        sure.append(heartbeat.is_confirmed)
    outage.now = False
    heartbeat.beat()
    assert [*sure, heartbeat.is_confirmed] == [True, True, False, True]
    stored.put(f"lease/{epoch + 1:06d}", b"{}")
    now[0] += 10.0 * BEATS
    with pytest.raises(FencedError):
        heartbeat.beat()
    assert not heartbeat.is_confirmed
