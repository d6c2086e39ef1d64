"""From an error to one sentence and the exit code of the contract."""

from pathlib import Path

import pytest

from holdfast import errors
from holdfast.cli.errors import explain
from holdfast.errors import DataError, DriftError, HoldfastError, ScorerError
from holdfast.models import UnknownProviderError
from holdfast.records.facts import Change
from holdfast.runs import RunLocation, RunOutcome
from holdfast.spec import Model, Spec, Task


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SpecError("x"), 2),
        (errors.UsageError("x"), 2),
        (errors.BadNameError("x"), 2),
        (DataError("sums.jsonl", "x", 3), 2),
        (ScorerError("tasks[0].scorers[0]", "x"), 2),
        (UnknownProviderError("x"), 2),
        (errors.HeldError("x"), 4),
        (errors.JournalError("x"), 5),
        (errors.FormatError("x"), 5),
        (errors.StoppedError("x"), 5),
        (errors.FencedError("x"), 4),
        (errors.DiskError("x"), 8),
        (errors.WriteFailedError("x"), 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(error: HoldfastError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(error) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"holdfast: {error}\n")


def test_drift_shows_every_difference_with_both_values_and_its_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = [Change("seed", 0, 7, "result"), Change("tasks.sums.prompt", "[b]a", "[/INST]", "result")]
    assert explain(DriftError("x", changes)) == 3
    said = capsys.readouterr().err
    assert "Nothing was changed" in said
    assert "seed (result)\n  stored: 0\n  given:  7\n" in said
    assert "tasks.sums.prompt (result)\n  stored: '[b]a'\n  given:  '[/INST]'\n" in said


def test_drift_can_be_read_in_80_columns_and_long_values_show_where_they_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    alike = "Answer the question below as exactly as you can, and say nothing else. " * 5
    field = "models.a-model-with-a-long-name-of-its-own.options.of.many.parts"
    explain(DriftError("x", [Change(field, f"{alike}Be brief.{alike}", f"{alike}Be kind.{alike}", "result")]))
    lines = capsys.readouterr().err.splitlines()
    assert f"{field} (result)" in lines
    assert max(map(len, lines)) <= 80
    (stored,) = [line for line in lines if line.startswith("  stored: ")]
    (given,) = [line for line in lines if line.startswith("  given:  ")]
    assert ("Be brief." in stored, "Be kind." in given) == (True, True)
    assert (stored[10], stored[-1], given[-1]) == ("…", "…", "…")


@pytest.mark.parametrize(
    ("failed", "allowed", "interrupted", "code"),
    [
        (0, 0.0, False, 0),
        (1, 0.0, False, 1),
        (5, 5, False, 0),
        (6, 5, False, 1),
        (10, 0.1, False, 0),
        (11, 0.1, False, 1),
        (1, 1, False, 0),
        (2, 1, False, 1),
        (50, 0.0, True, 130),
        (0, 0.0, True, 130),
    ],
)
def test_failures_beyond_what_is_allowed_exit_1_and_an_interruption_130(
    tmp_path: Path, failed: int, allowed: float, interrupted: bool, code: int
) -> None:
    place = RunLocation(str(tmp_path), "e", "r", str(tmp_path))
    model, task = Model(name="m", provider="mock"), Task(name="t")
    spec = Spec(models=[model], tasks=[task], fail_on_error=allowed)
    assert RunOutcome(place, spec, 100 - failed, failed, 0, interrupted).exit_code() == code
