"""The digest of a scorer's code: the same while the code is the same, another when it changes."""

import functools
import importlib.util
import linecache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from holdfast.score import Scorer, exact_match, identity, resolve, scorer, source_digest
from holdfast.score.files import scorers_in


def load(path: Path, text: str) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def made(source: str, module: str = "__main__", file: str = "<stdin>") -> FunctionType:
    """A function `f` as a shell would make it."""
    space: dict[str, Any] = {"__name__": module}
    exec(compile(source, file, "exec"), space)
    function = space["f"]
    assert isinstance(function, FunctionType)
    return function


def test_the_whole_module_file_counts(tmp_path: Path) -> None:
    one = load(tmp_path / "one.py", "LIMIT = 1\ndef f(sample, answer): return LIMIT\ndef g(sample, answer): return 2\n")
    before = source_digest(one.f)
    assert source_digest(one.g) == before
    again = load(tmp_path / "two.py", (tmp_path / "one.py").read_text())
    assert source_digest(again.f) == before
    changed = load(tmp_path / "three.py", (tmp_path / "one.py").read_text().replace("LIMIT = 1", "LIMIT = 3"))
    assert source_digest(changed.f) != before


SEVERAL = """
import holdfast
LIMIT = 1

@holdfast.scorer
def first(sample, answer):
    "Not second, nor third."
    return LIMIT

@holdfast.scorer
def second(sample, answer):
    return first(sample, answer)

@holdfast.scorer
def third(sample, answer):
    return 3
"""


@pytest.mark.parametrize(
    ("was", "now", "changed"),
    [
        ("return 3", "return 4", {"third"}),
        ("return LIMIT", "return -LIMIT", {"first", "second"}),
        ("return first(", "return not first(", {"second"}),
        ("LIMIT = 1", "LIMIT = 2", {"first", "second", "third"}),
    ],
)
def test_a_scorer_in_a_file_of_several_changes_with_what_it_uses(
    tmp_path: Path, was: str, now: str, changed: set[str]
) -> None:
    path = tmp_path / "several.py"
    found = []
    for text in (SEVERAL, SEVERAL.replace(was, now)):
        path.write_text(text)
        found.append({each.name: source_digest(each) for each in scorers_in(str(path))})
    assert {name for name in found[0] if found[0][name] != found[1][name]} == changed


def test_wrapping_a_function_does_not_change_its_digest(tmp_path: Path) -> None:
    module = load(
        tmp_path / "one.py", "def f(sample, answer, x=1): return x\nclass C:\n    def __call__(self, s, a): pass\n"
    )
    wanted = source_digest(module.f)
    assert source_digest(scorer(module.f)) == wanted
    assert source_digest(functools.partial(module.f)) == wanted
    assert source_digest(functools.partial(module.f, x=2)) != wanted  # it does something else
    assert source_digest(functools.wraps(module.f)(lambda *all: None)) == wanted
    assert source_digest(module.C().__call__) == wanted


def test_a_notebook_function_is_digested_by_its_own_source() -> None:
    source = "def f(sample, answer):\n    return 1  # comment\n"
    for name in ("<ipython-input-1>", "<ipython-input-2>", "<ipython-input-3>"):
        text = source if name != "<ipython-input-3>" else source.replace("1", "2", 1)
        text = ("other = 3\n" + text) if name == "<ipython-input-2>" else text
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    one = made(source, file="<ipython-input-1>")
    moved = made("other = 3\n" + source, file="<ipython-input-2>")
    changed = made(source.replace("1", "2", 1), file="<ipython-input-3>")
    assert source_digest(one) == source_digest(moved) != source_digest(changed)


def test_a_function_without_any_source_is_digested_by_its_code() -> None:
    source = "def f(sample, answer, x={x}):\n    return [{y} for each in answer if each in {{'a', 'b', 'c'}}]\n"
    one = source_digest(made(source.format(x=1, y=2)))
    assert source_digest(made("\n\n" + source.format(x=1, y=2))) == one
    assert source_digest(made(source.format(x=1, y=3))) != one
    assert source_digest(made(source.format(x=2, y=2))) != one
    assert source_digest(made(source.format(x=1, y=2).replace("each in answer", "each in sample"))) != one


def test_a_digest_of_code_does_not_see_addresses_or_the_order_of_hashing() -> None:
    source = "def f(sample, answer):\n    inner = lambda: answer in {0, 8}\n    return inner\n"
    one, other = made(source), made(source.replace("{0, 8}", "{8, 0}"))
    assert repr(frozenset([0, 8])) != repr(frozenset([8, 0]))
    assert source_digest(one) == source_digest(other)


def test_a_built_in_function_of_python_has_a_digest() -> None:
    assert source_digest(max) == source_digest(max) != source_digest(min)


def test_the_identity_tells_scorers_apart() -> None:
    told = identity(resolve({"numeric": {"tolerance": 0.5}}, "place"))
    assert told["name"] == "numeric"
    assert told["args"] == {"tolerance": 0.5}
    assert told["function"] == "holdfast.score.quantities:numeric"
    assert told["source"] == source_digest(resolve("numeric", "place"))
    assert identity(Scorer("x", exact_match.function)) != identity(Scorer("x", resolve("includes", "place").function))
