"""The generated pages are what the source says now, and leave nothing out."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.cli.arguments import in_words
from holdfast.cli.main import app
from holdfast.errors import SpecError
from holdfast.runs.execution.log import EVENTS
from holdfast.score import SCORERS
from holdfast.score.extractors import EXTRACTORS
from holdfast.spec import Model, Spec, Task, build_spec
from holdfast.spec.types import CLASSES, field_classes, nested_type
from tools.reference import (
    commands_page,
    default_fields,
    events_page,
    fields_page,
    main,
    pages,
    scorers_page,
)


def test_the_generated_pages_are_up_to_date() -> None:
    old = [path.name for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    assert old == [], "run `make docs`"


def test_check_finds_a_page_that_is_out_of_date(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.reference.DOCS", tmp_path_factory.mktemp("docs"))
    assert main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_every_field_is_in_a_table_with_its_class() -> None:
    told = dict(_rows(fields_page()))
    assert {path: told.get(path) for path, _ in _fields(Spec, "")} == dict(_fields(Spec, ""))
    assert {kind for _, kind in _fields(Spec, "")} == CLASSES


def test_defaults_may_hold_what_the_page_says() -> None:
    with pytest.raises(SpecError) as refused:
        build_spec({"defaults": {"0": 1}, "tasks": [], "models": []})
    valid = str(refused.value).partition("valid are ")[2].split(", ")
    assert sorted({*default_fields(Task), *default_fields(Model)}) == valid


def test_every_command_and_option_is_on_the_page() -> None:
    page = commands_page()
    named = [each.name or (each.callback.__name__ if each.callback else "") for each in app.registered_commands]
    assert [name for name in named if f"\n## holdfast {name}\n" not in page] == []
    assert "`--set` | FIELD=VALUE; repeatable" in page


def test_every_event_is_on_its_page_once_with_level_and_meaning() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.+) \|$", events_page(), re.MULTILINE)
    assert [(event, (level, meaning)) for event, level, meaning in rows] == list(EVENTS.items())
    assert {level for _, level, _ in rows} <= {"info", "warning", "error"}


def test_every_scorer_and_extractor_is_on_its_page_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| .+ \|", scorers_page(), re.MULTILINE)
    assert rows == [*SCORERS, *EXTRACTORS]


def test_the_pages_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = commands_page()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert commands_page() == before


def test_a_type_without_words_is_refused() -> None:
    with pytest.raises(TypeError, match="no words"):
        in_words(msgspec.inspect.type_info(frozenset[int]))


def _fields(part: type[msgspec.Struct], place: str) -> Iterator[tuple[str, str]]:
    """Every path of a spec that has a class, as the types themselves say."""
    for name, kind in field_classes(part):
        inner = nested_type(part, name)
        if kind != "nested" or inner is None:
            yield f"{place}{name}", str(kind)
            continue
        hint = str(part.__annotations__[name])
        step = "[]" if "list[" in hint else ".NAME" if "dict[" in hint else ""
        yield from _fields(inner, f"{place}{name}{step}.")


def _rows(page: str) -> Iterator[tuple[str, str]]:
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 5 and cells[0].startswith("`"):
            yield from ((path, cells[3]) for path in re.findall(r"`([^`]+)`", cells[0]))
