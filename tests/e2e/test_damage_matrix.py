"""Whatever happens to a file of a run: every command tells the truth or that the run is damaged; `run` and `resume`
continue or refuse. A traceback, or a number that differs from the truth with exit 0, is a failure.
"""

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest

from holdfast.runs import opened
from holdfast.runs.store.damage import DamageReport
from tests import matrix_model
from tests.damage_matrix import OF_FILES, Case, Matrix, Way, file_of
from tests.matrix_oracle import EXPORT, READING, VERIFY, Command
from tests.matrix_runs import DONE, KILLED, make_runs

ORIGINALS = ("journal", "first segment", "middle segment", "last segment", "plan.jsonl.zst", "data.jsonl.zst", "blob")
DERIVED = ("spec.yaml", "lease.json", "lock", "log.jsonl", ":index", ":catalog")
EVERY = [(run, role) for run in (DONE, KILLED) for role in (*ORIGINALS, "started.jsonl", "blobs", *DERIVED)]
QUICK = [
    *((DONE, role) for role in ("last segment", "plan.jsonl.zst", ":index")),
    *(pytest.param(DONE, role, marks=pytest.mark.long) for role in ("journal", "blob")),
    *(pytest.param(DONE, role, marks=pytest.mark.long) for role in ("first segment", "middle segment")),
    *(pytest.param(DONE, role, marks=pytest.mark.long) for role in ("data.jsonl.zst", "started.jsonl")),
    (KILLED, "last segment"),
    *(pytest.param(DONE, role, marks=pytest.mark.long) for role in DERIVED if role != ":index"),
    *(pytest.param(KILLED, role, marks=pytest.mark.long) for role in ("first segment", "lease.json", ":index")),
]
QUICK_CUTS, QUICK_FLIPS = 2, 2
SHARE = 3
"""In the long version each flip is shown to one command in so many, in turn."""


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    place = tmp_path_factory.mktemp("matrix")
    return Matrix(make_runs(place), place)


def check(matrix: Matrix, cases: Iterator[tuple[Case, Sequence[Command], str]]) -> None:
    found = [problem for case, commands, verb in cases for problem in matrix.problems(case, commands, verb)]
    assert not found, f"{len(found)} problems:\n" + "\n".join(found[:40])


def cases_of(matrix: Matrix, run: str, role: str) -> list[Case]:
    file = file_of(matrix.runs[run], role)
    if not file:
        pytest.skip(f"a run has no {role}")
    return matrix.cases(run, file)


@pytest.mark.parametrize(("run", "role"), QUICK)
def test_no_command_lies_about_a_damaged_file(matrix: Matrix, run: str, role: str) -> None:
    every = cases_of(matrix, run, role)
    cuts = [case for case in every if case.way.name.startswith("cut")]
    flips = [case for case in every if case.way.name.startswith("bit")]
    whole = [case for case in every if case not in cuts and case not in flips]
    chosen = [*whole, *cuts[:: max(1, len(cuts) // QUICK_CUTS)], *flips[:QUICK_FLIPS]]
    check(matrix, ((case, READING, ("run", "", "resume", "")[number % 4]) for number, case in enumerate(chosen)))


@pytest.mark.long
@pytest.mark.parametrize(("run", "role"), EVERY)
def test_no_command_lies_about_any_damage_to_a_file(matrix: Matrix, run: str, role: str) -> None:
    def rows() -> Iterator[tuple[Case, Sequence[Command], str]]:
        for number, case in enumerate(cases_of(matrix, run, role)):
            verb = ("run", "resume")[number // 5 % 2] if number % 5 == 0 or case.way in OF_FILES else ""
            is_flip = case.way.name.startswith("bit")
            commands = [*READING[number % SHARE :: SHARE], VERIFY] if is_flip else READING
            yield case, commands, verb

    check(matrix, rows())


@pytest.mark.parametrize("run", [DONE, KILLED])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_an_undamaged_run_has_no_problems(matrix: Matrix, run: str, warm: bool) -> None:
    nothing = Way("untouched", lambda path, other: None)
    check(matrix, iter([(Case(run, "spec.yaml", nothing, warm), READING, "run")]))


def test_the_truth_is_what_the_model_said(matrix: Matrix) -> None:
    """So that the matrix does not compare one wrong number with another."""
    lines = EXPORT.look(matrix.runs[DONE].copy(matrix.new_place())).data
    assert len(lines) == 60
    for line in lines:
        number = int(line["sample_id"][1:])
        told = matrix_model.reply_to(line["model"], f"{number} + {7 * number}")
        scores = {} if told is None else dict.fromkeys(("numeric", "exact_match"), told == str(8 * number))
        assert (line["output"], line["scores"]) == (told, scores)
        assert line["status"] == ("failed" if told is None else "finished")


def test_the_matrix_finds_lies_when_originals_are_not_checked(matrix: Matrix) -> None:
    """Negative control: without the check, a segment that is gone hides answers, and commands exit with 0."""
    case = Case(DONE, file_of(matrix.runs[DONE], "middle segment"), OF_FILES[0], warm=False)
    with patch.object(opened, "find_damage", lambda *_, **__: DamageReport()):
        found = matrix.problems(case, READING)
    for command in ("export", "leaderboard", "gate low", "Python"):
        assert any(f" {command}: lie: exit 0" in problem for problem in found), (command, found)
    assert matrix.problems(case, READING) == []
