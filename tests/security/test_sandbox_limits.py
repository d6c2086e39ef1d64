"""What a sandboxed command may use, attacked: shared memory, disk, processes and time. Each attack holds what it took
for seconds, so that no test depends on how fast the machine is.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.sandbox import cgroups, confinement
from holdfast.sandbox.confinement import Folder, Launch, control_groups
from holdfast.spec import Sandbox
from tests.security.sandboxes import (
    LIBC,
    PRIVATE_MEMORY_ONLY,
    UNCOUNTED_FILES,
    attack,
    box,
    confined,
    users,
    without,
    without_groups,
)

__all__ = ["box"]
pytestmark = confined
grouped = pytest.mark.skipif(bool(control_groups()[1]), reason=control_groups()[1])

HOLD = "\nimport time; time.sleep({hold}); print('had it')\n"
MEMORY = {
    "shared pages": "import mmap\nm = mmap.mmap(-1, 150 << 20)\nfor i in range(0, 150 << 20, 4096): m[i] = 1",
    "memfd": "import os\nheld = [os.memfd_create('x') for _ in range(10)]\n"
    "for each in held:\n    for _ in range(15): os.write(each, bytes(1 << 20))",
    "dev shm": "held = [open(f'/dev/shm/{i}', 'wb') for i in range(10)]\n"
    "for each in held:\n    for _ in range(15): each.write(bytes(1 << 20))",
    "children": "import mmap, os\nm = mmap.mmap(-1, 150 << 20)\nfor part in range(3):\n    if os.fork() == 0:\n"
    "        for i in range(part * 50 << 20, (part + 1) * 50 << 20, 4096): m[i] = 1\n"
    "        __import__('time').sleep(60)",
}
LIMITS: dict[str, Any] = {"memory_mb": 48, "files_mb": 400}


@users
@pytest.mark.parametrize("way", [pytest.param("group", marks=grouped), "counted"])
@pytest.mark.parametrize("kind", ["shared pages", "memfd", "children"])
def test_shared_memory_is_limited(box: Folder, user: str, way: str, kind: str) -> None:
    with nullcontext() if way == "group" else without_groups():
        ran = attack(box, MEMORY[kind] + HOLD.format(hold=5), user, **LIMITS)
    assert (ran.why, ran.stdout) == ("memory", "")


@pytest.mark.long
@users
@pytest.mark.parametrize("kind", ["shared pages", "memfd", "children"])
def test_control_counting_only_private_pages_the_command_has_it(box: Folder, user: str, kind: str) -> None:
    with without_groups(), without(PRIVATE_MEMORY_ONLY):
        ran = attack(box, MEMORY[kind] + HOLD.format(hold=0.5), user, **LIMITS)
    assert (ran.why, ran.stdout) == ("", "had it\n")


def test_files_that_the_kernel_caches_are_not_taken_for_memory(box: Folder) -> None:
    ran = attack(box, "for i in range(3): open(f'f{i}', 'wb').write(bytes(30 << 20))\nprint('done')", **LIMITS)
    assert (ran.why, ran.stdout) == ("", "done\n")


@pytest.mark.parametrize("way", [pytest.param("group", marks=grouped), "counted"])
def test_files_in_dev_shm_are_no_larger_than_the_memory(box: Folder, way: str) -> None:
    with nullcontext() if way == "group" else without_groups():
        ran = attack(box, MEMORY["dev shm"] + HOLD.format(hold=5), **LIMITS)
    assert "had it" not in ran.stdout
    assert ran.why == "memory" or "No space left on device" in ran.stderr


def test_system_v_segments_that_nobody_has_attached_are_limited(box: Folder) -> None:
    program = LIBC + "print([libc.shmget(0, 30 << 20, 0o1600) >= 0 for _ in range(4)])"
    with without_groups():
        ran = attack(box, program, **LIMITS)
    assert ran.stdout == "[True, False, False, False]\n"


def test_shared_memory_within_the_limit_is_not_counted_for_each_process(box: Folder) -> None:
    program = (
        "import mmap, os, time\nm = mmap.mmap(-1, 40 << 20)\n"
        "for _ in range(4):\n    if os.fork() == 0:\n        for i in range(0, 40 << 20, 4096): m[i] = 1\n"
        "        time.sleep(1); os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('done')\n"
    )
    with without_groups():
        ran = attack(box, program, memory_mb=100)
    assert (ran.why, ran.stdout) == ("", "done\n")


def test_out_of_memory_in_a_group_is_said_even_if_the_command_survives_it(box: Folder) -> None:
    if why := control_groups()[1]:
        pytest.skip(why)
    program = (
        "import mmap, os\nif os.fork() == 0:\n    m = mmap.mmap(-1, 150 << 20)\n"
        "    for i in range(0, 150 << 20, 4096): m[i] = 1\nos.wait(); print('outlived it')\n"
    )
    assert attack(box, program, **LIMITS).why == "memory"


DISK = {
    "bytes": "for i in range(15): open(f'f{i}', 'wb').write(bytes(2 << 20))",
    "in tmp": "for i in range(15): open(f'/tmp/f{i}', 'wb').write(bytes(2 << 20))",
    "files": "for i in range(600): open(f'f{i}', 'w').close()",
    "folders": "import os\nfor i in range(600): os.mkdir(f'd{i}')",
    "deleted": "import os\nheld = []\nfor i in range(15):\n    held.append(open('f', 'wb', buffering=0))\n"
    "    held[-1].write(bytes(2 << 20)); os.unlink('f')",
    "closed folder": "import os\nos.mkdir('d')\nfor i in range(15): open(f'd/f{i}', 'wb').write(bytes(2 << 20))\n"
    "os.chmod('d', 0)",
    "deep": "import os\nfor i in range(300): os.mkdir('d' * 100); os.chdir('d' * 100)",
}
SMALL: dict[str, Any] = {"files_mb": 8, "files_max": 250}


@users
@pytest.mark.parametrize("kind", DISK)
def test_disk_is_limited_while_a_command_runs(box: Folder, user: str, kind: str) -> None:
    ran = attack(box, DISK[kind] + HOLD.format(hold=5), user, **SMALL)
    assert (ran.why, ran.stdout) == ("files", "")


@pytest.mark.long
@users
@pytest.mark.parametrize("kind", ["bytes", "files", "deleted"])
def test_control_uncounted_the_command_fills_the_disk(box: Folder, user: str, kind: str) -> None:
    with without(UNCOUNTED_FILES):
        ran = attack(box, DISK[kind] + HOLD.format(hold=0.5), user, **SMALL)
    assert (ran.why, ran.stdout) == ("", "had it\n")


def test_disk_is_limited_without_namespaces_too(box: Folder) -> None:
    ran = attack(box, DISK["bytes"] + HOLD.format(hold=5), namespaces=False, **SMALL)
    assert (ran.why, ran.stdout) == ("files", "")


def test_a_command_that_removes_its_whole_folder_does_not_end_the_launcher(box: Folder) -> None:
    ran = attack(box, f"import shutil; shutil.rmtree({box.files!r})" + HOLD.format(hold=0.5), namespaces=False)
    assert (ran.why, ran.stdout) == ("", "had it\n")


def test_sparse_files_and_files_within_the_limits_are_allowed(box: Folder) -> None:
    program = (
        "import os\nfor i in range(150): open(f'f{i}', 'w').write('x')\n"
        "for i in range(50): f = open(f's{i}', 'wb'); f.truncate(4 << 20)\n"
    )
    ran = attack(box, program + HOLD.format(hold=0.5), **SMALL)
    assert (ran.why, ran.stdout, ran.stderr) == ("", "had it\n", "")


def test_a_command_in_a_full_folder_may_remove_files_but_make_no_more(box: Folder) -> None:
    for number in range(5):
        Path(box.work, f"f{number}").write_bytes(bytes(2 << 20))
    limits = Sandbox(files_mb=8, seconds=50)

    def run(line: str) -> tuple[int, str]:
        ran = Launch(box, limits, True, over_full=True).run(["bash", "-c", line])
        return ran.code, ran.why

    assert run("sleep 0.5; rm f1; sleep 0.5") == (0, "")
    assert run("head -c 6000000 /dev/zero > more; sleep 30") == (137, "files")


def test_counting_does_not_follow_a_link_out_of_the_sandbox(box: Folder) -> None:
    program = "import os; os.symlink('/usr', 'u'); os.symlink('..', 'up')" + HOLD.format(hold=0.5)
    assert attack(box, program, **SMALL).stdout == "had it\n"


@users
def test_a_fork_bomb_ends_and_leaves_nothing(box: Folder, user: str) -> None:
    number = f"{time.time_ns()}"[-9:]
    program = (
        f"# {number}\n"
        "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
        "    except OSError: time.sleep(0.01)\n"
    )
    ran = attack(box, program, user, processes=20, seconds=3)
    assert ran.why in ("processes", "time", "memory")
    assert running(number) == []


def running(word: str) -> list[str]:
    """Processes with this word in their command line."""
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line]


@grouped
def test_no_control_group_is_left_also_if_the_launcher_is_killed(box: Folder) -> None:
    place = control_groups()[0]["memory"]

    def mine() -> list[str]:
        return [each for each in os.listdir(place) if each.startswith(f"{cgroups.PREFIX}{os.getpid()}-")]

    with without("import os, signal; launcher.watch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"):
        ran = Launch(box, Sandbox(seconds=50), True).run(["sleep", "40"])
    assert (ran.code, ran.why, mine()) == (128 + signal.SIGKILL, "stopped", [])


def test_where_a_group_cannot_be_made_any_more_memory_is_counted_and_the_reason_reported(
    box: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(confinement, "control_groups", lambda: ({"memory": f"{tmp_path}/gone", "version": "1"}, ""))
    call = Launch(box, Sandbox(memory_mb=48, seconds=50), True)
    ran = call.run([sys.executable, "-c", MEMORY["shared pages"] + HOLD.format(hold=5)])
    assert (ran.why, "No such file or directory" in call.no_group) == ("memory", True)


@grouped
def test_groups_of_dead_processes_are_removed_and_others_are_not(box: Folder) -> None:
    place = control_groups()[0]
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead = Path(place["memory"], f"{cgroups.PREFIX}{child}-1")
    living = Path(place["memory"], f"{cgroups.PREFIX}{os.getpid()}-1")
    dead.mkdir()
    living.mkdir()
    try:
        assert cgroups.find()[1] == ""
        assert (dead.exists(), living.exists()) == (False, True)
    finally:
        living.rmdir()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folders named as those of control groups of version 2 are: only what is looked for, nothing is limited by it."""
    for path, controllers in (("a", "memory pids"), ("a/b", "")):
        Path(tmp_path, path).mkdir()
        Path(tmp_path, path, "cgroup.subtree_control").write_text(controllers)
    return tmp_path


def test_a_group_of_version_2_is_made_beside_the_own_one_if_none_may_be_below(tree: Path) -> None:
    mounts = f"30 20 0:26 / {tree} rw shared:4 - cgroup2 cgroup2 rw\n"
    assert cgroups.candidates("0::/a/b\n", mounts) == [{"memory": f"{tree}/a", "version": "2"}]
    assert cgroups.candidates("0::/a\n", mounts) == [{"memory": f"{tree}/a", "version": "2"}]
    assert cgroups.candidates("0::/\n", mounts) == []
    inner = f"30 20 0:26 /a {tree}/a rw - cgroup2 cgroup2 rw\n"
    assert cgroups.candidates("0::/a/b\n", inner) == [{"memory": f"{tree}/a", "version": "2"}]


def test_where_no_group_can_be_made_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    place = {"memory": str(tmp_path), "version": "2"}
    monkeypatch.setattr(cgroups, "candidates", lambda own, mounts: [place])
    found, why = cgroups.find()
    assert (found, why) == ({}, f"no control group can be made (No such file or directory: {tmp_path})")


@users
def test_time_ends_what_has_left_its_session(box: Folder, user: str) -> None:
    number = f"{time.time_ns()}"[-9:]
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execlp('sleep', 'sleep', '{number}')\n    os._exit(0)\n"
        "os.wait()\nprint('begun', flush=True)\ntime.sleep(60)\n"
    )
    ran = attack(box, program, user, seconds=1)
    assert (ran.why, ran.stdout) == ("time", "begun\n")
    assert running(number) == []


def test_the_limit_of_time_holds_while_files_are_counted(box: Folder) -> None:
    began = time.monotonic()
    ran = attack(box, DISK["bytes"] + "\nwhile True: pass", files_mb=4000, seconds=1)
    assert ran.why == "time"
    assert time.monotonic() - began < 30
    assert confinement.why_no_namespaces() == ""
