"""Functions, tools and servers that a spec names."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.solve.mcp import read_server
from holdfast.solve.registry import find_function


def test_a_module_that_was_edited_and_imported_again_is_found_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for said in ("before", "and now after"):
        (tmp_path / "mended_module.py").write_text(f"def say():\n    return {said!r}\n")
        sys.modules.pop("mended_module", None)
        importlib.invalidate_caches()
        assert find_function("mended_module:say", "here")() == said


@pytest.mark.parametrize("name", ["nothing", ":f", "m:", 7, None, "os:nothing", "no_such_module:f", "os:name"])
def test_what_is_no_function_is_refused_with_its_place(name: Any) -> None:
    with pytest.raises(SpecError, match=r"^here: "):
        find_function(name, "here")


def test_without_the_package_a_server_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    server = read_server({"command": ["serve"]}, "here")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError) as raised:
        server.check("tasks[0].solver")
    assert str(raised.value) == ("tasks[0].solver: MCP servers need one more package: pip install 'holdfast[mcp]'")
