"""`holdfast compare`: what changed, on the keys that both have, with figures that scipy gives too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from tests.e2e.commands import call, write_spec
from tests.e2e.known_answers import marks, once, run_known
from tests.tango import tango_interval

SHIFTED = {"options": {"reply": "9"}}
CLOSE = 1e-9


def made(folder: Path, run_id: str, rows: int = 6, **changes: Any) -> None:
    path = write_spec(folder, rows, **changes)
    assert call("run", path, "--id", run_id, "--store", folder / "runs", cwd=folder).code == 0


def compared(folder: Path, *arguments: str) -> dict[str, Any]:
    done = call("compare", *arguments, "--store", folder / "runs", "--json", cwd=folder)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def close(value: Any) -> Any:
    return pytest.approx(value, abs=CLOSE)


def test_right_or_wrong_is_compared_with_mcnemars_test_and_adjusted_with_holms(tmp_path: Path) -> None:
    one, two, three = once(0, 1, 2, of=12), once(0, 1, 3, 4, 5, 6, 7, 8, 9, of=12), once(0, 2, 3, of=12)
    run_known(tmp_path, {"one": one, "two": two, "three": three})
    found = compared(tmp_path, "one", "two", "three")["comparisons"]
    ps = []
    for each, other in zip(found, ("two", "three"), strict=True):
        before, after = (np.ravel(list(marks(tmp_path, run).values())) for run in ("one", other))
        steps = after - before
        gains, losses = int((steps > 0).sum()), int((steps < 0).sum())
        ps.append(scipy_stats.binomtest(min(gains, losses), gains + losses).pvalue)
        low, high = tango_interval(gains, losses, 12)
        assert (each["first"]["run"], each["second"]["run"], each["test"]) == ("one", other, "mcnemar")
        assert (each["common"], each["samples"], each["exact"]) == (12, 12, True)
        assert (each["wins"], each["losses"], each["ties"]) == (gains, losses, 12 - gains - losses)
        assert [each["mean_first"], each["mean_second"]] == [close(before.mean()), close(after.mean())]
        assert each["difference"]["mean"] == close(steps.mean())
        assert [each["difference"]["low"], each["difference"]["high"]] == pytest.approx([low, high], abs=1e-6)
        assert each["effect"] == close(steps.mean() / steps.std(ddof=1))
        assert each["p"] == close(ps[-1])
    assert [each["adjusted_p"] for each in found] == [close(min(1, 2 * ps[0])), close(max(ps[1], min(1, 2 * ps[0])))]
    kinder = compared(tmp_path, "one", "two", "three", "--adjust", "bh")
    expected = scipy_stats.false_discovery_control(ps)
    assert [each["adjusted_p"] for each in kinder["comparisons"]] == [close(each) for each in expected]
    assert kinder["adjusted"] == "bh"


def test_marks_with_repeats_are_compared_by_sample_with_a_permutation_test(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    said = {
        voice: {f"s{i}": [f"{mark:.2f}" for mark in random.random(3) + shift] for i in range(8)}
        for voice, shift in (("one", 0.0), ("two", 0.4))
    }
    run_known(tmp_path, said, scorers=["talk:mark"])
    (found,) = compared(tmp_path, "one", "two")["comparisons"]
    before, after = (marks(tmp_path, run, "mark") for run in ("one", "two"))
    steps = np.array([np.mean(after[sample]) - np.mean(before[sample]) for sample in before])
    expected = scipy_stats.permutation_test((steps,), np.mean, permutation_type="samples", n_resamples=np.inf, axis=-1)
    interval = scipy_stats.ttest_1samp(steps, 0).confidence_interval()
    assert (found["test"], found["common"], found["samples"]) == ("permutation", 24, 8)
    assert found["p"] == close(expected.pvalue)
    assert found["difference"]["mean"] == close(steps.mean())
    assert [found["difference"]["low"], found["difference"]["high"]] == [close(interval.low), close(interval.high)]
    assert found["effect"] == close(steps.mean() / steps.std(ddof=1))


def test_what_a_reducer_makes_of_repeats_is_compared_by_sample(tmp_path: Path) -> None:
    one = {"a": ["1", "0", "0"], "b": ["1", "1", "0"], "c": ["0", "0", "0"]}
    two = {"a": ["1", "1", "1"], "b": ["0", "0", "0"], "c": ["1", "1", "0"]}
    run_known(tmp_path, {"one": one, "two": two}, reduce=["mean", "pass@2"])
    plain, reduced = compared(tmp_path, "one", "two")["comparisons"]
    assert (plain["scorer"], reduced["scorer"]) == ("numeric", "numeric pass@2")
    assert (plain["common"], reduced["common"], reduced["samples"]) == (9, 3, 3)
    shifts = {each["sample_id"]: each for each in reduced["changed"]}
    assert {sample: each["before"] for sample, each in shifts.items()} == close({"a": 1 - 1 / 3, "b": 1.0, "c": 0.0})
    assert {sample: each["after"] for sample, each in shifts.items()} == close({"a": 1.0, "b": 0.0, "c": 1.0})
    assert reduced["difference"]["mean"] == close((1 / 3 - 1 + 1) / 3)
    assert (reduced["wins"], reduced["losses"], reduced["ties"]) == (2, 1, 0)
    (only,) = compared(tmp_path, "one", "two", "--scorer", "numeric pass@2")["comparisons"]
    assert only["scorer"] == "numeric pass@2"


def test_two_runs_are_compared_on_the_keys_that_both_have(tmp_path: Path) -> None:
    made(tmp_path, "one", 6)
    made(tmp_path, "two", 4, model=SHIFTED)
    found = compared(tmp_path, "one", "two")
    (numeric,) = found["comparisons"]
    assert (numeric["scorer"], numeric["common"], numeric["only_first"], numeric["only_second"]) == ("numeric", 4, 2, 0)
    changed = {shift["sample_id"]: (shift["output_before"], shift["output_after"]) for shift in numeric["changed"]}
    assert set(changed.values()) <= {("8", "9")}
    assert numeric["wins"] + numeric["losses"] == len(changed)
    assert numeric["ties"] == 4 - len(changed)
    assert (found["warnings"], found["comparable"]) == ([], True)
    told = call("compare", "one", "two", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert "sums numeric, one and two: compared on 4 keys of 4 samples; 2 only in one" in told


def test_keys_without_a_score_are_left_out_and_why_is_reported(tmp_path: Path) -> None:
    """Two refuses a key; its scorer breaks on another answer, and says nothing of a third."""
    (tmp_path / "fussy.py").write_text(
        "import holdfast.models\n"
        "async def model(request):\n"
        "    last = request.messages[-1]['content']\n"
        "    if '1 + 7' in last:\n"
        "        raise holdfast.models.ModelError('bad_request', 'no')\n"
        "    return last\n"
        "def length(sample, answer):\n"
        "    if '2 + 14' in answer.text:\n"
        "        raise ValueError('no')\n"
        "    return None if '3 + 21' in answer.text else len(answer.text)\n"
    )
    scored = {"scorers": ["fussy:length"], "sample_retries": 0}
    made(tmp_path, "one", 5, task=scored)
    path = write_spec(tmp_path, 5, task=scored, model={"provider": "fussy:model", "options": {}})
    assert call("run", path, "--id", "two", "--store", tmp_path / "runs", cwd=tmp_path).code == 1
    (found,) = compared(tmp_path, "one", "two")["comparisons"]
    assert (found["common"], found["missing_first"]) == (2, {})
    assert found["missing_second"] == {"failed": 1, "scorer_failed": 1, "no_score": 1}
    told = call("compare", "one", "two", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert "left out of two: 1 failed, 1 scorer failed, 1 no score" in told


def test_rows_that_differ_are_reported(tmp_path: Path) -> None:
    made(tmp_path, "one")
    path = write_spec(tmp_path)
    data = tmp_path / "sums.jsonl"
    first, *rest = data.read_text().splitlines()
    data.write_text("\n".join([first.replace('"question": "', '"question": "0 + '), *rest]) + "\n")
    assert call("run", path, "--id", "two", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    found = compared(tmp_path, "one", "two")
    (doubt,) = found["warnings"]
    assert "one and two are not comparable on 1 sample: rows with the same id differ" in doubt
    assert found["comparable"] is False
    said = call("compare", "one", "two", "--store", tmp_path / "runs", cwd=tmp_path)
    assert (said.code, doubt in said.err) == (0, True)


def test_equal_runs_show_no_change_and_no_doubt(two_runs: Path) -> None:
    found = compared(two_runs, "one", "two")
    assert found["warnings"] == []
    assert [(each["changed"], each["p"], each["effect"]) for each in found["comparisons"]] == [([], 1.0, None)]


def test_other_scorers_of_the_same_name_are_reported(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two", task={"scorers": [{"numeric": {"tolerance": 100}}]})
    found = compared(tmp_path, "one", "two")
    (doubt,) = found["warnings"]
    assert "not comparable by numeric: the scorers differ" in doubt
    assert "to score the older one again: holdfast score one" in doubt
    assert found["comparable"] is False


def test_variants_and_models_of_one_run_are_compared(tmp_path: Path) -> None:
    path = write_spec(tmp_path, 5)
    spec = yaml.safe_load(path.read_text())
    spec["tasks"][0]["prompt"] = {"short": "{question}", "long": "Think. {question}"}
    spec["models"].append({"name": "nine", "provider": "mock", **SHIFTED})
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert call("run", path, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    found = [
        (each["first"]["task"], each["first"]["model"], each["second"]["task"], each["second"]["model"])
        for each in compared(tmp_path, "r")["comparisons"]
    ]
    assert found == [
        ("sums+short", "arith", "sums+short", "nine"),
        ("sums+long", "arith", "sums+long", "nine"),
        ("sums+short", "arith", "sums+long", "arith"),
        ("sums+short", "nine", "sums+long", "nine"),
    ]


def test_a_person_sees_both_answers_of_what_changed(tmp_path: Path) -> None:
    made(tmp_path, "one")
    made(tmp_path, "two", model=SHIFTED)
    done = call("compare", "one", "two", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("sums/arith, numeric: ")
    assert lines[2].split("  ")[0] == "task"
    assert len([title for title in lines[2].split("  ") if title]) == 8
    wide = call("compare", "one", "two", "--all", "--store", tmp_path / "runs", cwd=tmp_path).out.splitlines()
    assert {"difference", "p", "adjusted", "dz", "wins", "losses", "ties"} <= set(wide[2].split())
    assert "    - 8" in lines
    assert "    + 9" in lines
    none = call("compare", "one", "two", "--limit", "0", "--store", tmp_path / "runs", cwd=tmp_path)
    assert "    + 9" not in none.out.splitlines()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    made(folder, "one")
    made(folder, "two")
    return folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("one",), "name a second run"),
        (("one", "two", "--scorer", "nope"), "--scorer nope"),
        (("one", "two", "--adjust", "hulm"), "did you mean 'holm'?"),
        (("one", "nope"), "nope"),
        (("one", "two", "--evaluation", "nope"), "has no evaluation"),
    ],
)
def test_what_cannot_be_compared_is_reported(two_runs: Path, arguments: tuple[str, ...], said: str) -> None:
    done = call("compare", *arguments, "--store", two_runs / "runs", cwd=two_runs)
    assert (done.code, said in done.err) == (2, True), done.said
