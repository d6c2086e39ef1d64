"""Names, words and layout of the source: rules that may only become stricter.

`limits.json` holds today's exceptions. A test fails if the source gets worse, and also if it got better and the file
still allows more: run `python tests/tidy/test_names.py` to write the lower numbers.
"""

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))
LIMITS = Path(__file__).with_name("limits.json")
NOUNS = {"opening", "pacing", "reading", "routing", "scoring", "sealing", "testing", "timing"}
"""Names that end in -ing and are nouns of the field."""
AVOIDED = re.compile(
    r"\b(told|whoever|mend(?:s|ed|ing)?|bears?|bearing|odd|asks|go(?:es|ing|ne)? on|stands|of late|in its place)\b",
    re.I,
)
AVOIDED_MAX = 60
MODULES_MAX = 15


def place(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def avoided_words() -> dict[str, int]:
    """By module. Identifiers count as the words that they are made of."""
    counts = {place(path): len(AVOIDED.findall(path.read_text().replace("_", " "))) for path in MODULES}
    return {name: count for name, count in counts.items() if count}


def large_folders() -> dict[str, int]:
    folders = Counter(place(path.parent) for path in MODULES if path.name != "__init__.py")
    return {name: count for name, count in folders.items() if count > MODULES_MAX}


def shared_class_names() -> dict[str, int]:
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in sorted(names.items()) if count > 1}


def deep_imports() -> dict[str, int]:
    """Imports that reach into another top-level package instead of using its `__init__`, by importing package."""
    counts: Counter[str] = Counter()
    for path in MODULES:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").count(".") >= 2:
                root, package, *_ = (node.module or "").split(".")
                counts[own] += root == "holdfast" and package != own
    return {name: count for name, count in sorted(counts.items()) if count}


FOUND = {
    "avoided words": avoided_words,
    "deep imports": deep_imports,
    "large folders": large_folders,
    "shared class names": shared_class_names,
}


def limits() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(LIMITS.read_text())
    return loaded


def test_nothing_got_worse_and_the_limits_are_those_of_today() -> None:
    assert {kind: find() for kind, find in FOUND.items()} == limits()


def test_few_avoided_words_are_left() -> None:
    assert sum(avoided_words().values()) <= AVOIDED_MAX


def test_modules_are_nouns() -> None:
    names = {path.parent.name if path.name == "__init__.py" else path.stem for path in MODULES}
    assert {name for name in names if name.endswith("ing")} <= NOUNS


def test_a_worse_source_is_found(tmp_path: Path) -> None:
    assert AVOIDED.findall("It is told and goes on; mend_it, whoever".replace("_", " ")) == [
        "told",
        "goes on",
        "mend",
        "whoever",
    ]


if __name__ == "__main__":
    LIMITS.write_text(json.dumps({kind: find() for kind, find in FOUND.items()}, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{sum(avoided_words().values())} avoided words\n")
