"""The digest of a solver's code: scorers in its file may change, nothing else may; code without a file counts too."""

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from holdfast.score import solver_digest
from holdfast.solve.registry import chat

_HEAD = "import holdfast\n\n\nasync def solve(sample, ctx):\n    return await ctx.generate()\n\n\n"
_SCORER = "@holdfast.scorer\ndef close(sample, answer):\n    return answer.text == sample.target\n"
_TAIL = "\n\nLIMIT = 1\n"


@pytest.fixture
def digest(tmp_path: Path) -> Iterator[Any]:
    """The digest of `solve` in a module with this text, as a fresh process would see it."""
    made: list[str] = []

    def of(text: str | bytes) -> str:
        name = f"digested_{len(made)}"
        made.append(name)
        path = tmp_path / f"{name}.py"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return solver_digest(module.solve)

    yield of
    for name in made:
        del sys.modules[name]


def test_a_changed_scorer_is_not_the_solvers_code(digest: Any) -> None:
    one = digest(_HEAD + _SCORER + _TAIL)
    changed = [
        _SCORER.replace("==", "!="),
        _SCORER.replace("    return", "    # why\n    value = 1\n    return"),
        _SCORER.replace("@holdfast.scorer", '@holdfast.scorer(name="near")'),
        _SCORER.replace("@holdfast.scorer", '@holdfast.scorer(\n    name="near",\n)'),
        _SCORER.replace("answer):", "answer, tolerance=0.5):"),
        _SCORER.replace("    return", '    text = """\n\nasync def solve(): ...\n"""\n    return'),
    ]
    for text in changed:
        assert digest(_HEAD + text + _TAIL) == one, text


def test_everything_else_in_the_file_is_the_solvers_code(digest: Any) -> None:
    one = digest(_HEAD + _SCORER + _TAIL)
    changed = [
        _HEAD.replace("generate()", "generate('x')") + _SCORER + _TAIL,
        _HEAD + _SCORER + _TAIL.replace("1", "2"),
        "import os\n" + _HEAD + _SCORER + _TAIL,
        _HEAD + "def helper():\n    return 1\n\n\n" + _SCORER + _TAIL,
    ]
    assert len({one, *map(digest, changed)}) == 5


def test_a_scorer_that_is_added_renamed_or_taken_away_is_not_the_solvers_code(digest: Any) -> None:
    one = digest(_HEAD + _SCORER + _TAIL)
    second = "\n\n" + _SCORER.replace("close", "far")
    assert digest(_HEAD + _SCORER.replace("close", "far") + _TAIL) == one
    assert digest(_HEAD + _SCORER + second + _TAIL) == one
    assert digest(_HEAD + _TAIL) == one


def test_a_scorer_that_the_solver_uses_is_the_solvers_code(digest: Any) -> None:
    """A solver that asks until its own scorer is content asks something else when the scorer changes."""
    uses = _HEAD.replace(
        "    return await ctx.generate()",
        "    answer = await ctx.generate()\n    return answer if close(sample, answer) else await ctx.generate()",
    )
    assert digest(uses + _SCORER + _TAIL) != digest(uses + _SCORER.replace("==", "!=") + _TAIL)


def test_other_line_ends_and_signs_do_not_confuse_where_a_scorer_is(digest: Any) -> None:
    text = "# caf\u00e9 \x0c\x0b\x1c\u2028\n" + _HEAD + _SCORER + _TAIL
    assert digest(text) == digest(text.replace("==", "!="))
    assert digest(text) != digest(text.replace("generate()", "generate('x')"))
    windows = text.replace("\n", "\r\n")
    assert digest(windows) == digest(windows.replace("==", "!="))
    assert digest(windows) != digest(windows.replace("generate()", "generate('x')"))


def test_solvers_that_come_with_holdfast_have_no_digest() -> None:
    assert solver_digest(chat) == ""


def test_what_a_solver_was_given_beforehand_is_its_code(digest: Any) -> None:
    """A partial, a closure and a bound method ask something else when what they hold differs."""

    async def solve(sample: Any, ctx: Any, turns: int = 1) -> str:
        return str(turns)

    def holding(turns: int) -> Any:
        async def held(sample: Any, ctx: Any) -> str:
            return str(turns)

        return held

    assert solver_digest(functools.partial(solve, turns=2)) == solver_digest(functools.partial(solve, turns=2))
    assert solver_digest(functools.partial(solve, turns=2)) != solver_digest(functools.partial(solve, turns=3))
    assert solver_digest(holding(2)) == solver_digest(holding(2))
    assert solver_digest(holding(2)) != solver_digest(holding(3))


def shell(source: str) -> FunctionType:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<stdin>", "exec"), space)
    found = space["solve"]
    assert isinstance(found, FunctionType)
    return found


def test_a_solver_of_a_shell_is_known_by_its_code() -> None:
    source = "async def solve(sample, ctx, turns=1):\n    return (await ctx.generate(f'a {sample.id} {turns}')).text\n"
    one = solver_digest(shell(source))
    assert solver_digest(shell("\n\n# moved\n" + source)) == one
    assert solver_digest(shell(source.replace("'a ", "'b "))) != one
    assert solver_digest(shell(source.replace("turns=1", "turns=2"))) != one
    assert solver_digest(shell(source.replace("sample.id", "sample.input"))) != one
    assert solver_digest(shell(source.replace(").text", ").finish_reason"))) != one
