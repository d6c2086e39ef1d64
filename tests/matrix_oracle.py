"""What every command must say about a damaged run: the truth, or that it is damaged. Never another number with exit 0.

The truth is what the commands say of an undamaged copy. All commands run in this process: their entry point is called
as the `holdfast` script calls it, and an exception that gets out of it is a traceback that a user would have seen.
"""

import csv
import io
import json
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from typer.main import get_command

import holdfast
from holdfast.cli import main
from holdfast.cli.errors import explain
from holdfast.errors import HoldfastError
from tests import matrix_model
from tests.e2e.commands import call
from tests.matrix_runs import KEY, Copy

FAILED_SAMPLES, DRIFTED, DAMAGED = 1, 3, 5
_VOLATILE = frozenset({"bytes", "folder", "place", "age_seconds", "reason", "began", "host"})
"""Fields that say where a copy is, how large it is, or how it is doing: no numbers of the run."""
_SENTENCES = ("holdfast: ", "warning: ", "error: ")
_COMMAND = get_command(main.app)  # made once: making it takes longer than most commands


class Said(NamedTuple):
    """How a command ended: its exit code, what it printed as data, and its lines on standard error."""

    code: int
    data: Any
    errors: tuple[str, ...] = ()
    crash: str = ""


class Command(NamedTuple):
    """One way to look at a run."""

    name: str
    look: Callable[[Copy], Said]


def run_command(copy: Copy, *arguments: str | Path, parse: Callable[[str], Any] = str) -> Said:
    try:
        with patch.object(main, "app", _COMMAND):
            done = call(*arguments, "--store", copy.store, cwd=copy.place, env=copy.environment)
    except Exception:  # noqa: BLE001 - a traceback is what we look for
        return Said(-1, None, (), traceback.format_exc())
    lines = tuple(line for line in done.err.splitlines() if line.strip())
    try:
        data = parse(done.out) if done.out else None
    except ValueError as error:
        return Said(done.code, None, lines, f"what it printed cannot be parsed: {error}: {done.out[:200]!r}")
    return Said(done.code, data, lines, done.err if "Traceback" in done.err else "")


def _command(name: str, *arguments: str, parse: Callable[[str], Any] = json.loads) -> Command:
    def look(copy: Copy) -> Said:
        given = [
            copy.of.name if each == "RUN" else str(copy.of.other) if each == "OTHER" else each for each in arguments
        ]
        return run_command(copy, *given, parse=parse)

    return Command(name, look)


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def _rows(text: str) -> list[Any]:
    return list(csv.DictReader(io.StringIO(text)))


def _python(copy: Copy) -> Said:
    """The same through Python. A warning counts as what a command says on standard error."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with (
                patch.dict("os.environ", copy.environment),
                holdfast.open_run(copy.of.name, store=str(copy.store)) as run,
            ):
                report = msgspec.to_builtins(run.report())
                data = {"report": report, "samples": _plain(run.samples()), "failed": _plain(run.failed())}
    except HoldfastError as error:
        return Said(_code_of(error), None, (str(error),))
    except Exception:  # noqa: BLE001 - a traceback is what we look for
        return Said(-1, None, (), traceback.format_exc())
    said = tuple(str(each.message) for each in told if not issubclass(each.category, ResourceWarning))
    return Said(DAMAGED if said else 0, data, said)


def _plain(table: Any) -> list[Any]:
    return [msgspec.to_builtins(line) for line in table]


def _code_of(error: HoldfastError) -> int:
    with patch("sys.stderr", io.StringIO()):
        return explain(error)


PYTHON = Command("Python", _python)
EXPORT = _command("export", "export", "RUN", parse=_lines)
VERIFY = _command("verify", "verify", "RUN", "--json")
DOCTOR = _command("doctor", "doctor", "RUN", "--json")
_GATE = ("gate", "RUN", "--scorer", "numeric", "--missing-max", "60", "--if-unsure", "pass", "--json", "--at-least")
READING = (
    _command("show", "show", "RUN", "--json"),
    _command("show KEY", "show", "RUN", KEY, "--json"),
    EXPORT,
    _command("report", "report", "RUN", "--json"),
    _command("report junit", "report", "RUN", "--format", "junit", parse=str),
    _command("export csv", "export", "RUN", "--format", "csv", parse=_rows),
    _command("leaderboard", "leaderboard", "RUN", "--json"),
    _command("compare", "compare", "RUN", "--json"),
    _command("compare with another", "compare", "RUN", "OTHER", "--json"),
    _command("gate low", *_GATE, "0.1"),
    _command("gate high", *_GATE, "0.99"),
    _command("cost", "cost", "RUN", "--json"),
    _command("ls", "ls", "--json"),
    _command("score --list", "score", "RUN", "--list", "--json"),
    _command("recover --list", "recover", "--list", "--json"),
    PYTHON,
    VERIFY,
    DOCTOR,
)


class Truth:
    """What the commands say of copies that are not damaged; several if nobody can tell which one it was."""

    def __init__(self, *copies: Copy) -> None:
        self._copies = copies
        self._known: dict[str, list[Said]] = {}

    def of(self, command: Command) -> Sequence[Said]:
        if command.name not in self._known:
            self._known[command.name] = [command.look(copy) for copy in self._copies]
            crashes = [said.crash for said in self._known[command.name] if said.crash]
            assert not crashes, f"{command.name} of an undamaged run: {crashes}"
        return self._known[command.name]

    def code(self, command: Command) -> int:
        return self.of(command)[0].code


def problems_of_reading(command: Command, said: Said, truth: Truth, *, is_derived: bool) -> Iterator[str]:
    """`is_derived`: only a file was damaged that can be made again from the originals."""
    if said.crash:
        yield f"traceback: {last_lines(said.crash)}"
        return
    known = truth.of(command)
    if command is DOCTOR and said.code == 0 and is_derived:
        return  # it may name what is wrong with a derived file
    if any(said.code == each.code and same(_without_tail(command, said.data), each.data) for each in known):
        return
    if said.code == known[0].code:
        yield f"lie: exit {said.code}, but {first_difference(known[0].data, said.data)}"
    elif said.code != DAMAGED or is_derived:
        yield f"exit {said.code} (the truth has {known[0].code}): {' / '.join(said.errors)[:300]}"
    else:
        yield from _problems_of_refusal(command, said, known[0])


def _without_tail(command: Command, data: Any) -> Any:
    """`verify` also names a last record that was cut off while it was written, which nobody was promised, and a second
    copy of the start of the run that is damaged.
    """
    if (
        command is not VERIFY
        or not data
        or not all("torn" in each or "started.jsonl" in each for each in data["warnings"])
    ):
        return data
    return {**data, "warnings": [], "keys": []}


def _problems_of_refusal(command: Command, said: Said, truth: Said) -> Iterator[str]:
    """One sentence for each damage, and nothing invented in what is printed all the same."""
    if command is not VERIFY and command is not DOCTOR and not said.errors:
        yield f"exit {said.code} without a word"
    strange = [line for line in said.errors if not line.startswith(_SENTENCES)]
    if strange and command is not PYTHON:
        yield f"exit {said.code} with a line that is no sentence of ours: {strange[0][:300]}"
    if command is EXPORT and said.data is not None:
        right = {line["key"]: line for line in truth.data}
        for line in said.data:
            if line["key"] not in right or (
                line["status"] == "finished" and line["output"] != right[line["key"]]["output"]
            ):
                yield f"exit {said.code}, and it invents an answer: {line['key']}"


def answers_of(data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By key: what a run that was continued must have in common with one that was never damaged."""
    return {line["key"]: (line["status"], line["output"], line["scores"]) for line in data}


class Continued(NamedTuple):
    """How a run ended that was started again, and the keys that its models were asked for."""

    said: Said
    asked: frozenset[str]


def continue_run(copy: Copy, verb: str) -> Continued:
    matrix_model.asked.clear()
    if verb == "run":
        said = run_command(copy, "run", copy.of.spec, "--id", copy.of.name)
    else:
        said = run_command(copy, "resume", copy.of.name)
    return Continued(said, frozenset(map(_key_of, matrix_model.asked)))


def _key_of(asked: str) -> str:
    """ "small: Compute: 3 + 21" is the key of sample s0003."""
    model, question = asked.split(": ", 1)
    return f"sums/{model}/s{int(matrix_model.SUM.findall(question)[0][0]):04d}/1"


def same(left: Any, right: Any) -> bool:
    return first_difference(left, right) == ""


def first_difference(truth: Any, found: Any, at: str = "") -> str:
    """Where two outputs differ, but for volatile fields; empty if nowhere."""
    if isinstance(truth, dict) and isinstance(found, dict):
        for name in {**truth, **found}:
            if name not in _VOLATILE:
                missing = name not in truth or name not in found
                where = f"{at}.{name}"
                difference = f"{where} is missing" if missing else first_difference(truth[name], found[name], where)
                if difference:
                    return difference
        return ""
    if isinstance(truth, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip(truth, found, strict=False)):
            difference = first_difference(one, other, f"{at}[{index}]")
            if difference:
                return difference
        return "" if len(truth) == len(found) else f"{at} has {len(found)} entries instead of {len(truth)}"
    return "" if truth == found else f"{at} is {str(found)[:150]!r} instead of {str(truth)[:150]!r}"


def last_lines(crash: str) -> str:
    lines = crash.strip().splitlines()
    own = [line.strip() for line in lines if "/holdfast/" in line]
    return f"{lines[-1][:200]} ({own[-1] if own else ''})"
