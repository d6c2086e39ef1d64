"""A type with a field that does not say what changing it means cannot exist."""

from typing import Annotated

import msgspec
import pytest

from holdfast.spec import Concurrency, Dataset, Fewshot, Limits, Model, SampleLimits, Spec, Task
from holdfast.spec.types import CLASSES, NESTED, RESULT, THROUGHPUT, classified, field_classes, nested_type


def test_a_type_with_an_unclassified_field_is_refused_when_it_is_made() -> None:
    class Bare(msgspec.Struct):
        seed: Annotated[int, RESULT]
        speed: int = 0

    with pytest.raises(TypeError, match=r"Bare\.speed"):
        classified(Bare)


def test_a_limit_is_no_class() -> None:
    class Limited(msgspec.Struct):
        speed: Annotated[int, msgspec.Meta(ge=1)] = 1

    with pytest.raises(TypeError, match=r"Limited\.speed"):
        classified(Limited)


def test_an_invented_class_is_no_class() -> None:
    class Invented(msgspec.Struct):
        speed: Annotated[int, msgspec.Meta(extra={"class": "harmless"})] = 1

    with pytest.raises(TypeError, match=r"Invented\.speed"):
        classified(Invented)


def test_a_nested_field_must_hold_a_classified_type() -> None:
    class Empty(msgspec.Struct):
        inner: Annotated[dict[str, int], NESTED]

    with pytest.raises(TypeError, match=r"Empty\.inner"):
        classified(Empty)


def test_a_nested_field_must_hold_a_type_whose_own_fields_are_classified() -> None:
    class Inner(msgspec.Struct):
        speed: int = 0

    class Outer(msgspec.Struct):
        inner: Annotated[list[Inner], NESTED]

    with pytest.raises(TypeError, match="speed"):
        classified(Outer)


def test_a_type_whose_fields_all_say_it_is_taken_as_it_is() -> None:
    class Good(msgspec.Struct):
        seed: Annotated[int, RESULT]
        speed: Annotated[int, msgspec.Meta(ge=1), THROUGHPUT] = 1

    assert classified(Good) is Good
    assert dict(field_classes(Good)) == {"seed": "result", "speed": "throughput"}


@pytest.mark.parametrize("kind", [Spec, Task, Model, Dataset, Fewshot, Limits, SampleLimits, Concurrency])
def test_every_field_of_a_spec_has_a_class(kind: type[msgspec.Struct]) -> None:
    found = dict(field_classes(kind))
    assert found
    for name, declared in found.items():
        assert declared in CLASSES or (declared == "nested" and nested_type(kind, name) is not None), name


@pytest.mark.parametrize(
    ("kind", "name", "declared"),
    [
        (Model, "model", "result"),
        (Model, "params", "result"),
        (Model, "request_retries", "result"),
        (Model, "base_url", "place"),
        (Model, "api_key_env", "place"),
        (Model, "max_connections", "throughput"),
        (Task, "prompt", "result"),
        (Task, "repeats", "result"),
        (Task, "sample_retries", "result"),
        (Task, "scorers", "evaluation"),
        (Dataset, "path", "place"),
        (SampleLimits, "seconds", "result"),
        (Spec, "seed", "result"),
        (Spec, "record_data", "result"),
        (Spec, "progress_file", "place"),
        (Concurrency, "samples", "throughput"),
    ],
)
def test_the_classes_are_those_of_the_design(kind: type[msgspec.Struct], name: str, declared: str) -> None:
    assert dict(field_classes(kind))[name] == declared
