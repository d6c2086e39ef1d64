"""A repository's configuration names commands. Recording the commit of the current folder starts none of them."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.runs.store import provenance
from holdfast.runs.store.provenance import describe_commit

MARKER = "started"


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    folder = make_repository(tmp_path / "repository")
    monkeypatch.chdir(folder)
    return folder


def make_repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    (folder / ".gitattributes").write_text("*.txt filter=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "a.txt").write_text("two\n")  # its stat data differ, so that git reads it through its filter
    return folder


def command(folder: Path) -> str:
    """Leaves a file that shows that it was started."""
    script = folder.parent / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch '{folder.parent / MARKER}'\ncat\n")
    script.chmod(0o755)
    return str(script)


def was_started(folder: Path) -> bool:
    return (folder.parent / MARKER).exists()


FILTERS = ["filter.evil.clean", "filter.evil.process", "filter.evil=x.clean"]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("is_included", [False, True])
def test_a_filter_of_the_repository_is_not_started(repository: Path, name: str, is_included: bool) -> None:
    (repository / ".gitattributes").write_text(f"*.txt filter={name.removeprefix('filter.').rpartition('.')[0]}\n")
    git(repository, "config", *(("-f", ".git/more") if is_included else ()), name, command(repository))
    if is_included:
        git(repository, "config", "include.path", "more")
    found = describe_commit()
    assert not was_started(repository)
    assert (len(found["git_commit"]), found["git_dirty"]) == (40, "unknown")


def test_without_the_check_a_filter_is_started(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "config", "filter.evil.clean", command(repository))
    monkeypatch.setattr(provenance, "_REPOSITORY_SCOPES", ("nowhere",))
    describe_commit()
    assert was_started(repository)


def hook(folder: Path) -> Sequence[str]:
    (folder / ".git/hooks").mkdir(exist_ok=True)
    os.symlink(command(folder), folder / ".git/hooks/post-index-change")
    return ()


def monitor(folder: Path) -> Sequence[str]:
    return ("core.fsmonitor", command(folder))


def other_hooks(folder: Path) -> Sequence[str]:
    (folder / "hooks").mkdir()
    os.symlink(command(folder), folder / "hooks/post-index-change")
    return ("core.hooksPath", "hooks")


@pytest.mark.parametrize("attack", [hook, monitor, other_hooks])
def test_hooks_and_monitors_are_not_started(repository: Path, attack: object) -> None:
    assert callable(attack)
    if setting := attack(repository):
        git(repository, "config", *setting)
    os.utime(repository / ".gitattributes", (1, 1))  # `git status` would refresh the index, and write it
    assert describe_commit()["git_dirty"] == "yes"
    assert not was_started(repository)
    git(repository, "status")  # negative control
    assert was_started(repository)


def test_a_submodules_filter_is_not_started(repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    git(repository, "submodule", "--quiet", "add", str(other), "inner")
    git(repository, "commit", "-q", "-a", "-m", "second")
    git(repository / "inner", "config", "filter.evil.clean", command(repository))
    (repository / "inner/a.txt").write_text("six\n")
    describe_commit()
    assert not was_started(repository)
    git(repository, "status")  # negative control
    assert was_started(repository)


def test_a_missing_object_is_not_fetched(repository: Path) -> None:
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", str(repository)),
        ("remote.origin.promisor", "true"),
        ("remote.origin.uploadpack", command(repository)),
    ):
        git(repository, "config", name, value)
    tree = git(repository, "rev-parse", "HEAD^{tree}").strip()
    (repository / ".git/objects" / tree[:2] / tree[2:]).unlink()
    assert describe_commit()["git_dirty"] == "unknown"
    assert not was_started(repository)


def test_changes_are_reported_where_nothing_is_to_be_feared(repository: Path, tmp_path: Path) -> None:
    assert describe_commit()["git_dirty"] == "yes"
    git(repository, "commit", "-q", "-a", "-m", "second")
    assert describe_commit()["git_dirty"] == "no"
    (repository / "new.txt").write_text("new")
    assert describe_commit()["git_dirty"] == "yes"
