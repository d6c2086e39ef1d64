"""The digest of a scorer's code: the same while the code is the same, another when it changes."""

import dataclasses
import functools
import gc
import importlib
import importlib.util
import json
import linecache
import re
import sys
import threading
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from holdfast.score import Scorer, exact_match, identity, resolve, scorer, solver_digest, source_digest
from holdfast.score.resolution import scorers_in


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
    assert (told["function"], told["version"]) == ("numeric", 1)
    assert identity(Scorer("x", exact_match.function)) != identity(Scorer("x", resolve("includes", "place").function))


class Near:
    """A scorer that holds how near is near enough."""

    def __init__(self, tolerance: float, words: list[str]) -> None:
        self.tolerance = tolerance
        self.words = words
        self.calls = 0

    def __call__(self, sample: Any, answer: Any) -> bool:
        self.calls += 1
        return True

    def method(self, sample: Any, answer: Any) -> bool:
        return self(sample, answer)


def holding(value: Any) -> Any:
    def held(sample: Any, answer: Any) -> bool:
        return answer.text in value

    return held


def listed(sample: Any, answer: Any, words: list[str]) -> bool:
    return answer.text in words


@dataclasses.dataclass
class Settings:
    limit: int


def knot(text: str) -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = [text]
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (holding(["a"]), holding(["a"]), holding(["b"])),
        (holding({"a", "b"}), holding({"b", "a"}), holding({"a", "c"})),
        (holding({"a": ["x"]}), holding({"a": ["x"]}), holding({"a": ["y"]})),
        (holding(re.compile("a")), holding(re.compile("a")), holding(re.compile("a", re.IGNORECASE))),
        (holding(Settings(1)), holding(Settings(1)), holding(Settings(2))),
        (holding(len), holding(len), holding(Settings)),
        (holding(knot("a")), holding(knot("a")), holding(knot("b"))),
        (
            functools.partial(listed, words=["a"]),
            functools.partial(listed, words=["a"]),
            functools.partial(listed, words=["b"]),
        ),
        (Near(1, ["a"]), Near(1, ["a"]), Near(2, ["a"])),
        (Near(1, ["a"]).method, Near(1, ["a"]).method, Near(1, ["b"]).method),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_function_or_an_object_holds_is_a_part_of_it(one: Any, same: Any, other: Any) -> None:
    assert source_digest(one) == source_digest(same) != source_digest(other)


def test_what_is_counted_and_collected_while_it_works_is_no_part_of_it() -> None:
    collected: list[int] = []
    near, counting = Near(1, []), holding(collected)
    before = source_digest(near), solver_digest(counting)
    near(None, None)
    collected.append(1)
    assert (source_digest(near), solver_digest(counting)) == before


def test_a_function_among_the_arguments_is_recorded_by_what_it_is() -> None:
    taking = scorer(lambda sample, answer, by=None, among=(): True, name="s")
    one, same, other = (
        identity(resolve(taking.using(by=by, among={1}), "here")) for by in (str.lower, str.lower, str.upper)
    )
    assert json.dumps(one) == json.dumps(same) != json.dumps(other)


HELPER = "from lowered_deeply import DEEPER\ndef lower(text): return text.lower()\n"
USING = "import json\nfrom lowered import lower\ndef f(sample, answer): return lower(answer.text)\n"


@pytest.mark.parametrize(("file", "changes"), [("lowered", True), ("lowered_deeply", True), ("beside", False)])
def test_a_scorer_changes_with_the_users_modules_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, changes: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {"lowered": HELPER, "lowered_deeply": "DEEPER = 1\n", "beside": "X = 1\n", "using_lowered": USING}
    for name, text in texts.items():
        tmp_path.joinpath(f"{name}.py").write_text(text)
    found = []
    for addition in ("", "\nMORE = 1\n"):
        tmp_path.joinpath(f"{file}.py").write_text(texts[file] + addition)
        found.append(source_digest(importlib.import_module("using_lowered").f))
        for name in texts:
            monkeypatch.delitem(sys.modules, name, raising=False)
    assert (found[0] != found[1]) is changes


SCRIPT = """
LIMIT = 1
WORDS = ["a"]
UNUSED = 1
class Kind:
    def of(self): return LIMIT
def unused(): return 1
def lower(text): return Kind().of()
def f(sample, answer): return [lower(each) for each in WORDS]
"""


@pytest.mark.parametrize(
    ("was", "now", "scorer_changes", "solver_changes"),
    [
        ("return Kind()", "return not Kind()", True, True),
        ("return LIMIT", "return -LIMIT", True, True),
        ("LIMIT = 1", "LIMIT = 2", True, False),
        ('["a"]', '["b"]', True, False),
        ("UNUSED = 1", "UNUSED = 2", False, False),
        ("def unused(): return 1", "def unused(): return 2", False, False),
    ],
)
def test_a_function_of_a_script_changes_with_what_it_uses_there(
    was: str, now: str, scorer_changes: bool, solver_changes: bool
) -> None:
    one, other = made(SCRIPT), made(SCRIPT.replace(was, now))
    assert (source_digest(one) != source_digest(other)) is scorer_changes
    assert (solver_digest(one) != solver_digest(other)) is solver_changes


def test_scorers_of_several_threads_have_their_fingerprints_at_once() -> None:
    """In Python 3.11 two threads that parse at once break each other, if what is collected meanwhile runs code."""
    found: list[str] = []
    broken: list[BaseException] = []

    @scorer
    def mine(sample: Any, answer: Any) -> bool:
        return bool(answer.text)

    class Litter:
        itself: "Litter"

        def __del__(self) -> None:
            sum(range(200))

    def look() -> None:
        try:
            for _ in range(20):
                litter = Litter()
                litter.itself = litter
                found.extend([source_digest(mine)])
        except SystemError as error:
            broken.append(error)

    before, collected = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*collected)
    assert (broken, len(found), len(set(found))) == ([], 80, 1)
