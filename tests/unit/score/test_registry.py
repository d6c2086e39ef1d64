"""The scorers that come with Holdfast, as a whole: their extras, and what makes each of them the same or another."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ScorerError
from holdfast.score import SCORERS, identity, resolve
from holdfast.score.extractors import EXTRACTORS

PROJECT = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())["project"]
NEEDING = sorted(name for name, each in SCORERS.items() if each.packages)
ARGS: dict[str, dict[str, Any]] = {
    "regex": {"pattern": "x"},
    "json_schema": {"schema": {}},
    "bert_score": {"model": "m"},
    "embedding_similarity": {"model": "m"},
}


@pytest.mark.parametrize("name", NEEDING)
def test_the_extra_that_a_scorer_names_installs_what_it_needs(name: str) -> None:
    scorer = SCORERS[name]
    listed = {re.split(r"[<>=\[]", each)[0] for each in PROJECT["optional-dependencies"][scorer.extra]}
    assert {package for package in scorer.packages if package != "tree-sitter"} <= listed  # which codebleu brings


@pytest.mark.parametrize("name", NEEDING)
def test_a_scorer_without_its_package_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.score.resolution.version_of", lambda package: "")
    with pytest.raises(ScorerError, match=rf"here: {name} needs the packages? .*: pip install 'holdfast\[\w+\]'$"):
        resolve({name: ARGS.get(name, {})}, "here")


@pytest.mark.parametrize("name", sorted({*SCORERS, *EXTRACTORS}))
def test_each_says_what_it_does(name: str) -> None:
    for each in (SCORERS.get(name), EXTRACTORS.get(name)):
        assert each is None or (each.function.__doc__ or "").strip()


ENTRIES: list[Any] = [
    "exact_match",
    {"exact_match": {"ignore_case": True}},
    {"exact_match": {"extract": "last_line"}},
    {"exact_match": {"extract": ["last_line", "number"]}},
    {"exact_match": {"extract": ["number", "last_line"]}},
    {"exact_match": {"extract_target": "last_line"}},
    {"exact_match": {"extract": {"after": {"marker": "a"}}}},
    {"exact_match": {"extract": {"after": {"marker": "b"}}}},
    {"all_of": {"of": ["exact_match"]}},
    {"all_of": {"of": ["includes"]}},
    {"all_of": {"of": [{"exact_match": {"ignore_case": True}}]}},
    {"any_of": {"of": ["exact_match"]}},
    {"taxonomy": {"labels": {"a": "includes"}}},
    {"taxonomy": {"labels": {"b": "includes"}}},
]


def test_what_an_entry_says_makes_its_identity_and_nothing_else() -> None:
    once = [identity(resolve(entry, "one place")) for entry in ENTRIES]
    again = [identity(resolve(entry, "another")) for entry in ENTRIES]
    assert once == again
    assert all(one != other for index, one in enumerate(once) for other in once[:index])


def test_a_built_in_scorer_is_recorded_by_name_and_version() -> None:
    found = {"name": "close", "function": "numeric", "version": 1, "args": {"tolerance": 1}}
    assert identity(resolve({"numeric": {"tolerance": 1, "name": "close"}}, "here")) == found


def test_code_of_a_part_and_of_an_extractor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(source: str, entry: Any) -> Any:
        folder = tmp_path / f"v{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        folder.joinpath("own_parts.py").write_text(source)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            patched.delitem(__import__("sys").modules, "own_parts", raising=False)
            return identity(resolve(entry, "here"))

    source = "def part(sample, answer): return True\ndef cut(text): return text\n"
    for entry in ({"all_of": {"of": ["own_parts:part"]}}, {"exact_match": {"extract": "own_parts:cut"}}):
        assert told(source, entry) == told(source, entry)
        assert told(source, entry) != told(source + "# changed\n", entry)


def test_another_version_of_its_package_makes_another_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(resolve("bleu", "here"))
    monkeypatch.setattr(sys.modules["holdfast.score.fingerprints"], "version_of", lambda package: "99")
    assert identity(resolve("bleu", "here")) != before
