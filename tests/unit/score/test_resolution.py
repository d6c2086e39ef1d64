"""From an entry of a spec to a scorer, or a refusal that names the place and the nearest name."""

import importlib.metadata
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ScorerError
from holdfast.score import SCORERS, Scorer, exact_match, numeric, resolve, scorer

PLACE = "tasks[0].scorers[1]"
MODULE = """
from holdfast.score import scorer

def close(sample, answer, within: float = 1.0, how: "Unknown" = None):
    return True

@scorer(name="near")
def decorated(sample, answer, **anything):
    return True

class Group:
    @staticmethod
    def inside(sample, answer):
        return True

def wrong():
    return True

NUMBER = 4
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a user wrote."""
    (tmp_path / "my_scorers.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_scorers"


def refusal(entry: Any) -> str:
    with pytest.raises(ScorerError) as caught:
        resolve(entry, PLACE)
    assert str(caught.value).startswith(f"{PLACE}: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_the_built_in_scorers() -> None:
    assert {"choice", "exact_match", "includes", "numeric", "regex", "all_of", "code_tests"} <= set(SCORERS)
    assert resolve("exact_match", PLACE) == exact_match


def test_arguments_are_kept() -> None:
    assert resolve({"numeric": {"tolerance": 0.5}}, PLACE) == Scorer("numeric", numeric.function, {"tolerance": 0.5})
    assert resolve({"numeric": {}}, PLACE) == resolve({"numeric": None}, PLACE) == numeric
    assert numeric.args == {}


def test_one_function_can_be_used_twice_under_two_names() -> None:
    made = resolve({"regex": {"pattern": "x", "name": "has_x"}}, PLACE)
    assert (made.name, made.args) == ("has_x", {"pattern": "x"})


def test_objects_are_taken_as_they_are() -> None:
    def close(sample: Any, answer: Any) -> bool:
        return True

    assert resolve(close, PLACE) == scorer(close)
    assert resolve(scorer(close), PLACE) == scorer(close)


def test_a_function_of_a_module(mine: str) -> None:
    assert resolve(f"{mine}:close", PLACE).name == "close"
    assert resolve(f"{mine}:decorated", PLACE).name == "near"
    assert resolve(f"{mine}:Group.inside", PLACE).name == "inside"
    assert resolve({f"{mine}:close": {"within": 2, "how": object()}}, PLACE).args["within"] == 2
    assert resolve({f"{mine}:decorated": {"x": 1}}, PLACE).args == {"x": 1}


def test_an_entry_point(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("theirs", f"{mine}:close", "holdfast.scorers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    made = resolve({"theirs": {"within": 3.0}}, PLACE)
    assert (made.name, made.args) == ("theirs", {"within": 3.0})
    assert "did you mean 'theirs'?" in refusal("their")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "unknown scorer 'exactmatch'; did you mean 'exact_match'?" in refusal("exactmatch")
    assert "known: acc, acc_bytes, acc_norm, all_of, any_of, at_least, bert_score, bleu, choice" in refusal("zzz")


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    assert "numeric has no argument 'tolerence'; did you mean 'tolerance'?" in refusal({"numeric": {"tolerence": 1}})
    known = "known: extract, extract_target, name, relative, tolerance"
    assert f"numeric has no argument 'zzz'; {known}" in refusal({"numeric": {"zzz": 1}})
    assert "numeric has no argument 'extrct'; did you mean 'extract'?" in refusal({"numeric": {"extrct": "number"}})
    assert "has no argument 'sample'" in refusal({"numeric": {"sample": 1}})


def test_an_argument_of_the_wrong_type_is_refused() -> None:
    assert "argument 'tolerance' is '1e-6': Expected `float`, got `str`" in refusal({"numeric": {"tolerance": "1e-6"}})
    assert "argument 'ignore_case' is 'yes'" in refusal({"exact_match": {"ignore_case": "yes"}})


def test_a_missing_argument_is_refused() -> None:
    assert "regex needs the argument 'pattern'" in refusal("regex")
    assert "regex needs the argument 'pattern'" in refusal(SCORERS["regex"])


def test_a_pattern_that_is_none_is_refused_before_the_run() -> None:
    assert "the pattern '(' is not valid" in refusal({"regex": {"pattern": "("}})
    assert "has no group 1" in refusal({"regex": {"pattern": "x", "group": 1}})
    assert "has no group 'n'" in refusal({"regex": {"pattern": "(x)", "group": "n"}})


def test_what_cannot_be_imported_is_refused(mine: str) -> None:
    assert "'my_scorer' cannot be imported (ModuleNotFoundError" in refusal("my_scorer:close")
    assert "'my_broken' cannot be imported (ZeroDivisionError" in refusal("my_broken:close")
    assert "module 'my_scorers' has no 'closed'; did you mean 'close'?" in refusal(f"{mine}:closed")
    assert "cannot be imported" in refusal(":close")
    assert "has no ''" in refusal(f"{mine}:")


def test_what_is_no_scorer_is_refused(mine: str) -> None:
    assert "expected a scorer or a function, found a int" in refusal(f"{mine}:NUMBER")
    assert "wrong takes (); a scorer takes (sample, answer)" in refusal(f"{mine}:wrong")
    assert "expected one name with its arguments, found 2: numeric, choice" in refusal({"numeric": {}, "choice": {}})
    assert "expected {name: {argument: value}}" in refusal({"numeric": 3})
    assert "expected a scorer or a function, found a int" in refusal(3)
    assert "expected a scorer or a function, found a NoneType" in refusal(None)


@pytest.mark.parametrize(("named", "name"), [("holdfast.score.texts:includes", "includes"), ("includes", "includes")])
def test_built_ins_are_found_where_0_1_0_had_them(named: str, name: str) -> None:
    assert resolve(named, "scorers[0]") == resolve(name, "scorers[0]")
    extracted = resolve({"exact_match": {"extract": "holdfast.score.extracting:last_line"}}, "scorers[0]")
    assert extracted.extract == resolve({"exact_match": {"extract": "last_line"}}, "scorers[0]").extract


def test_a_module_rewritten_within_the_second_runs_its_new_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    source = tmp_path / "rewritten_scorer.py"
    now = time.time() + 3600  # the same for both texts, and later than the bytecode however busy the machine is
    for value in (0, 1):
        source.write_text(f"def own(sample, answer):\n    return {value}\n")
        os.utime(source, (now, now))
        importlib.invalidate_caches()
        found = resolve("rewritten_scorer:own", "scorers[0]")
        assert found.function(None, "") == value
        del sys.modules["rewritten_scorer"]
