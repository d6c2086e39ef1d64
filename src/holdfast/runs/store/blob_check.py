"""Checks that a run has the blobs (file contents) that its rows and steps refer to. Reads only."""

import contextlib
from collections.abc import Iterator

import msgspec

from holdfast.errors import JournalError
from holdfast.journal import Entry, Reader, check_blob_files
from holdfast.plan import check_blobs
from holdfast.records import Step, decode
from holdfast.runs.execution.resume import stored_spec
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import Fold


def check_content(place: RunLocation, fold: Fold) -> Iterator[str]:
    """Yield a sentence for each missing or damaged blob. Data files that cannot be read are reported elsewhere."""
    if fold.story.started is None:
        return
    try:
        spec = stored_spec(fold)
    except msgspec.ValidationError as error:
        yield f"the run's spec is not one that this version of Holdfast knows ({error}); its files were not checked"
        return
    with contextlib.suppress(JournalError, OSError):
        yield from check_blobs(place.folder, spec, fold.story.cells, fold.story.inputs)
        yield from check_blob_files(place.folder, _step_blobs(place))


def _step_blobs(place: RunLocation) -> Iterator[str]:
    """Digests of the sandbox files that steps refer to."""
    for each in Reader(place.journal).read(live=True):
        # the byte test avoids decoding the many steps without files
        if isinstance(each, Entry) and each.line.t == "step" and b'"files":' in bytes(each.line.d):
            files = decode(each.line, Step).files
            yield from (file.blob for file in (files.changed.values() if files else ()) if file.blob)
