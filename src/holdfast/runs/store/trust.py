"""Trust in runs: the user's list of trusted uids, what the spec of a run would execute, and the refusal.

A run folder can execute code: its spec names modules to import, commands to start, and servers that get API keys.
Commands that execute a run's own spec do so only if this user made the run, or passes `--trust`. A spec that the user
gives on the command line or from Python is trusted.

The list is `runs` in `XDG_STATE_HOME/holdfast` (default `~/.local/state/holdfast`): one line for each run, its uid and
a digest of what its spec executes. Because of the digest, a modified copy of a trusted run is not trusted. Lines are
appended with single writes, so concurrent processes do not overwrite each other; a line that a crash cuts off costs one
`--trust`. A list that cannot be written never stops a run.
"""

import hashlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.datasets import is_url
from holdfast.errors import UsageError
from holdfast.files import open_own_file
from holdfast.runs.store.lookup import RunLocation
from holdfast.score import SCORERS as BUILT_IN_SCORERS
from holdfast.solve import SOLVERS as BUILT_IN_SOLVERS
from holdfast.solve import servers_in
from holdfast.spec import Spec, key_variables, placed_models, variables_in

OPTION = "--trust"
_REFERENCE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_FILE = "runs"
_LIST_BYTES_MAX = 64 << 20
_SHOWN_CHARACTERS = 500
_SHOWN_ITEMS = 20
_VARIABLE = re.compile(r"\$\{(\w+)")


class Executed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a spec makes this machine execute, read and send; each item as the spec writes it. The digest of these
    phrases is stored in the list, so their wording must not change.
    """

    code: tuple[str, ...] = ()
    """Imported modules, and installed solvers, scorers and providers."""
    folder: str = ""
    """Where these modules are searched: the folder of the spec that the run was started with."""
    commands: tuple[str, ...] = ()
    """Programs that are started."""
    servers: tuple[str, ...] = ()
    """URLs that get requests, with the variables whose values are sent there."""
    files: tuple[str, ...] = ()
    """Local files whose content may be sent."""
    more_folders: tuple[str, ...] = ()
    """Where modules are searched too: the folders of files that the spec included."""

    def digest(self) -> str:
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=16).hexdigest()

    def lines(self) -> Iterator[str]:
        """Lines for a terminal, with unprintable characters escaped."""
        searched = " and ".join(map(_readable, (self.folder, *self.more_folders)))
        folder = f" (modules are looked for in {searched})" if self.code and self.folder else ""
        for heading, items, more in (
            ("imports and calls", self.code, folder),
            ("starts", self.commands, ""),
            ("sends requests to", self.servers, ""),
            ("reads", self.files, ""),
        ):
            if items:
                left = f", and {len(items) - _SHOWN_ITEMS} more" if len(items) > _SHOWN_ITEMS else ""
                yield f"  {heading}: {', '.join(map(_readable, items[:_SHOWN_ITEMS]))}{left}{more}"
        if not self.code and not self.commands:
            yield "  it imports no module and starts no program: its solvers and scorers come with Holdfast"


def executed_by(spec: Spec, source: str, included: Sequence[str] = ()) -> Executed:
    """`source`: the spec file that the run was started with, from `run.started`. `included`: the files it included."""
    folder = os.path.dirname(source)
    more = (each for each in map(os.path.dirname, included) if each != folder)
    solvers = [task.solver for task in spec.tasks]
    scorers = [entry for task in spec.tasks for entry in task.scorers]
    servers = [server for solver in solvers for server in servers_in(solver)]
    code = [
        *references_of(spec),
        *(name for name in map(_name_of, solvers) if name not in BUILT_IN_SOLVERS),
        *(name for name in map(_name_of, scorers) if name not in BUILT_IN_SCORERS),
    ]
    commands = [*_commands(solvers), *(shlex.join(map(str, each["command"])) for each in servers if "command" in each)]
    sent: list[str] = []
    for model in placed_models(spec).values():
        late = (name for _, name in variables_in([model.options, model.params]))
        variables = _with_variables((*key_variables(model), *late), model.headers)
        urls = model.base_url
        if not isinstance(urls, list):
            urls = [urls or f"the server of {model.provider}"] if model.provider != "mock" else []
        sent += [f"{url}{variables}" for url in urls]
    sent += [f"{each['url']}{_with_variables((), each.get('headers', {}))}" for each in servers if "url" in each]
    sent += [f"{spec.mirror.url} (mirror)"] if spec.mirror is not None else []
    files: list[str] = []
    for task in spec.tasks:
        sent += [f"the Hub, for {task.dataset.hub} with $HF_TOKEN"] if task.dataset.hub else []
        sent += filter(is_url, task.dataset.paths)
        files += [*(path for path in task.dataset.paths if not is_url(path)), task.dataset.files_root]
        files += [task.fewshot.path] if task.fewshot is not None and task.fewshot.path else []
        files += task.sandbox.files.values() if task.sandbox is not None else []
    distinct = map(_distinct, (commands, sent, files, more))
    return Executed(_distinct(code), folder, *distinct)


def references_of(spec: Spec) -> list[str]:
    """Every `module:function` in a spec: solvers, tools, scorers, extractors, providers."""
    parts = [[task.solver, task.scorers] for task in spec.tasks]
    models = [[model.provider, model.options] for model in placed_models(spec).values()]
    return list(dict.fromkeys(_references([*parts, *models])))


def _references(value: Any) -> Iterator[str]:
    """References at any depth of nested arguments."""
    if isinstance(value, str):
        if _REFERENCE.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        yield from _references([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def require_trust(place: RunLocation, uid: str, executed: Executed, *, given: bool) -> None:
    """UsageError if this user neither made the run nor trusts it. `given`: whether the user passed `--trust`; if so,
    the run is added to the list.
    """
    if given:
        remember(uid, executed)
        return
    known = _read_lines()
    if _entry(uid, executed) in known:
        return
    path = list_path()
    if any(line.startswith(f"{quote(uid, safe='')} ") for line in known):
        why = "its spec has changed since you last ran it, and not by you"
    else:
        why = f"you did not make it, or not from here (its uid is not in {path})"
    arguments = ["holdfast", *sys.argv[1:]]
    end = arguments.index("--") if "--" in arguments else len(arguments)  # `--` ends the options
    command = shlex.join([*arguments[:end], OPTION, *arguments[end:]])
    heading = f"{place.run_id}: {why}; nothing was executed. Its spec:"
    raise UsageError("\n".join([heading, *executed.lines(), f"If you trust its author: {command}"]))


def remember(uid: str, executed: Executed) -> None:
    """Add a run to the list. Only warns if the list cannot be written: the next `resume` then needs `--trust`."""
    line = _entry(uid, executed)
    try:
        known = _read()
        if line not in known.decode("utf-8", "replace").splitlines():
            path = list_path()
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            handle = open_own_file(path, append=True, alone=True)
            try:
                os.write(handle, (f"{line}\n" if not known or known.endswith(b"\n") else f"\n{line}\n").encode())
            finally:
                os.close(handle)
    except OSError as error:
        reason = error.strerror or error
        logging.getLogger("holdfast").warning(
            "%s cannot be written (%s), so that `holdfast resume` will ask for %s; set XDG_STATE_HOME to a folder of "
            "yours to avoid that",
            list_path(),
            reason,
            OPTION,
        )


def copy_trust(uid: str, copy: str, executed: Executed) -> None:
    """Trust the copy of a run, made here under another uid, if the run is trusted."""
    if _entry(uid, executed) in _read_lines():
        remember(copy, executed)


def list_path() -> str:
    return os.path.join(state_folder(), _FILE)


def state_folder() -> str:
    """Where files of this user are kept that belong to no store."""
    above = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(above):  # the XDG specification requires that relative paths are ignored
        above = os.path.expanduser("~/.local/state")
    return os.path.join(above, "holdfast")


def _entry(uid: str, executed: Executed) -> str:
    """A line of the list. The uid comes from an untrusted file: escaping keeps it from adding a second line."""
    return f"{quote(uid, safe='')} {executed.digest()}"


def _read_lines() -> set[str]:
    """The lines of the list; empty if there is none, or if another user could have written it."""
    try:
        return set(_read().decode("utf-8", "replace").splitlines())
    except OSError:
        return set()


def _read() -> bytes:
    """OSError if the file is a link, or not this user's alone."""
    try:
        handle = open_own_file(list_path(), alone=True)
    except FileNotFoundError:
        return b""
    with open(handle, "rb") as file:
        return file.read(_LIST_BYTES_MAX)


def _name_of(entry: Any) -> str:
    return str(next(iter(entry), "")) if isinstance(entry, Mapping) else str(entry)


def _commands(value: Any) -> Iterator[str]:
    """The command lines of `command` solvers, including those nested in other solvers."""
    if isinstance(value, Mapping):
        given = value.get("command")
        if isinstance(given, Mapping) and isinstance(run := given.get("run"), list):
            yield shlex.join(map(str, run)) + _with_variables(map(str, given.get("env") or ()), {})
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _commands(each)


def _with_variables(keys: Iterable[str], headers: Mapping[str, Any]) -> str:
    names = [*keys, *(name for value in headers.values() for name in _VARIABLE.findall(str(value)))]
    return f" with ${', $'.join(dict.fromkeys(names))}" if names else ""


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))


def _readable(text: str) -> str:
    """Quoted if it holds anything but printable characters; cut if it is long."""
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}… ({len(shown)} characters)"
