"""What a benchmark says about itself: the fields of its task, and its card.

A benchmark is a task in the words of a spec, so `benchmarks show` can print it and a user can copy it. What a spec
cannot express is its conversion: a function that turns a row of the source into the row that the task uses. The card
says where the data comes from, and which published figures the result can be compared with.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.datasets import Conversion

NOTHING_FLATTERS = {"empty": "wrong", "filtered": "wrong", "truncated": "wrong", "failed": "wrong"}
"""How incomplete answers count in every benchmark."""

JUDGE = "a judge role"
"""What benchmarks need whose scorers ask a judge."""

_MERGED = ("dataset", "fewshot", "counts", "sandbox")
"""Fields of a task that are mappings: a change keeps the other fields inside."""


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A task that ships with Holdfast, or with another package. Change `version` with everything that can change a
    prompt, a score or the order of samples: runs store the version, and keep to it.
    """

    name: str
    """As users type it; variants have a colon: `arc_challenge:likelihood`."""
    version: int = 1
    title: str
    task: Mapping[str, Any]
    """The fields of the task, as in a spec, without `name` and `dataset.convert`."""
    convert: Conversion | None = None
    columns: Sequence[str] = ()
    """Columns that rows of the source must have."""
    samples: int | None = None
    """Number of samples; None if it is not known."""
    metric: str
    """The scorer whose mean is the result; of grades, the share of correct answers."""
    subset: str = ""
    """What `subset` selects: a column of the converted rows, or `config`."""
    source: str
    """Who made the data, and the paper."""
    licence: str
    share: str = "ok"
    """`no-text`: the terms forbid publishing the questions."""
    needs: Sequence[str] = ()
    """What a machine or a spec must have: a sandbox, a role, an extra."""
    comparable: str = ""
    """Published figures or tasks of other tools that ask exactly the same."""
    differs: str = ""
    """How it differs from the usual way."""
    unverified: Sequence[str] = ()
    """Facts that were not checked against the data itself."""
    first_row: str = ""
    """Digest of the first row of the source, from a real download; empty: none was made."""

    @property
    def is_pinned(self) -> bool:
        """Whether the data is one fixed revision: a commit, or the digest of a file."""
        dataset = self.task.get("dataset", {})
        return len(dataset.get("revision", "")) == 40 or "sha256" in dataset


def task_fields(benchmark: Benchmark, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a benchmark as in a spec, with the changes of the user."""
    fields: dict[str, Any] = {"name": benchmark.name, **copy.deepcopy(dict(benchmark.task))}
    fields["benchmark"] = {
        "name": benchmark.name,
        "version": benchmark.version,
        "metric": benchmark.metric,
        "samples": benchmark.samples,
    }
    if benchmark.share != "ok":
        fields["share"] = benchmark.share
    if benchmark.convert is not None:
        fields["dataset"]["convert"] = benchmark.name
    for name, value in changes.items():
        if name in _MERGED and isinstance(value, dict) and isinstance(fields.get(name), dict):
            fields[name] = {**fields[name], **value}
        else:
            fields[name] = value
    return fields
