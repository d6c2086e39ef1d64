"""One command in a sandbox: every limit bites, nothing outlives the call, and it sees nothing that it should not."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.sandbox import confinement, policy
from holdfast.sandbox.confinement import (
    MARKER,
    PLAIN,
    CommandResult,
    Folder,
    Launch,
    SandboxFailedError,
    make_folders,
    why_no_docker,
    why_no_namespaces,
)
from holdfast.spec import Sandbox

WAYS = [
    pytest.param(
        True, id="namespaces", marks=pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
    ),
    pytest.param(False, id="plain"),
]
ways = pytest.mark.parametrize("namespaces", WAYS)
confined = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(str(tmp_path / "box"), "uid")
    make_folders(made)
    return made


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Not below /tmp, where a command has its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


def bash(folder: Folder, line: str, namespaces: bool = True, **wanted: Any) -> CommandResult:
    return Launch(folder, Sandbox(**wanted), namespaces).run(["bash", "-c", line])


def python(folder: Folder, code: str, namespaces: bool = True, **wanted: Any) -> CommandResult:
    return Launch(folder, Sandbox(**wanted), namespaces).run([sys.executable, "-c", code])


def odd_number() -> str:
    """A number of seconds to sleep by which a process can be found."""
    return f"{time.time_ns()}"[-9:]


def running(word: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line == word]


@ways
def test_it_says_what_the_command_said_and_how_it_ended(folder: Folder, namespaces: bool) -> None:
    ran = bash(folder, "echo out; echo err >&2; exit 3", namespaces)
    assert (ran.code, ran.stdout, ran.stderr, ran.why) == (3, "out\n", "err\n", "")
    assert bash(folder, "kill -TERM $$", namespaces).code == 128 + signal.SIGTERM
    assert bash(folder, "yes | head -n 1", namespaces).stderr == ""
    assert Launch(folder, Sandbox(), namespaces).run(["cat"], b"given\n").stdout == "given\n"
    assert bash(folder, "cat", namespaces).stdout == ""


@ways
def test_a_command_that_is_not_there_is_reported_as_such(folder: Folder, namespaces: bool) -> None:
    ran = Launch(folder, Sandbox(), namespaces).run(["no-such-command"])
    assert (ran.code, ran.stderr) == (127, "no-such-command: No such file or directory\n")


@ways
def test_that_it_cannot_be_set_up_is_no_answer_of_the_command(folder: Folder, namespaces: bool) -> None:
    os.rmdir(folder.work)
    Path(folder.work).touch()
    with pytest.raises(SandboxFailedError, match=r"could not be set up: .* is no folder"):
        bash(folder, "true", namespaces)


@ways
def test_time_ends_it_with_everything_that_it_started(folder: Folder, namespaces: bool) -> None:
    number = odd_number()
    line = f"echo begun; (setsid bash -c 'sleep {number} & sleep {number}' &); sleep {number}"
    ran = bash(folder, line, namespaces, seconds=0.5)
    assert (ran.code, ran.why, ran.stdout) == (137, "time", "begun\n")
    assert running(f"sleep {number}") == []


@ways
def test_what_it_leaves_in_the_background_ends_with_it(folder: Folder, namespaces: bool) -> None:
    number = odd_number()
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    if os.fork() == 0: os.execlp('sleep', 'sleep', '{number}')\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(0.2); print('over')\n"
    )
    assert python(folder, program, namespaces).stdout == "over\n"
    assert running(f"sleep {number}") == []


@ways
def test_one_process_has_no_more_memory_than_it_may(folder: Folder, namespaces: bool) -> None:
    code = "print(len(bytearray(300 << 20)))"
    assert python(folder, code, namespaces, memory_mb=100).stderr.endswith("MemoryError\n")
    assert python(folder, code, namespaces, memory_mb=1000).code == 0


@ways
def test_nor_have_all_of_its_processes_together(folder: Folder, namespaces: bool) -> None:
    code = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        kept = b'x' * (60 << 20)\n"
        "        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    assert python(folder, code, namespaces, memory_mb=150, seconds=50).why == "memory"


@ways
def test_output_over_the_limit_is_cut_in_the_middle(folder: Folder, namespaces: bool) -> None:
    ran = bash(folder, "echo first; yes | head -c 5000000; echo last", namespaces, output_kb=4)
    assert ran.stdout.startswith("first\ny\n")
    assert ran.stdout.endswith("y\nlast\n")
    assert f"[… {5000000 + 11 - 4096} bytes are left out …]" in ran.stdout
    assert len(ran.stdout) < 5000


@ways
def test_no_file_is_larger_than_it_may_be(folder: Folder, namespaces: bool) -> None:
    ran = bash(folder, "head -c 3000000 /dev/zero > big", namespaces, files_mb=1)
    assert (ran.code, "File size limit exceeded" in ran.stderr) == (128 + signal.SIGXFSZ, True)
    assert os.path.getsize(os.path.join(folder.work, "big")) == 1 << 20


@ways
def test_there_are_no_more_processes_than_there_may_be(folder: Folder, namespaces: bool) -> None:
    number = odd_number()
    line = f"for i in $(seq 60); do sleep {number} & done; wait"
    ran = bash(folder, line, namespaces, processes=20, seconds=50)
    assert ran.why == "processes" or "Resource temporarily unavailable" in ran.stderr
    assert running(f"sleep {number}") == []


@ways
def test_it_gets_nothing_of_our_environment(folder: Folder, namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    told = dict(line.partition("=")[::2] for line in bash(folder, "env", namespaces).stdout.splitlines())
    ours = {"PATH", "HOME", "LANG", "TMPDIR"} | (set() if namespaces else {MARKER})
    assert set(told) - {"PWD", "SHLVL", "_"} == ours


@confined
def test_it_has_no_network(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        assert "Connection refused" in python(folder, code).stderr
        assert python(folder, code, network=True).code == 0
    itself = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print(1)"
    )
    assert python(folder, itself).stdout == "1\n"
    assert "unreachable" in python(folder, "import socket; socket.create_connection(('192.0.2.1', 9), 5)").stderr


@confined
def test_it_sees_its_folder_and_the_systems_programs_and_nothing_else(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("private")
    line = f"pwd; cat {tmp_path}/journal; touch /usr/here /here; echo kept > x; echo kept > /tmp/y; hostname; echo $$"
    ran = bash(folder, line)
    assert ran.stdout.splitlines()[:2] == ["/sandbox", "sandbox"]
    assert int(ran.stdout.splitlines()[2]) < 10
    assert ran.stderr.count("No such file or directory") == 1
    assert ran.stderr.count("Read-only file system") == 2
    assert Path(folder.work, "x").read_text() == Path(folder.temporary, "y").read_text() == "kept\n"
    found = python(folder, "import os; print(os.getuid(), sorted(os.listdir('/etc')))").stdout
    assert "shadow" not in found
    assert found.startswith("1000 ")


@confined
def test_no_command_can_put_a_link_where_the_next_one_is_shown_a_folder(folder: Folder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "key").write_text("secret")
    line = f"for each in tmp /tmp /sandbox ../tmp; do rm -rf $each; ln -sfn {victim} $each; done; ls -l / ."
    bash(folder, line)
    ran = bash(folder, "cat /tmp/key tmp/key; echo gone > /tmp/escaped; echo gone > tmp/escaped; ls -A /tmp")
    shown = [os.path.relpath(sys.prefix, "/tmp").split("/")[0]]  # a Python environment below /tmp is shown there
    # The link lies in /tmp, and leads nowhere.
    assert [name for name in ran.stdout.splitlines() if name not in shown] == ["escaped", "victim"]
    assert "secret" not in ran.stdout
    assert sorted(os.listdir(victim)) == ["key"]


@confined
def test_a_link_in_the_place_of_a_folder_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    os.rmdir(folder.temporary)
    os.symlink(tmp_path, folder.temporary)
    with pytest.raises(SandboxFailedError, match="is no folder"):
        bash(folder, "ls /tmp")


@ways
def test_whatever_it_does_to_its_folder_the_next_one_can_begin(folder: Folder, namespaces: bool) -> None:
    for line in ("rm -rf * .[!.]*", "rm -rf $TMPDIR/* $TMPDIR", "chmod 000 . $TMPDIR", "rm -rf $PWD"):
        bash(folder, line, namespaces)
        ran = bash(folder, "echo on > a; echo on > $TMPDIR/b; cat a $TMPDIR/b; ls", namespaces)
        assert (ran.code, ran.stdout) == (0, "on\non\na\n")


@confined
def test_of_the_folders_between_a_python_and_its_program_only_the_links_are_shown(
    folder: Folder, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, environment = elsewhere / "home", elsewhere / "environment"
    for each in (home / "bin", environment / "bin"):
        each.mkdir(parents=True)
    (home / "secret").write_text("secret")
    (home / "bin" / "python3").symlink_to(sys.executable)
    (environment / "bin" / "python3").symlink_to(home / "bin" / "python3")
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python3"))
    monkeypatch.setattr(sys, "prefix", str(environment))
    policy.homes_of_python.cache_clear()
    try:
        ran = python(folder, f"import os; print(os.listdir({str(home)!r}), os.listdir({str(home / 'bin')!r}))")
    finally:
        policy.homes_of_python.cache_clear()
    assert (ran.stdout, ran.stderr) == ("['bin'] ['python3']\n", "")


@confined
def test_it_has_no_powers_to_undo_that(folder: Folder) -> None:
    ran = bash(folder, "grep Cap /proc/self/status; mount -o remount,rw /usr; umount /tmp; echo $?")
    assert "CapEff:\t0000000000000000" in ran.stdout
    assert ran.stdout.splitlines()[-1] != "0"
    inner = bash(folder, "unshare -Urm sh -c 'mount -o remount,bind,rw /usr && touch /usr/here'; ls /usr/here")
    assert inner.code != 0


@ways
def test_stopping_it_ends_everything(folder: Folder, namespaces: bool) -> None:
    number = odd_number()
    call = Launch(folder, Sandbox(seconds=600), namespaces)
    found: list[CommandResult] = []
    thread = threading.Thread(target=lambda: found.append(call.run(["bash", "-c", f"sleep {number} & sleep {number}"])))
    thread.start()
    while len(running(f"sleep {number}")) < 2:
        time.sleep(0.01)
    call.stop()
    thread.join(30)
    assert [each.why for each in found] == ["stopped"]
    assert running(f"sleep {number}") == []
    stopped = Launch(folder, Sandbox(seconds=600), namespaces)
    stopped.stop()
    assert stopped.run(["sleep", "600"]).why == "stopped"


@pytest.mark.parametrize(
    ("namespaces", "whom"),
    [
        pytest.param(True, "runner", marks=confined),
        pytest.param(True, "launcher", marks=confined),
        (False, "runner"),  # what escapes a killed launcher here is found by its marker at the next start
    ],
)
def test_a_kill_of_the_process_that_started_it_ends_everything(tmp_path: Path, namespaces: bool, whom: str) -> None:
    number = odd_number()
    program = (
        "import sys\n"
        "from holdfast.sandbox.confinement import Launch, Folder, make_folders\n"
        "from holdfast.spec import Sandbox\n"
        f"folder = Folder({str(tmp_path / 'box')!r}, 'uid'); make_folders(folder)\n"
        f"line = '(setsid sleep {number} &) ; sleep {number}'\n"
        f"Launch(folder, Sandbox(seconds=600), {namespaces}).run(['bash', '-c', line])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while len(running(f"sleep {number}")) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        if whom == "runner":
            process.kill()
        else:
            (launcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(launcher), signal.SIGKILL)
        process.wait(60)
    end = time.monotonic() + 30
    while running(f"sleep {number}") and time.monotonic() < end:
        time.sleep(0.01)
    assert running(f"sleep {number}") == []


def test_where_there_are_no_namespaces_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN, "1")
    assert confinement.why_no_namespaces.__wrapped__() == f"{PLAIN} is set"
    monkeypatch.delenv(PLAIN)
    monkeypatch.setattr(confinement, "_LAUNCHER", "import sys; sys.exit(1)")
    assert "SIGKILL" not in confinement.why_no_namespaces.__wrapped__()
    assert confinement.why_no_namespaces.__wrapped__() != ""


def test_where_there_is_no_docker_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "docker cannot be used" in why_no_docker()
