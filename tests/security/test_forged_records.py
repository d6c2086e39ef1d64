"""Records with a right checksum that Holdfast cannot have written: anyone who has a run can forge them. No command ends
in a traceback, and none counts them.
"""

from collections.abc import Iterator

import pytest

from holdfast.records import decoder
from holdfast.records.facts import FACTS
from holdfast.records.line import is_time
from tests.forged import KEY, NUMBERS, RIGHT, RUN, Case, Forgery
from tests.matrix_oracle import DAMAGED, Said, last_lines, run_command
from tests.matrix_runs import Copy

COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("show", RUN, "--json"),
    "show text": ("show", RUN),
    "show KEY": ("show", RUN, KEY),
    "export": ("export", RUN),
    "export events": ("export", RUN, "--events"),
    "report": ("report", RUN, "--json"),
    "report html": ("report", RUN, "--format", "html"),
    "ls": ("ls",),
    "compare": ("compare", RUN, "OTHER", "--json"),
    "cost": ("cost", RUN, "--json"),
    "doctor": ("doctor", RUN),
    "doctor all": ("doctor",),
    "leaderboard": ("leaderboard", RUN),
    "score --list": ("score", RUN, "--list", "--json"),
    "verify": ("verify", RUN),
    "verify --scores": ("verify", RUN, "--scores"),
}
CONTINUING = {
    "resume": ("resume", RUN),
    "run": ("run", "../eval.yaml", "--id", RUN, "--set", "tasks.sums.repeats=2"),
    "retry": ("retry", RUN),
    "fork": ("fork", RUN, "--id", "f"),
    "recover": ("recover", "runs/sums/r", "--output", "new", "--no-events"),
}
TRUE_CODES = (0, 1)
QUICK_EACH, LONG_PARTS, SHARE = 97, 8, 7


@pytest.fixture(scope="module")
def forgery(tmp_path_factory: pytest.TempPathFactory) -> Forgery:
    return Forgery(tmp_path_factory.mktemp("forged"))


def look(forgery: Forgery, copy: Copy, name: str) -> Said:
    command = {**COMMANDS, **CONTINUING}[name]
    return run_command(copy, *(str(forgery.made.folder) if each == "OTHER" else each for each in command))


def problems(forgery: Forgery, case: Case, names: Iterator[str]) -> Iterator[str]:
    copy = forgery.copy(case)
    verified = look(forgery, copy, "verify")
    yield from _problems_of("verify", verified)
    if case.is_number and case.value in NUMBERS and str(case) not in RIGHT and verified.code != DAMAGED:
        yield f"verify: exit {verified.code}, though no such number can have been written"
    for name in names:
        said = look(forgery, copy, name)
        yield from _problems_of(name, said)


def _problems_of(name: str, said: Said) -> Iterator[str]:
    if said.crash:
        yield f"{name}: traceback: {last_lines(said.crash)}"
    elif said.code not in TRUE_CODES and name != "verify" and not said.errors and not said.data:
        yield f"{name}: exit {said.code} without a word"


def check(found: list[str]) -> None:
    assert not found, f"{len(found)} problems:\n" + "\n".join(found[:60])


def test_the_run_has_every_type_of_record_and_all_commands_read_it(forgery: Forgery) -> None:
    assert {case.kind for case in forgery.cases()} == set(FACTS)
    copy = forgery.copy(None)
    for name in (*COMMANDS, *CONTINUING):
        said = look(forgery, copy, name)
        assert not said.crash, (name, said.crash)
        assert said.code in TRUE_CODES, (name, said)


def show_cases(forgery: Forgery, first: int, each: int) -> None:
    """Show every so many cases to some of the commands, in turn: each case to all of them would take hours."""
    every = [*COMMANDS, *CONTINUING]
    found = []
    for number, case in enumerate(list(forgery.cases())[first::each]):
        chosen = [name for place, name in enumerate(every) if (place + number) % SHARE == 0]
        found += [f"{case}: {problem}" for problem in problems(forgery, case, iter(chosen))]
    check(found)


@pytest.mark.long
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_no_command_is_fooled_by_any_forged_record(forgery: Forgery, part: int) -> None:
    show_cases(forgery, part, LONG_PARTS)


def test_no_command_is_fooled_by_forged_records(forgery: Forgery) -> None:
    show_cases(forgery, 0, QUICK_EACH)


def test_without_the_check_a_forged_record_ends_in_a_traceback(
    forgery: Forgery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    case = next(each for each in forgery.cases() if str(each) == "sample.finished d.o = empty text")
    copy = forgery.copy(case)
    said = look(forgery, copy, "show")
    assert (said.code, said.crash) == (DAMAGED, "")
    assert len(said.errors) == 1
    monkeypatch.setattr(decoder, "DamagedError", ValueError)
    assert "was not written by Holdfast" in look(forgery, copy, "show").crash


@pytest.mark.parametrize("at", ["1970-01-01T00:00:00Z", "2024-02-29T23:59:59.123456Z", "9999-12-31T00:00:00.1Z"])
def test_a_time_is_a_time(at: str) -> None:
    assert is_time(at)


@pytest.mark.parametrize(
    "at", ["", "2023-02-29T00:00:00Z", "2024-04-31T00:00:00Z", "2024-01-01T24:00:00Z", "1899-12-31T00:00:00Z", "٢024"]
)
def test_what_is_no_time_is_none(at: str) -> None:
    assert not is_time(at)
