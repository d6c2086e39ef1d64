"""The solver choice_likelihood: where its choices come from, what it asks, and that it survives a crash between any
two of its steps.
"""

from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.models import Connection, ModelCall, Request, make_provider
from holdfast.records.samples import Answer, Message, Row, Sample
from holdfast.solve import AttemptResources, Context, ModelHandle, Scope, Steps, resolve_solver
from tests.unit.solve.agents_stage import Model, says, survives
from tests.unit.solve.stage import KEY, MemoryJournal, run

PROMPT = "red or blue:"


def mock_reply(messages: list[Message], given: int) -> Answer:
    async def ask() -> Answer:
        return await make_provider(Connection("mock", "m")).generate(Request(messages))

    coroutine = ask()
    try:
        coroutine.send(None)  # the mock does not wait
    except StopIteration as stopped:
        return stopped.value  # type: ignore[no-any-return] # an Answer
    raise AssertionError("the mock waited")


def solve(
    row: Row, arguments: dict[str, Any], prompt: str | list[Message] = PROMPT, reply: Any = mock_reply
) -> tuple[Answer, list[tuple[str, str]]]:
    """The answer, and the contexts and continuations that it asked for."""
    asked: list[tuple[str, str]] = []

    async def send(call: ModelCall) -> Answer:
        asked.append((call.messages[0]["content"], call.messages[1]["content"]))
        return reply(call.messages, 0)  # type: ignore[no-any-return] # an Answer

    async def process() -> Answer:
        sample = Sample("1", None, None, row)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        steps = Steps(Scope(0, KEY, "solve/1"), MemoryJournal(1))
        ctx = Context(sample, messages, steps, "0/key/1", AttemptResources({"": ModelHandle({}, {}, send)}))
        return await resolve_solver({"choice_likelihood": arguments}, "solver").solve(sample, ctx)

    return run(process()), asked


def details(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.message["likelihood"]["choices"]
    return found


def test_the_answer_is_the_label_of_the_best_choice_with_the_sums_of_all() -> None:
    answer, asked = solve({"choices": ["green", "red", "grün wie Gras"]}, {})
    assert asked == [(PROMPT, " green"), (PROMPT, " red"), (PROMPT, " grün wie Gras")]
    assert (answer.text, answer.finish_reason, answer.message["likelihood"]["best"]) == ("B", "stop", 1)
    assert details(answer) == [
        {"text": "green", "label": "A", "logprob": -2.25, "tokens": 1, "characters": 5, "bytes": 5},
        {"text": "red", "label": "B", "logprob": -0.5, "tokens": 1, "characters": 3, "bytes": 3},
        {"text": "grün wie Gras", "label": "C", "logprob": -5.75, "tokens": 3, "characters": 13, "bytes": 14},
    ]


@pytest.mark.parametrize(
    ("row", "arguments", "choices"),
    [
        ({"choices": ["x", "y"]}, {}, [("x", "A"), ("y", "B")]),
        ({"options": ["x", "y"]}, {"choices": "options"}, [("x", "A"), ("y", "B")]),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}}, {}, [("x", "1"), ("y", "2")]),
        ({"mc2": {"choices": ["x", "y"], "labels": [1, 0]}}, {"choices": "mc2"}, [("x", "A"), ("y", "B")]),
        ({"o1": "x", "o2": "y", "o3": None}, {"choices": ["o1", "o2", "o3"]}, [("x", "A"), ("y", "B")]),
        ({}, {"texts": ["no", "yes"], "labels": ["false", "true"]}, [("no", "false"), ("yes", "true")]),
    ],
)
def test_choices_come_from_a_column_or_several_or_the_spec(
    row: Row, arguments: dict[str, Any], choices: list[tuple[str, str]]
) -> None:
    answer, _ = solve(row, arguments)
    assert [(each["text"], each["label"]) for each in details(answer)] == choices


def test_white_space_at_the_end_of_the_prompt_belongs_to_the_continuation() -> None:
    _, asked = solve({"choices": ["x", "y"]}, {"delimiter": ""}, "Answer: ")
    assert asked == [("Answer:", " x"), ("Answer:", " y")]


def test_a_leading_space_is_counted_unless_it_is_the_delimiter() -> None:
    """lm-eval counts it, as in HellaSwag, where a mark in brackets was removed."""
    answer, asked = solve({"choices": [" é", "y"]}, {"delimiter": ""})
    assert asked[0] == (PROMPT, " é")
    assert (details(answer)[0]["characters"], details(answer)[0]["bytes"]) == (1, 2)
    answer, asked = solve({"choices": [" é", "y"]}, {})
    assert asked[0] == (PROMPT, "  é")
    assert (details(answer)[0]["characters"], details(answer)[0]["bytes"]) == (2, 3)


def test_with_a_context_per_choice_the_text_after_the_mark_is_scored() -> None:
    """WinoGrande."""
    prompt = "The cup does not fit in the box because the _ is too large."
    row = {"option1": "cup", "option2": "box"}
    answer, asked = solve(row, {"choices": ["option1", "option2"], "context_per_choice": "_"}, prompt)
    before = "The cup does not fit in the box because the"
    assert asked == [(f"{before} cup", " is too large."), (f"{before} box", " is too large.")]
    assert [each["characters"] for each in details(answer)] == [3, 3]


@pytest.mark.parametrize(
    ("row", "arguments", "prompt"),
    [
        ({"choices": ["green", "red"]}, {}, PROMPT),
        ({"o1": "cup", "o2": "box"}, {"choices": ["o1", "o2"], "context_per_choice": "_"}, "It fits: the _ is small."),
    ],
)
def test_the_preview_is_what_is_asked(row: Row, arguments: dict[str, Any], prompt: str) -> None:
    _, asked = solve(row, arguments, prompt)
    solver = resolve_solver({"choice_likelihood": arguments}, "solver")
    made = solver.continuations(Sample("1", None, None, row), [{"role": "user", "content": prompt}])
    assert [(each.context, each.continuation) for each in made] == asked
    assert resolve_solver("chat", "solver").continuations(Sample("1", None, None, row), []) == []


def test_few_shot_examples_become_one_text() -> None:
    messages = [
        {"role": "system", "content": "Choose."},
        {"role": "user", "content": "sky:"},
        {"role": "assistant", "content": "blue"},
        {"role": "user", "content": "grass:"},
    ]
    _, asked = solve({"choices": ["x", "y"]}, {}, messages)
    assert asked[0] == ("Choose.\n\nsky: blue\n\ngrass:", " x")


@pytest.mark.parametrize(
    ("row", "arguments", "prompt", "said"),
    [
        ({"a": 1}, {}, PROMPT, "the row has no column 'choices' for the choices; it has a"),
        ({"choices": ["x"]}, {}, PROMPT, "at least two texts"),
        ({"choices": ["x", " "]}, {}, PROMPT, "none may be empty"),
        ({"choices": ["x", None]}, {}, PROMPT, "none may be empty"),
        ({"choices": "xy"}, {}, PROMPT, "at least two texts"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "1"]}}, {}, PROMPT, "2 choices need 2 different labels"),
        ({"choices": ["x", "y"]}, {"context_per_choice": "_"}, "no mark", "must contain '_'"),
        ({"choices": ["x", "y"]}, {"context_per_choice": "_"}, "_ two _", "must contain '_'"),
        ({"choices": ["x", "y"]}, {}, [{"role": "user", "content": [{"type": "image_url"}]}], "a prompt of text only"),
    ],
)
def test_rows_and_prompts_that_do_not_fit_are_refused(
    row: Row, arguments: dict[str, Any], prompt: Any, said: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        solve(row, arguments, prompt)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"choices": "options", "texts": ["a", "b"]}, "give `choices` .* or `texts`"),
        ({"texts": ["a"]}, "solver.choice_likelihood.texts: there must be at least two"),
        ({"choices": ["a", ""]}, "solver.choice_likelihood.choices: there must be at least two, and none may be empty"),
        ({"texts": ["a", "b"], "labels": ["1"]}, "one for each of the 2 texts"),
        ({"normalise": "mass"}, "there is no 'normalise'; it takes choices, texts, labels"),
    ],
)
def test_wrong_arguments_are_refused_when_the_spec_is_read(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        resolve_solver({"choice_likelihood": arguments}, "solver")


def test_a_provider_that_answers_with_a_text_is_refused() -> None:
    with pytest.raises(Exception, match="the provider returned no log-probabilities"):
        solve({"choices": ["x", "y"]}, {}, reply=lambda messages, given: says("x"))


def test_after_a_crash_no_choice_is_asked_for_twice() -> None:
    text, models = survives("choice_likelihood", lambda: {"": Model(mock_reply)}, texts=["four", "3 + 2", "nothing"])
    assert text == "B"
    assert len(models[""].asked) == 3
