"""`gc` and mirrors: a mirror stays and is named, or goes with --mirror; a removed run never comes back unasked."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.journal.object_store import StoredObjects, open_objects
from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, finish, shown, start, wait_until, write_spec
from tests.stores import Bucket, Crash

SAMPLES = 600


class Machine:
    """A folder with a spec whose runs have a mirror."""

    def __init__(self, folder: Path, url: str, rows: int = 3, base_url: str = "", **mirror: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.mirror = url
        self.url = f"{url}/sums/r"
        self.spec = write_spec(folder, rows, base_url, model={"max_connections": 2}, mirror={"url": url, **mirror})
        self.env = {"XDG_CACHE_HOME": str(folder / "cache"), "HOLDFAST_EXPIRY_SECONDS": "2"}

    def __call__(self, *arguments: str | Path) -> Done:
        return call(*arguments, cwd=self.folder, env=self.env)

    def run(self, *options: str) -> Done:
        return self("run", self.spec, "--id", "r", *options)

    def objects(self) -> list[str]:
        return sorted(each.name for each in open_objects(self.url).listed(""))


S3_FIRST = pytest.mark.parametrize("kind_of_store", ["s3", pytest.param("folder", marks=pytest.mark.long)])


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def kind_of_store(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def machine(tmp_path: Path, bucket: Bucket) -> Machine:
    made = Machine(tmp_path / "here", bucket.url)
    assert made.run().code == 0
    return made


def test_a_removed_run_comes_back_from_its_mirror_only_when_asked_for(machine: Machine) -> None:
    gone = machine("gc", "r", "--yes")
    assert (gone.code, f"The mirror of r is kept: {machine.url}; to remove it too" in gone.out) == (0, True), gone.out
    for _ in range(2):
        again = machine.run()
        assert again.code == 2
        assert "r was removed here on" in again.err
        assert f"holdfast recover {machine.url}" in again.err
    assert machine("ls", "--json").json() == []
    back = machine("recover", machine.url, "--output", machine.folder / "runs")
    assert back.code == 0, back.err
    assert machine.run().code == 0
    assert shown("r", machine.folder / "runs")["finished"] == 3


def test_without_yes_gc_only_says_what_would_happen_to_the_mirror(machine: Machine) -> None:
    before = machine.objects()
    assert f"The mirror of r is kept: {machine.url}; to remove it too: add --mirror" in machine("gc", "r").out
    for name in ("r", machine.url):
        shows = machine("gc", name, "--mirror")
        assert (shows.code, f"Would remove the mirror of r: {machine.url}" in shows.out) == (0, True), shows
        assert "Nothing was changed" in shows.out
    assert machine.objects() == before
    refused = machine("gc", machine.url, "--yes")
    assert (refused.code, "add --mirror" in refused.err) == (2, True), refused
    assert machine.run().code == 0


@pytest.mark.parametrize("by_url", [False, True], ids=["with its folder", "by its URL"])
def test_a_removed_mirror_is_shown_nowhere_and_a_new_run_may_have_its_id(machine: Machine, by_url: bool) -> None:
    uid = uid_of(machine)
    if by_url:
        shutil.rmtree(machine.folder / "runs")
    gone = machine("gc", machine.url if by_url else "r", "--mirror", "--yes", "--json")
    assert (gone.code, gone.json()[0]["mirror_goes"], gone.json()[0]["removed"]) == (0, True, True), gone.said
    assert machine.objects() == [f"lease/removed/{uid}"]
    assert_shown_as_removed(machine)
    resumed = machine("resume", machine.url)
    assert (resumed.code, f"{machine.url} was removed on" in resumed.err) == (2, True), resumed
    new = machine.run()
    assert new.code == 0, new.err
    assert "this is a new run under the same id" in new.err
    assert uid_of(machine) != uid
    assert [each["run_id"] for each in machine("ls", "--store", machine.mirror, "--json").json()] == ["r"]
    assert machine("show", machine.url, "--json").json()["finished"] == 3
    assert machine.run().code == 0, "the tombstone of the removed run stops the new one"
    shutil.rmtree(machine.folder / "runs")
    assert machine.run().code == 0, "the new run is not restored from its mirror"
    assert machine("gc", "r", "--mirror", "--yes").code == 0
    assert len(machine.objects()) == 2


def assert_shown_as_removed(machine: Machine) -> None:
    assert machine("ls", "--store", machine.mirror, "--json").json() == []
    assert machine("recover", "--list", machine.mirror, "--json").json() == []
    for command in ("show", "recover", "report"):
        done = machine(command, machine.url)
        assert (done.code, f"{machine.url} was removed on" in done.err) == (2, True), (command, done)


def test_a_folder_on_another_machine_does_not_fill_a_removed_mirror_again(machine: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "other", machine.mirror, rows=5)
    shutil.copytree(machine.folder / "runs", other.folder / "runs")
    assert machine("gc", "r", "--mirror", "--yes").code == 0
    left = machine.objects()
    more = other("extend", "r", other.spec)
    assert (more.code, "was removed on" in more.err, "--set mirror=null" in more.err) == (2, True, True), more
    assert machine.objects() == left
    assert other("extend", "r", other.spec, "--set", "mirror=null").code == 0
    assert shown("r", other.folder / "runs")["finished"] == 5


@contextlib.contextmanager
def dying_at_delete(number: int) -> Iterator[None]:
    """The process dies before it deletes so many objects."""
    delete = StoredObjects.delete
    left = number

    def counted(self: StoredObjects, name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0 and not name.startswith("lease/probe-"):
            raise Crash
        delete(self, name)

    with patch.object(StoredObjects, "delete", counted):
        yield


@S3_FIRST
def test_a_removal_that_was_cut_off_is_finished_and_nothing_comes_back_meanwhile(machine: Machine) -> None:
    with dying_at_delete(3), pytest.raises(Crash):
        machine("gc", "r", "--mirror", "--yes")
    assert any(name.startswith("journal/") for name in machine.objects())
    here = machine.run()
    assert here.code == 0, "a complete run is not affected"
    assert_shown_as_removed(machine)
    shutil.move(machine.folder / "runs", machine.folder / "aside")
    again = machine.run()
    assert (again.code, f"gc {machine.url} --mirror --yes" in again.err) == (2, True), again
    shutil.move(machine.folder / "aside", machine.folder / "runs")
    assert machine("gc", "r", "--yes").code == 0
    assert [name.rpartition("/")[0] for name in machine.objects()] == ["lease/removed"]
    assert not os.path.exists(machine.folder / "runs" / "sums" / "r")
    assert machine.run().code == 0


@S3_FIRST
def test_a_live_run_is_refused_and_one_that_was_taken_for_dead_stops(tmp_path: Path, bucket: Bucket) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        machine = Machine(tmp_path / "m", bucket.url, SAMPLES, server.base_url, seconds=0.05)
        elsewhere = Machine(tmp_path / "elsewhere", bucket.url)
        with start("run", machine.spec, "--id", "r", cwd=machine.folder, env={**bucket.env, **machine.env}) as process:
            try:
                assert wait_until(lambda: has_sent(machine), process)
                assert_refused_while_live(machine, elsewhere)
                woken = remove_while_stopped(process, elsewhere, server)
            finally:
                process.kill()
    assert woken.code == 4, woken.err
    assert f"the mirror {machine.url} was removed" in woken.err
    assert "Traceback" not in woken.err
    left = {name.rpartition("/")[0] for name in machine.objects()}
    # An upload that was in flight when the process was stopped may still arrive. It brings nothing back.
    assert {"lease/removed"} <= left <= {"lease/removed", "journal/000001/000001"}
    assert_shown_as_removed(machine)


def has_sent(machine: Machine) -> bool:
    return any(name.startswith("journal/") for name in machine.objects())


def assert_refused_while_live(machine: Machine, elsewhere: Machine) -> None:
    here = machine("gc", "r", "--mirror", "--yes")
    assert (here.code, "live process" in here.err) == (4, True), here
    there = elsewhere("gc", machine.url, "--mirror", "--yes")
    assert (there.code, "live process" in there.err) == (4, True), there
    assert not any(name.startswith("lease/removed") for name in machine.objects())


def remove_while_stopped(process: "subprocess.Popen[str]", elsewhere: Machine, server: ServerProcess) -> Done:
    process.send_signal(signal.SIGSTOP)
    gone = elsewhere("gc", elsewhere.url, "--mirror", "--yes")
    assert gone.code == 0, gone.said
    before = server.stats().requests
    process.send_signal(signal.SIGCONT)
    woken = finish(process)
    assert server.stats().requests < SAMPLES // 2 + before, "it continued as if nothing had happened"
    return woken


def uid_of(machine: Machine) -> str:
    found: str = machine("verify", "r", "--json").json()["uid"]
    return found
