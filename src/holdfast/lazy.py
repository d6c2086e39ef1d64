"""Packages whose names are imported on first use, so that a command loads only the modules that it needs."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `modules`: the names that each module provides, separated by spaces."""
    sources = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{sources[name]}"), name)
        setattr(importlib.import_module(package), name, found)  # the next access finds it without this function
        return found

    return __getattr__
