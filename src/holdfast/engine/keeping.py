"""The content of sandboxes' files in a run's folder: where steps keep it, and where a resume finds it."""

from functools import partial

from holdfast.plan import BlobStore, read_pieces
from holdfast.solve import Blobs


def blobs_of(run: str) -> Blobs:
    """For the one writer of a run. Nothing is looked at before it is asked for."""
    store = BlobStore(run)
    return Blobs(store.keep_pieces, store.sync, partial(read_pieces, run), store.remove_leftovers)
