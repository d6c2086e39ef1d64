"""A process of its own in which the installed inspect_evals turns hand-made rows into samples.

Standard input has a list of jobs as JSON, standard output the list of their results. inspect_ai and other packages that
are not installed are replaced by mocks. Only the functions of inspect_evals that read rows are called.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from typing import Any
from unittest.mock import MagicMock

MOCKED = frozenset({"inspect_ai", "datasets", "backoff", "httpx"})


class Mocked(types.ModuleType):
    """A module of which every attribute exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return types.SimpleNamespace if name == "Sample" else MagicMock()


class Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that inspect_evals imports and that are not installed."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        is_mocked = name.partition(".")[0] in MOCKED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_mocked else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = Mocked(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the revisions that a module pins, its repository, and what its function makes of each row."""
    module = importlib.import_module(f"inspect_evals.{job['module']}")
    pinned = {name: value for name, value in vars(module).items() if name.endswith("REVISION")}
    make = getattr(module, job["function"]) if job["function"] else None
    made = [vars(make(row)) for row in job["rows"]] if make else []
    named = ("id", "input", "target", "choices")
    samples = [{name: each[name] for name in named if name in each} for each in made]
    return {"revisions": sorted(pinned.values()), "hub": vars(module).get("DATASET_PATH", ""), "samples": samples}


def main() -> None:
    sys.meta_path.append(Mocks())
    json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout, default=str)


if __name__ == "__main__":
    main()
