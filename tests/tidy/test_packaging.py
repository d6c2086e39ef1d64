"""The package stays light: what `pip install holdfast` brings, what extras add, how long `--help` takes to import."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

HEAVY = {
    "IPython",
    "pandas",
    "polars",
    "numpy",
    "matplotlib",
    "pyarrow",
    "scipy",
    "aiohttp",
    "huggingface_hub",
    "ray",
    "holdfast.report",
    "holdfast.api",
    "holdfast.engine",
}


LOCK = Path("requirements-dev.txt")


def brought(name: str, extra: str = "") -> set[str]:
    """A package and everything that it needs here, as pip would resolve it."""
    found: set[str] = set()
    left = [(name, extra)]
    while left:
        package, wanted = left.pop()
        for text in importlib.metadata.requires(package) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
                continue
            needed = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if needed not in found:
                found.add(needed)
                left += [(needed, each) for each in requirement.extras or {""}]
    return found | {name}


def test_installing_it_brings_fewer_than_thirty_packages() -> None:
    packages = brought("holdfast")
    assert len(packages) < 30, sorted(packages)
    assert not {"pandas", "polars", "ipython", "mkdocs", "jinja2", "matplotlib", "pyarrow"} & packages


def test_extras_are_what_the_messages_name() -> None:
    extras = importlib.metadata.metadata("holdfast").get_all("Provides-Extra") or []
    assert {"hub", "jinja", "pandas", "polars", "notebook", "docs", "dev", "mcp", "mirror", "parquet", "plots"} <= set(
        extras
    )


def test_the_help_needs_nothing_heavy() -> None:
    program = f"import sys, holdfast.cli.main; print(sorted({HEAVY!r} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert printed.stdout == "[]\n", printed.stderr


def test_the_lock_file_has_every_dependency_at_a_version_that_the_project_accepts_with_hashes() -> None:
    locked: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").strip()):
        requirement, *hashes = entry.split(" \\\n")
        name, version = requirement.partition(";")[0].strip().split("==")
        locked.setdefault(name.partition("[")[0], set()).add(version)
        assert hashes
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}", each) for each in hashes), entry
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        wanted = Requirement(text)
        versions = locked.get(re.sub(r"[-_.]+", "-", wanted.name).lower(), set())
        assert any(wanted.specifier.contains(version) for version in versions), f"{text}: run make lock"
