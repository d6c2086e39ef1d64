"""YAML of job files: every value is quoted by the YAML library, and texts of several lines are blocks."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Without anchors, which some readers of job files do not know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML falls back to quotes for texts that a block cannot hold.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def write_yaml(comments: list[str], *documents: dict[str, Any]) -> str:
    """Documents below lines of comments. `comments` must be single lines of plain text."""
    head = "".join(f"# {line}\n" for line in comments)
    texts = [yaml.dump(each, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=10_000) for each in documents]
    return head + "---\n".join(texts)
