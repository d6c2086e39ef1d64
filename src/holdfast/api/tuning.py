"""What may be changed or added while a run works: limits, notes, tags, scores by hand. Each becomes a record."""

from collections.abc import Sequence

from holdfast import __version__
from holdfast.api.control import Wish
from holdfast.api.provenance import code, host
from holdfast.errors import UsageError
from holdfast.records import Draft, draft
from holdfast.records.facts import Note, RunResumed
from holdfast.spec import Spec, change_spec, read_stored_spec, spec_mapping
from holdfast.spec.drift import differences
from holdfast.state import Story

_AT_THE_NEXT_START = (".timeout_seconds",)
"""Throughput fields that open connections keep: accepted and without effect would be a lie."""


def tuned(story: Story, sets: Sequence[str]) -> tuple[Spec, Draft]:
    """The spec with other limits, and the record of it. UsageError for a field that is not only about speed."""
    spec = change_spec(story.spec, sets)
    changes = differences(read_stored_spec(story.spec), spec)
    if not changes:
        raise UsageError("nothing would change")
    for change in changes:
        if change.kind != "throughput":
            raise UsageError(
                f"{change.field} is of the class {change.kind}: only throughput fields of a live run change"
            )
        if change.field.endswith(_AT_THE_NEXT_START) or ".batch" in change.field:
            raise UsageError(f"{change.field} counts from the next start: stop the run and resume it with --set")
    record = RunResumed(tuple(changes), spec_mapping(spec), code(), host(), __version__, (), live=True)
    return spec, draft("run.resumed", record)


def record_of(wish: Wish) -> Draft:
    """A person's note, tags that come and go, or a score that was set by hand."""
    if wish.score is not None:
        return draft("score", wish.score, wish.key)
    return draft("note", Note(wish.text, wish.add, wish.remove))
