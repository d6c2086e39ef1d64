"""Commit messages: the hook refuses long subjects, and the history since it was introduced has none."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "tools" / "commit-message"
BASE = "da191901561b5f8946d3e03cd639356e14ced2b3"
"""The last commit before the limit was introduced."""
SUBJECT_MAX = 72


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def check(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message, encoding="utf-8")
    return subprocess.run([sys.executable, str(HOOK), str(file)], capture_output=True, text=True, check=False)


def test_subjects_of_new_commits_are_short() -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode != 0:
        pytest.skip("the history is shallow, or this is not a git checkout")
    listed = git("log", "--no-merges", "--format=%h %s", f"{BASE}..HEAD")
    assert listed.returncode == 0, listed.stderr
    assert [line for line in listed.stdout.splitlines() if len(line.partition(" ")[2]) > SUBJECT_MAX] == []


@pytest.mark.parametrize(
    "message",
    [
        "x" * SUBJECT_MAX,
        "Add a field\n\nA body may have long lines. " + "word " * 40,
        "# a comment\n\nAdd a field\n# Please enter the commit message for your changes.\n",
        "Add a field\n# ------------------------ >8 ------------------------\ndiff --git a/x b/x\n",
        "Merge branch 'main' into " + "x" * 80,
    ],
    ids=["72 characters", "long body", "comments", "diff", "merge"],
)
def test_the_hook_accepts(message: str, tmp_path: Path) -> None:
    done = check(message, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("x" * (SUBJECT_MAX + 1), "73 characters"),
        ("# comment\n\n" + "ä" * (SUBJECT_MAX + 1), "73 characters"),
        ("Add a field\nand another", "empty line"),
        ("# nothing but a comment\n", "empty"),
    ],
    ids=["73 characters", "73 characters of two bytes", "no empty line", "empty"],
)
def test_the_hook_refuses(message: str, why: str, tmp_path: Path) -> None:
    done = check(message, tmp_path)
    assert done.returncode == 1
    assert why in done.stderr
