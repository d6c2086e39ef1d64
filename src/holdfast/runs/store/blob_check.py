"""Whether a run holds the content of files that its rows and its steps name."""

import contextlib
from collections.abc import Iterator

import msgspec

from holdfast.errors import JournalError
from holdfast.journal import Entry, Reader
from holdfast.journal.blobs import check_kept
from holdfast.plan import check_blobs
from holdfast.records.decoder import decode
from holdfast.records.facts import Step
from holdfast.runs.execution.resume import stored_spec
from holdfast.runs.store.lookup import RunPlace
from holdfast.state import Fold


def check_content(place: RunPlace, fold: Fold) -> Iterator[str]:
    """What is missing or damaged. Rows that cannot be read are told of with their file."""
    if fold.story.started is None:
        return
    try:
        spec = stored_spec(fold)
    except msgspec.ValidationError as error:
        yield f"the run's spec is not one that this version of Holdfast knows ({error}); its files were not checked"
        return
    with contextlib.suppress(JournalError, OSError):
        yield from check_blobs(place.folder, spec, fold.story.cells, fold.story.inputs)
        yield from check_kept(place.folder, _kept_by_steps(place))


def _kept_by_steps(place: RunPlace) -> Iterator[str]:
    """What the steps of a run name of the content of sandboxes."""
    for each in Reader(place.journal).read(live=True):
        if isinstance(each, Entry) and each.line.t == "step" and b'"files":' in bytes(each.line.d):
            files = decode(each.line, Step).files
            yield from (file.blob for file in (files.changed.values() if files else ()) if file.blob)
