"""The provenance of a run (machine, versions, commit), and spec.yaml, which shows the spec and its history to people.

spec.yaml is derived from the journal and replaced atomically; a crash leaves the old file, and the next start rewrites
it. An edited file is refused, because its changes would otherwise be ignored silently.

Reads the git commit of the current folder without executing commands from the repository's configuration.

A repository's configuration is untrusted: filters, hooks, file system monitors and transports are commands that git
starts, so they are disabled. Filters cannot be disabled without making unchanged files look changed; in a repository
that defines filters, `git_dirty` is `unknown`.
"""

import contextlib
import functools
import importlib.metadata
import itertools
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml

from holdfast.errors import DriftError
from holdfast.files import NotAFileError, read_file
from holdfast.journal import OS_DISK, Damage, write_file
from holdfast.records import FORMAT, Change, normalized
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import NO_YAML, BoundedLoader, check_stored_spec
from holdfast.state import Story
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.report import RunOrigin

_SECONDS = 5
_OFF = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # otherwise `status` writes the index, which starts a hook
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # never fetch missing objects: the configuration of a remote names commands
    "GIT_TERMINAL_PROMPT": "0",
}
_FILTERS = r"^filter\..*\.(clean|smudge|process)$"
_REPOSITORY_SCOPES = ("local", "worktree")
UNKNOWN = "unknown"


def describe_commit() -> dict[str, str]:
    """`git_commit`, and `git_dirty`: yes, no or unknown. Empty without a repository or without git."""
    commit = _run_git("rev-parse", "HEAD")
    if not commit:
        return {}
    changed = None
    filters = _run_git("config", "--show-scope", "--name-only", "--get-regexp", _FILTERS, codes=(0, 1))
    if filters is not None and not any(line.startswith(_REPOSITORY_SCOPES) for line in filters.splitlines()):
        # compare only the commits of submodules: git would read their (untrusted) configuration otherwise
        changed = _run_git("status", "--porcelain", "--ignore-submodules=dirty")
    return {"git_commit": commit.strip(), "git_dirty": UNKNOWN if changed is None else "yes" if changed else "no"}


def _run_git(*arguments: str, codes: Sequence[int] = (0,)) -> str | None:
    """The output of git; None if it is missing, fails or times out."""
    try:
        result = subprocess.run(
            ["git", *_OFF, *arguments],
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode in codes else None


SPEC_FILE = "spec.yaml"
_canonical = msgspec.json.Encoder(order="deterministic").encode
_YAML_CHARACTERS_MIN = 16 * 1024
_YAML_RATIO_MAX = 8
"""How much longer YAML may be than the JSON of the same spec, because of indentation and escapes."""
_PACKAGES = ("aiohttp", "msgspec", "numpy", "scipy")


def describe_host() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }


def collect_versions() -> dict[str, str]:
    """Versions of packages, and the git commit of the current folder."""
    return _package_versions() | describe_commit()


@functools.cache
def _package_versions() -> dict[str, str]:
    versions = {"holdfast": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def write_spec_file(place: RunLocation, story: Story) -> None:
    """Write spec.yaml: a header with the provenance, then the effective spec. Replaces the file atomically."""
    path = os.path.join(place.folder, SPEC_FILE)
    write_file(OS_DISK, path, f"{path}.tmp", spec_text(place, story).encode())


def is_spec_file_current(place: RunLocation, story: Story) -> bool:
    """Whether spec.yaml is up to date with the journal."""
    try:
        return read_file(os.path.join(place.folder, SPEC_FILE)) == spec_text(place, story).encode()
    except OSError:
        return False


def spec_text(place: RunLocation, story: Story) -> str:
    """The content of spec.yaml."""
    started = story.started
    assert started is not None
    host_name = started.host.get("host", "")
    lines = [
        f"# Holdfast run {place.run_id}",
        f"# Format {FORMAT}",
        f"# Started by holdfast {started.version} on {host_name} at {_seconds(story.created)}",
        "# The journal is the original; this file says the same for people.",
    ]
    if started.parent is not None:
        lines.append(f"# Forked from {started.parent.experiment}/{started.parent.run_id}")
    for at, version, changes in story.lineage:
        prefix = f"# Resumed by holdfast {version} at {_seconds(at)}"
        lines += [f"{prefix}: {each.field}: {_format(each.old)} -> {_format(each.new)}" for each in changes]
    return "\n".join(lines) + "\n" + _yaml(story.spec)


class SpecVersion(msgspec.Struct, frozen=True):
    """A spec that a run has had, and what brought it: `started`, `resumed`, `extended` or `corrected`."""

    at: str
    began: str
    version: str
    """Of Holdfast."""
    changes: tuple[Change, ...]
    text: str
    """As YAML."""


def spec_versions(story: Story) -> list[SpecVersion]:
    """Every spec of a run, the oldest first. Resumes that changed nothing bring none."""
    started = story.started
    if started is None:
        return []
    later = [
        (each.at, "resumed", each.resumed.version, each.resumed.changes, each.resumed.spec)
        for each in story.resumes
        if each.resumed.spec
    ]
    later += [
        (each.at, "extended", each.extended.version, each.extended.changes, each.extended.spec)
        for each in story.extensions
    ]
    later += [
        (each.at, "corrected", each.replanned.version, each.replanned.changes, each.replanned.spec)
        for each in story.replans
    ]
    every = [(story.created, "started", started.version, (), started.spec), *sorted(later, key=lambda each: each[0])]
    return [SpecVersion(at, began, version, changes, _yaml(spec or {})) for at, began, version, changes, spec in every]


def origin_of(place: RunLocation, story: Story, evaluation: str) -> "RunOrigin":
    """The provenance shown in a report of one evaluation."""
    from holdfast.report import RunOrigin  # late: a page is rarely written

    started, scored = story.started, story.evaluations.get(evaluation)
    if started is None:
        return RunOrigin(())
    facts = [
        ("run", f"{place.experiment}/{place.run_id}"),
        ("started", _seconds(story.created)),
        ("last record", _seconds(story.updated)),
        ("holdfast", started.version),
        *((name, str(started.host[name])) for name in ("python", "platform") if name in started.host),
        *((name, version) for name, version in started.code.items() if name != "holdfast"),
        ("plan", f"{started.plan.count} keys, digest {started.plan.digest}"),
        ("data", f"{started.data.count} rows, digest {started.data.digest}"),
    ]
    if started.parent is not None:
        facts.append(("forked from", f"{started.parent.experiment}/{started.parent.run_id}"))
    if story.tags:
        facts.append(("tags", ", ".join(story.tags)))
    facts += [("extended", f"{_seconds(each.at)}: {each.extended.plan.count} keys") for each in story.extensions]
    facts += [("corrected", f"{_seconds(each.at)}: {each.replanned.plan.count} keys") for each in story.replans]
    facts += [("resumed", _seconds(each.at)) for each in story.resumes]
    for at, _, changes in story.lineage:
        facts += [("changed", f"{_seconds(at)}: {e.field}: {_format(e.old)} -> {_format(e.new)}") for e in changes]
    for given in map(normalized, scored.scorers if scored is not None else ()):
        arguments = _format(given.get("args") or {})
        code = f"version {given['version']}" if "version" in given else f"code {given.get('source')}"
        facts.append(("scorer", f"{given.get('task')}: {given.get('name')} {arguments}, {code}"))
    if evaluation:
        facts.append(("evaluation", evaluation))
    return RunOrigin(tuple(facts), spec_text(place, story))


def find_loss(
    place: RunLocation, story: Story, damage: Sequence[Damage], answers: int
) -> Literal["", "beginning", "journal"]:
    """What is lost from a run without `run.started`; empty if no run ever began in this folder. `answers`: the number
    of finished and failed samples.

    If there are later records, or damage, only the beginning is lost. If not, spec.yaml or started.jsonl, which are
    written after `run.started`, show that the whole journal is lost.
    """
    later = answers or story.steps or story.resumes or story.evaluations or story.end
    if later or any(each.records_lost for each in damage):
        return "beginning"
    return "journal" if place.has_begun_files else ""


def check_spec_file(place: RunLocation, story: Story) -> None:
    """DriftError if spec.yaml contains a spec that the run never had: the user who edited it expects an effect.
    NotAFileError if it is a link or not a file. A missing or older file is accepted; the next start rewrites it.
    """
    path = os.path.join(place.folder, SPEC_FILE)
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return
    except NotAFileError:
        raise
    except OSError as error:
        raise DriftError(f"{path} cannot be read: {error.strerror}; remove it: it will be rewritten") from error
    problem = _find_problem(raw, story)
    if problem:
        raise DriftError(
            f"{path} {problem}. It is only a copy of what the journal holds: put changes into your own spec file, and "
            "delete this one; it will be rewritten"
        )


def _find_problem(raw: bytes, story: Story) -> str:
    try:
        text = raw.decode()
        newer = re.search(r"^# Format (\d+)", text, re.MULTILINE)
        if newer and int(newer[1]) > FORMAT:
            return f"has format {newer[1]}, written by a newer Holdfast; this version reads up to {FORMAT}: upgrade"
        longest = max(len(msgspec.json.encode(spec)) for spec in ({}, *story.specs))
        # The comment lines before the spec grow with every resume, so they do not count.
        lines = itertools.dropwhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
        if sum(map(len, lines)) > _YAML_CHARACTERS_MIN + _YAML_RATIO_MAX * longest:
            return "is far longer than the spec of this run"
        found = yaml.load(text, Loader=BoundedLoader)
    except (yaml.YAMLError, *NO_YAML):
        return "is not readable as YAML"
    if not isinstance(found, dict):
        return "is not a mapping of fields"
    if not any(_same(found, spec) for spec in story.specs):
        return "was edited: this run never had that spec"
    return ""


def _same(one: Any, other: Any) -> bool:
    try:
        return _canonical(one) == _canonical(other)
    except (TypeError, ValueError, RecursionError):
        return False


def _yaml(spec: dict[str, Any]) -> str:
    """Unescaped Unicode if YAML reads it back unchanged, else ASCII: YAML treats some characters as line breaks."""
    check_stored_spec(spec)
    fields = [_field_yaml(name, msgspec.json.encode(value)) for name, value in spec.items()]
    if fields and None not in fields:
        return "".join(filter(None, fields))
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=False, width=100)


@functools.lru_cache(maxsize=256)
def _field_yaml(name: str, value: bytes) -> str | None:
    """One field with unescaped Unicode; None if YAML would read back something else. Kept, because the shards of a run
    have the same spec but for one field, and writing YAML is slow.
    """
    field = {name: msgspec.json.decode(value)}
    text: str = yaml.safe_dump(field, sort_keys=False, allow_unicode=True, width=100)
    with contextlib.suppress(yaml.YAMLError):
        if _same(yaml.safe_load(text), field):
            return text
    return None


def _format(value: Any) -> str:
    """A value as JSON on one line, with unprintable characters escaped."""
    text = msgspec.json.encode(value).decode()
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def _seconds(at: str) -> str:
    return f"{at[:19]}Z" if at else ""
