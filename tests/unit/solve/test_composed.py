"""Solvers made of solvers, each cut off after every record; what they name, and what their code is."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError, SpecError
from holdfast.records.samples import Message, Sample
from holdfast.solve import Context
from holdfast.solve.registry import resolve_solver
from tests.unit.solve import agents_stage
from tests.unit.solve.agents_stage import Model, attempt, call, calls, says, scripted, survives

STAGE = agents_stage.__name__


def echo() -> dict[str, Model]:
    """A model that says how many messages it was sent."""
    return {"": Model(lambda messages, given: says(f"of {len(messages)}")), "other": Model(lambda *_: says("other"))}


def contents(messages: list[Message]) -> list[Any]:
    return [message["content"] for message in messages]


def test_a_chain_gives_each_solver_the_talk_so_far_and_its_prompt() -> None:
    solvers = ["chat", {"critique": {"rounds": 1, "prompt": "Sure?"}}, "chat"]
    text, models = survives("chain", echo, solvers=solvers, prompts=["Shorter than {answer}?"])
    first, second, third, last = models[""].asked
    assert text == "of 5"
    assert contents(first) == ["2 + 3"]
    assert contents(second) == ["2 + 3", "of 1", "Shorter than of 1?"]
    assert contents(third) == ["2 + 3", "of 1", "Shorter than of 1?", "of 3", "Sure?"]
    assert contents(last)[3:] == ["of 5", "Go on from here, and give your answer."]
    assert [each["role"] for each in last] == ["user", "assistant", "user", "assistant", "user"]


def test_a_fork_sends_all_requests_at_once_and_the_model_of_a_role_chooses() -> None:
    def make() -> dict[str, Model]:
        models = echo()
        models["judge"] = Model(lambda messages, given: says("number 2"))
        return models

    text, models = survives("fork", make, solvers=["chat", {"chat": {"role": "other"}}], role="judge")
    assert text == "other"
    assert "Answer 1:\nof 1\n\nAnswer 2:\nother" in str(contents(models["judge"].asked[0])[-1])


def test_a_fork_is_joined_by_majority_or_by_a_function() -> None:
    three = ["chat", {"chat": {"role": "other"}}, {"chain": {"solvers": [{"chat": {"role": "other"}}]}}]
    assert survives("fork", echo, solvers=three, join="majority")[0] == "other"
    assert survives("fork", echo, solvers=three, join="majority", pattern="^o.")[0] == "ot"
    assert survives("fork", echo, solvers=three, join=f"{STAGE}:longest")[0] == "other"
    assert survives("fork", echo, solvers=three, join=f"{__name__}:together")[0] == "of 1 + other + other"


def test_a_function_that_chooses_nothing_is_reported() -> None:
    with pytest.raises(HoldfastError, match="returned 7; of 2 answers it must return the index of one"):
        attempt({"fork": {"solvers": ["chat", "chat"], "join": f"{__name__}:seventh"}}, echo())


async def together(texts: list[str], row: dict[str, Any]) -> str:
    return " + ".join(texts)


async def seventh(texts: list[str], row: dict[str, Any]) -> int:
    return 7


async def mine(sample: Sample, ctx: Context, again: int = 1) -> str:
    return (await ctx.generate()).text


def test_an_agent_in_a_chain_counts_only_what_it_used_itself() -> None:
    """The first answer alone costs fifteen tokens."""
    add = calls(call("add", '{"a": 1, "b": 1}'))
    react = {"react": {"tools": [f"{STAGE}:add"], "tokens": 16}}
    make = lambda: {"": Model(scripted(says("draft"), add, add, says("2")))}  # noqa: E731 - a model for each process
    text, models = survives("chain", make, solvers=["chat", react])
    assert text == "2"
    assert models[""].tools == [[], ["add"], ["add"], []]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"chain": {"solvers": ["chat", "chatt"]}}, "s.chain.solvers[1]: there is no solver 'chatt'"),
        ({"chain": {"solvers": []}}, "s.chain.solvers: expected a list of solvers"),
        ({"chain": {"solvers": ["chat", {"react": {"turns": 0}}]}}, "s.chain.solvers[1].react.turns: expected"),
        ({"chain": {"solvers": ["chat"], "prompts": ["a"]}}, "s.chain.prompts: there are 1, and 0 solvers after"),
        ({"fork": {"solvers": [{"chain": {"solvers": [7]}}]}}, "s.fork.solvers[0].chain.solvers[0]: expected one"),
        ({"fork": {"solvers": ["chat"], "join": "worst"}}, "s.fork.join: expected best, majority or module:function"),
        ({"fork": {"solvers": [{f"{__name__}:mine": {"agan": 2}}]}}, "s.fork.solvers[0]: the solver"),
        ({"fork": {"solvers": [f"{__name__}:contents"]}}, "s.fork.solvers[0]: the solver"),
    ],
)
def test_what_is_wrong_with_a_part_is_reported_with_its_place(entry: Any, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        resolve_solver(entry, "s")
    assert str(raised.value).startswith(said)


PARTS = {
    "one_solver": "async def solve(sample, ctx):\n    return await ctx.generate()\n",
    "one_tool": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "one_check": "def check(text, target, row):\n    return None\n",
    "one_choice": "def choose(texts, row):\n    return 0\n",
}
ENTRY = {
    "chain": {
        "solvers": [
            "chat",
            {"react": {"tools": ["one_tool:add"]}},
            {"feedback": {"check": "one_check:check"}},
            {"fork": {"solvers": ["one_solver:solve", "chat"], "join": "one_choice:choose"}},
        ]
    }
}


@pytest.mark.parametrize("changed", PARTS)
def test_the_code_of_every_part_is_the_code_of_the_whole(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest() -> str:
        for name in PARTS:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return resolve_solver(ENTRY, "s").digest()

    for name, text in PARTS.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = digest()
    assert before == digest()
    (tmp_path / f"{changed}.py").write_text(PARTS[changed] + "# another\n")
    assert digest() != before


def test_what_comes_with_holdfast_has_no_code_of_its_own() -> None:
    assert resolve_solver({"chain": {"solvers": ["chat", {"fork": {"solvers": ["chat"]}}]}}, "s").digest() == ""
