"""Links in the folders that processes of one run talk through, and in what a mirror sends."""

import os
from pathlib import Path

import pytest

from holdfast import files
from holdfast.errors import DamagedError
from holdfast.journal.mirror.pieces import FolderSource
from holdfast.journal.object_store import open_objects
from holdfast.journal.ownership.lease import Lease, read_lease, this_process, write_lease
from holdfast.journal.ownership.terms import Term
from holdfast.runs.control import ControlRequest, pending_requests, send_control_request, write_control_reply
from holdfast.runs.execution.log import EventLog
from holdfast.state import is_held
from tests.e2e.commands import Done, call, write_spec

SECRET = "the key of the victim"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text(SECRET)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("inner", ["control", "lease"])
def test_a_folder_that_is_a_link_is_refused_by_name(run: Path, victim: Path, inner: str) -> None:
    (run / inner).symlink_to(victim)
    with pytest.raises(DamagedError, match=f"{run / inner} is a link or a file instead of a folder"):
        send_control_request(str(run), ControlRequest("cancel"), seconds=0) if inner == "control" else Term(
            str(run), 0.02, 0.0
        )
    assert list(pending_requests(str(run))) == []
    assert os.listdir(victim) == ["file"]


def test_requests_that_are_links_or_pipes_are_not_read_and_answers_not_written_through_links(
    run: Path, victim: Path
) -> None:
    (run / "control").mkdir()
    (run / "control" / "1.wish").symlink_to(victim / "file")
    os.mkfifo(run / "control" / "2.wish")
    (run / "control" / "3.wish").write_text('{"do":"cancel"}')
    assert list(pending_requests(str(run))) == [(str(run / "control" / "3.wish"), ControlRequest("cancel"))]
    (run / "control" / f"3.wish.done.{os.getpid()}.tmp").symlink_to(victim / "file")
    write_control_reply(str(run / "control" / "3.wish"), True, "done")
    assert (victim / "file").read_text() == SECRET


@pytest.mark.parametrize("name", ["lease.json", "lease.json.PID.tmp"])
def test_a_lease_is_not_written_through_a_link(run: Path, victim: Path, name: str) -> None:
    (run / name.replace("PID", str(os.getpid()))).symlink_to(victim / "file")
    assert read_lease(str(run)) is None
    lease = Lease(this_process(), 1, 1, 1.0, 1.0, 60.0)
    write_lease(str(run), lease)
    assert read_lease(str(run)) == lease
    assert (victim / "file").read_text() == SECRET


def test_a_lock_that_is_a_pipe_does_not_stop_a_look(run: Path) -> None:
    os.mkfifo(run / "lock")
    assert not is_held(str(run))


def test_a_log_is_given_up_rather_than_written_through_a_link(
    run: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "log.jsonl").symlink_to(victim / "file")
    log = EventLog(str(run), "x")
    log.tell("run.started", "it began")
    log.close()
    assert (victim / "file").read_text() == SECRET
    assert "continues without a log" in capsys.readouterr().err


def test_without_the_guard_a_log_is_written_through_a_link(
    run: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(files, "NO_FOLLOW", 0)
    (run / "log.jsonl").symlink_to(victim / "file")
    log = EventLog(str(run), "x")
    log.tell("run.started", "it began")
    log.close()
    assert "it began" in (victim / "file").read_text()


def mirrored(tmp_path: Path, victim: Path) -> bytes:
    """All bytes that a run sends to its mirror, if one of its blobs is a link to a file of the user."""
    spec = write_spec(tmp_path, rows=1, mirror={"url": (tmp_path / "mirror").as_uri()})
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == 0
    folder = tmp_path / "runs" / "sums" / "x"
    (folder / "blobs").mkdir()
    (folder / "blobs" / ("a" * 64)).symlink_to(victim / "file")
    assert call("note", "x", "a note", cwd=tmp_path).code == 0
    return b"".join(path.read_bytes() for path in sorted((tmp_path / "mirror").rglob("*")) if path.is_file())


def test_a_mirror_sends_nothing_that_a_link_leads_to(tmp_path: Path, victim: Path) -> None:
    assert SECRET.encode() not in mirrored(tmp_path, victim)


def test_without_the_guards_a_mirror_sends_what_a_link_leads_to(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(files, "NO_FOLLOW", 0)
    monkeypatch.setattr("holdfast.journal.mirror.uploader.is_file", os.path.isfile)
    assert SECRET.encode() in mirrored(tmp_path, victim)


def test_a_file_is_sent_through_a_handle_that_follows_no_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim / "file")
    objects = open_objects((tmp_path / "mirror").as_uri())
    with pytest.raises(Exception, match="instead of a file"):
        objects.put_file("blobs/a", str(tmp_path / "link"))
    assert objects.get("blobs/a") is None


def test_a_recovery_takes_nothing_from_a_folder_that_links_lead_to(run: Path, victim: Path) -> None:
    (run / "blobs").mkdir()
    (run / "journal").symlink_to(victim)
    for name in ("spec.yaml", "plan.jsonl.zst", "blobs/" + "a" * 64):
        (run / name).symlink_to(victim / "file")
    source = FolderSource(str(run))
    assert (source.files(), source.pieces()) == ([], [])


def recover_into(tmp_path: Path, victim: Path) -> Done:
    """A run is recovered into a store where somebody planted a link under the name that it is built under."""
    spec = write_spec(tmp_path, rows=1)
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == 0
    (tmp_path / "store" / "sums").mkdir(parents=True)
    (tmp_path / "store" / "sums" / ".x.recovering").symlink_to(victim)
    run = tmp_path / "runs" / "sums" / "x"
    return call("recover", run, "--output", tmp_path / "store", cwd=tmp_path)


def test_a_recovery_does_not_empty_the_folder_that_a_planted_link_leads_to(tmp_path: Path, victim: Path) -> None:
    done = recover_into(tmp_path, victim)
    assert done.code == 5, done
    assert ".x.recovering is a link" in done.err
    assert os.listdir(victim) == ["file"]


def test_without_the_guard_a_recovery_empties_the_folder(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    recover_into(tmp_path, victim)
    assert "file" not in os.listdir(victim)


@pytest.mark.parametrize("name", ["log.jsonl", "control", "lease.json", "spec.yaml"])
def test_doctor_names_a_link(tmp_path: Path, victim: Path, name: str) -> None:
    assert call("run", write_spec(tmp_path, rows=1), "--id", "x", cwd=tmp_path).code == 0
    path = tmp_path / "runs" / "sums" / "x" / name
    path.unlink(missing_ok=True)
    path.symlink_to(victim / "file")
    assert f"{name} is a link" in call("doctor", "x", cwd=tmp_path).out
