"""Functions as a model sees them."""

import enum
import gc
import weakref
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast.errors import SpecError
from holdfast.solve import ToolArgumentsError, tool
from holdfast.solve.tools.tool import as_tool, decoded, result_text


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@tool
def draw(
    where: Point,
    colour: Colour = Colour.RED,
    size: Annotated[float, msgspec.Meta(gt=0, description="in points")] = 1.0,
    labels: list[str] = [],  # noqa: B006 - people write it
    mode: Literal["fill", "line"] = "fill",
) -> str:
    """Draw a point.

    On the canvas.
    """
    return f"{where} {colour} {size} {labels} {mode}"


def test_the_schema_comes_from_the_type_hints() -> None:
    told = draw.schema()
    assert told["type"] == "function"
    function = told["function"]
    assert (function["name"], function["description"]) == ("draw", "Draw a point.\n\nOn the canvas.")
    properties = function["parameters"]["properties"]
    assert list(properties) == ["where", "colour", "size", "labels", "mode"]
    assert function["parameters"]["required"] == ["where"]
    assert properties["size"]["description"] == "in points"
    assert properties["mode"]["enum"] == ["fill", "line"]
    assert function["parameters"]["$defs"]["Point"]["required"] == ["x"]
    assert function["parameters"]["additionalProperties"] is False


def test_arguments_are_read_as_their_types() -> None:
    assert draw.arguments(decoded('{"where": {"x": 1}, "colour": "blue"}')) == {
        "where": Point(1),
        "colour": Colour.BLUE,
        "size": 1.0,
        "labels": [],
        "mode": "fill",
    }


def test_a_default_that_can_be_changed_is_made_anew_each_time() -> None:
    draw.arguments({"where": {"x": 1}})["labels"].append("mine")
    assert draw.arguments({"where": {"x": 1}})["labels"] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}", "missing required field `where`"),
        ('{"where": {"x": "one"}}', "Expected `int`"),
        ('{"where": {"x": 1}, "size": 0}', "> 0"),
        ('{"where": {"x": 1}, "colour": "green"}', "Invalid enum value"),
        ('{"where": {"x": 1}, "when": "now"}', "unknown field `when`"),
    ],
)
def test_what_does_not_fit_is_explained_in_words_for_a_model(given: str, said: str) -> None:
    with pytest.raises(ToolArgumentsError, match="draw") as raised:
        draw.arguments(decoded(given))
    assert said in str(raised.value)


@pytest.mark.parametrize("given", ["{", "[]", "1", [1], "[" * 100_000])
def test_arguments_that_are_no_object_are_explained_in_words_for_a_model(given: Any) -> None:
    with pytest.raises(ToolArgumentsError, match="the arguments are not a JSON object"):
        decoded(given)


def test_no_arguments_at_all_are_an_empty_object() -> None:
    @tool
    def now() -> str:
        """The time."""
        return "late"

    assert now.arguments(decoded("")) == now.arguments(decoded(None)) == {}


@pytest.mark.parametrize(
    "function",
    [lambda *values: None, lambda **values: None, lambda x: None, lambda a, /: None],
    ids=["*values", "**values", "no name", "positional only"],
)
def test_a_function_that_no_model_could_call_is_refused(function: Any) -> None:
    with pytest.raises(SpecError):
        tool(function)


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    def odd(value: complex) -> None: ...

    with pytest.raises(SpecError, match="odd"):
        tool(odd)


def test_a_plain_function_is_a_tool_that_may_be_repeated() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    made = as_tool(add)
    assert (made.name, made.repeatable, made.seconds) == ("add", True, None)


def test_results_are_returned_as_text() -> None:
    assert [result_text(value) for value in ("as it is", {"a": 1}, None, 4)] == ["as it is", '{"a":1}', "null", "4"]


def test_another_function_of_the_same_name_is_a_tool_of_its_own() -> None:
    def made(unit: str) -> Any:
        def convert(amount: int) -> str:
            return f"{amount} {unit}"

        return convert

    metres, feet = made("m"), made("ft")
    assert as_tool(metres).function(1) == "1 m"
    assert as_tool(feet).function(1) == "1 ft"


def test_what_a_plain_function_takes_is_read_once_and_not_kept_longer_than_it() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert as_tool(add).takes is as_tool(add).takes
    gone = weakref.ref(add)
    del add
    gc.collect()
    assert gone() is None
