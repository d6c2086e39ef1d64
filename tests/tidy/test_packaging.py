"""The package stays light: what `pip install holdfast` brings, what extras add, how long `--help` takes to import."""

import importlib.metadata
import re
import subprocess
import sys

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
    "holdfast.report",
    "holdfast.api",
    "holdfast.engine",
}


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
    assert {"jinja", "pandas", "polars", "notebook", "docs", "dev", "mcp", "mirror", "parquet", "plots"} <= set(extras)


def test_the_help_needs_nothing_heavy() -> None:
    program = f"import sys, holdfast.cli.main; print(sorted({HEAVY!r} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert printed.stdout == "[]\n", printed.stderr
